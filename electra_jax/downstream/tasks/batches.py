"""Batches of rows of like length, so that little of them is padding, and each length is compiled for once."""

from collections.abc import Iterator, Sequence

import numpy as np

_MULTIPLE = 16  # of the longest


def buckets(lengths: np.ndarray, shortest: int) -> list[int]:
    """The lengths that rows are padded to: `shortest`, and 1.5, 2, 3, 4, 6 ... times that; the last holds the longest.

    Args:
      lengths: of the rows.
      shortest: of the lengths; as long as the longest row, or longer, for one length only.
    """
    longest = _MULTIPLE * -(-int(lengths.max()) // _MULTIPLE)
    found = []
    while shortest < longest:
        found += [shortest, shortest * 3 // 2]
        shortest *= 2
    return [*(length for length in found if length < longest), longest]


def epoch(
    lengths: np.ndarray, sizes: Sequence[int], batch_size: int, seed: int, number: int
) -> list[tuple[int, np.ndarray]]:
    """One epoch: each row once, in (length, numbers of the rows) for each step.

    What is left over in a bucket goes to the next longer one, so that only one batch may be short. The lengths, step by
    step, are the same for every seed, which are so trained at once; the rows are not.

    Args:
      lengths: of the rows.
      sizes: from `buckets`.
      batch_size: rows a step.
      seed: of the rows' order.
      number: of the epoch.
    """
    order = np.random.default_rng((seed, number)).permutation(len(lengths))
    fits = np.searchsorted(sizes, lengths[order])
    found: list[tuple[int, np.ndarray]] = []
    rest = np.empty(0, np.int64)
    for i, size in enumerate(sizes):
        rows = np.concatenate([rest, order[fits == i]])
        whole = len(rows) // batch_size * batch_size if i + 1 < len(sizes) else len(rows)
        found += [(size, rows[begin : begin + batch_size]) for begin in range(0, whole, batch_size)]
        rest = rows[whole:]
    return [found[i] for i in np.random.default_rng(number).permutation(len(found))]


def in_order(lengths: np.ndarray, sizes: Sequence[int], batch_size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each row once, by length, to evaluate on; only each length's last batch may be short."""
    fits = np.searchsorted(sizes, lengths)
    for i, size in enumerate(sizes):
        rows = np.flatnonzero(fits == i)
        for begin in range(0, len(rows), batch_size):
            yield size, rows[begin : begin + batch_size]
