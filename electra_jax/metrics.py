"""Metrics as sums and counts: additive over examples, devices and steps, and converted to numbers on the host.

Losses return unreduced, per-example metrics (`Weighted`, `Scored`). A train step sums them over the whole batch; an
evaluation also sums them over the examples of each source.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Array = jax.Array

# What is summed since the first step of a run and kept in its checkpoints, beside the times of `goodput.Clock`.
TOTALS = ("tokens", "device_seconds", "skipped_steps", "joules")
_ROOT_BINS = 32  # the ROC histogram has 32 x 32 bins
_SCORE_LIMIT = 16.0  # logits beyond this count in the outermost bins


@struct.dataclass
class Mean:
    """Weighted mean, stored as the sum of weight x value and the sum of weights."""

    sum: Any
    count: Any

    @property
    def value(self) -> Any:
        """The mean as a JAX or NumPy array; 0 where nothing was counted."""
        count = self.count
        # Divides by 1 where the count is 0, because 0 / 0 would be NaN.
        return self.sum / (count + (count == 0).astype(jnp.float32))

    def number(self) -> float:
        """Returns the mean; NaN if nothing was counted."""
        return float(self.sum) / float(self.count) if self.count else float("nan")


@struct.dataclass
class Total:
    """A sum."""

    sum: Any

    def number(self) -> float:
        return float(self.sum)


@struct.dataclass
class Roc:
    """ROC curve, stored as histograms of the scores of negatives and positives, [2, bins]."""

    histogram: Any

    def number(self) -> float:
        """Returns the area under the ROC curve: P(score of a positive > score of a negative), ties counting half."""
        # Products of token counts exceed the 24 bits of float32.
        negative, positive = np.asarray(self.histogram, np.float64)
        pairs = negative.sum() * positive.sum()
        below = np.cumsum(negative) - negative
        return float(np.sum(positive * (below + negative / 2)) / pairs) if pairs else float("nan")


Metrics = Mapping[str, Mean | Total | Roc]


class Weighted(NamedTuple):
    """Values to be averaged, and their weights, [B, ...]."""

    values: Array
    weights: Array

    @property
    def sum(self) -> Array:
        """The sum of weight x value over the whole batch."""
        return jnp.sum(self.values * self.weights)


class Scored(NamedTuple):
    """Scores (logits) for an area under the ROC curve, their labels and weights, [B, L]."""

    scores: Array
    labels: Array
    weights: Array


Unsummed = Mapping[str, Weighted | Scored | Mean | Total]  # the last two are already summed over the batch


def over_batch(measured: Unsummed) -> Metrics:
    """Sums metrics over a whole batch."""

    def sum_up(each: Weighted | Scored | Mean | Total) -> Mean | Total | Roc:
        if isinstance(each, Weighted):
            return mean(*each)
        return roc(*each) if isinstance(each, Scored) else each

    return {name: sum_up(each) for name, each in measured.items()}


def over_groups(measured: Unsummed, groups_B: Array, count: int) -> Metrics:
    """Sums metrics over the examples of each group; the resulting arrays have a leading axis [groups].

    Metrics that are known for the whole batch only are left out.

    Args:
      measured: the metrics of a batch.
      groups_B: int32, the group of each example, from 0; examples with a negative number are in no group.
      count: the number of groups.
    """
    # [B] -> [B, G]; a negative group gives a row of zeros.
    member_BG = jax.nn.one_hot(groups_B, count, dtype=jnp.float32)

    def by_group(x_B: Array) -> Array:
        # The default precision rounds to bfloat16 on TPU.
        return jnp.einsum("bg,b...->g...", member_BG, x_B, precision=jax.lax.Precision.HIGHEST)

    def rows(x: Array) -> Array:
        # [B, ...] -> [B]
        return jnp.sum(x.reshape(len(x), -1), axis=1)

    sums: dict[str, Mean | Total | Roc] = {}
    for name, each in measured.items():
        if isinstance(each, Weighted):
            sums[name] = Mean(by_group(rows(each.values * each.weights)), by_group(rows(each.weights)))
        elif isinstance(each, Scored):
            # [B, 2, bins] -> [G, 2, bins]: a histogram of each example, then their sums.
            sums[name] = Roc(by_group(jax.vmap(roc)(*each).histogram))
    return sums


def mean(values: Array, weights: Array) -> Mean:
    return Mean(jnp.sum(values * weights), jnp.sum(weights))


def total(values: Array) -> Total:
    return Total(jnp.sum(values))


def scalar(value: Array) -> Mean:
    """Wraps a number that describes a whole step; it is averaged over steps."""
    return Mean(value, jnp.ones((), jnp.float32))


def roc(scores: Array, labels: Array, weights: Array) -> Roc:
    """Computes histograms of scores (logits) by label, in 1024 equal bins of [-16, 16].

    A bin's index is split into two digits of base 32, and the histogram is the product of the digits' one-hot matrices:
    a small matrix multiplication, because a scatter is slow on TPU.
    """
    scores, labels, weights = (jax.lax.stop_gradient(x.reshape(-1)) for x in (scores, labels, weights))
    bins = _ROOT_BINS**2
    index = jnp.floor((scores + _SCORE_LIMIT) * (bins / (2 * _SCORE_LIMIT)))
    index = jnp.clip(index, 0, bins - 1).astype(jnp.int32)
    high = jax.nn.one_hot(index // _ROOT_BINS, _ROOT_BINS)
    low = jax.nn.one_hot(index % _ROOT_BINS, _ROOT_BINS)
    by_label = jnp.stack([weights * (1 - labels), weights * labels])
    # [2, N], [N, 32], [N, 32] -> [2, 32, 32] -> [2, 1024]. All factors are 0 or 1: bfloat16, the default precision on
    # TPU, is exact.
    return Roc(jnp.einsum("cn,nh,nl->chl", by_label, high, low).reshape(2, bins))


def add(a: Metrics | None, b: Metrics) -> Metrics:
    """Adds the metrics of two steps or batches."""
    # NumPy: the arrays are on the host, and `jnp.add` would move them to a device.
    return b if a is None else jax.tree.map(np.add, a, b)


def numbers(metrics: Metrics) -> dict[str, float]:
    """Converts metrics on the host to numbers."""
    return {name: metric.number() for name, metric in metrics.items()}


class MetricAccumulator:
    """Accumulator of the metrics since the last logged step."""

    def __init__(self) -> None:
        self._metrics: Metrics | None = None

    def add(self, measured: Metrics) -> Metrics:
        """Adds a step's metrics and returns them as NumPy arrays; blocks until that step is done."""
        fetched: Metrics = jax.device_get(measured)
        # A float32 loses units beyond 2^24, which a window of large batches soon has in tokens.
        self._metrics = add(self._metrics, jax.tree.map(np.float64, fetched))
        return fetched

    def close(self) -> dict[str, float]:
        """Returns the metrics of the current window and starts an empty one."""
        assert self._metrics is not None, "a window without a step has no metrics"
        window, self._metrics = self._metrics, None
        return numbers(window)
