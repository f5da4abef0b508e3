"""Batches of examples, in an order that depends on nothing but the seed.

Grain does the work on the numbers of examples: a batch is a function of its number (a pseudo-random permutation of each
epoch), so the position in the data is one integer, kept in the checkpoint. The whole batch is drawn everywhere and each
process cuts its own rows of it, so neither the batches nor the position depend on how many processes there are.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.examples import Batch, Examples

_PREFETCH = 8  # batches made ahead, so that the step need not wait for the loader
_ALL = slice(None)


def training_batches(
    phases: Sequence[tuple[Examples, int]],
    batch_size: int,
    seed: int,
    weights: Sequence[float] | None = None,
    rows: slice | np.ndarray = _ALL,
) -> grain.DatasetIterator:
    """Batches {name: [rows, L]}, every epoch shuffled anew.

    Their `get_state()` gives the position, a dict that JSON can hold; `set_state` takes it.

    Args:
      phases: (examples, how many batches are drawn from them), one phase after another.
      batch_size: of all processes together.
      seed: of the order.
      weights: of the sources, relative shares of the examples; each source is then repeated on its own. None: every
        example once an epoch.
      rows: of each batch, those of this process.

    Raises:
      UserError: there are fewer examples than a batch holds.
    """
    parts = []
    for examples, count in phases:
        if len(examples) < batch_size:
            raise UserError(
                f"the corpus gives {len(examples)} examples, fewer than one batch of {batch_size}; "
                "give more text or a smaller config.batch_size"
            )
        numbers = _numbers(examples, seed, weights).batch(batch_size)
        parts.append(numbers.slice(slice(0, count)).map(_Cut(examples, rows)))
    dataset = grain.MapDataset.concatenate(parts) if len(parts) > 1 else parts[0]
    # One thread: arrays do the work, more threads would only contend for the interpreter.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCH)
    return iter(dataset.to_iter_dataset(options))


class _Cut(grain.transforms.Map):
    """Numbers of a batch's examples -> those rows of the batch."""

    def __init__(self, examples: Examples, rows: slice | np.ndarray):
        self._examples, self._rows = examples, rows

    def map(self, element: Any) -> Batch:
        return self._examples.cut(element[self._rows])


def _numbers(examples: Examples, seed: int, weights: Sequence[float] | None) -> grain.MapDataset:
    """The endless order of examples."""
    bounds = [0, len(examples)] if weights is None else examples.sources.tolist()
    orders = [
        grain.MapDataset.range(begin, end).seed(seed + number).shuffle().repeat()
        for number, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]
    return orders[0] if weights is None else grain.MapDataset.mix(orders, weights)


def heldout_batches(examples: Examples, batch_size: int, limit: int, seed: int) -> Iterator[Batch]:
    """At most `limit` batches of a fixed shuffle of `examples`, each example once; the last is filled with padding."""
    order = np.random.default_rng(seed).permutation(len(examples))[: limit * batch_size]
    for start in range(0, len(order), batch_size):
        batch = examples.cut(order[start : start + batch_size])
        missing = batch_size - len(batch["input_ids"])
        yield {name: np.pad(value, ((0, missing), (0, 0))) for name, value in batch.items()}
