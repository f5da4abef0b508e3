"""The three systems in which the encoder predicts tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import systems
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import expit, log_softmax, softmax

from electra_jax import metrics
from electra_jax.data.tokenizer import MASK
from electra_jax.modeling import electra as networks
from electra_jax.objectives import mlm
from electra_jax.objectives.spec import Objective

SAME = 9  # the token that the generator always says in some tests


def nll(logits, targets) -> np.ndarray:
    """Of tokens in use."""
    log_probs = log_softmax(np.asarray(logits, np.float64)[..., : systems.VOCABULARY], axis=-1)
    return -np.take_along_axis(log_probs, np.asarray(targets)[..., None], axis=-1)[..., 0]


def prediction(name: str, params, input_ids) -> tuple[np.ndarray, np.ndarray | None]:
    """The encoder's logits at every position [B, L, V], and the copy gate's or the discriminator's [B, L]."""
    o = systems.objective(name)

    @jax.jit
    def predict(params, input_ids):
        states, scores = networks.encode(o.model, params, systems.batch()._replace(input_ids=input_ids)), None
        if "copy_gate" in params:
            scores = networks.copy_logits(o.model, params, states)
        elif "discriminator_head" in params:
            scores = networks.discriminator_logits(o.model, params, states, systems.batch().sequence_ids)
        return networks.mlm_logits(o.model, params, states), scores

    return jax.device_get(predict(params, input_ids))


def chosen(x) -> np.ndarray:
    """[B, L] bool: where a position is masked."""
    where = np.zeros((4, systems.LENGTH), bool)
    for row, places, weights in zip(where, np.asarray(x.masked.positions), np.asarray(x.masked.weights), strict=True):
        row[places[weights > 0]] = True
    return where


def test_mlm_is_the_mean_over_masked_positions():
    """From the encoder's logits on the text with [MASK]: what is left as it was counts, what is not chosen does not."""
    x = systems.inputs(systems.with_settings(systems.objective("mlm"), replace_prob=0.5))
    where, text = chosen(x), np.asarray(systems.batch().input_ids)
    masked = np.asarray(x.masked.input_ids)
    assert 0 < np.sum(masked == MASK) < np.sum(where)
    logits, _ = prediction("mlm", systems.parameters("mlm"), x.masked.input_ids)
    found = systems.loss("mlm", replace_prob=0.5)
    assert found["loss"] == pytest.approx(np.mean(nll(logits, text)[where]), rel=1e-5)
    assert found["mlm_loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["mlm_accuracy"] == pytest.approx(np.mean(np.argmax(logits, axis=-1)[where] == text[where]))


def test_replace_mlm_reads_fakes_and_is_scored_at_masked_positions():
    params = systems.with_generator_that_says(SAME, systems.parameters("replace_mlm"))
    x = systems.inputs(systems.objective("replace_mlm"))
    where, text = chosen(x), np.asarray(systems.batch().input_ids)
    logits, _ = prediction("replace_mlm", params, jnp.where(where, SAME, text))
    found = systems.loss("replace_mlm", params=params, generator_weight=0.0, encoder_weight=3.0)
    assert found["encoder_mlm_loss"] == pytest.approx(np.mean(nll(logits, text)[where]), rel=1e-5)
    assert found["loss"] == pytest.approx(3 * found["encoder_mlm_loss"], rel=1e-6)
    both = systems.loss("replace_mlm", params=params, generator_weight=2.0, encoder_weight=3.0)
    assert both["loss"] == pytest.approx(2 * found["mlm_loss"] + 3 * found["encoder_mlm_loss"], rel=1e-6)


def read_by_electra_mlm(o: Objective) -> tuple[np.ndarray, ...]:
    """Where it is masked, where the encoder reads [MASK], the text, and what it reads if every fake is `SAME`."""
    x = systems.inputs(o)
    where, text = chosen(x), np.asarray(systems.batch().input_ids)
    hidden = np.zeros_like(where)
    for row, places, below in zip(hidden, np.asarray(x.masked.positions), np.asarray(x.masked.hide) < 0.5, strict=True):
        row[places[below]] = True
    hidden &= where
    return where, hidden, text, np.where(hidden, MASK, np.where(where, SAME, text))


def test_electra_mlm_detects_what_it_reads_and_predicts_what_stood_at_masked_positions():
    """It reads [MASK] at a part of them, which detection leaves out, and fakes at the others."""
    params = systems.with_generator_that_says(SAME, systems.parameters("electra_mlm"))
    o = systems.objective("electra_mlm")
    where, hidden, text, read = read_by_electra_mlm(o)
    assert 0 < np.sum(hidden) < np.sum(where)
    logits, scores = prediction("electra_mlm", params, jnp.asarray(read))
    found = systems.loss("electra_mlm", params=params, generator_weight=0.0, discriminator_weight=0.0)
    assert found["encoder_mlm_loss"] == pytest.approx(np.mean(nll(logits, text)[where]), rel=1e-5)
    assert found["fill_loss"] == pytest.approx(np.mean(nll(logits, text)[hidden]), rel=1e-5)
    assert found["fill_accuracy"] == pytest.approx(np.mean(np.argmax(logits, axis=-1)[hidden] == text[hidden]))
    assert found["loss"] == pytest.approx(found["encoder_mlm_loss"], rel=1e-6)
    seen = (text != 0) & ~hidden
    replaced = np.mean((read != text)[seen])
    assert found["replaced_fraction"] == pytest.approx(replaced)
    both = systems.loss(
        "electra_mlm", params=params, generator_weight=2.0, discriminator_weight=7.0, encoder_weight=3.0
    )
    detection = both["disc_loss"] * np.sum(seen) / np.sum(text != 0)
    expected = 2 * found["mlm_loss"] + 7 * detection + 3 * found["encoder_mlm_loss"]
    assert both["loss"] == pytest.approx(expected, rel=1e-6)
    wrong = np.logaddexp(0, np.where(read != text, -1, 1) * scores.astype(np.float64))
    assert found["disc_loss"] == pytest.approx(np.mean(wrong[seen]), rel=1e-5)


def test_electra_mlm_predicts_every_position_through_the_discriminator():
    """p(original) = (1 - p(replaced)) x 1[it is what is read] + p(replaced) x softmax; at [MASK] the softmax alone."""
    params = systems.with_generator_that_says(SAME, systems.parameters("electra_mlm"))
    where, hidden, text, read = read_by_electra_mlm(systems.objective("electra_mlm"))
    logits, scores = prediction("electra_mlm", params, jnp.asarray(read))
    kept = np.where(hidden, 0, expit(-scores.astype(np.float64)))
    expected = -np.log(kept * (read == text) + (1 - kept) * np.exp(-nll(logits, text)))
    how = {"params": params, "generator_weight": 0.0, "discriminator_weight": 0.0, "encoder_positions": "all"}
    found = systems.loss("electra_mlm", encoder_weight=3.0, **how)
    assert found["loss"] == pytest.approx(3 * np.mean(expected[text != 0]), rel=1e-5)
    assert found["encoder_mlm_loss"] == pytest.approx(np.mean(expected[where]), rel=1e-5)
    assert found["fill_loss"] == pytest.approx(np.mean(nll(logits, text)[hidden]), rel=1e-5)
    plain = systems.loss("electra_mlm", params=params)
    assert {found[name] for name in ("encoder_mlm_accuracy", "disc_loss")} == {
        plain[name] for name in ("encoder_mlm_accuracy", "disc_loss")
    }


def test_without_its_weight_the_encoder_detects_alone_and_computes_no_prediction():
    o = systems.with_settings(systems.objective("electra_mlm"), encoder_weight=0.0)
    (stage,), x = o.stages, systems.inputs(o)
    total, measured = o.loss(stage, systems.parameters("electra_mlm"), x)
    wanted = systems.loss("electra", params=systems.parameters("electra_mlm"))
    assert total == pytest.approx(wanted["loss"], rel=1e-6)
    assert stage.trainable is not None
    assert {*systems.parameters("electra_mlm")} - {*stage.trainable} == {"mlm_head"}
    assert [head.name for network_pass in stage.passes for head in network_pass.heads] == ["mlm", "discriminator"]
    both = o.loss(systems.objective("electra_mlm").stages[0], systems.parameters("electra_mlm"), x)[1]
    assert measured.keys() == both.keys()
    nothing = {name for name, value in metrics.numbers(measured).items() if np.isnan(value)}
    assert nothing == {"encoder_mlm_loss", "encoder_mlm_accuracy", "fill_loss", "fill_accuracy"}


def test_what_the_encoder_reads_does_not_depend_on_what_the_generator_read():
    """Of the positions that hold [MASK] for the generator, and of those that do not, half are hidden."""
    o = systems.with_settings(systems.objective("electra_mlm"), replace_prob=0.5)
    keys = jax.random.split(jax.random.key(0), 500)
    masked = jax.vmap(lambda key: o.mask(key, systems.batch(), jnp.int32(0)))(keys)
    read = np.take_along_axis(np.asarray(masked.input_ids), np.asarray(masked.positions), axis=-1)
    hidden, chosen = np.asarray(masked.hide) < 0.5, np.asarray(masked.weights) > 0
    for mask in (True, False):
        where = hidden[chosen & ((read == MASK) == mask)]
        assert abs(where.mean() - 0.5) < 4 * 0.5 / np.sqrt(where.size)


def test_all_tokens_mlm_is_scored_at_every_real_position_through_the_gate():
    """p(original) = D x 1[the original is what is read] + (1 - D) x softmax."""
    params = systems.with_generator_that_says(SAME, systems.parameters("all_tokens_mlm"))
    x = systems.inputs(systems.objective("all_tokens_mlm"))
    where, text = chosen(x), np.asarray(systems.batch().input_ids)
    read = np.where(where, SAME, text)
    logits, gate = prediction("all_tokens_mlm", params, jnp.asarray(read))
    copied = expit(gate.astype(np.float64))
    loss = -np.log(copied * (read == text) + (1 - copied) * np.exp(-nll(logits, text)))
    real = text != 0
    found = systems.loss("all_tokens_mlm", params=params, generator_weight=0.0, encoder_weight=3.0)
    assert found["all_tokens_loss"] == pytest.approx(np.mean(loss[real]), rel=1e-5)
    assert found["all_tokens_masked_loss"] == pytest.approx(np.mean(loss[where]), rel=1e-5)
    assert found["copy_probability"] == pytest.approx(np.mean(copied[real]), rel=1e-5)
    assert found["loss"] == pytest.approx(3 * found["all_tokens_loss"], rel=1e-6)


@jax.jit
def distribution(gate, logits, read):
    """copy_log_prob of every token of the vocabulary, [V]."""
    every = jnp.arange(len(logits), dtype=jnp.int32)[None]
    tiled = jnp.broadcast_to(logits, (1, len(logits), len(logits)))
    return mlm.copy_log_prob(jnp.full(every.shape, gate), tiled, jnp.full_like(every, read), every)[0]


some_logits = arrays.arrays(np.float32, 7, elements=st.floats(-20, 20, width=32))


@settings(max_examples=60)
@given(st.floats(-60, 60, width=32), some_logits, st.integers(0, 6))
def test_what_the_copy_gate_gives_is_a_distribution(gate, logits, read):
    log_prob = np.asarray(distribution(jnp.float32(gate), logits, jnp.int32(read)), np.float64)
    copied = expit(np.float64(gate))
    expected = copied * (np.arange(7) == read) + (1 - copied) * softmax(logits.astype(np.float64))
    assert np.all(np.isfinite(log_prob))
    np.testing.assert_allclose(np.exp(log_prob), expected, atol=1e-6)
    assert np.sum(np.exp(log_prob)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("gate", [-50.0, 50.0])
def test_the_copy_gate_is_stable_where_it_is_sure(gate):
    """Copying for certain, another token costs 50 beside its own; not copying, nothing is left of the gate."""
    logits = jnp.zeros(4)
    log_prob = np.asarray(distribution(jnp.float32(gate), logits, jnp.int32(1)))
    sure = np.asarray([-50 - np.log(4), 0, -50 - np.log(4), -50 - np.log(4)])
    np.testing.assert_allclose(log_prob, sure if gate > 0 else np.full(4, -np.log(4)), rtol=1e-5, atol=1e-6)
    slopes = jax.grad(lambda gate, logits: jnp.sum(distribution(gate, logits, jnp.int32(1))), argnums=(0, 1))
    assert all(np.all(np.isfinite(slope)) for slope in slopes(jnp.float32(gate), logits))
