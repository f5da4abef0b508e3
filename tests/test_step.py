import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cli_runs import make_objective, small_config
from ml_collections import ConfigDict

from electra_jax import metrics, optim, sharded_step, step
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import registry
from electra_jax.runtime import sharding

LENGTH, BATCH, VOCABULARY = 16, 8, 60

# The loss of the first two steps of the fixed run below. If a change is meant to alter the computation, run
#   python -m pytest tests/test_step.py -k golden
# and copy the numbers it prints; if it is not meant to, it is a bug.
GOLDEN = {"bert": (17.561188, 17.702494), "modernbert": (17.822548, 17.538925)}


def make(encoder: str, devices: int, arg: str = "", **overrides):
    settings = {"model__encoder": encoder, "data__seq_length": LENGTH, "model__unroll": False, **overrides}
    config = small_config(arg=arg, **settings)
    run = sharded_step.ShardedStep(config, make_objective(config, VOCABULARY), mesh_of(devices, config))
    compiled = run.lower(run.segments[-1]).compile()

    def train_step(state, batch):
        return compiled(jax.tree.map(jnp.copy, state), batch)  # a step takes the state that it is given

    train_step.as_text = compiled.as_text
    return run.fresh_state(), train_step, functools.partial(sharding.put_batch, mesh=run.mesh, batch_size=BATCH)


def mesh_of(devices: int, config: ConfigDict) -> jax.sharding.Mesh:
    return sharding.make_mesh(config.mesh, BATCH, config.grad_accum_steps, jax.devices()[:devices])


def batch(number: int) -> Batch:
    """Text in which a token tells the next one, two sequences in each row, the last positions padding."""
    rng = np.random.default_rng(number)
    start = rng.integers(0, 50, (BATCH, 1))
    ids = (5 + (start + 3 * np.arange(LENGTH)) % 50).astype(np.int32)
    ids[:, 0], ids[:, 9], ids[:, 10], ids[:, 13] = 2, 3, 2, 3
    ids[:, 14:] = 0
    sequences = np.repeat([1, 2, 0], [10, 4, 2]).astype(np.int32)
    return Batch(ids, np.zeros_like(ids), np.broadcast_to(sequences, ids.shape).copy())


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_golden_losses_of_two_steps(encoder):
    state, train_step, put = make(encoder, devices=1)
    losses = []
    for number in range(2):
        state, measured = train_step(state, put(batch(number)))
        losses.append(metrics.numbers(jax.device_get(measured))["loss"])
    assert losses == pytest.approx(GOLDEN[encoder], rel=1e-4), f"{encoder}: {losses}"


SYSTEMS = [name for name in registry.SYSTEMS if name != "frozen_generator"]  # as electra, and it needs another run


@pytest.mark.parametrize(
    "system", ["electra", *(pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS if name != "electra")]
)
def test_eight_devices_or_four_parts_have_the_gradient_of_the_whole_batch(system):
    """Rows of different lengths, so that means of means would differ from the mean over the whole batch."""
    whole, *others = (gradient(system, *split) for split in ((1, 1), (8, 1), (1, 4)))
    for grads, loss, numbers in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), whole[0], grads)
        assert loss == pytest.approx(whole[1], rel=1e-6)
        assert numbers == pytest.approx(whole[2], rel=1e-6, nan_ok=True)


def gradient(system: str, devices: int, grad_accum_steps: int):
    config = small_config(arg=f"objective={system}", model__encoder="bert", data__seq_length=LENGTH)
    objective = make_objective(config, VOCABULARY)
    mesh = mesh_of(devices, config)
    everywhere, by_example = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    optimizer, _ = optim.make(config.optim, config.steps)
    params = jax.jit(lambda: step.init_state(objective, optimizer, 0, LENGTH).params, out_shardings=everywhere)()
    uneven = batch(0)
    for row, used in enumerate((6, 9, 12, 14, 14, 14, 14, 14)):
        uneven.input_ids[row, used:] = uneven.sequence_ids[row, used:] = 0
    compute = jax.jit(
        lambda params, batch: step.gradient(
            objective,
            objective.stages[-1],
            params,
            batch,
            jnp.int32(config.steps - 1),
            jax.random.key(0),
            grad_accum_steps,
        ),
        in_shardings=(everywhere, by_example),
    )
    grads, loss, measured = jax.device_get(compute(params, sharding.put_batch(uneven, mesh, BATCH)))
    return grads, float(loss), metrics.numbers(measured)


MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "all": (2, 2, 2)}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("system", "encoder"), [*itertools.product(("electra", "mlm"), ("bert", "modernbert"))])
@pytest.mark.slow
def test_ten_steps_are_the_same_on_every_mesh(system, encoder, mesh):
    """Losses to 1e-5 of themselves, parameters to 2e-5, with accumulation and without; float32."""
    losses, params = ten_steps(system, encoder, (1, 1, 1), 1)
    for grad_accum_steps in (1, 2):
        there_losses, there = ten_steps(system, encoder, MESHES[mesh], grad_accum_steps)
        np.testing.assert_allclose(there_losses, losses, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), params, there)


@functools.cache
def ten_steps(system: str, encoder: str, mesh: tuple[int, int, int], grad_accum_steps: int):
    config = small_config(
        arg=f"objective={system}",
        model__encoder=encoder,
        data__seq_length=LENGTH,
        batch_size=16,
        grad_accum_steps=grad_accum_steps,
    )
    config.mesh.update(dict(zip(sharding.AXES, mesh, strict=True)))
    there = sharding.make_mesh(config.mesh, 16, grad_accum_steps, jax.devices()[: math.prod(mesh)])
    run = sharded_step.ShardedStep(config, make_objective(config, VOCABULARY), there)
    compiled, state, losses = run.lower(run.segments[-1]).compile(), run.fresh_state(), []
    for number in range(10):
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), batch(2 * number), batch(2 * number + 1))
        state, measured = compiled(state, sharding.put_batch(rows, there, 16))
        losses.append(metrics.numbers(jax.device_get(measured))["loss"])
    return losses, jax.device_get(state.params)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "remat"), [*itertools.product(("bert", "modernbert"), ("dots", "full"))])
def test_what_is_computed_again_is_the_same(encoder, remat):
    """And it is computed again: more products, in a body that is scanned and in one that is written out."""
    for unroll in (False, True):
        ends = []
        for policy in ("none", remat):
            state, train_step, put = make(encoder, 1, model__remat=policy, model__unroll=unroll, model__dropout=0.1)
            products = len(re.findall(r" dot\(", train_step.as_text()))
            for number in range(3):
                state, measured = train_step(state, put(batch(number)))
            ends.append((products, float(measured["loss"].sum)))
        (without, loss), (again, there) = ends
        assert again > without
        assert there == pytest.approx(loss, rel=1e-6)


@pytest.mark.slow
def test_parts_of_a_batch_have_dropout_of_their_own():
    losses = []
    for grad_accum_steps in (1, 4):
        state, train_step, put = make("bert", 1, model__dropout=0.3, grad_accum_steps=grad_accum_steps)
        losses.append(float(train_step(state, put(batch(0)))[1]["loss"].sum))
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_the_step_number_alone_decides_the_random_numbers():
    state, train_step, put = make("modernbert", devices=1, optim__learning_rate=1e-30)
    later = state.replace(step=state.step + 1)
    losses = [float(train_step(s, put(batch(0)))[1]["loss"].sum) for s in (state, state, later)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_learning_rate_is_zero_at_step_zero_so_the_first_step_moves_nothing():
    state, train_step, put = make("bert", devices=1)
    after, measured = train_step(state, put(batch(0)))
    assert metrics.numbers(jax.device_get(measured))["learning_rate"] == 0.0
    jax.tree.map(np.testing.assert_array_equal, state.params, after.params)
    assert int(after.step) == 1


def test_it_learns_a_text_that_it_sees_again_and_again():
    state, train_step, put = make("modernbert", 1, steps=200, optim__warmup_steps=10, optim__learning_rate=1e-2)
    losses = []
    for number in range(200):
        state, measured = train_step(state, put(batch(number % 2)))
        losses.append(metrics.numbers(jax.device_get(measured)))
    for name in ("mlm_loss", "disc_loss"):
        first, last = (np.mean([numbers[name] for numbers in part]) for part in (losses[:10], losses[-10:]))
        assert last < 0.75 * first, f"{name}: {first} -> {last}"


def test_state_keeps_float32_whatever_the_computation_runs_in():
    state, train_step, put = make("bert", devices=1, model__dtype="bfloat16")
    after, measured = train_step(state, put(batch(0)))
    assert {x.dtype for x in jax.tree.leaves(after.params)} == {jnp.dtype(jnp.float32)}
    assert measured["loss"].sum.dtype == jnp.float32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.layers", 3),
        ("model.width", 32),
        ("model.ffn", 32),
        ("model.heads", 1),
        ("model.embedding_size", 16),
        ("model.generator_width", 1.0),
        ("model.generator_layers", 1.0),
        ("model.tying", "none"),
        ("model.init_stddev", 0.03),
        ("model.dropout", 0.5),
        ("model.dtype", "bfloat16"),
        ("model.encoder", "bert"),
        ("model.modernbert.local_window", 2),
        ("model.modernbert.global_every", 1),
    ],
)
def test_every_setting_of_the_model_changes_the_loss(name, value):
    """Those of the objectives: tests/objectives/test_registry.py."""
    assert loss() != loss((name, value))


@functools.cache
def loss(*overrides):
    config = small_config(model__unroll=False, model__modernbert__global_every=2)
    config.update_from_flattened_dict(dict(overrides))
    objective = make_objective(config, VOCABULARY)
    optimizer, _ = optim.make(config.optim, config.steps)

    @jax.jit
    def compute(key):
        state = step.init_state(objective, optimizer, 0, LENGTH)
        return step.gradient(
            objective, objective.stages[-1], state.params, jax.tree.map(jnp.asarray, batch(0)), state.step, key
        )[1]

    return float(compute(jax.random.key(0)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 1e-4),
        ("warmup_steps", 1),
        ("weight_decay", 0.5),
        ("b1", 0.5),
        ("b2", 0.5),
        ("eps", 1e-2),
        ("clip_norm", 1e-4),
    ],
)
def test_every_setting_of_the_optimizer_changes_the_parameters(name, value):
    def after_three_steps(settings):
        optimizer, _ = optim.make(settings, 10)
        params = {"kernel": jnp.asarray([1.0, -2.0, 3.0])}
        state = optimizer.init(params)
        for number in range(3):
            grads = {"kernel": jnp.asarray([0.3, 0.2, -0.1 * number])}
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params["kernel"]

    config = small_config(optim__clip_norm=0.3)
    changed = small_config(**{"optim__clip_norm": 0.3, f"optim__{name}": value})
    assert not np.array_equal(after_three_steps(config.optim), after_three_steps(changed.optim))


def test_scanned_and_unrolled_layers_learn_the_same():
    losses = []
    for unroll in (False, True):
        state, train_step, put = make("bert", 1, model__unroll=unroll)
        for number in range(3):
            state, measured = train_step(state, put(batch(number)))
        losses.append(float(measured["loss"].sum))
        loops = re.findall(r'while\(.*op_name="[^"]*/(encoder|generator)/', train_step.as_text())
        assert bool(loops) is not unroll
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
