"""Electric: noise-contrastive estimation. Its generator of two towers: tests/modeling/test_electra.py."""

import math

import jax
import numpy as np
import pytest
import systems
from scipy.special import log_softmax

from electra_jax.data.tokenizer import MASK, SPECIAL_TOKENS, UNK
from electra_jax.objectives import electra, electric

SHARE = 0.4  # of positions that get noise, `systems.config`
SPECIAL = [i for i in range(len(SPECIAL_TOKENS)) if i != UNK]


@jax.jit
def parts(params, x, temperature):
    """The generator's logits, the noised text with labels and scores, and the encoder's energies of that text."""
    o = systems.with_settings(systems.objective("electric"), temperature=temperature)
    logits = electric.cloze(o, params, x)
    found = electric.contrast(o, params, x, logits)
    return logits, found, electra.discriminate(o, params, x, found.input_ids)


def inputs(**how):
    return systems.inputs(systems.objective("electric"), **how)


def saying_9():
    return systems.with_generator_that_says(9, systems.parameters("electric"))


def indifferent(energy: float):
    """Parameters whose generator gives every token 1 / 60, and whose encoder gives every position `energy`."""
    params = systems.parameters("electric")
    return {
        **params,
        "generator_head": jax.tree.map(np.zeros_like, params["generator_head"]),
        "discriminator_head": {
            **params["discriminator_head"],
            "classifier": {"kernel": np.zeros((32, 1), np.float32), "bias": np.full(1, energy, np.float32)},
        },
    }


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_logit_is_energy_plus_log_noise_plus_log_odds(temperature):
    """log q is that of the distribution that the noise was drawn from, tempered."""
    logits, found, energy = jax.device_get(parts(systems.parameters("electric"), inputs(step=0), temperature))
    log_q = log_softmax(logits[..., : systems.VOCABULARY] / temperature, axis=-1)
    of_token = np.take_along_axis(log_q, found.input_ids[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found.scores, energy + of_token + math.log(SHARE / (1 - SHARE)), atol=1e-4)
    text = np.asarray(systems.batch().input_ids)
    assert np.any(found.input_ids != text)
    np.testing.assert_array_equal(found.input_ids[found.labels == 0], text[found.labels == 0])


def test_labels_say_what_was_chosen_even_where_nothing_changed():
    """A text of 9s, a generator that says 9."""
    ids = np.asarray(systems.batch().input_ids)
    text = systems.batch()._replace(input_ids=np.where(ids >= len(SPECIAL_TOKENS), np.int32(9), ids))
    x = inputs(text=text)
    _, found, _ = jax.device_get(parts(saying_9(), x, 1.0))
    np.testing.assert_array_equal(found.input_ids, text.input_ids)
    expected = np.zeros((4, systems.LENGTH), np.float32)
    for row, places, weights in zip(
        expected, np.asarray(x.masked.positions), np.asarray(x.masked.weights), strict=True
    ):
        row[places] = weights
    np.testing.assert_array_equal(found.labels, expected)
    np.testing.assert_array_equal(np.sum(found.labels, axis=1), [6, 6, 6, 2])
    assert systems.loss("electric", params=saying_9(), text=text)["replaced_fraction"] == pytest.approx(20 / 52)


def test_true_energies_and_true_noise_leave_the_log_odds():
    """p = q = 1 / 60, and the energy is -log p."""
    params = indifferent(math.log(systems.VOCABULARY))
    x = inputs()
    _, found, _ = jax.device_get(parts(params, x, 1.0))
    odds = math.log(SHARE / (1 - SHARE))
    np.testing.assert_allclose(found.scores, np.full(found.scores.shape, odds), rtol=0, atol=1e-5)

    measured = systems.loss("electric", params=params, generator_weight=0.0, discriminator_weight=3.0)
    noise, real = np.sum(np.asarray(found.labels)), 14 + 16 + 16 + 6
    expected = (noise * math.log1p(math.exp(-odds)) + (real - noise) * math.log1p(math.exp(odds))) / real
    assert measured["nce_loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["loss"] == pytest.approx(3 * expected, rel=1e-5)


def test_cloze_is_the_mean_over_tokens_that_are_not_special():
    logits, _, _ = jax.device_get(parts(systems.parameters("electric"), inputs(), 1.0))
    ids = np.asarray(systems.batch().input_ids)
    counted = ~np.isin(ids, SPECIAL)
    assert np.sum(counted) == 52 - 11  # of 52 real positions eleven hold [CLS] or [SEP]
    log_probs = log_softmax(logits[..., : systems.VOCABULARY].astype(np.float64), axis=-1)
    nll = -np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]
    measured = systems.loss("electric", generator_weight=2.0, discriminator_weight=0.0)
    assert measured["cloze_loss"] == pytest.approx(np.mean(nll[counted]), rel=1e-5)
    assert measured["loss"] == pytest.approx(2 * np.mean(nll[counted]), rel=1e-5)
    assert measured["cloze_accuracy"] == pytest.approx(np.mean(np.argmax(logits, axis=-1)[counted] == ids[counted]))


def test_nothing_is_masked():
    """The generator reads the text itself, and [MASK] is in no text that the encoder reads, unless drawn as noise."""
    x = inputs()
    np.testing.assert_array_equal(x.masked.input_ids, systems.batch().input_ids)
    _, found, _ = parts(saying_9(), x, 1.0)
    assert MASK not in np.asarray(found.input_ids)
