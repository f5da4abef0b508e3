"""Electric: an energy-based model of each token in its context, trained by noise-contrastive estimation.

(arXiv 2012.08561; google-research/electra, `electric_objective`.) The noise comes from a two-tower generator, which
predicts every token from the tokens around it in one pass over the original text. The encoder's score is an energy,
-log p(token | context) up to a constant. The logit that a position holds noise is then
energy + log q(token) + log(k / (n - k)), with q the generator's probability and k / n the fraction of noised positions.
"""

import math

import jax
import optax

from electra_jax.metrics import Scored, Weighted
from electra_jax.modeling import electra as networks
from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import Detection, Head, Inputs, Loss, Objective, Params, Pass
from electra_jax.runtime.metric_text import NamedLoss

Array = jax.Array


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes generator_weight x cloze loss + discriminator_weight x noise-contrastive estimation.

    The cloze loss is the negative log-likelihood of every token that is not special; noise-contrastive estimation is
    over all positions that are not padding.
    """
    logits_BLV = cloze(o, params, x)
    likelihood, accuracy = electra.prediction(logits_BLV, x.masked.original, x.masked.candidates)
    _, labels_BL, scores_BL = contrast(o, params, x, logits_BLV)
    nce = Weighted(optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL), x.masked.real)
    s = o.settings
    total = s.generator_weight * likelihood.sum / x.counts.candidates
    return total + s.discriminator_weight * nce.sum / x.counts.real, {
        "cloze_loss": likelihood,
        "cloze_accuracy": accuracy,
        "nce_loss": nce,
        "nce_auc": Scored(scores_BL, labels_BL, x.masked.real),
        "replaced_fraction": Weighted(labels_BL, x.masked.real),
    }


def cloze(o: Objective, params: Params, x: Inputs) -> Array:
    """Computes the generator's logits at every position of the original text, [B, L, V]."""
    states = networks.generator_states(o.model, params, x.masked.batch, x.generator_key)
    return networks.generator_logits(o.model, params, states)


def contrast(o: Objective, params: Params, x: Inputs, logits_BLV: Array) -> Detection:
    """Returns the text with noise at the chosen positions, these positions as labels, and logits of "this is noise"."""
    # The generator learns by its likelihood alone: contrastive estimation takes q as given.
    tempered_BLV = electra.soften(o, jax.lax.stop_gradient(logits_BLV), x.step)
    # [B, L, V] -> [B, M, V]: noise at the chosen positions only.
    noise_BM = electra.sample(x.masked.uniform, networks.gather_positions(tempered_BLV, x.masked.positions))
    # Not the labels of fakes: a sample that equals the original still counts as noise.
    noised_BL, _ = electra.put_fakes(x.masked, noise_BM)
    energy_BL = electra.discriminate(o, params, x, noised_BL)
    # The log-probability under the distribution that was sampled, temperature included.
    log_q_BL = electra.log_prob(tempered_BLV, noised_BL)
    share = o.settings.mask_prob
    return Detection(noised_BL, x.masked.chosen, energy_BL + log_q_BL + math.log(share / (1 - share)))


def detect(o: Objective, params: Params, x: Inputs) -> Detection:
    """Returns the text with the two towers' noise, and the encoder's logits for it."""
    return contrast(o, params, x, cloze(o, params, x))


ELECTRIC = spec.ObjectiveSpec(
    summary="energies by noise-contrastive estimation, with a two-tower generator",
    paper="Electric, arXiv 2012.08561",
    settings=("mask_prob", "temperature", "temperature_decay", *electra.WEIGHTS),
    heads=("discriminator_head",),
    stages=spec.one_stage(loss, Pass("generator", (Head("mlm", everywhere=True),)), electra.DISCRIMINATOR),
    generator="two_towers",
    losses={"cloze_loss": NamedLoss("cloze", spec.UNIGRAM), "nce_loss": NamedLoss("noise-contrastive", spec.CONSTANT)},
    detect=detect,
    scores="how unlikely it is here: the score is -log p(token | context), up to a constant",
)
