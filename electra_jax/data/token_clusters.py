"""Clusters of tokens that occur between the same neighbors, so that one of them can replace another.

They cost one pass over a sample of the text. All arithmetic is on integers (float64 represents them exactly), so every
process of a run, and every restart, finds the same clusters.
"""

import numpy as np
import numpy.typing as npt

from electra_jax.data.records import Ints, Split

NONE = -1  # the number of tokens that are in no cluster
_SIZE = 32  # tokens in a cluster, on average
_NEIGHBORS = 128  # the most frequent tokens, by which others are described
_SAMPLE = 4_000_000  # ids of the text that are read
_ROWS = 4096  # vectors that are compared with all centers at a time
_ROUNDS = 10  # of k-means


def cluster_tokens(split: Split, counts: Ints, special: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Assigns tokens to clusters by k-means.

    A token's vector holds, for each of the most frequent tokens before and after it, how much more often than by chance
    the two are paired, in powers of two (positive pointwise mutual information): 0 below chance, else 1 plus the whole
    bits. A single pair counts as none.

    Args:
      split: the text.
      counts: [V], number of occurrences of each token in it.
      special: ids of special tokens.

    Returns:
      [V] int32; `NONE` for special tokens, for those that do not occur, and for one that would be alone.
    """
    known = counts.astype(np.int64)
    known[list(special)] = 0
    # Stable, so that tokens of equal frequency are in the same order in every process.
    by_count = np.argsort(-known, kind="stable")[: np.count_nonzero(known)]
    clusters = np.full(len(counts), NONE, np.int32)
    if len(by_count):
        found = _k_means(_describe(_sample_lines(split), by_count, len(counts)))
        clusters[by_count] = np.where(np.bincount(found)[found] > 1, found, NONE)
    return clusters


def _sample_lines(split: Split) -> tuple[Ints, Ints]:
    """Returns the ids of evenly spaced lines, and where each of these lines begins."""
    # Sources follow one another in the text, so its first lines would be of one source.
    every = -(-len(split.tokens) // _SAMPLE)
    begins, lengths = split.lines[:-1][::every], np.diff(split.lines)[::every]
    return split.tokens.take(begins, lengths).astype(np.int64), np.cumsum(lengths) - lengths


def _describe(sample: tuple[Ints, Ints], by_count: Ints, vocab_size: int) -> Ints:
    """Returns the vectors of tokens, [tokens, 2 x neighbors] float64 of whole numbers, in the order of `by_count`."""
    ids, begins = sample
    column = np.full(vocab_size, NONE)
    column[by_count[:_NEIGHBORS]] = np.arange(min(_NEIGHBORS, len(by_count)))
    inside = np.ones(len(ids), bool)
    # The first token of a line has none before it. Empty lines at the end begin behind the last id.
    inside[begins[begins < len(ids)]] = False
    left, right = ids[:-1][inside[1:]], ids[1:][inside[1:]]
    pairs = np.zeros((vocab_size, 2, _NEIGHBORS), np.int64)
    for side, (token, neighbor) in enumerate(((right, left), (left, right))):
        place = column[neighbor]
        at = token[place != NONE] * _NEIGHBORS + place[place != NONE]
        pairs[:, side] = np.bincount(at, minlength=vocab_size * _NEIGHBORS).reshape(vocab_size, _NEIGHBORS)
    total, seen = max(1, len(left)), np.maximum(1, np.bincount(ids, minlength=vocab_size))
    by_chance = seen[:, None] * np.pad(seen[by_count[:_NEIGHBORS]], (0, max(0, _NEIGHBORS - len(by_count))))
    # A single pair says little.
    ratio = np.where(pairs > 1, pairs, 0) * total // np.maximum(1, by_chance)[:, None]
    # 0 below 1, then 1 + the whole part of the logarithm.
    bits: Ints = np.frexp(ratio[by_count].astype(np.float64))[1]
    return bits.reshape(len(by_count), -1).astype(np.float64)


def _k_means(vectors_ND: Ints) -> Ints:
    """Returns the cluster of each vector; the initial centers are evenly spaced vectors."""
    centers_KD = vectors_ND[::_SIZE].copy()
    for _ in range(_ROUNDS):
        # Without the square of the vector itself, which is the same for all centers. In parts: [N, K] of a large
        # vocabulary has gigabytes.
        lengths_K = (centers_KD**2).sum(axis=1)
        parts = np.array_split(vectors_ND, -(-len(vectors_ND) // _ROWS))
        nearest_N = np.concatenate([(lengths_K - 2 * (part @ centers_KD.T)).argmin(axis=1) for part in parts])
        sizes_K = np.bincount(nearest_N, minlength=len(centers_KD))
        sums_KD = np.zeros_like(centers_KD)
        # Whole numbers, so that sums are exact in any order.
        np.add.at(sums_KD, nearest_N, vectors_ND)
        means_KD = np.rint(np.floor_divide(sums_KD, np.maximum(1, sizes_K)[:, None]))
        # A cluster that has lost its tokens keeps its center.
        centers_KD = np.where(sizes_K[:, None] > 0, means_KD, centers_KD)
    result: Ints = nearest_N.astype(np.int32)
    return result
