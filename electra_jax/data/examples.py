"""From documents to training examples of a fixed length: segment pairs, or packed sequences.

A plan of where each example lies is made once, in the order of the text; any examples can then be cut in any order. A
batch of them is a dict of int32 arrays [B, L]:

  input_ids       token ids, PAD where there is nothing
  token_type_ids  0 in the first segment, 1 in the second (its SEP included), 0 in padding
  sequence_ids    0 in padding; positions with the same number belong to one sequence and may attend to each other

Plans and batches are made by arrays throughout, a million documents or a whole batch at a time: a Python loop over
examples would be most of what a loader costs.
"""

import itertools
from typing import Any, Protocol

import numpy as np

from electra_jax.data.records import Split, offsets, spans
from electra_jax.data.tokenizer import Special

Batch = dict[str, np.ndarray]

# google-research/electra, build_pretraining_dataset.py
_SINGLE_SEGMENT = 0.1  # share of examples with one segment, as in classification tasks
_SHORT = 0.05  # share of examples whose target length is uniform in [_SHORTEST, L]
_SHORTEST = 5

_TOGETHER = 1024  # documents packed one after another; what is left of the last example is padding


class Examples(Protocol):
    """Examples that can be cut in any order.

    Attributes:
      sources: [sources + 1] int64, where the examples of each source begin; the last entry is their number.
    """

    sources: np.ndarray

    def __len__(self) -> int: ...

    def cut(self, examples: np.ndarray) -> Batch:
        """The examples of these numbers [B], in this order."""
        ...


class SegmentPairs:
    """The reference's examples: [CLS] A [SEP] B [SEP], lines collected up to the target length, never across documents.

    What overflows the length is cut off, as the reference does; `Packed` loses nothing.
    """

    def __init__(self, split: Split, length: int, seed: int, special: Special):
        """Plans examples of `length` positions."""
        self._split, self._length, self._special = split, length, special
        rng = np.random.default_rng(seed)
        lines = split.lines
        first: list[np.ndarray] = []
        last: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        # All documents at once: each gives its next example in every turn, until it has no more lines.
        begin, end = split.documents[:-1], split.documents[1:]
        while len(begin := begin[(more := begin < end)]):
            end = end[more]
            short = rng.random(len(begin)) < _SHORT
            target = np.where(short, rng.integers(_SHORTEST, length + 1, len(begin)), length)
            reached = np.searchsorted(lines, lines[begin] + target)  # the first line bound at or past the target
            stop = np.minimum(np.maximum(reached, begin + 1), end)
            full = lines[stop] > lines[begin]
            first.append(begin[full])
            last.append(stop[full])
            targets.append(target[full])
            begin = stop
        nothing = np.zeros(0, np.int64)
        self._first, self._last = np.concatenate([nothing, *first]), np.concatenate([nothing, *last])
        order = np.argsort(self._first)
        self._first, self._last = self._first[order], self._last[order]
        single = rng.random(len(order)) < _SINGLE_SEGMENT
        half = (np.concatenate([nothing, *targets])[order] - 3) // 2
        self._targets = np.where(single, np.iinfo(np.int64).max, half)
        self._coins = rng.random(len(order)) < 0.5  # an example tosses at most once, see `_to_b`
        self.sources = np.searchsorted(self._first, split.documents[split.sources])

    def __len__(self) -> int:
        return len(self._first)

    def cut(self, examples: np.ndarray) -> Batch:
        first, last = self._first[examples], self._last[examples]
        count = last - first
        line = spans(first, count)
        begins = self._split.lines[line]
        lengths = self._split.lines[line + 1] - begins
        row = np.repeat(np.arange(len(examples)), count)
        in_b = _to_b(lengths, offsets(count), self._targets[examples], self._coins[examples])

        # Where each line begins within its segment, and how much of it fits.
        size_a, begin_a = _within(np.where(in_b, 0, lengths), row, len(examples))
        size_b, begin_b = _within(np.where(in_b, lengths, 0), row, len(examples))
        size_a = np.minimum(size_a, self._length - 2)
        size_b = np.minimum(size_b, np.maximum(self._length - size_a - 3, 0))
        inside = np.where(in_b, begin_b, begin_a)
        fitting = np.clip(np.where(in_b, size_b[row], size_a[row]) - inside, 0, lengths)
        column = np.where(in_b, 2 + size_a[row], 1) + inside

        batch = _empty(len(examples), self._length, self._special)
        _lay(batch["input_ids"], row, column, self._split.tokens.take(begins, fitting), fitting)
        rows, two = np.arange(len(examples)), size_b > 0
        used = 2 + size_a + np.where(two, size_b + 1, 0)
        batch["input_ids"][rows, 0] = self._special.cls
        batch["input_ids"][rows, 1 + size_a] = self._special.sep
        batch["input_ids"][rows[two], used[two] - 1] = self._special.sep
        position = np.arange(self._length)
        batch["sequence_ids"][:] = position < used[:, None]
        batch["token_type_ids"][:] = (position >= (2 + size_a)[:, None]) & (position < used[:, None])
        return batch


class Packed:
    """Whole documents, cut into [CLS] piece [SEP] and laid end to end; every token is in exactly one example.

    Pieces of different documents share an example but have different `sequence_ids`. At most two positions of an
    example are padding, the last of every `_TOGETHER` documents aside.
    """

    def __init__(self, split: Split, length: int, seed: int, special: Special):
        """Plans examples of `length` positions."""
        del seed  # nothing is random here; the loader shuffles
        self._split, self._length, self._special = split, length, special
        bounds = split.lines[split.documents]
        groups = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(np.arange(begin, end, _TOGETHER) for begin, end in itertools.pairwise(split.sources)),
            ]
        )
        ends = np.append(groups[1:], len(bounds) - 1)[: len(groups)]
        ends = np.minimum(ends, split.sources[np.searchsorted(split.sources, groups, side="right")])
        # All groups at once: each lays its next piece in every turn. A piece is (group, example of it, begin, end).
        document, position = groups.copy(), bounds[groups]
        room, example = np.full(len(groups), length), np.zeros(len(groups), np.int64)
        group = np.arange(len(groups))
        pieces = [np.zeros((4, 0), np.int64)]
        while len(group):
            left = bounds[document + 1] - position
            full = room < 3
            room, example = np.where(full, length, room), example + full
            taken = np.minimum(left, room - 2)
            some = taken > 0
            pieces.append(np.stack([group, example, position, position + taken])[:, some])
            room = room - np.where(some, taken + 2, 0)
            done = taken == left
            position, document = position + taken, document + done
            more = document < ends[group]
            group, document, position, room, example = (x[more] for x in (group, document, position, room, example))
        laid = np.concatenate(pieces, axis=1)
        group, example, self._begins, self._ends = laid[:, np.argsort(laid[2])]
        starts = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(example, prepend=-1) != 0))
        self._rows = np.append(starts, len(group))
        self.sources = np.searchsorted(self._begins[starts], bounds[split.sources])

    def __len__(self) -> int:
        return len(self._rows) - 1

    def cut(self, examples: np.ndarray) -> Batch:
        first = self._rows[examples]
        count = self._rows[examples + 1] - first
        piece = spans(first, count)
        begins = self._begins[piece]
        lengths = self._ends[piece] - begins
        row = np.repeat(np.arange(len(examples)), count)
        _, column = _within(lengths + 2, row, len(examples))

        batch = _empty(len(examples), self._length, self._special)
        ids = batch["input_ids"]
        _lay(ids, row, column + 1, self._split.tokens.take(begins, lengths), lengths)
        ids[row, column] = self._special.cls
        ids[row, column + 1 + lengths] = self._special.sep
        number = spans(np.ones_like(count), count)
        _lay(batch["sequence_ids"], row, column, np.repeat(number, lengths + 2), lengths + 2)
        return batch


MODES: dict[str, Any] = {"pairs": SegmentPairs, "packed": Packed}


def _empty(count: int, length: int, special: Special) -> Batch:
    return {
        "input_ids": np.full((count, length), special.pad, np.int32),
        "token_type_ids": np.zeros((count, length), np.int32),
        "sequence_ids": np.zeros((count, length), np.int32),
    }


def _lay(array_BL: np.ndarray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> None:
    """Writes pieces, given one after another in `values`, each from its row and column on."""
    array_BL.ravel()[spans(rows * array_BL.shape[1] + columns, lengths)] = values


def _within(lengths: np.ndarray, row: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(the sum of each row's lengths, where each length begins within its row); `row` ascends."""
    sums = np.bincount(row, lengths, rows).astype(np.int64)
    before = np.cumsum(lengths) - lengths
    return sums, before - (np.cumsum(sums) - sums)[row]


def _to_b(lengths: np.ndarray, bounds: np.ndarray, targets: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """Which lines go to the second segment.

    A line goes to A if A is empty, or it fits, or B is empty, A is under target and the coin says so. The coin is asked
    once: heads takes A to its target, tails makes B not empty.

    Args:
      lengths: [lines], of all examples' lines, one example after another.
      bounds: [B + 1], where the lines of each example begin.
      targets: [B], of the first segment.
      coins: [B] bool.
    """
    to_b = np.zeros(len(lengths), bool)
    in_a, in_b = np.zeros((2, len(targets)), np.int64)
    at, ends = bounds[:-1], bounds[1:]
    example = np.arange(len(targets))
    while len(example := example[(more := at < ends)]):  # one line of every example that has more, in every turn
        at, ends = at[more], ends[more]
        n, a, b, target = lengths[at], in_a[example], in_b[example], targets[example]
        to_a = (a == 0) | (a + n < target) | ((b == 0) & (a < target) & coins[example])
        to_b[at] = ~to_a
        in_a[example] += np.where(to_a, n, 0)
        in_b[example] += np.where(to_a, 0, n)
        at = at + 1
    return to_b
