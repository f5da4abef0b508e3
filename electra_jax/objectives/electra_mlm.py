"""ELECTRA with an encoder that also fills masks: it detects fakes, and predicts the originals at the masked positions.

ELECTRA needs two changes to fill masks: a token head, tied to the embeddings, and [MASK] at some input positions of the
encoder, since an encoder that has never read [MASK] cannot fill one. Predicting the originals of fakes is COCO-LM's
corrective language modeling (arXiv 2102.08473), which predicts at every position through a copy gate: the
discriminator, without a gradient (`encoder_positions=all`).
"""

import jax
import jax.numpy as jnp

from electra_jax.metrics import Weighted
from electra_jax.modeling import electra as networks
from electra_jax.objectives import electra, masking, mlm, spec
from electra_jax.objectives.spec import Head, Inputs, Loss, Objective, ObjectiveConfig, Params, Pass, Stage
from electra_jax.runtime.metric_text import NamedLoss

Array = jax.Array
_ALL_BUT_MLM_HEAD = (
    *("embeddings", "encoder", "discriminator_head"),
    *("generator_embeddings", "generator", "generator_head"),
)
_NEVER = -1e4  # a gate that is shut
_OF_PREDICTIONS = ("encoder_mlm_loss", "encoder_mlm_accuracy", "fill_loss", "fill_accuracy")


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes ELECTRA's loss + encoder_weight x MLM by the encoder.

    The encoder reads [MASK] at a fraction `encoder_mask_prob` of the masked positions, which are excluded from the
    detection loss, and the generator's fakes at the others. It predicts the originals at all of them, or everywhere.
    """
    corrupted = electra.corrupt(o, params, x)
    generator, measured = electra.generator_loss(o, corrupted, x)
    # Not the coin of the generator's [MASK]: all that the generator merely copies would be among the encoder's fakes.
    hidden_BM = (x.masked.hide < o.settings.encoder_mask_prob) & (x.masked.weights > 0)
    mask_BM = jnp.full_like(x.masked.positions, o.special.mask)
    batch = x.masked.batch._replace(
        input_ids=masking.scatter(corrupted.input_ids, x.masked.positions, mask_BM, hidden_BM)
    )
    # Where the encoder reads [MASK], there is no token to judge.
    seen_BL = masking.scatter(x.masked.real, x.masked.positions, jnp.zeros_like(x.masked.weights), hidden_BM)
    states_BLD = networks.encode(o.model, params, batch, x.encoder_key)
    scores_BL = networks.discriminator_logits(o.model, params, states_BLD, batch.sequence_ids)
    detection, detected = electra.detection_loss(scores_BL, corrupted.labels, seen_BL)
    # [B, L, V] logits, of which the metrics read the masked positions; otherwise [B, M, V] only.
    if o.settings.encoder_positions == "all":
        logits_BLV = networks.mlm_logits(o.model, params, states_BLD)
        hidden_BL = (x.masked.real > 0) & (seen_BL == 0)
        gate_BL = jnp.where(hidden_BL, _NEVER, -jax.lax.stop_gradient(scores_BL))  # [MASK] is never copied
        nll_BL = -mlm.copy_log_prob(gate_BL, logits_BLV, batch.input_ids, x.masked.original)
        predicted = jnp.sum(nll_BL * x.masked.real) / x.counts.real
        nll = Weighted(jnp.take_along_axis(nll_BL, x.masked.positions, axis=-1), x.masked.weights)
        _, accuracy = electra.mlm(networks.gather_positions(logits_BLV, x.masked.positions), x)
    else:
        states_BMD = networks.gather_positions(states_BLD, x.masked.positions)
        nll, accuracy = electra.mlm(networks.mlm_logits(o.model, params, states_BMD), x)
        predicted = nll.sum / x.counts.masked
    total = (
        generator
        # Divided by all real positions as in ELECTRA, although the sum leaves out those with [MASK].
        + o.settings.discriminator_weight * detection.sum / x.counts.real
        + o.settings.encoder_weight * predicted
    )
    filled_BM = hidden_BM.astype(jnp.float32)
    filled = Weighted(nll.values, filled_BM), Weighted(accuracy.values, filled_BM)
    return total, {**measured, **detected, **dict(zip(_OF_PREDICTIONS, (nll, accuracy, *filled), strict=True))}


def detection_alone_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes ELECTRA's loss. Metrics of predictions have zero weight, so all phases log the same names."""
    total, measured = electra.loss(o, params, x)
    nothing = jnp.zeros_like(x.masked.weights)
    return total, {**measured, **dict.fromkeys(_OF_PREDICTIONS, Weighted(nothing, nothing))}


def _stages(settings: ObjectiveConfig, steps: int) -> tuple[Stage, ...]:
    if settings.encoder_weight:
        prediction = Head("mlm", everywhere=settings.encoder_positions == "all")
        encoder, computed, trainable = Pass("encoder", (spec.DISCRIMINATION, prediction)), loss, None
    else:  # weight decay would shrink the head of predictions
        encoder, computed, trainable = electra.DISCRIMINATOR, detection_alone_loss, _ALL_BUT_MLM_HEAD
    return spec.one_stage(computed, electra.TRAINED_GENERATOR, encoder, trainable=trainable)(settings, steps)


ELECTRA_MLM = spec.ObjectiveSpec(
    summary="replaced-token detection at every position, and masked language modeling by the same encoder",
    paper="after COCO-LM, arXiv 2102.08473",
    settings=(
        # No stage of this objective trains the generator alone.
        *(name for name in electra.ELECTRA.settings if name != "generator_steps"),
        *("encoder_weight", "encoder_mask_prob", "encoder_positions"),
    ),
    heads=("discriminator_head", "mlm_head"),
    stages=_stages,
    losses={**mlm.LOSSES, "fill_loss": NamedLoss("at [MASK]", spec.UNIGRAM)},
    detect=electra.detect,
)
