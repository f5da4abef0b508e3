import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax import metrics
from electra_jax.data.tokenizer import CLS, PAD, SEP
from electra_jax.modeling import config as model_config
from electra_jax.modeling.electra import Electra
from electra_jax.objectives import electra, masking

VOCABULARY, PADDED, ROWS, LENGTH = 130, 256, 8, 40
LOWEST = np.finfo(np.float32).min
SETTINGS = dict(config_lib.paper().objective)
REAL = ROWS * LENGTH - 10  # the last row of `batch` ends in ten positions of padding


def make_model() -> Electra:
    model = config_lib.paper().model
    model.update(layers=1, width=32, ffn=32, heads=2, embedding_size=16, max_length=LENGTH, dtype="float32")
    return Electra(model_config.from_settings(model, VOCABULARY))


MODEL = make_model()


@functools.cache
def batch():
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (ROWS, LENGTH), np.int32)
    ids[:, 0], ids[:, 20], ids[-1, -10:] = CLS, SEP, PAD
    sequences = (ids != PAD).astype(np.int32)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "sequence_ids": sequences}


@functools.cache
def initial():
    inputs = [batch()[name] for name in ("input_ids", "token_type_ids", "sequence_ids")]
    return jax.jit(MODEL.init)(jax.random.key(0), *inputs)["params"]


@functools.cache
def opinionated():
    """Parameters far enough from the initial ones for the networks to tell inputs apart."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), initial())


def _loss(params, batch, key, numbers, mask_prob, disallow_correct, train):
    settings = SimpleNamespace(mask_prob=mask_prob, disallow_correct=disallow_correct, **numbers)
    return electra.loss(MODEL, params, batch, key, settings, train)


STATIC = ("mask_prob", "disallow_correct", "train")
_loss_only = jax.jit(_loss, static_argnames=STATIC)
_with_grads = jax.jit(jax.grad(_loss, has_aux=True), static_argnames=STATIC)


def run(function, params, inputs=None, train=False, seed=1, **changes):
    settings = {**SETTINGS, **changes}
    static = {name: settings.pop(name) for name in STATIC[:2]}
    numbers = {name: np.float32(value) for name, value in settings.items()}  # traced: no compilation for each
    return function(params, inputs or batch(), jax.random.key(seed), numbers, **static, train=train)


def loss(params, inputs=None, **changes) -> dict[str, float]:
    total, measured = run(_loss_only, params, inputs, **changes)
    return {"loss": float(total), **metrics.numbers(measured)}


def test_loss_starts_where_chance_puts_it():
    """ln V + 50 ln 2, V without the padded entries: ln 130 = 4.87, ln 256 = 5.55."""
    measured = loss(initial())
    assert measured["mlm_loss"] == pytest.approx(math.log(VOCABULARY), abs=0.05)
    assert measured["disc_loss"] == pytest.approx(math.log(2), abs=0.02)
    assert measured["loss"] == pytest.approx(math.log(VOCABULARY) + 50 * math.log(2), abs=1)


def test_what_is_counted():
    _, measured = run(_loss_only, opinionated())
    masked = 7 * 6 + round(0.15 * 30)
    counts = {name: float(m.count) for name, m in measured.items() if isinstance(m, metrics.Mean)}
    assert counts == {
        "mlm_loss": masked,
        "mlm_accuracy": masked,
        "disc_loss": REAL,
        "disc_accuracy": REAL,
        "replaced_fraction": REAL,
    }
    assert measured["tokens"].number() == REAL
    histogram = np.asarray(measured["disc_auc"].histogram)
    replaced = float(measured["replaced_fraction"].sum)
    np.testing.assert_array_equal(histogram.sum(axis=1), [REAL - replaced, replaced])
    assert 0 < replaced <= masked


def test_labels_follow_a_generator_that_always_says_the_same():
    says_99 = dict(opinionated(), generator_bias=np.where(np.arange(PADDED) == 99, np.float32(1e3), np.float32(0)))
    inputs = dict(batch(), input_ids=np.where(batch()["input_ids"] > 4, np.int32(99), batch()["input_ids"]))
    right = loss(says_99, inputs)
    assert right["replaced_fraction"] == 0
    assert right["mlm_accuracy"] == 1
    assert right["mlm_loss"] == 0
    inputs["input_ids"] = np.where(inputs["input_ids"] == 99, np.int32(98), inputs["input_ids"])
    wrong = loss(says_99, inputs)
    assert wrong["replaced_fraction"] == pytest.approx(46 / REAL)
    assert wrong["mlm_accuracy"] == 0


def test_discriminator_is_measured_on_every_real_position():
    """A classifier that says "replaced" everywhere, whatever it sees."""
    head = opinionated()["discriminator_head"]
    classifier = {"kernel": np.zeros((32, 1), np.float32), "bias": np.full(1, 2, np.float32)}
    measured = loss(dict(opinionated(), discriminator_head={**head, "classifier": classifier}))
    replaced = measured["replaced_fraction"]
    expected = replaced * math.log1p(math.exp(-2)) + (1 - replaced) * math.log1p(math.exp(2))
    assert measured["disc_loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["disc_accuracy"] == pytest.approx(replaced)
    assert measured["disc_auc"] == 0.5


def test_corrupt_labels_what_changed():
    ids = jnp.asarray([[2, 10, 11, 12, 3], [2, 20, 21, 3, 0]])
    masked = masking.Masked(
        input_ids=jnp.asarray([[2, 4, 4, 12, 3], [2, 4, 21, 3, 0]]),
        positions=jnp.asarray([[2, 1], [1, 4]]),
        targets=jnp.asarray([[11, 10], [20, 0]]),
        weights=jnp.asarray([[1.0, 1.0], [1.0, 0.0]]),
    )
    corrupted, labels = electra.corrupt(ids, masked, jnp.asarray([[50, 10], [60, 70]]))
    np.testing.assert_array_equal(corrupted, [[2, 10, 50, 12, 3], [2, 60, 21, 3, 0]])  # 10 is the original
    np.testing.assert_array_equal(labels, [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]])
    assert labels.dtype == jnp.float32


@functools.partial(jax.jit, static_argnames=("temperature", "disallow_correct"))
def fakes(logits, targets, temperature=1.0, disallow_correct=False):
    return electra.sample_fakes(jax.random.key(0), logits, targets, temperature, disallow_correct)


def two_entries(odds: float) -> np.ndarray:
    """Logits of 4 x 5000 draws: entry 7 at 1, entry 9 at `odds`, no other."""
    logits = np.full((4, 5000, 128), LOWEST, np.float32)
    logits[..., 7], logits[..., 9] = 0, math.log(odds)
    return logits


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.9), (2.0, 0.75), (0.5, 81 / 82)])
def test_temperature_divides_the_logits(temperature, share):
    """Odds of 9 become 9^(1 / temperature)."""
    drawn = np.asarray(fakes(two_entries(9), np.zeros((4, 5000), np.int32), temperature))
    assert set(np.unique(drawn)) == {7, 9}
    assert np.mean(drawn == 9) == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_disallowed_originals_are_never_drawn(temperature):
    targets = np.full((4, 5000), 9, np.int32)
    drawn = np.asarray(fakes(two_entries(1e6), targets, temperature, disallow_correct=True))
    assert set(np.unique(drawn)) == {7}


def test_every_position_has_its_own_disallowed_original():
    targets = np.tile(np.asarray([7, 9], np.int32), (4, 2500))
    drawn = np.asarray(fakes(two_entries(1.0), targets, disallow_correct=True))
    np.testing.assert_array_equal(drawn, 16 - targets)


@pytest.mark.parametrize(("generator_weight", "discriminator_weight"), [(1, 50), (3, 0), (0, 2), (0.5, 20)])
def test_loss_is_the_weighted_sum_of_its_parts(generator_weight, discriminator_weight):
    measured = loss(opinionated(), generator_weight=generator_weight, discriminator_weight=discriminator_weight)
    expected = generator_weight * measured["mlm_loss"] + discriminator_weight * measured["disc_loss"]
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["mlm_loss"] == pytest.approx(loss(opinionated())["mlm_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "changed", "same"),
    [
        ("mask_prob", 0.3, ["loss", "mlm_loss", "disc_loss", "replaced_fraction"], []),
        ("replace_prob", 0.0, ["loss", "mlm_loss", "mlm_accuracy"], []),
        ("temperature", 0.1, ["loss", "disc_loss"], ["mlm_loss"]),
        ("disallow_correct", True, ["loss", "disc_loss"], ["mlm_loss", "mlm_accuracy"]),
        ("generator_weight", 2.0, ["loss"], ["mlm_loss", "disc_loss"]),
        ("discriminator_weight", 2.0, ["loss"], ["mlm_loss", "disc_loss"]),
    ],
)
def test_every_setting_has_its_effect_and_no_other(name, value, changed, same):
    before, after = loss(opinionated()), loss(opinionated(), **{name: value})
    assert all(after[metric] != pytest.approx(before[metric], rel=1e-4) for metric in changed)
    assert all(after[metric] == pytest.approx(before[metric], rel=1e-6) for metric in same)


def test_the_key_and_dropout_change_the_loss():
    plain, again, other, dropped = (
        loss(opinionated(), **changes)["loss"] for changes in ({}, {}, {"seed": 2}, {"train": True})
    )
    assert plain == again
    assert plain != other
    assert plain != dropped


@pytest.mark.parametrize(
    ("weights", "reached"),
    [
        ({"generator_weight": 0}, {"embeddings", "discriminator", "discriminator_head"}),
        ({"discriminator_weight": 0}, {"embeddings", "generator", "generator_head", "generator_bias"}),
    ],
)
def test_neither_loss_trains_the_other_network(weights, reached):
    grads, _ = run(_with_grads, opinionated(), **weights)
    found = {part for part in grads if any(np.any(g != 0) for g in jax.tree.leaves(grads[part]))}
    assert found == reached
    assert np.any(np.asarray(grads["embeddings"]["word"]) != 0)


def test_rows_of_padding_do_not_change_the_loss():
    padded = {name: np.pad(value, ((0, 8), (0, 0))) for name, value in batch().items()}
    assert loss(opinionated(), padded) == pytest.approx(loss(opinionated()), rel=1e-5)
