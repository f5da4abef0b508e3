"""Batches of examples, in an order that depends on nothing but the seed.

Grain does the work: a batch is a function of its number (a pseudo-random permutation of each epoch), so the position
in the data is one integer, kept in the checkpoint.
"""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from electra_jax.errors import UserError

Batch = dict[str, np.ndarray]
_PREFETCH = 8  # batches made ahead, so that the step need not wait for the loader


def training_batches(examples: Any, batch_size: int, seed: int) -> grain.DatasetIterator:
    """Endless batches {name: [B, L]}, every epoch shuffled anew.

    Their `get_state()` gives the position, a dict that JSON can hold; `set_state` takes it.

    Raises:
      UserError: there are fewer examples than a batch holds.
    """
    if len(examples) < batch_size:
        raise UserError(
            f"the corpus gives {len(examples)} examples, fewer than one batch of {batch_size}; "
            "give more text or a smaller config.batch_size"
        )
    dataset = grain.MapDataset.source(examples).seed(seed).shuffle().repeat().batch(batch_size)
    # One thread: the examples are cut from memory, more would only contend for the interpreter.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCH)
    return iter(dataset.to_iter_dataset(options))


def heldout_batches(examples: Any, batch_size: int, limit: int, seed: int) -> Iterator[Batch]:
    """At most `limit` batches of a fixed shuffle of `examples`, each example once; the last is filled with padding."""
    order = np.random.default_rng(seed).permutation(len(examples))[: limit * batch_size]
    for start in range(0, len(order), batch_size):
        rows = [examples[i] for i in order[start : start + batch_size]]
        padding = {name: np.zeros_like(value) for name, value in rows[0].items()}
        rows += [padding] * (batch_size - len(rows))
        yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}
