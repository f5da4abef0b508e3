"""Evaluation on held-out text, with baselines for the losses.

The baseline of the masked-language-modeling loss is the unigram entropy of the same text: the loss of a model that
knows token frequencies only. The baseline of the discriminator's loss is the entropy of the constant prediction.
Detection is measured twice: on the generator's fakes, which get harder as it learns, and on fakes drawn from the
unigram distribution, which stay the same.

For a mixture of sources, the same batches also give per-source metrics.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import metrics
from electra_jax.data.batches import HeldoutBatch
from electra_jax.objectives import electra
from electra_jax.objectives.segments import Segment, segment_at
from electra_jax.objectives.spec import Objective, Params, Stage
from electra_jax.runtime import rng
from electra_jax.runtime.metric_text import NamedLoss

Array = jax.Array


class Measured(NamedTuple):
    """Metrics of one held-out batch, or of several.

    Attributes:
      whole: over all examples.
      by_source: per source, as arrays with a leading axis [sources]; empty if not requested.
    """

    whole: metrics.Metrics
    by_source: metrics.Metrics


EvalStep = Callable[[Params, Array, HeldoutBatch, Array], Measured]


def entropy(counts: np.ndarray) -> float:
    """Computes the entropy of the distribution of `counts`, in nats."""
    # The limit of p log p at 0 is 0, NumPy's value is NaN.
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log(p)))


def constant_entropy(fraction: float) -> float:
    """Computes the cross-entropy, in nats, of always predicting `fraction`, the fraction of replaced tokens."""
    return -sum(p * math.log(p) for p in (fraction, 1 - fraction) if p > 0)


def is_better_than_baselines(heldout: Mapping[str, float], losses: Mapping[str, NamedLoss]) -> bool:
    """True if an evaluation was made, all its `losses` are finite, and each is below its baseline, if it has one."""
    measured = [name for name in losses if name in heldout]
    # Without a baseline the bound is infinity: NaN and infinity are not below it.
    return bool(measured) and all(heldout[name] < heldout.get(losses[name].baseline, math.inf) for name in measured)


def make_eval_step(objective: Objective, stage: Stage, sources: int = 0) -> EvalStep:
    """Returns the function `eval_step(params, step, heldout, key) -> Measured`, without dropout and not yet jitted.

    Args:
      objective: the run's objective.
      stage: the stage whose losses are measured.
      sources: the number of sources with separate metrics; 0: no per-source metrics.
    """

    def eval_step(params: Params, step: Array, heldout: HeldoutBatch, key: Array) -> Measured:
        own_key, unigram_key = jax.random.split(key)
        _, measured = objective.measure(stage, params, objective.draw(own_key, heldout.batch, step))
        if objective.system.detect is not None:
            x = objective.draw(unigram_key, heldout.batch, step)
            fakes = electra.sample(x.masked.uniform, electra.unigram_logits(objective))
            corrupted, labels = electra.put_fakes(x.masked, fakes)
            scores = electra.discriminate(objective, params, x, corrupted)
            measured = {**measured, "unigram_auc": metrics.Scored(scores, labels, x.masked.real)}
        by_source = metrics.over_groups(measured, heldout.sources, sources) if sources else {}
        return Measured(metrics.over_batch(measured), by_source)

    return eval_step


class Evaluator:
    """Evaluator of parameters on fixed batches with fixed keys.

    Two results differ only by the parameters, unless the objective changes with the step (`mask_prob_end`,
    `temperature_decay`, `config.phases`). The eval step of a loss is compiled by `compile`, or otherwise at its first
    evaluation.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        batches: Iterable[HeldoutBatch],
        seed: int,
        put: Callable[[HeldoutBatch], HeldoutBatch] = lambda batch: batch,
        jit: Callable[[EvalStep], Any] = jax.jit,
        sources: Sequence[str] = (),
    ):
        """Creates an evaluator.

        Args:
          segments: the run's schedule.
          batches: held-out batches, NumPy arrays.
          seed: the run's seed.
          put: moves a batch to the devices.
          jit: `jax.jit`, with the shardings that a run needs.
          sources: names of the sources; if there are several, each one with examples in the batches gets metrics.
        """
        self._segments, self._put, self._jit = segments, put, jit
        self._sources = sources if len(sources) > 1 else ()
        self._batches = list(batches)
        self._key = rng.stream_key(seed, rng.Stream.EVALUATION)
        self._eval_steps: dict[Any, EvalStep] = {}  # by loss
        ids_NL = np.concatenate([heldout.batch.input_ids for heldout in self._batches])
        sources_N = np.concatenate([heldout.sources for heldout in self._batches])
        self._unigram_entropy = self._entropy(ids_NL)
        self._entropies = {
            number: self._entropy(ids_NL[sources_N == number])
            for number in range(len(self._sources))
            if number in sources_N
        }

    def compile(self, params: Params, segments: Iterable[Segment]) -> list[jax.stages.Compiled]:
        """Compiles the eval steps of `segments` for parameters of these shapes, and returns them."""
        batch = self._put(self._batches[0])
        # Held-out batches have one shape, so segments that differ only in theirs share an eval step.
        compiled = {
            loss: self._jitted(segment).lower(params, jnp.int32(0), batch, self._key).compile()
            for loss, segment in {segment.loss: segment for segment in segments}.items()
        }
        self._eval_steps |= compiled
        return list(compiled.values())

    def __call__(self, params: Params, step: int) -> dict[str, float]:
        """Computes `mlm_loss`, `disc_loss`, ... after `step` steps, and their baselines, over all batches together.

        Metrics of a source are named `mlm_loss/NAME` and so on.
        """
        # After the last step of a segment this is the next one, whose state `ShardedStep.begin` has already made.
        segment = segment_at(self._segments, step)
        eval_step = self._eval_steps.setdefault(segment.loss, self._jitted(segment))
        # The keys are those of every other evaluation, so masks and fakes do not change during a run.
        keys = jax.random.split(self._key, len(self._batches))
        total: Measured | None = None
        for batch, key in zip(self._batches, keys, strict=True):
            measured = jax.device_get(eval_step(params, jnp.int32(step), self._put(batch), key))
            total = measured if total is None else Measured(*map(metrics.add, total, measured))
        assert total is not None
        result = _with_baselines(total.whole, self._unigram_entropy)
        for number, unigram_entropy in self._entropies.items():
            own = jax.tree.map(operator.itemgetter(number), total.by_source)
            values = _with_baselines(own, unigram_entropy)
            result |= {f"{name}/{self._sources[number]}": value for name, value in values.items()}
        return result

    def _jitted(self, segment: Segment) -> Any:
        return self._jit(make_eval_step(segment.objective, segment.stage, len(self._sources)))

    def _entropy(self, ids_NL: np.ndarray) -> float:
        """Computes the unigram entropy of the tokens that are predicted: all but the special ones, [UNK] included."""
        special = self._segments[0].objective.special
        never = [id_ for id_ in special if id_ != special.unk]
        # `minlength`: `np.delete` refuses indices beyond the counts, as of a special token that does not occur.
        return entropy(np.delete(np.bincount(ids_NL.ravel(), minlength=max(special) + 1), never))


def _with_baselines(measured: metrics.Metrics, unigram_entropy: float) -> dict[str, float]:
    """Converts metrics to numbers and adds the baselines of their losses."""
    # Without the losses of another stage or phase: they would pass for losses that are not finite.
    counted = {
        name: each for name, each in measured.items() if not (isinstance(each, metrics.Mean) and each.count == 0)
    }
    result = {**metrics.numbers(counted), "unigram_entropy": unigram_entropy}
    # The fraction is NaN in a stage without fakes.
    if math.isfinite(result.get("replaced_fraction", math.nan)):
        result["constant_entropy"] = constant_entropy(result["replaced_fraction"])
    return result
