"""Masked language modeling by the encoder: BERT's, and two variants that read a generator's fakes."""

import jax
import jax.numpy as jnp

from electra_jax.metrics import Weighted
from electra_jax.modeling import electra as networks
from electra_jax.objectives import electra, spec
from electra_jax.objectives.spec import Head, Inputs, Loss, Objective, Params, Pass
from electra_jax.runtime.metric_text import NamedLoss

Array = jax.Array


def loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes BERT's masked-language-modeling loss (arXiv 1810.04805, without next-sentence prediction)."""
    nll, accuracy = _predict_masked(o, params, x, x.masked.input_ids)
    return nll.sum / x.counts.masked, {"mlm_loss": nll, "mlm_accuracy": accuracy}


def _predict_masked(o: Objective, params: Params, x: Inputs, input_ids_BL: Array) -> tuple[Weighted, Weighted]:
    """Computes (loss, accuracy) of the originals at the masked positions, given `input_ids_BL` as encoder input."""
    # The head reads the masked positions only: [B, L, D] -> [B, M, D] -> [B, M, V].
    states_BLD = networks.encode(o.model, params, x.masked.batch._replace(input_ids=input_ids_BL), x.encoder_key)
    logits_BMV = networks.mlm_logits(o.model, params, networks.gather_positions(states_BLD, x.masked.positions))
    return electra.mlm(logits_BMV, x)


def replace_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Computes generator_weight x MLM + encoder_weight x MLM by the encoder, which reads fakes in place of [MASK]."""
    corrupted = electra.corrupt(o, params, x)
    generator, measured = electra.generator_loss(o, corrupted, x)
    nll, accuracy = _predict_masked(o, params, x, corrupted.input_ids)
    return generator + o.settings.encoder_weight * nll.sum / x.counts.masked, {
        **measured,
        "encoder_mlm_loss": nll,
        "encoder_mlm_accuracy": accuracy,
        "replaced_fraction": Weighted(corrupted.labels, x.masked.real),
    }


def all_tokens_loss(o: Objective, params: Params, x: Inputs) -> Loss:
    """Like `replace_loss`, but the encoder predicts every position, through the copy gate."""
    corrupted = electra.corrupt(o, params, x)
    generator, measured = electra.generator_loss(o, corrupted, x)
    batch = x.masked.batch._replace(input_ids=corrupted.input_ids)
    states_BLD = networks.encode(o.model, params, batch, x.encoder_key)
    # [B, L, V], where `replace_mlm` computes [B, M, V]: a step costs more.
    logits_BLV = networks.mlm_logits(o.model, params, states_BLD)
    gate_BL = networks.copy_logits(o.model, params, states_BLD)
    nll_BL = -copy_log_prob(gate_BL, logits_BLV, corrupted.input_ids, x.masked.original)
    nll = Weighted(nll_BL, x.masked.real)
    return generator + o.settings.encoder_weight * nll.sum / x.counts.real, {
        **measured,
        "all_tokens_loss": nll,
        "all_tokens_masked_loss": Weighted(nll_BL, x.masked.chosen),
        "copy_probability": Weighted(jax.nn.sigmoid(gate_BL), x.masked.real),
        "replaced_fraction": Weighted(corrupted.labels, x.masked.real),
    }


def copy_log_prob(gate_BL: Array, logits_BLV: Array, input_ids_BL: Array, targets_BL: Array) -> Array:
    """Computes log p(target) [B, L]: p(x) = D x 1[x is the input] + (1 - D) x softmax(x), where D = sigmoid(gate)."""
    # By logarithms throughout: p(x) itself rounds to 0 or 1 where the gate is sure.
    predicted = electra.log_prob(logits_BLV, targets_BL)
    not_copied = jax.nn.log_sigmoid(-gate_BL) + predicted
    return jnp.where(targets_BL == input_ids_BL, jnp.logaddexp(jax.nn.log_sigmoid(gate_BL), not_copied), not_copied)


MLM = spec.ObjectiveSpec(
    summary="masked language modeling",
    paper="BERT, table 5",
    settings=spec.MASKING,
    heads=("mlm_head",),
    stages=spec.one_stage(loss, Pass("encoder", (spec.MASKED_MLM,))),
    generator=None,
)
LOSSES = {**spec.LOSSES, "encoder_mlm_loss": NamedLoss("encoder's MLM", spec.UNIGRAM)}
REPLACE_MLM = spec.ObjectiveSpec(
    summary="masked language modeling with the generator's fakes in place of [MASK]",
    paper="Replace MLM, table 5",
    settings=(*spec.MASKING, "generator", *spec.SAMPLING, "generator_weight", "encoder_weight"),
    heads=("mlm_head",),
    stages=spec.one_stage(replace_loss, electra.TRAINED_GENERATOR, Pass("encoder", (spec.MASKED_MLM,))),
    losses=LOSSES,
)
ALL_TOKENS_MLM = spec.ObjectiveSpec(
    summary="as replace_mlm, but predicting every position, with a copy gate",
    paper="All-Tokens MLM, table 5",
    settings=REPLACE_MLM.settings,
    heads=("mlm_head", "copy_gate"),
    stages=spec.one_stage(
        all_tokens_loss, electra.TRAINED_GENERATOR, Pass("encoder", (Head("copy", everywhere=True),))
    ),
    losses={
        **spec.LOSSES,
        "all_tokens_loss": NamedLoss("all-tokens"),
        "all_tokens_masked_loss": NamedLoss("at masked positions", spec.UNIGRAM),
    },
)
