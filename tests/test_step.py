import functools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from cli_runs import make_objective, small_config
from ml_collections import ConfigDict

from electra_jax import metrics, step
from electra_jax.modeling.batch import Batch
from electra_jax.objectives.masking import Counts
from electra_jax.objectives.spec import Inputs
from electra_jax.runtime import sharding
from electra_jax.train_config import resolve

LENGTH, BATCH, VOCABULARY = 16, 8, 60

# The loss of the first two steps of the fixed run below. If a change is meant to alter the computation, run
#   python -m pytest tests/test_step.py -k golden
# and copy the numbers it prints; if it is not meant to, it is a bug.
GOLDEN = {"bert": (17.561188, 17.702494), "modernbert": (17.822548, 17.538925), "deberta": (17.904600, 17.876213)}


@functools.cache
def program(encoder: str, devices: int, **overrides):
    """A run, and its step, compiled."""
    config = resolve(small_config(**{"model__encoder": encoder, "data__seq_length": LENGTH, **overrides}))
    run = step.ShardedStep(config, make_objective(config, VOCABULARY), mesh_of(devices, config))
    return run, run.trace(run.segments[-1]).lower().compile()


@functools.cache  # it is never changed
def fresh_state(encoder: str, **overrides):
    return jax.device_get(program(encoder, 1, **overrides)[0].fresh_state())


def make(encoder: str, devices: int = 1, grad_accum_steps: int = 1, **overrides):
    """The state that one device begins with, a step, and what puts a batch on the devices."""
    run, compiled = program(encoder, devices, grad_accum_steps=grad_accum_steps, **overrides)
    places = sharding.shardings(run.state)

    def train_step(state, batch):
        return compiled(sharding.put_tree(jax.device_get(state), places), batch)  # it takes the state that it is given

    train_step.as_text = compiled.as_text
    put = functools.partial(sharding.put_batch, mesh=run.mesh, batch_size=BATCH)
    return fresh_state(encoder, grad_accum_steps=1, **overrides), train_step, put


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


def uneven_batch(number: int) -> Batch:
    """Rows of different lengths, so that means of means would differ from the mean over the whole batch."""
    uneven = batch(number)
    for row, used in enumerate((6, 9, 12, 14, 14, 14, 14, 14)):
        uneven.input_ids[row, used:] = uneven.sequence_ids[row, used:] = 0
    return uneven


@pytest.mark.parametrize("encoder", ["bert", *(pytest.param(e, marks=pytest.mark.slow) for e in GOLDEN if e != "bert")])
def test_golden_losses_of_two_steps(encoder):
    state, train_step, put = make(encoder)
    losses = []
    for number in range(2):
        state, measured = train_step(state, put(batch(number)))
        losses.append(metrics.numbers(jax.device_get(measured))["loss"])
    assert losses == pytest.approx(GOLDEN[encoder], rel=1e-4), f"{encoder}: {losses}"


# What the others compute is of these kinds, or of `electra`'s: below.
@pytest.mark.slow
@pytest.mark.parametrize("system", ["all_tokens_mlm", "adversarial", "electric"])
def test_four_parts_on_two_devices_have_the_gradient_of_the_whole_batch(system):
    (expected, whole_loss, whole_numbers), (grads, loss, numbers) = (gradient(system, *s) for s in ((1, 1), (2, 4)))
    assert_near(grads, expected, 1e-4, 3e-5)
    assert loss == pytest.approx(whole_loss, rel=5e-6)
    assert numbers == pytest.approx(whole_numbers, rel=5e-6, nan_ok=True)


def gradient(system: str, devices: int, grad_accum_steps: int):
    config = small_config(arg=f"objective={system}", model__encoder="bert", data__seq_length=LENGTH)
    objective = make_objective(config, VOCABULARY)
    mesh = mesh_of(devices, config)
    everywhere, by_example = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    params = jax.device_put(tiny_models.parameters(objective), everywhere)
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
    grads, loss, measured = jax.device_get(compute(params, sharding.put_batch(uneven_batch(0), mesh, BATCH)))
    return grads, float(loss), metrics.numbers(measured)


@pytest.mark.parametrize(("encoder", "parts"), [("bert", 1), ("bert", 2), ("deberta", 2)])
@pytest.mark.slow
def test_ten_steps_are_the_same_on_a_mesh_of_three_axes(encoder, parts):
    """Losses to 1e-5 of themselves, parameters to 2e-5; float32."""
    (losses, params), (there_losses, there) = ten_steps(encoder, (1, 1, 1), 1), ten_steps(encoder, (2, 2, 2), parts)
    np.testing.assert_allclose(there_losses, losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), params, there)


@functools.cache
def ten_steps(encoder: str, mesh: tuple[int, int, int], grad_accum_steps: int):
    config = small_config(
        model__encoder=encoder,
        data__seq_length=LENGTH,
        batch_size=16,
        grad_accum_steps=grad_accum_steps,
    )
    config.mesh.update(dict(zip(sharding.AXES, mesh, strict=True)))
    there = sharding.make_mesh(config.mesh, 16, grad_accum_steps, jax.devices()[: math.prod(mesh)])
    run = step.ShardedStep(resolve(config), make_objective(config, VOCABULARY), there)
    compiled, state, losses = run.trace(run.segments[-1]).lower().compile(), run.fresh_state(), []
    for number in range(10):
        rows = jax.tree.map(lambda *parts: np.concatenate(parts), batch(2 * number), batch(2 * number + 1))
        state, measured = compiled(state, sharding.put_batch(rows, there, 16))
        losses.append(metrics.numbers(jax.device_get(measured))["loss"])
    return losses, jax.device_get(state.params)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "remat", "unroll"), [("bert", "dots", "false"), ("modernbert", "full", "true")])
def test_what_is_computed_again_is_the_same(encoder, remat, unroll):
    """And it is computed again: more products, in a body that is scanned and in one that is written out."""
    ends = []
    for policy in ("none", remat):
        state, train_step, put = make(encoder, model__remat=policy, model__unroll=unroll, model__dropout=0.1)
        products = len(re.findall(r" dot\(", train_step.as_text()))
        for number in range(3):
            state, measured = train_step(state, put(batch(number)))
        ends.append((products, float(measured["loss"].sum)))
    (without, loss), (again, there) = ends
    assert again > without
    assert there == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("muon", marks=pytest.mark.slow)])
def test_two_devices_that_share_the_update_compute_in_four_parts_what_one_does(optimizer):
    """The moments after the first step are those of the gradient."""
    ends = []
    for devices, parts in ((1, 1), (2, 4)):
        state, train_step, put = make(
            "bert", devices, parts, **({} if optimizer == "adam" else {"optim__name": "muon"})
        )
        states, numbers = [], []
        for number in range(3):
            state, measured = train_step(state, put(uneven_batch(number)))
            states.append(state)
            numbers.append(metrics.numbers(jax.device_get(measured)))
        ends.append((states, numbers))
    (one, alone), (two, shared) = ends
    assert shared[0] == pytest.approx(alone[0], rel=5e-6, nan_ok=True)
    assert shared[2] == pytest.approx(alone[2], rel=1e-5, abs=1e-7)
    largest = max(jax.tree.leaves(two[2].opt_state), key=lambda moment: moment.size)
    assert not largest.sharding.is_fully_replicated
    assert_near(two[0].opt_state, one[0].opt_state, 1e-4, 3e-5)
    assert_near((two[2].params, two[2].opt_state), (one[2].params, one[2].opt_state), 1e-3, 1e-4)


def assert_near(found, expected, relative: float, of_largest: float) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=relative, atol=of_largest * np.abs(b).max()),
        *jax.device_get((found, expected)),
    )


def test_parts_of_a_batch_have_dropout_of_their_own():
    """The loss of a part is a number u drawn from its key.

    (sum of u)^2 is below 4 x the sum of u^2 unless all are equal.
    """

    def loss(stage, params, x):
        u = jax.random.uniform(x.key)
        return u * params, {"squares": metrics.total(u**2)}

    inputs = Inputs(jnp.zeros((BATCH, 2)), Counts(*jnp.ones(3)), jnp.int32(0))
    drawn = types.SimpleNamespace(draw=lambda key, batch, step: inputs, loss=loss)
    grads, total, measured = step.gradient(drawn, None, jnp.float32(1), None, jnp.int32(0), jax.random.key(0), 4)
    assert float(grads) == float(total)
    assert 1e-3 < float(total) ** 2 < 3.99 * measured["squares"].number()


def test_parts_of_a_batch_take_examples_from_every_device():
    """No example moves to another device: the only collectives are sums."""

    def draw(key, batch, step):
        return Inputs(batch, Counts(*jnp.ones(3)), step)

    def loss(stage, params, x):
        return jnp.sum(x.masked * params), {}

    drawn = types.SimpleNamespace(draw=draw, loss=loss)
    mesh = mesh_of(8, small_config())
    compute = jax.jit(
        lambda batch: step.gradient(drawn, None, jnp.float32(1), batch, jnp.int32(0), jax.random.key(0), 2)[:2],
        in_shardings=sharding.batch_sharding(mesh),
    )
    rows = np.arange(32, dtype=np.float32).reshape(16, 2)
    program = compute.lower(rows).compile()
    assert program(rows)[0] == rows.sum()
    assert set(re.findall(r"all-\w+|collective-permute", program.as_text())) == {"all-reduce"}


def test_the_step_number_alone_decides_the_random_numbers():
    state, train_step, put = make("bert")
    later = state.replace(step=state.step + 1)
    losses = [float(train_step(s, put(batch(0)))[1]["loss"].sum) for s in (state, state, later)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_learning_rate_is_zero_at_step_zero_so_the_first_step_moves_nothing():
    state, train_step, put = make("bert")
    after, measured = train_step(state, put(batch(0)))
    numbers = metrics.numbers(jax.device_get(measured))
    assert numbers["learning_rate"] == 0.0
    assert numbers["grad_norm"] > 0.0  # of the gradient, not of the update
    jax.tree.map(np.testing.assert_array_equal, state.params, after.params)
    assert int(after.step) == 1


@pytest.mark.slow
def test_it_learns_a_text_that_it_sees_again_and_again():
    state, train_step, put = make("modernbert", steps=100, optim__warmup_steps=10, optim__learning_rate=1e-2)
    losses = []
    for number in range(100):
        state, measured = train_step(state, put(batch(number % 2)))
        losses.append(metrics.numbers(jax.device_get(measured)))
    for name in ("mlm_loss", "disc_loss"):
        first, last = (np.mean([numbers[name] for numbers in part]) for part in (losses[:10], losses[-10:]))
        assert last < 0.75 * first, f"{name}: {first} -> {last}"


@pytest.mark.slow
def test_scanned_and_unrolled_layers_learn_the_same():
    losses = []
    for unroll in (False, True):
        state, train_step, put = make("bert", **({"model__unroll": "true"} if unroll else {}))
        for number in range(3):
            state, measured = train_step(state, put(batch(number)))
        losses.append(float(measured["loss"].sum))
        loops = re.findall(r'while\(.*op_name="[^"]*/(encoder|generator)/', train_step.as_text())
        assert bool(loops) is not unroll
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
