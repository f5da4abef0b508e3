import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from runs import small_config

from electra_jax import metrics, optim, sharding, step
from electra_jax.modeling import config as model_config
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import electra

LENGTH, BATCH, VOCABULARY = 16, 8, 60

# The loss of the first two steps of the fixed run below. If a change is meant to alter the computation, run
#   python -m pytest tests/test_step.py -k golden
# and copy the numbers it prints; if it is not meant to, it is a bug.
GOLDEN = {"bert": (16.908985, 16.760071), "modernbert": (15.805820, 16.659746)}


def make(encoder: str, devices: int, **overrides):
    settings = {"model__encoder": encoder, "data__seq_length": LENGTH, "model__unroll": False, **overrides}
    config = small_config(**settings)
    model = Electra(model_config.from_settings(config.model, VOCABULARY))
    optimizer, schedule = optim.make(config.optim, config.steps)
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices]
    )
    everywhere, by_example = sharding.replicated(mesh), sharding.by_example(mesh)
    state = jax.jit(lambda: step.init_state(model, optimizer, 0, LENGTH), out_shardings=everywhere)()
    train_step = jax.jit(
        step.make_train_step(model, optimizer, schedule, config.objective, seed=0),
        in_shardings=(everywhere, by_example),
        out_shardings=(everywhere, everywhere),
    )
    return state, train_step, lambda batch: sharding.put(batch, mesh)


def batch(number: int) -> dict[str, np.ndarray]:
    """Text in which a token tells the next one, two sequences in each row, the last positions padding."""
    rng = np.random.default_rng(number)
    start = rng.integers(0, 50, (BATCH, 1))
    ids = (5 + (start + 3 * np.arange(LENGTH)) % 50).astype(np.int32)
    ids[:, 0], ids[:, 9], ids[:, 10], ids[:, 13] = 2, 3, 2, 3
    ids[:, 14:] = 0
    sequences = np.repeat([1, 2, 0], [10, 4, 2]).astype(np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "sequence_ids": np.broadcast_to(sequences, ids.shape).copy(),
    }


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_golden_losses_of_two_steps(encoder):
    state, train_step, put = make(encoder, devices=1)
    losses = []
    for number in range(2):
        state, measured = train_step(state, put(batch(number)))
        losses.append(metrics.numbers(jax.device_get(measured))["loss"])
    assert losses == pytest.approx(GOLDEN[encoder], rel=1e-4), f"{encoder}: {losses}"


@pytest.mark.parametrize("encoder", ["bert", "modernbert"])
def test_one_device_equals_eight(encoder):
    results = []
    for devices in (1, 8):
        state, train_step, put = make(encoder, devices)
        for number in range(4):
            state, measured = train_step(state, put(batch(number)))
        assert measured["loss"].sum.sharding.num_devices == devices
        results.append(jax.device_get((state.params, measured)))
    (one, one_measured), (eight, eight_measured) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), one, eight)
    for name, number in metrics.numbers(one_measured).items():
        assert metrics.numbers(eight_measured)[name] == pytest.approx(number, rel=1e-4), name


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
        ("model.init_stddev", 0.03),
        ("model.dropout", 0.5),
        ("model.dtype", "bfloat16"),
        ("model.encoder", "bert"),
        ("model.modernbert.local_window", 2),
        ("model.modernbert.global_every", 1),
        ("objective.mask_prob", 0.4),
        ("objective.replace_prob", 0.0),
        ("objective.temperature", 3.0),
        ("objective.disallow_correct", True),
        ("objective.generator_weight", 2.0),
        ("objective.discriminator_weight", 2.0),
    ],
)
def test_every_setting_of_model_and_objective_changes_the_loss(name, value):
    assert loss() != loss((name, value))


@functools.cache
def loss(*overrides):
    config = small_config(model__unroll=False, model__modernbert__global_every=2, objective__replace_prob=0.5)
    config.update_from_flattened_dict(dict(overrides))
    model = Electra(model_config.from_settings(config.model, VOCABULARY))

    @jax.jit
    def compute(key):
        params = model.init(key, *[jnp.zeros((1, LENGTH), jnp.int32)] * 3)["params"]
        return electra.loss(model, params, jax.tree.map(jnp.asarray, batch(0)), key, config.objective, train=True)[0]

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
        optimizer, _ = optim.make(settings, steps=10)
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


def compiled_text(train_step, state, put):
    return train_step.lower(state, put(batch(0))).compile().as_text()


def test_scanned_and_unrolled_layers_learn_the_same():
    losses = []
    for unroll in (False, True):
        state, train_step, put = make("bert", 1, model__unroll=unroll)
        for number in range(3):
            state, measured = train_step(state, put(batch(number)))
        losses.append(float(measured["loss"].sum))
        loops = re.findall(r'while\(.*op_name="[^"]*/(discriminator|generator)/', compiled_text(train_step, state, put))
        assert bool(loops) is not unroll
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
