"""Electric: an energy-based model of each token in its context, trained by noise-contrastive estimation.

(arXiv 2012.08561; google-research/electra, `electric_objective`.) The noise comes from a two-tower generator, which
gives the probability of every token from the tokens around it in one pass over the original text. The encoder's score
is an energy, -log p(token | context) up to a constant; whether a position holds noise then has the logit
energy + log q(token) + log(k / (n - k)), q the generator's probability, k / n the share of noised positions. A sample
that equals the original still counts as noise.
"""

import math

import jax
import optax

from electra_jax import metrics
from electra_jax.modeling import electra as networks
from electra_jax.objectives import corruption, electra, sampling, spec
from electra_jax.objectives.spec import Detection, Inputs, Loss, Objective, Params, Pass

Array = jax.Array


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """generator_weight x (log-likelihood of every token that is not special) + discriminator_weight x noise-contrastive
    estimation over every real position.
    """
    logits_BLV = cloze(o, params, x)
    likelihood, accuracy = corruption.prediction(logits_BLV, x.masked.original, x.masked.candidates)
    _, labels_BL, scores_BL = contrast(o, params, x, logits_BLV)
    nce = metrics.mean(optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL), x.masked.real)
    s = o.settings
    total = s.generator_weight * likelihood.sum / x.counts.candidates
    return total + s.discriminator_weight * nce.sum / x.counts.real, {
        "cloze_loss": likelihood,
        "cloze_accuracy": accuracy,
        "nce_loss": nce,
        "nce_auc": metrics.roc(scores_BL, labels_BL, x.masked.real),
        "replaced_fraction": metrics.mean(labels_BL, x.masked.real),
    }


def cloze(o: Objective, params: Params, x: Inputs) -> Array:
    """The generator's logits at every position of the original text, [B, L, V]."""
    states = networks.read(o.model, params, "generator", x.masked.batch, x.masked.original, x.generator_key)
    return networks.predict(o.model, params, "generator", states)


def contrast(o: Objective, params: Params, x: Inputs, logits_BLV: Array) -> Detection:
    """The text with noise at the chosen positions, where they are, and the logit of "this is noise"."""
    tempered_BLV = corruption.soften(o, jax.lax.stop_gradient(logits_BLV), x.step)
    noise_BM = sampling.categorical(x.masked.uniform, networks.gather_positions(tempered_BLV, x.masked.positions))
    noised_BL, _ = corruption.put_fakes(x.masked, noise_BM)
    energy_BL = electra.discriminate(o, params, x, noised_BL)
    log_q_BL = -optax.softmax_cross_entropy_with_integer_labels(tempered_BLV, noised_BL)
    share = o.settings.mask_prob
    return Detection(noised_BL, x.masked.chosen, energy_BL + log_q_BL + math.log(share / (1 - share)))


def detect(o: Objective, params: Params, x: Inputs) -> Detection:
    """The two towers' noise, and what the encoder thinks of it."""
    return contrast(o, params, x, cloze(o, params, x))


ELECTRIC = spec.ObjectiveSpec(
    summary="energies by noise-contrastive estimation, with a two-tower generator",
    paper="Electric, arXiv 2012.08561",
    settings={
        "mask_prob": 0.15,
        "temperature": 1.0,
        "temperature_decay": 0.0,
        **electra.WEIGHTS,
    },
    heads=("discriminator_head",),
    loss=loss,
    stages=spec.one_stage(Pass("generator", "mlm", everywhere=True), electra.DISCRIMINATOR),
    generator="two_towers",
    detect=detect,
    scores="how unlikely it is here: the score is -log p(token | context), up to a constant",
)
