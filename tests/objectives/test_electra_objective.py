"""ELECTRA's loss: its parts, and the positions that count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import systems
from cli_runs import make_objective

from electra_jax import metrics
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra, masking
from electra_jax.objectives.spec import Inputs

LOWEST = np.finfo(np.float32).min
REAL, MASKED = 52, 20  # positions of `systems.batch`
both = pytest.mark.parametrize("name", ["electra", "electra_15"])


@functools.cache
def computed(name: str):
    """The masked text, the metrics of a step, and the discriminator's scores; half of the fakes are the originals."""
    o, ids = systems.objective(name), systems.batch().input_ids
    is_9 = (ids > 4) & (np.arange(systems.LENGTH)[None] % 2 == 0)
    x = systems.inputs(o, text=systems.batch()._replace(input_ids=jnp.where(is_9, 9, ids)))
    params = systems.with_generator_that_says(9, systems.parameters(name))

    @jax.jit
    def run(params, x):
        return o.loss(o.stages[0], params, x)[1], o.system.detect(o, params, x)

    return jax.device_get((x.masked, *run(params, x)))


@pytest.mark.parametrize(("name", "judged"), [("electra", REAL), ("electra_15", MASKED)])
def test_what_is_counted(name, judged):
    _, measured, _ = computed(name)
    counts = {name: float(m.count) for name, m in measured.items() if isinstance(m, metrics.Mean)}
    assert counts == {
        "mlm_loss": MASKED,
        "mlm_accuracy": MASKED,
        "disc_loss": judged,
        "disc_accuracy": judged,
        "replaced_fraction": judged,
    }
    assert measured["tokens"].number() == REAL
    histogram = np.asarray(measured["disc_auc"].histogram)
    replaced = float(measured["replaced_fraction"].sum)
    np.testing.assert_array_equal(histogram.sum(axis=1), [judged - replaced, replaced])
    assert 0 < replaced < MASKED


@both
def test_detection_is_learned_at_every_real_position_or_at_the_masked_ones_only(name):
    """Sigmoid cross-entropy and accuracy, written out."""
    masked, measured, found = computed(name)
    np.testing.assert_array_equal(found.labels, found.input_ids != masked.batch.input_ids)
    judged = masked.batch.input_ids != 0
    if name == "electra_15":
        rows, columns = np.nonzero(masked.weights)
        judged = np.zeros_like(judged)
        judged[rows, masked.positions[rows, columns]] = True
    scores, labels = found.scores[judged].astype(np.float64), found.labels[judged]
    right = 1 / (1 + np.exp(np.where(labels == 1, -scores, scores)))
    numbers = metrics.numbers(measured)
    assert numbers["disc_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert numbers["disc_accuracy"] == pytest.approx(np.mean(right > 0.5))
    assert numbers["replaced_fraction"] == pytest.approx(labels.mean())
    pairs = np.subtract.outer(scores[labels == 1], scores[labels == 0])
    assert numbers["disc_auc"] == pytest.approx(np.mean(pairs > 0), abs=0.01)


def test_fakes_are_put_into_the_original_text_and_labels_say_what_changed():
    ids = np.asarray([[2, 10, 11, 12, 3], [2, 20, 21, 3, 0]], np.int32)
    masked = masking.Masked(
        batch=Batch(ids, np.zeros_like(ids), np.ones_like(ids)),
        candidates=jnp.zeros(ids.shape),
        input_ids=jnp.asarray([[2, 4, 4, 12, 3], [2, 4, 21, 3, 0]]),
        positions=jnp.asarray([[2, 1], [1, 4]]),
        targets=jnp.asarray([[11, 10], [20, 0]]),
        weights=jnp.asarray([[1.0, 1.0], [1.0, 0.0]]),
        uniform=jnp.zeros((2, 2)),
        hide=jnp.zeros((2, 2)),
    )
    corrupted, labels = electra.put_fakes(masked, jnp.asarray([[50, 10], [60, 70]]))
    np.testing.assert_array_equal(corrupted, [[2, 10, 50, 12, 3], [2, 60, 21, 3, 0]])  # 10 is the original
    np.testing.assert_array_equal(labels, [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]])
    assert labels.dtype == jnp.float32


def test_every_position_has_its_own_disallowed_original():
    """Of a generator that knows two tokens, each draws the one that does not stand there."""
    targets = np.tile(np.asarray([7, 9], np.int32), (4, 250))
    logits = np.full((4, 500, 128), LOWEST, np.float32)
    logits[..., [7, 9]] = 0
    nothing, ones = np.zeros_like(targets), np.ones((4, 500), np.float32)
    uniform = np.random.default_rng(0).random((4, 500), np.float32)
    masked = masking.Masked(Batch(nothing, nothing, nothing), ones, nothing, nothing, targets, ones, uniform, ones)
    x = Inputs(masked, masking.count(masked), jnp.int32(0))
    o = systems.with_settings(systems.objective("electra"), disallow_correct=True)
    drawn = jax.jit(lambda x: electra.sample(x.masked.uniform, electra.temper(o, jnp.asarray(logits), x)))(x)
    np.testing.assert_array_equal(drawn, 16 - targets)


@both
@pytest.mark.parametrize(("generator_weight", "discriminator_weight"), [(1, 50), (3, 0), (0, 2), (0.5, 20)])
def test_loss_is_the_weighted_sum_of_its_parts(name, generator_weight, discriminator_weight):
    weights = {"generator_weight": generator_weight, "discriminator_weight": discriminator_weight}
    measured = systems.loss(name, **weights)
    expected = generator_weight * measured["mlm_loss"] + discriminator_weight * measured["disc_loss"]
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["mlm_loss"] == pytest.approx(systems.loss(name)["mlm_loss"], rel=1e-6)


def test_the_temperature_changes_the_fakes_and_not_the_generators_loss():
    hot, plain = systems.loss("electra", temperature=9.0), systems.loss("electra")
    assert hot["mlm_loss"] == pytest.approx(plain["mlm_loss"], rel=1e-6)
    assert hot["disc_loss"] != pytest.approx(plain["disc_loss"], rel=1e-4)


def test_with_a_key_both_networks_have_dropout():
    """A network of a layer has it at so many places; of a resting generator: test_frozen_generator.py."""
    o = make_objective(systems.config("electra", model__dropout=0.1), systems.VOCABULARY)
    x = systems.inputs(o)

    def drops(function, **changes) -> int:
        program = jax.make_jaxpr(function)(systems.parameters("electra"), x._replace(**changes))
        return str(program).count("name=drop")

    of_one = drops(lambda params, x: electra.discriminate(o, params, x, x.masked.input_ids), key=jax.random.key(0))
    whole = functools.partial(o.loss, o.stages[0])
    assert of_one > 0
    assert drops(whole, key=jax.random.key(0)) == 2 * of_one
    assert drops(whole) == 0
