"""Bucketing: batches of rows of similar length have little padding, and each bucket's length is compiled once."""

from collections.abc import Iterator, Sequence

import numpy as np

from electra_jax.loading.text_batches import bucket_lengths

_MULTIPLE = 16  # the longest bucket is a multiple of this


def buckets(lengths: np.ndarray, shortest: int) -> list[int]:
    """Returns the bucket lengths: 1, 1.5, 2, 3, 4, 6 ... times `shortest`; the last one holds the longest row.

    Args:
      lengths: number of tokens in each row.
      shortest: the shortest bucket. If the longest row fits into it, there is only one bucket, which may be shorter.
    """
    return bucket_lengths(_MULTIPLE * -(-int(lengths.max()) // _MULTIPLE), shortest)


def epoch_batches(
    lengths: np.ndarray, sizes: Sequence[int], batch_size: int, seed: int, epoch: int
) -> list[tuple[int, np.ndarray]]:
    """Returns (padded length, row indices) of each step of an epoch, which has each row once.

    Rows that do not fill a batch of their bucket move to the next longer bucket, so only one batch of the epoch may be
    short. The sequence of lengths is the same for every seed, so several seeds can train at once; the rows differ.

    Args:
      lengths: number of tokens in each row.
      sizes: the result of `buckets`.
      batch_size: number of rows per step.
      seed: seed of the order of the rows.
      epoch: index of the epoch.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    # A row exactly as long as a bucket belongs to it: searchsorted's default side.
    bucket_of = np.searchsorted(sizes, lengths[order])
    steps: list[tuple[int, np.ndarray]] = []
    rest = np.empty(0, np.int64)
    for i, size in enumerate(sizes):
        rows = np.concatenate([rest, order[bucket_of == i]])
        # The longest bucket has no next one: its last batch may be short.
        whole = len(rows) // batch_size * batch_size if i + 1 < len(sizes) else len(rows)
        steps += [(size, rows[begin : begin + batch_size]) for begin in range(0, whole, batch_size)]
        rest = rows[whole:]
    # Not shuffled by `seed`: seeds that train at once need the same length in each step.
    return [steps[i] for i in np.random.default_rng(epoch).permutation(len(steps))]


def evaluation_batches(lengths: np.ndarray, sizes: Sequence[int], batch_size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (padded length, row indices) of each evaluation batch; only the last one of a bucket may be short."""
    bucket_of = np.searchsorted(sizes, lengths)
    for i, size in enumerate(sizes):
        rows = np.flatnonzero(bucket_of == i)
        for begin in range(0, len(rows), batch_size):
            yield size, rows[begin : begin + batch_size]
