"""Held-out numbers, and the yardsticks that give them a meaning.

Beside the masked-language-modelling loss stands the unigram entropy of the same text: what a model reaches that knows
how often each token occurs and nothing else. Beside the discriminator's loss stands the entropy of the constant
predictor. Detection is measured twice: against the generator's own fakes, which get harder as it learns, and against
fakes drawn from the unigram distribution, which do not.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import metrics
from electra_jax.data.tokenizer import PAD, SPECIAL_TOKENS
from electra_jax.modeling.electra import Batch, Electra, discriminator_logits
from electra_jax.objectives import electra, masking, sampling

Array = jax.Array
EvalStep = Callable[[Any, Batch, Array], metrics.Metrics]


def unigram_logits(counts: np.ndarray, padded_size: int) -> np.ndarray:
    """Log-probabilities [padded_size] float32 of drawing a token as often as it occurs; special ones never."""
    frequency = np.zeros(padded_size)
    frequency[: len(counts)] = counts
    frequency[: len(SPECIAL_TOKENS)] = 0
    with np.errstate(divide="ignore"):
        logits = np.log(frequency / frequency.sum())
    return np.maximum(logits, np.finfo(np.float32).min).astype(np.float32)


def entropy(counts: np.ndarray) -> float:
    """Of the distribution that `counts` describe, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log(p)))


def constant_entropy(fraction: float) -> float:
    """Cross-entropy, in nats, of always predicting the share of replaced tokens."""
    return -sum(p * math.log(p) for p in (fraction, 1 - fraction) if p > 0)


def make_eval_step(model: Electra, objective: Any, unigram: np.ndarray) -> EvalStep:
    """The function `eval_step(params, batch, key) -> metrics`, not yet jitted.

    Args:
      model: the two networks.
      objective: settings of the loss, `config.objective`.
      unigram: logits [V] that the fakes of the fixed yardstick are drawn from.
    """

    def eval_step(params: Any, batch: Batch, key: Array) -> metrics.Metrics:
        own_key, mask_key, fake_key = jax.random.split(key, 3)
        _, measured = electra.loss(model, params, batch, own_key, objective, train=False)

        masked = masking.mask(mask_key, batch["input_ids"], objective.mask_prob, 1.0)
        logits = jnp.broadcast_to(jnp.asarray(unigram), (*masked.positions.shape, len(unigram)))
        corrupted, labels = electra.corrupt(batch["input_ids"], masked, sampling.categorical(fake_key, logits))
        scores = discriminator_logits(model, params, batch, corrupted)
        real = (batch["input_ids"] != PAD).astype(jnp.float32)
        return {**measured, "unigram_auc": metrics.roc(scores, labels, real)}

    return eval_step


class Evaluator:
    """Measures parameters on fixed batches with fixed keys, so that two calls differ by the parameters alone."""

    def __init__(self, eval_step: EvalStep, batches: Iterable[Batch], seed: int):
        """Takes a jitted `eval_step`, and batches of the host, which are put on the devices one at a time."""
        self._eval_step = eval_step
        self._batches = list(batches)
        self._key = jax.random.fold_in(jax.random.key(seed), 2)
        ids = np.concatenate([np.ravel(batch["input_ids"]) for batch in self._batches])
        self._unigram_entropy = entropy(np.bincount(ids)[len(SPECIAL_TOKENS) :])

    def __call__(self, params: Any) -> dict[str, float]:
        """`mlm_loss`, `disc_loss`, ... and their yardsticks, over all batches together."""
        keys = jax.random.split(self._key, len(self._batches))
        together: metrics.Metrics | None = None
        for batch, key in zip(self._batches, keys, strict=True):
            together = metrics.add(together, jax.device_get(self._eval_step(params, batch, key)))
        assert together is not None
        result = metrics.numbers(together)
        return {
            **result,
            "unigram_entropy": self._unigram_entropy,
            "constant_entropy": constant_entropy(result["replaced_fraction"]),
        }
