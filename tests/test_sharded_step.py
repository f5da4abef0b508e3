import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_runs import make_objective, small_config

from electra_jax import guard, step, train_config
from electra_jax.config.errors import UserError
from electra_jax.runtime import sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.step import ShardedStep, TrainState, compiler_options


def program(devices: int = 8, **settings) -> ShardedStep:
    config = train_config.resolve(small_config(data__seq_length=16, model__layers=1, **settings))
    there = sharding.make_mesh(config.mesh, config.batch_size, devices=jax.devices()[:devices])
    return ShardedStep(config, make_objective(config, 60), there)


def random_state(run: ShardedStep):
    """NumPy arrays; a fresh state takes seconds to compile."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), run.state)


def test_moments_are_of_the_type_that_is_asked_for():
    for dtype in ("float32", "bfloat16"):
        state = program(arg="objective=mlm", optim__moments_dtype=dtype).state
        of_moments = {x.dtype for x in jax.tree.leaves(state.opt_state) if x.ndim}
        assert of_moments == {jnp.dtype(dtype)}
        assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}


def test_a_checkpoint_that_eight_devices_share_is_restored_on_any_mesh(tmp_path):
    """To the bit, with every value on another device than before."""

    def on(devices: int, **mesh: int) -> ShardedStep:
        return program(devices, arg="objective=mlm", **{f"mesh__{axis}": size for axis, size in mesh.items()})

    shared = on(8, data=8)
    values = random_state(shared)
    state = sharding.put_tree(values, sharding.shardings(shared.state))
    assert (
        state.params["embeddings"]["word"].addressable_shards[3].data.size * 8
        == values.params["embeddings"]["word"].size
    )
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        for run in (on(1, data=1), on(8, data=2, fsdp=4), on(8, data=2, fsdp=2, tensor=2)):
            restored = checkpoints.restore(1, run.state)
            assert sharding.shardings(restored) == sharding.shardings(run.state)
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), values)


@pytest.mark.slow
def test_an_option_that_the_compiler_does_not_know_is_refused():
    run = program(compiler_options="xla_foo=1")
    with pytest.raises(UserError, match=r"config\.compiler_options=xla_foo=1 is invalid: .*No such compile option"):
        run.compile(run.segments[0])


def test_truth_values_are_written_as_in_xla_flags():
    given = train_config.resolve(small_config(compiler_options="a=true,b=False,c=1"))
    assert compiler_options(given, "TPU v4") == {"a": True, "b": False, "c": "1"}


def test_a_step_that_is_profiled_on_a_gpu_has_no_cuda_graphs():
    """A profile shows such a graph as one event."""
    off = {"xla_gpu_enable_command_buffer": ""}
    profiled = train_config.resolve(small_config(profile__at=3, compiler_options="a=1,b="))
    assert compiler_options(profiled, "NVIDIA H100 80GB HBM3") == {"a": "1", "b": "", **off}
    assert compiler_options(profiled, "TPU v4") == {"a": "1", "b": ""}
    assert compiler_options(train_config.resolve(small_config()), "NVIDIA H100 80GB HBM3") == {}


def test_a_new_stage_begins_without_the_norms_of_the_one_before():
    """Its loss is another one, so that they say nothing of what is usual; parameters and moments are kept."""
    run = program(steps=4, objective__generator_steps=2, phases="1/4 data.seq_length=8; 3/4")
    first, longer, second = run.segments
    state = TrainState(jnp.int32(1), {"kernel": jnp.ones(1)}, {"mu": jnp.ones(1)}, jnp.ones(guard.WINDOW))
    assert run.begin(first, state) is state
    assert run.begin(longer, state) is state  # other lengths, the same loss
    begun = run.begin(second, state)
    np.testing.assert_array_equal(begun.grad_norms, guard.no_norms())
    assert (begun.params, begun.opt_state) == (state.params, state.opt_state)


def test_the_second_stage_begins_with_copies_and_can_be_donated():
    """Copies, since a step donates its state, and a buffer can be donated once only."""
    run = program(arg="objective=two_stage", steps=4, objective__generator_steps=2)
    first, second = run.segments
    assert [(s.start, s.stop, s.length) for s in run.segments] == [(0, 2, 16), (2, 4, 16)]
    state = sharding.put_tree(random_state(run), sharding.shardings(run.state))
    assert run.begin(first, state) is state
    state = run.begin(second, state)
    assert sharding.shardings(state) == sharding.shardings(run.state)
    donated = jax.device_get(jax.jit(lambda state: state, donate_argnums=0)(state))
    for name, source in (("embeddings", "generator_embeddings"), ("encoder", "generator")):
        jax.tree.map(np.testing.assert_array_equal, donated.params[name], donated.params[source])


@pytest.mark.parametrize(("limit", "refused"), [(600, False), (599, True), (None, False)])
def test_a_step_may_need_as_much_memory_as_a_device_has(monkeypatch, limit, refused):
    """Its arguments count, and of its results those that do not take the place of arguments."""
    monkeypatch.setattr(step, "device_memory", lambda: limit and limit * 2**30)
    too_much = pytest.raises(UserError, match=r"a train step needs 600\.0 GiB, and JAX may use 599\.0")
    with too_much if refused else NOTHING:
        step.check_memory(jnp.zeros(3), [of_size(argument=500, output=450, alias=400, temp=40, generated_code=10)], [])


@pytest.mark.parametrize(("limit", "refused"), [(600, False), (599, True)])
def test_an_evaluation_needs_the_state_too(monkeypatch, limit, refused):
    monkeypatch.setattr(step, "device_memory", lambda: limit * 2**30)
    state = SimpleNamespace(addressable_shards=[SimpleNamespace(data=SimpleNamespace(nbytes=500 * 2**30))])
    with pytest.raises(UserError, match=r"an evaluation needs 600\.0 GiB.*; use a smaller") if refused else NOTHING:
        step.check_memory(state, [], [of_size(argument=200, output=1, alias=0, temp=98, generated_code=1)])


def of_size(**gib):
    size = SimpleNamespace(**{f"{name}_size_in_bytes": value * 2**30 for name, value in gib.items()})
    return SimpleNamespace(memory_analysis=lambda: size)


NOTHING = contextlib.nullcontext()
