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
import numpy as np

from electra_jax import metrics
from electra_jax.data.tokenizer import Special
from electra_jax.modeling.electra import Batch
from electra_jax.objectives import corruption, electra, sampling
from electra_jax.objectives.spec import Objective

Array = jax.Array
EvalStep = Callable[[Any, Array, Batch, Array], metrics.Metrics]


def entropy(counts: np.ndarray) -> float:
    """Of the distribution that `counts` describe, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log(p)))


def constant_entropy(fraction: float) -> float:
    """Cross-entropy, in nats, of always predicting the share of replaced tokens."""
    return -sum(p * math.log(p) for p in (fraction, 1 - fraction) if p > 0)


def make_eval_step(objective: Objective) -> EvalStep:
    """The function `eval_step(params, step, batch, key) -> metrics`, not yet jitted; without dropout."""

    def eval_step(params: Any, step: Array, batch: Batch, key: Array) -> metrics.Metrics:
        own_key, unigram_key = jax.random.split(key)
        _, measured = objective.loss(params, objective.draw(own_key, batch, step))
        if objective.system.detect is None:
            return measured
        x = objective.draw(unigram_key, batch, step)
        fakes = sampling.categorical(x.masked.uniform, corruption.unigram_logits(objective, x))
        corrupted, labels = corruption.put_fakes(x.masked, fakes)
        scores = electra.discriminate(objective, params, x, corrupted)
        return {**measured, "unigram_auc": metrics.roc(scores, labels, x.masked.real)}

    return eval_step


class Evaluator:
    """Measures parameters on fixed batches with fixed keys, so that two calls differ by the parameters alone."""

    def __init__(
        self,
        eval_step: EvalStep,
        batches: Iterable[Batch],
        seed: int,
        special: Special,
        put: Callable[[Batch], Batch] = lambda batch: batch,
    ):
        """Takes a jitted `eval_step`, batches of the host, and what puts one of them on the devices."""
        self._eval_step, self._put = eval_step, put
        self._batches = list(batches)
        self._key = jax.random.fold_in(jax.random.key(seed), 2)
        ids = np.concatenate([np.ravel(batch["input_ids"]) for batch in self._batches])
        self._unigram_entropy = entropy(np.delete(np.bincount(ids, minlength=max(special) + 1), special))

    def __call__(self, params: Any, step: Array) -> dict[str, float]:
        """`mlm_loss`, `disc_loss`, ... after `step` steps, and their yardsticks, over all batches together."""
        keys = jax.random.split(self._key, len(self._batches))
        together: metrics.Metrics | None = None
        for batch, key in zip(self._batches, keys, strict=True):
            together = metrics.add(together, jax.device_get(self._eval_step(params, step, self._put(batch), key)))
        assert together is not None
        result = metrics.numbers(together)
        result["unigram_entropy"] = self._unigram_entropy
        if math.isfinite(result.get("replaced_fraction", math.nan)):  # not of a system, or a stage, without fakes
            result["constant_entropy"] = constant_entropy(result["replaced_fraction"])
        return result
