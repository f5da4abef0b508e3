"""Evaluation on held-out text, with baselines to compare the losses with.

The baseline of the masked-language-modelling loss is the unigram entropy of the same text: the loss of a model that
knows token frequencies only. The baseline of the discriminator's loss is the entropy of the constant prediction.
Detection is measured twice: on the generator's fakes, which get harder as it learns, and on fakes drawn from the
unigram distribution, which stay the same.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import metrics
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra
from electra_jax.objectives.spec import Objective, Params, Stage
from electra_jax.runtime import rng
from electra_jax.runtime.metric_text import LOSSES

Array = jax.Array
EvalStep = Callable[[Params, Array, Batch, Array], metrics.Metrics]


def entropy(counts: np.ndarray) -> float:
    """The entropy of the distribution of `counts`, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log(p)))


def constant_entropy(fraction: float) -> float:
    """The cross-entropy, in nats, of always predicting `fraction`, the share of replaced tokens."""
    return -sum(p * math.log(p) for p in (fraction, 1 - fraction) if p > 0)


def is_better_than_baselines(heldout: Mapping[str, float]) -> bool:
    """Whether an evaluation was made, all its losses are finite, and each is below its baseline if it has one."""
    losses = [name for name in LOSSES if name in heldout]
    return bool(losses) and all(heldout[name] < heldout.get(LOSSES[name].baseline, math.inf) for name in losses)


def make_eval_step(objective: Objective, stage: Stage) -> EvalStep:
    """The function `eval_step(params, step, batch, key) -> metrics` of a stage, not yet jitted; without dropout."""

    def eval_step(params: Params, step: Array, batch: Batch, key: Array) -> metrics.Metrics:
        own_key, unigram_key = jax.random.split(key)
        _, measured = objective.loss(stage, params, objective.draw(own_key, batch, step))
        if objective.system.detect is None:
            return measured
        x = objective.draw(unigram_key, batch, step)
        fakes = electra.sample(x.masked.uniform, electra.unigram_logits(objective, x))
        corrupted, labels = electra.put_fakes(x.masked, fakes)
        scores = electra.discriminate(objective, params, x, corrupted)
        return {**measured, "unigram_auc": metrics.roc(scores, labels, x.masked.real)}

    return eval_step


class Evaluator:
    """Evaluates parameters on fixed batches with fixed keys, so that two results differ by the parameters only."""

    def __init__(
        self,
        objective: Objective,
        batches: Iterable[Batch],
        seed: int,
        put: Callable[[Batch], Batch] = lambda batch: batch,
        jit: Callable[[EvalStep], EvalStep] = jax.jit,
    ):
        """An evaluator that compiles an eval step for each stage when the stage is first evaluated.

        Args:
          objective: the run's objective.
          batches: held-out batches, NumPy arrays.
          seed: the run's seed.
          put: moves a batch to the devices.
          jit: compiles an eval step.
        """
        self._objective, self._put, self._jit = objective, put, jit
        self._batches = list(batches)
        self._key = rng.stream_key(seed, rng.Stream.EVALUATION)
        self._eval_steps: dict[Stage, EvalStep] = {}
        ids, special = np.concatenate([np.ravel(batch.input_ids) for batch in self._batches]), objective.special
        self._unigram_entropy = entropy(np.delete(np.bincount(ids, minlength=max(special) + 1), special))

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        """`mlm_loss`, `disc_loss`, ... after `step` steps, and their baselines, over all batches together."""
        eval_step = self._eval_step(self._objective.stage_at(step))
        keys = jax.random.split(self._key, len(self._batches))
        total: metrics.Metrics | None = None
        for batch, key in zip(self._batches, keys, strict=True):
            measured = eval_step(params, jnp.int32(step), self._put(batch), key)
            total = metrics.add(total, jax.device_get(measured))
        assert total is not None
        result = metrics.numbers(total)
        result["unigram_entropy"] = self._unigram_entropy
        if math.isfinite(result.get("replaced_fraction", math.nan)):  # NaN in a stage that puts no fakes
            result["constant_entropy"] = constant_entropy(result["replaced_fraction"])
        return result

    def _eval_step(self, stage: Stage) -> EvalStep:
        if stage not in self._eval_steps:
            self._eval_steps[stage] = self._jit(make_eval_step(self._objective, stage))
        return self._eval_steps[stage]
