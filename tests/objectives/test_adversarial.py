"""REINFORCE against the exact expectation, which a vocabulary of five allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import systems
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax

from electra_jax.modeling import electra as networks
from electra_jax.objectives import adversarial, electra

FIVE = np.arange(5, dtype=np.int32)
LOGITS = np.asarray([1.0, -0.5, 0.3, 2.0, -2.0], np.float32)
REWARDS = np.asarray([0.1, 2.0, 0.7, 0.4, 3.0], np.float32)
some_logits = arrays.arrays(np.float32, 5, elements=st.floats(-3, 3, width=32))
some_rewards = arrays.arrays(np.float32, 5, elements=st.floats(0, 5, width=32))


def exact_gradient(logits, rewards) -> np.ndarray:
    """Of the expected reward, p . r: p_k (r_k - p . r)."""
    p = softmax(np.asarray(logits, np.float64))
    return p * (rewards - p @ rewards)


@jax.jit
def weighted_gradients(logits, fakes, rewards, baselines, weights):
    """Of the sum of weight x policy_loss over fakes, with respect to the five logits, rewards and baselines."""

    def total(logits, rewards, baselines):
        sampled = jnp.broadcast_to(logits, (1, len(fakes), 5))
        losses = adversarial.policy_loss(sampled, fakes[None], rewards[None], baselines[None])
        return jnp.sum(losses * weights[None])

    return jax.grad(total, argnums=(0, 1, 2))(logits, rewards, baselines)


def expected_gradient(logits, rewards, baseline: float) -> np.ndarray:
    """The expectation of policy_loss's gradient: each of the five fakes counts with its probability."""
    p = softmax(logits)
    return np.asarray(weighted_gradients(logits, FIVE, rewards, np.full(5, baseline, np.float32), p)[0])


@settings(max_examples=50)
@given(some_logits, some_rewards, st.sampled_from([0.0, 0.5, 4.0]))
def test_the_expected_gradient_is_that_of_the_expected_reward(logits, rewards, baseline):
    expected = -exact_gradient(logits, rewards)  # policy_loss is descended, the reward shall rise
    np.testing.assert_allclose(expected_gradient(logits, rewards, baseline), expected, atol=1e-5)


def test_no_gradient_goes_to_rewards_or_baselines():
    ones = np.ones(5, np.float32)
    to_logits, *others = jax.device_get(weighted_gradients(LOGITS, FIVE, REWARDS, ones, ones))
    assert np.all(to_logits != 0)
    assert not np.any(others)


@jax.jit
def baseline_losses(gates, rewards):
    """Losses, and their slopes along the gates."""
    slopes = jax.grad(lambda gates: jnp.sum(adversarial.baseline_loss(gates, rewards)))
    return adversarial.baseline_loss(gates, rewards), slopes(gates)


@settings(max_examples=50)
@given(st.floats(0.0625, 5, width=32), st.floats(-6, 6, width=32))
def test_the_baseline_loss_is_least_where_the_baseline_is_the_reward(reward, other):
    best = -np.log(np.expm1(reward))  # the gate whose baseline is the reward
    gates = np.asarray([[best, other]], np.float32)
    assert float(np.asarray(adversarial.baseline(gates))[0, 0]) == pytest.approx(reward, rel=1e-4)
    found = jax.device_get(baseline_losses(gates, np.full((1, 2), reward, np.float32)))
    (least, loss), slopes = (x[0] for x in found)
    assert abs(slopes[0]) < 1e-5
    if abs(best - other) > 0.05:
        assert least < loss
        assert np.sign(slopes[1]) == np.sign(other - best)


@jax.jit
def parts(params, x):
    """What the loss is made of: the fakes, the encoder's scores, the baseline's gates."""
    o = systems.objective("adversarial")
    found = electra.corrupt(systems.with_settings(o, temperature=2.0, temperature_decay=0.0), params, x)
    scores = electra.discriminate(o, params, x, found.input_ids)
    return found, scores, networks.baseline_logits(o.model, params, found.states)


def test_the_loss_is_reinforce_with_a_baseline_and_no_likelihood():
    """generator_weight 1, discriminator_weight 0, temperature 2: value, and slope along the bias of the logits."""
    how = {"generator_weight": 1.0, "discriminator_weight": 0.0, "temperature": 2.0, "step": 0}
    params = systems.parameters("adversarial")
    x = systems.inputs(systems.objective("adversarial"))
    found, scores, gates = jax.device_get(parts(params, x))
    chosen, rows = np.asarray(x.masked.weights) > 0, np.arange(4)[:, None]
    positions = np.asarray(x.masked.positions)
    logits, fakes, gates = found.logits[chosen].astype(np.float64), found.fakes[chosen], gates[chosen]
    replaced, score = found.labels[rows, positions][chosen], scores[rows, positions][chosen]

    p = np.exp(logits / 2) / np.sum(np.exp(logits / 2), axis=-1, keepdims=True)
    each = np.arange(len(fakes))
    reward = np.log1p(np.exp(np.where(replaced, -score, score)))
    baseline = np.log1p(np.exp(-gates))
    policy = -(reward - baseline) * np.log(p[each, fakes])
    right = np.exp(-reward)  # the probability that the encoder gave to the right answer
    fit = -right * np.log(1 / (1 + np.exp(-gates))) - (1 - right) * np.log(1 / (1 + np.exp(gates)))
    assert len(set(fakes)) > 5
    assert np.any(replaced)

    measured = systems.loss("adversarial", **how)
    assert measured["loss"] == pytest.approx(np.mean(policy) + np.mean(fit), rel=1e-4)
    assert measured["reward"] == pytest.approx(np.mean(reward), rel=1e-4)
    assert measured["baseline_loss"] == pytest.approx(np.mean(fit), rel=1e-4)

    direction = jax.tree.map(np.zeros_like, params)
    bias = np.random.default_rng(0).standard_normal(systems.PADDED).astype(np.float32)
    direction["generator_head"]["bias"] = bias
    expected = np.mean(-(reward - baseline) * (bias[fakes] - p @ bias) / 2)
    assert systems.slopes("adversarial", direction=direction, **how)["loss"] == pytest.approx(expected, rel=1e-3)


def test_the_detection_part_is_electras():
    """The same networks: the parameters that both have are equal."""
    measured = systems.loss("adversarial", generator_weight=0.0, discriminator_weight=1.0)
    assert measured["loss"] == pytest.approx(measured["disc_loss"], rel=1e-6)
    assert measured["disc_loss"] == pytest.approx(systems.loss("electra")["disc_loss"], rel=1e-5)
