"""ELECTRA: a generator trained by masked language modelling, a discriminator trained to find what it replaced."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from electra_jax import metrics
from electra_jax.data.tokenizer import PAD
from electra_jax.modeling.electra import Batch, Electra, discriminator_logits, generator_logits
from electra_jax.objectives import masking, sampling

Array = jax.Array


def loss(
    model: Electra, params: Any, batch: Batch, key: Array, settings: Any, train: bool
) -> tuple[Array, metrics.Metrics]:
    """generator_weight x MLM + discriminator_weight x replaced-token detection.

    Both parts are sums over the whole batch divided by their counts over the whole batch, however it is sharded.

    Args:
      model: the two networks.
      params: of `model`.
      batch: `input_ids`, `token_type_ids`, `sequence_ids`, each [B, L] int32.
      key: of everything random in this step.
      settings: `mask_prob`, `replace_prob`, `temperature`, `disallow_correct`, `generator_weight`,
        `discriminator_weight`.
      train: whether dropout is on.

    Returns:
      The loss, a float32 scalar, and the sums behind its metrics.
    """
    mask_key, sample_key, generator_key, discriminator_key = jax.random.split(key, 4)
    masked = masking.mask(mask_key, batch["input_ids"], settings.mask_prob, settings.replace_prob)

    logits_BMV = generator_logits(
        model, params, batch, masked.input_ids, masked.positions, generator_key if train else None
    )
    nll_BM = optax.softmax_cross_entropy_with_integer_labels(logits_BMV, masked.targets)
    mlm = metrics.mean(nll_BM, masked.weights)

    fakes_BM = sample_fakes(sample_key, logits_BMV, masked.targets, settings.temperature, settings.disallow_correct)
    corrupted, labels_BL = corrupt(batch["input_ids"], masked, fakes_BM)

    scores_BL = discriminator_logits(model, params, batch, corrupted, discriminator_key if train else None)
    real_BL = (batch["input_ids"] != PAD).astype(jnp.float32)
    discriminator = metrics.mean(optax.sigmoid_binary_cross_entropy(scores_BL, labels_BL), real_BL)

    total = settings.generator_weight * mlm.value + settings.discriminator_weight * discriminator.value
    correct = (jnp.argmax(logits_BMV, axis=-1) == masked.targets).astype(jnp.float32)
    agreed = ((scores_BL > 0) == (labels_BL > 0)).astype(jnp.float32)
    return total, {
        "mlm_loss": mlm,
        "mlm_accuracy": metrics.mean(correct, masked.weights),
        "disc_loss": discriminator,
        "disc_accuracy": metrics.mean(agreed, real_BL),
        "disc_auc": metrics.roc(scores_BL, labels_BL, real_BL),
        "replaced_fraction": metrics.mean(labels_BL, real_BL),
        "tokens": metrics.total(real_BL),
    }


def sample_fakes(key: Array, logits_BMV: Array, targets_BM: Array, temperature: float, disallow_correct: bool) -> Array:
    """The generator's samples [B, M], no gradient through them; with `disallow_correct` never the original."""
    logits = jax.lax.stop_gradient(logits_BMV) / temperature
    if disallow_correct:
        entries = jnp.arange(logits.shape[-1])[None, None]
        logits = jnp.where(entries == targets_BM[..., None], jnp.finfo(jnp.float32).min, logits)
    return sampling.categorical(key, logits)


def corrupt(input_ids_BL: Array, masked: masking.Masked, fakes_BM: Array) -> tuple[Array, Array]:
    """The original text with fakes at the masked positions, and labels [B, L] float32: 1 where the token changed."""
    corrupted = masking.put(input_ids_BL, masked.positions, fakes_BM, masked.weights > 0)
    return corrupted, (corrupted != input_ids_BL).astype(jnp.float32)
