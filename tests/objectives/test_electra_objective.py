import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from electra_jax import metrics, train_config
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP
from electra_jax.modeling import subnetwork
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import electra, masking
from electra_jax.objectives.spec import Inputs, Objective, ObjectiveConfig

VOCABULARY, PADDED, ROWS, LENGTH = 130, 256, 8, 40
LOWEST = np.finfo(np.float32).min
REAL = (ROWS - 1) * LENGTH - 10  # the first row of `batch` is padding, and the last ten positions of the last one
MASKED = 6 * 6 + round(0.15 * 30)
SYSTEMS = {"electra": electra.ELECTRA, "electra_15": electra.ELECTRA_15}
both = pytest.mark.parametrize("name", ["electra", "electra_15"])


def make_model() -> Electra:
    model = train_config.paper().model
    model.update(layers=1, width=32, ffn=32, heads=2, embedding_size=16, max_length=LENGTH, dtype="float32")
    return Electra(tiny_models.shape(model, VOCABULARY, ("discriminator_head",)))


MODEL = make_model()
UNIGRAM = electra.log_frequencies(np.ones(VOCABULARY), PADDED, OWN)


@functools.cache
def batch():
    """Every other token is a 99. A row of padding counts nothing."""
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (ROWS, LENGTH), np.int32)
    ids[:, 1::2] = 99
    ids[:, 0], ids[:, 20], ids[0], ids[-1, -10:] = CLS, SEP, PAD, PAD
    sequences = (ids != PAD).astype(np.int32)
    return Batch(ids, np.zeros_like(ids), sequences)


@functools.cache
def initial():
    """As parameters start."""
    rng = np.random.default_rng(0)

    def draw(path, p):
        if path[-1].key in ("scale", "bias"):
            return np.full(p.shape, path[-1].key == "scale", np.float32)
        return rng.normal(0, 0.02, p.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, subnetwork.param_shapes(MODEL.config))


@functools.cache
def opinionated():
    """Parameters far enough from the initial ones for the networks to tell inputs apart; the generator likes a 99."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), initial())
    return with_bias(params, np.where(np.arange(PADDED) == 99, np.float32(4), params["generator_head"]["bias"]))


def with_bias(params, bias: np.ndarray):
    return dict(params, generator_head={**params["generator_head"], "bias": bias})


def make(name: str = "electra", **settings) -> Objective:
    chosen = ObjectiveConfig(name=name, **settings)
    nowhere = np.full(MODEL.config.padded_vocab_size, -1, np.int32)
    return Objective(SYSTEMS[name], chosen, 1000, MODEL, UNIGRAM, OWN, np.ones(VOCABULARY, bool), nowhere)


def _prepare(o: Objective, batch, key) -> Inputs:
    masked = o.mask(key, batch, jnp.int32(0))
    return Inputs(masked, masking.count(masked), jnp.int32(0))


@functools.partial(jax.jit, static_argnames="name")
def _loss(params, batch, key, numbers, *, name):
    o = make(name, **numbers)
    return o.loss(o.stages[0], params, _prepare(o, batch, key))


TRACED = ("replace_prob", "temperature", "generator_weight", "discriminator_weight")


def run(params, inputs=None, name="electra", seed=1, **changes):
    settings = ObjectiveConfig(**changes)
    numbers = {setting: np.float32(getattr(settings, setting)) for setting in TRACED}  # no compilation for each
    return jax.device_get(_loss(params, inputs or batch(), jax.random.key(seed), numbers, name=name))


def loss(params, inputs=None, **changes) -> dict[str, float]:
    total, measured = run(params, inputs, **changes)
    return {"loss": float(total), **metrics.numbers(measured)}


def test_loss_starts_where_chance_puts_it():
    """ln V + 50 ln 2, V without the padded entries: ln 130 = 4.87, ln 256 = 5.55."""
    measured = loss(initial())
    assert measured["mlm_loss"] == pytest.approx(math.log(VOCABULARY), abs=0.05)
    assert measured["disc_loss"] == pytest.approx(math.log(2), abs=0.05)
    assert measured["loss"] == pytest.approx(math.log(VOCABULARY) + 50 * math.log(2), abs=2.5)


@pytest.mark.parametrize(("name", "judged"), [("electra", REAL), ("electra_15", MASKED)])
def test_what_is_counted(name, judged):
    _, measured = run(opinionated(), name=name)
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


@jax.jit
def detected(params, batch, key):
    o = make()
    x = _prepare(o, batch, key)
    return o.system.detect(o, params, x), x.masked


@both
def test_detection_is_learned_at_every_real_position_or_at_the_masked_ones_only(name):
    """Sigmoid cross-entropy and accuracy, written out, over the same fakes."""
    found, masked = jax.device_get(detected(opinionated(), batch(), jax.random.key(1)))
    np.testing.assert_array_equal(found.labels, found.input_ids != batch().input_ids)
    judged = batch().input_ids != PAD
    if name == "electra_15":
        rows, columns = np.nonzero(masked.weights)
        judged = np.zeros_like(judged)
        judged[rows, masked.positions[rows, columns]] = True
    scores, labels = found.scores[judged].astype(np.float64), found.labels[judged]
    right = 1 / (1 + np.exp(np.where(labels == 1, -scores, scores)))
    measured = loss(opinionated(), name=name)
    assert measured["disc_loss"] == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert measured["disc_accuracy"] == pytest.approx(np.mean(right > 0.5))
    assert measured["replaced_fraction"] == pytest.approx(labels.mean())
    pairs = np.subtract.outer(scores[labels == 1], scores[labels == 0])
    assert measured["disc_auc"] == pytest.approx(np.mean(pairs > 0), abs=0.01)


def test_labels_follow_a_generator_that_always_says_the_same():
    says_99 = with_bias(opinionated(), np.where(np.arange(PADDED) == 99, np.float32(1e3), np.float32(0)))
    inputs = batch()._replace(input_ids=np.where(batch().input_ids > 4, np.int32(99), batch().input_ids))
    right = loss(says_99, inputs)
    assert right["replaced_fraction"] == 0
    assert right["mlm_accuracy"] == 1
    assert right["mlm_loss"] == 0
    inputs = inputs._replace(input_ids=np.where(inputs.input_ids == 99, np.int32(98), inputs.input_ids))
    wrong = loss(says_99, inputs)
    assert wrong["replaced_fraction"] == pytest.approx(MASKED / REAL)
    assert wrong["mlm_accuracy"] == 0


@both
def test_a_discriminator_that_says_replaced_whatever_it_sees(name):
    head = opinionated()["discriminator_head"]
    classifier = {"kernel": np.zeros((32, 1), np.float32), "bias": np.full(1, 2, np.float32)}
    measured = loss(dict(opinionated(), discriminator_head={**head, "classifier": classifier}), name=name)
    replaced = measured["replaced_fraction"]
    expected = replaced * math.log1p(math.exp(-2)) + (1 - replaced) * math.log1p(math.exp(2))
    assert measured["disc_loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["disc_accuracy"] == pytest.approx(replaced)
    assert measured["disc_auc"] == 0.5


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

    @jax.jit
    def draw(x):
        return electra.sample(x.masked.uniform, electra.temper(make(disallow_correct=True), jnp.asarray(logits), x))

    np.testing.assert_array_equal(draw(x), 16 - targets)


@both
@pytest.mark.parametrize(("generator_weight", "discriminator_weight"), [(1, 50), (3, 0), (0, 2), (0.5, 20)])
def test_loss_is_the_weighted_sum_of_its_parts(name, generator_weight, discriminator_weight):
    weights = {"generator_weight": generator_weight, "discriminator_weight": discriminator_weight}
    measured = loss(opinionated(), name=name, **weights)
    expected = generator_weight * measured["mlm_loss"] + discriminator_weight * measured["disc_loss"]
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["mlm_loss"] == pytest.approx(loss(opinionated(), name=name)["mlm_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "value", "changed", "same"),
    [
        ("replace_prob", 0.0, ["loss", "mlm_loss", "mlm_accuracy"], []),
        ("temperature", 0.1, ["loss", "disc_loss"], ["mlm_loss"]),
        ("generator_weight", 2.0, ["loss"], ["mlm_loss", "disc_loss"]),
        ("discriminator_weight", 2.0, ["loss"], ["mlm_loss", "disc_loss"]),
    ],
)
def test_numbers_have_their_effect_and_no_other(setting, value, changed, same):
    before, after = loss(opinionated()), loss(opinionated(), **{setting: value})
    assert all(after[metric] != pytest.approx(before[metric], rel=1e-4) for metric in changed)
    assert all(after[metric] == pytest.approx(before[metric], rel=1e-6) for metric in same)


def test_the_key_changes_the_loss():
    plain, again, other = (loss(opinionated(), **changes)["loss"] for changes in ({}, {}, {"seed": 2}))
    assert plain == again
    assert plain != other


def test_with_a_key_both_networks_have_dropout():
    """A network of a layer has it at so many places; of a resting generator: test_frozen_generator.py."""
    o = make()
    x = _prepare(o, batch(), jax.random.key(1))

    def drops(function, **changes) -> int:
        return str(jax.make_jaxpr(function)(opinionated(), x._replace(**changes))).count("name=drop")

    of_one = drops(lambda params, x: electra.discriminate(o, params, x, x.masked.input_ids), key=jax.random.key(0))
    whole = functools.partial(o.loss, o.stages[0])
    assert of_one > 0
    assert drops(whole, key=jax.random.key(0)) == 2 * of_one
    assert drops(whole) == 0


@both
def test_what_a_step_computes(name):
    """A generator that has no parameters costs nothing."""
    (stage,) = make(name).stages
    assert (stage.steps, stage.passes) == (1000, (electra.TRAINED_GENERATOR, electra.DISCRIMINATOR))
    (stage,) = make(name, generator="unigram").stages
    assert stage.passes == (electra.DISCRIMINATOR,)
