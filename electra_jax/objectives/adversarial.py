"""Adversarial ELECTRA: the generator is trained to make the encoder's detection fail (arXiv 2003.10555, appendix F).

Samples have no gradient, so the generator learns by REINFORCE: the reward of a sample is the detection loss at its
position, and a baseline learned from the generator's state there is taken off, which changes the variance of the
gradient and not its expectation. The maximum-likelihood loss is measured, not trained.
"""

import jax
import jax.numpy as jnp
import optax

from electra_jax import metrics
from electra_jax.modeling import electra as networks
from electra_jax.objectives import corruption, electra, spec
from electra_jax.objectives.spec import Inputs, Loss, Objective, Params

Array = jax.Array


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """generator_weight x (REINFORCE + baseline) + discriminator_weight x replaced-token detection."""
    found = corruption.corrupt(o, params, x)
    scores_BL = electra.discriminate(o, params, x, found.input_ids)
    detection, detected = electra.detection_loss(scores_BL, found.labels, x.masked.real)

    loss_BL = optax.sigmoid_binary_cross_entropy(scores_BL, found.labels)
    reward_BM = jax.lax.stop_gradient(jnp.take_along_axis(loss_BL, x.masked.positions, axis=1))
    assert found.states is not None
    gate_BM = networks.score(o.model, params, "baseline", jax.lax.stop_gradient(found.states))
    policy = metrics.mean(policy_loss(found.sampled, found.fakes, reward_BM, baseline(gate_BM)), x.masked.weights)
    fit = metrics.mean(baseline_loss(gate_BM, reward_BM), x.masked.weights)
    nll, accuracy = corruption.mlm(found.logits, x)

    s = o.settings
    total = s.generator_weight * (policy.sum + fit.sum) / x.counts.masked
    total += s.discriminator_weight * detection.sum / x.counts.real
    return total, {
        "mlm_loss": nll,
        "mlm_accuracy": accuracy,
        **detected,
        "reward": metrics.mean(reward_BM, x.masked.weights),
        "baseline_loss": fit,
    }


def policy_loss(sampled_BMV: Array, fakes_BM: Array, reward_BM: Array, baseline_BM: Array) -> Array:
    """[B, M]: -(reward - baseline) log p(fake), whose gradient is that of REINFORCE, to be descended."""
    log_prob = -optax.softmax_cross_entropy_with_integer_labels(sampled_BMV, fakes_BM)
    return -jax.lax.stop_gradient(reward_BM - baseline_BM) * log_prob


def baseline(gate_BM: Array) -> Array:
    """The reward that is expected, -log sigmoid(gate): a detection loss, as the reward is one."""
    return -jax.nn.log_sigmoid(gate_BM)


def baseline_loss(gate_BM: Array, reward_BM: Array) -> Array:
    """Cross-entropy of sigmoid(gate) with exp(-reward), the probability that the encoder gave to the right answer."""
    return optax.sigmoid_binary_cross_entropy(gate_BM, jnp.exp(-reward_BM))


ADVERSARIAL = spec.ObjectiveSpec(
    summary="ELECTRA with a generator that is trained against the encoder, by REINFORCE",
    paper="Adversarial ELECTRA, figure 3 and appendix F",
    settings={**spec.MASKING, **spec.SAMPLING, **electra.WEIGHTS},
    heads=("discriminator_head", "baseline"),
    loss=loss,
    stages=corruption.beside(electra.DISCRIMINATOR),
    detect=electra.detect,
)
