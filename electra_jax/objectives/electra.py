"""ELECTRA: a generator trained by masked language modelling, an encoder trained to find what it replaced."""

import jax
import jax.numpy as jnp
import optax

from electra_jax import metrics
from electra_jax.modeling import electra as networks
from electra_jax.objectives import corruption, spec
from electra_jax.objectives.spec import Detection, Inputs, Loss, Objective, Params, Pass

Array = jax.Array
DISCRIMINATOR = Pass("encoder", "discriminator", everywhere=True)
WEIGHTS = {"generator_weight": 1.0, "discriminator_weight": 50.0}


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """generator_weight x MLM + discriminator_weight x replaced-token detection, over every real position."""
    return _loss(o, params, x, x.masked.real, x.counts.real)


def loss_15(o: Objective, params: Params, x: Inputs) -> Loss:
    """As `loss`, but detection is learned, and measured, at the masked positions alone."""
    return _loss(o, params, x, x.masked.chosen, x.counts.masked)


def _loss(o: Objective, params: Params, x: Inputs, weights_BL: Array, count: Array) -> Loss:
    found = corruption.corrupt(o, params, x)
    generator, measured = corruption.generator_loss(o, found, x)
    detection, detected = detection_loss(discriminate(o, params, x, found.input_ids), found.labels, weights_BL)
    total = generator + o.settings.discriminator_weight * detection.sum / count
    return total, {**measured, **detected}


def resting_generator_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """discriminator_weight x replaced-token detection; the generator, without dropout, is only measured."""
    found = corruption.corrupt(o, params, x._replace(key=None))
    nll, accuracy = corruption.mlm(found.logits, x)
    detection, detected = detection_loss(discriminate(o, params, x, found.input_ids), found.labels, x.masked.real)
    total = o.settings.discriminator_weight * detection.sum / x.counts.real
    return total, {"mlm_loss": nll, "mlm_accuracy": accuracy, **detected}


def detect(o: Objective, params: Params, x: Inputs) -> Detection:
    """The generator's fakes, and what the encoder thinks of them."""
    found = corruption.corrupt(o, params, x)
    return Detection(found.input_ids, found.labels, discriminate(o, params, x, found.input_ids))


def discriminate(o: Objective, params: Params, x: Inputs, input_ids_BL: Array) -> Array:
    """The logit of "this token was replaced" at every position of `input_ids_BL`, [B, L] float32."""
    states_BLD = networks.read(o.model, params, "encoder", x.masked.batch, input_ids_BL, x.encoder_key)
    return networks.score(o.model, params, "discriminator_head", states_BLD)


def detection_loss(scores_BL: Array, labels_BL: Array, weights_BL: Array) -> tuple[metrics.Mean, metrics.Metrics]:
    """Sigmoid cross-entropy; and with it accuracy, AUC, and the share of the positions that was replaced."""
    agreed = ((scores_BL > 0) == (labels_BL > 0)).astype(jnp.float32)
    loss = metrics.mean(optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL), weights_BL)
    return loss, {
        "disc_loss": loss,
        "disc_accuracy": metrics.mean(agreed, weights_BL),
        "disc_auc": metrics.roc(scores_BL, labels_BL, weights_BL),
        "replaced_fraction": metrics.mean(labels_BL, weights_BL),
    }


ELECTRA = spec.ObjectiveSpec(
    summary="replaced-token detection at every position",
    paper="ELECTRA, tables 1 and 5",
    settings={**spec.MASKING, **spec.GENERATOR, **spec.SAMPLING, **WEIGHTS},
    heads=("discriminator_head",),
    loss=loss,
    stages=corruption.beside(DISCRIMINATOR),
    detect=detect,
)
ELECTRA_15 = spec.ObjectiveSpec(
    summary="replaced-token detection at the masked positions only",
    paper="ELECTRA 15%, table 5",
    settings=ELECTRA.settings,
    heads=("discriminator_head",),
    loss=loss_15,
    stages=corruption.beside(DISCRIMINATOR),
    detect=detect,
)
