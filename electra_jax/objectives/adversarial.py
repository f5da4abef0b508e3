"""Adversarial ELECTRA: the generator is trained to maximize the detection loss (arXiv 2003.10555, appendix F).

Sampling has no gradient, so the generator learns by REINFORCE. The reward of a sample is the detection loss at its
position, minus a baseline predicted from the generator's state there, which reduces the gradient's variance and keeps
its expectation. The maximum-likelihood loss is logged but not trained.
"""

from typing import cast

import jax
import jax.numpy as jnp
import optax

from electra_jax.metrics import Weighted
from electra_jax.modeling import electra as networks
from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import Inputs, Loss, Objective, Params

Array = jax.Array


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes generator_weight x (REINFORCE + baseline) + discriminator_weight x replaced-token detection."""
    corrupted = electra.corrupt(o, params, x)
    scores_BL = electra.discriminate(o, params, x, corrupted.input_ids)
    detection, detected = electra.detection_loss(scores_BL, corrupted.labels, x.masked.real)

    loss_BL = optax.sigmoid_binary_cross_entropy(scores_BL, corrupted.labels)
    # Not for the policy alone: through the target of `baseline_loss` the encoder would learn from it too.
    reward_BM = jax.lax.stop_gradient(jnp.take_along_axis(loss_BL, x.masked.positions, axis=1))
    # The objective has no setting `generator`, so there is always a network.
    assert corrupted.states is not None
    # The baseline trains its own head only, not the states that it reads.
    gate_BM = networks.baseline_logits(o.model, params, jax.lax.stop_gradient(corrupted.states))
    # The logits that were sampled from, temperature included, not those of the likelihood.
    policy = Weighted(
        policy_loss(corrupted.sampling_logits, corrupted.fakes, reward_BM, baseline(gate_BM)), x.masked.weights
    )
    fit = Weighted(baseline_loss(gate_BM, reward_BM), x.masked.weights)
    nll, accuracy = electra.mlm(corrupted.logits, x)

    s = o.settings
    total = s.generator_weight * (policy.sum + fit.sum) / x.counts.masked
    total += s.discriminator_weight * detection.sum / x.counts.real
    return total, {
        "mlm_loss": nll,
        "mlm_accuracy": accuracy,
        **detected,
        "reward": Weighted(reward_BM, x.masked.weights),
        "baseline_loss": fit,
    }


def policy_loss(logits_BMV: Array, fakes_BM: Array, reward_BM: Array, baseline_BM: Array) -> Array:
    """Computes -(reward - baseline) log p(fake), [B, M], whose gradient is that of REINFORCE, for descent."""
    return -jax.lax.stop_gradient(reward_BM - baseline_BM) * electra.log_prob(logits_BMV, fakes_BM)


def baseline(gate_BM: Array) -> Array:
    """Estimates the expected reward by -log sigmoid(gate).

    `baseline_loss` fits sigmoid(gate) to the expectation of exp(-reward), so this is a lower bound (Jensen).
    """
    return -jax.nn.log_sigmoid(gate_BM)


def baseline_loss(gate_BM: Array, reward_BM: Array) -> Array:
    """Computes the cross-entropy of sigmoid(gate) with exp(-reward), the encoder's probability of the right label."""
    return cast(Array, optax.sigmoid_binary_cross_entropy(gate_BM, jnp.exp(-reward_BM)))


ADVERSARIAL = spec.ObjectiveSpec(
    summary="ELECTRA with a generator that is trained against the encoder, by REINFORCE",
    paper="Adversarial ELECTRA, figure 3 and appendix F",
    settings=(*spec.MASKING, *spec.SAMPLING, *electra.WEIGHTS),
    heads=("discriminator_head", "baseline"),
    stages=spec.one_stage(loss, electra.TRAINED_GENERATOR, electra.DISCRIMINATOR),
    detect=electra.detect,
)
