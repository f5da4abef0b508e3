"""Makes batches of a fixed length from token records, in an order that depends only on the seed.

Examples are segment pairs or packed sequences. Their boundaries are planned once, in text order; after that, batches
can be made in any order. Planning and batching use array operations on a million documents or a whole batch at a time,
because a Python loop over examples would take most of the loader's time.

Grain shuffles the example indices. Each epoch is a pseudo-random permutation, so a batch is a function of its number,
and the position in the data is one integer, which the checkpoint stores. Every process draws the indices of the global
batch and makes only its own rows, so neither the batches nor the position depend on the number of processes.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import grain
import numpy as np
import numpy.typing as npt

from electra_jax.config.errors import UserError
from electra_jax.data.records import Ints, Split, offsets, spans
from electra_jax.data.tokenizer import Special
from electra_jax.modeling.batch import Batch

# google-research/electra, build_pretraining_dataset.py
_SINGLE_SEGMENT = 0.1  # fraction of examples with one segment, as in classification tasks
_SHORT = 0.05  # fraction of examples whose target length is uniform in [_SHORTEST, L]
_SHORTEST = 5

_PACKED_TOGETHER = 1024  # documents that are packed end to end; the rest of their last example is padding
_PREFETCH = 8  # batches prefetched, so that the step does not wait for the loader


class Examples(Protocol):
    """Examples with random access, from which batches are made.

    Attributes:
      sources: [sources + 1] int64, where the examples of each source begin; the last entry is the number of examples.
    """

    sources: Ints

    def __len__(self) -> int: ...

    def make_batch(self, examples_B: Ints) -> Batch:
        """Makes the batch of the examples with these indices, in this order."""
        ...


class HeldoutBatch(NamedTuple):
    """A batch of held-out examples.

    Attributes:
      batch: the examples.
      sources: [B] int32, index of each example's source; -1 for padding.
    """

    batch: Batch
    sources: Any


class BatchPhase(NamedTuple):
    """Consecutive batches of one size.

    Attributes:
      examples: the examples that the batches are drawn from.
      batch_size: global batch size, in examples.
      batches: number of batches.
      weights: relative sampling weights of the sources; each source then has its own epochs. None: every example is
        drawn once per epoch.
    """

    examples: Examples
    batch_size: int
    batches: int
    weights: Sequence[float] | None = None


def training_batches(
    phases: Sequence[BatchPhase],
    seed: int,
    rows: Callable[[int], slice | Ints] = lambda batch_size: slice(None),
) -> grain.DatasetIterator[Batch]:
    """Returns an iterator over training batches; every epoch is shuffled differently.

    `get_state()` of the iterator returns its position, a JSON-serializable dict; `set_state` restores it.

    Args:
      phases: the phases in order. A phase with the same examples as the phase before it continues with the first one
        that was not drawn. With other weights, up to two examples of each source are skipped; after a phase without
        weights, which has one order of all sources, a phase with weights begins new orders, and the other way round.
      seed: seed of the order.
      rows: maps the global batch size to the rows of each batch that this process makes.

    Raises:
      UserError: a batch is larger than the number of examples.
    """
    parts: list[Any] = []
    order, drawn = _Order(phases[0].examples, ()), 0
    for examples, size, count, weights in phases:
        if len(examples) < size:
            raise UserError(
                f"batch_size={size} is more than the corpus's {len(examples)} examples of this length; use more text, "
                "a smaller batch or shorter sequences"
            )
        following = order.after(drawn, examples, tuple(weights or ()))
        drawn = drawn if following == order else 0
        order = following
        numbers = order.numbers(seed).slice(slice(drawn, drawn + size * count))
        # Indices are batched before examples are made: `make_batch` reads the ids of all rows in one call.
        # Defaults, because the loop goes on before the function is called.
        own = rows(size)
        parts.append(numbers.batch(size).map(lambda chosen, of=examples, own=own: of.make_batch(chosen[own])))
        drawn += size * count
    dataset = grain.MapDataset.concatenate(parts) if len(parts) > 1 else parts[0]
    # One thread: array operations do the work, and more threads would compete for the interpreter.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCH)
    return iter(dataset.to_iter_dataset(options))


def heldout_batches(
    examples: Examples, batch_size: int, limit: int, seed: int, special: Special
) -> Iterator[HeldoutBatch]:
    """Yields at most `limit` batches of a fixed shuffle of `examples`, each example once; the last is padded."""
    # The whole permutation, then its beginning: a larger `limit` adds batches and changes none.
    order = np.random.default_rng(seed).permutation(len(examples))[: limit * batch_size]
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = examples.make_batch(chosen)
        rows, length = batch.input_ids.shape
        # A full batch: the compiled evaluation has one shape.
        padding = _empty_batch(batch_size - rows, length, special)
        whole = Batch(*(np.concatenate(parts) for parts in zip(batch, padding, strict=True)))
        sources_B = np.full(batch_size, -1, np.int32)
        sources_B[:rows] = np.searchsorted(examples.sources, chosen, side="right") - 1
        yield HeldoutBatch(whole, sources_B)


class _Order(NamedTuple):
    """An endless order of examples.

    Attributes:
      examples: the examples.
      weights: relative sampling weights of the sources; empty: one order of all examples.
      starts: the number of examples of each source that were drawn before; empty: none.
    """

    examples: Examples
    weights: tuple[float, ...]
    starts: tuple[int, ...] = ()

    def after(self, drawn: int, examples: Examples, weights: tuple[float, ...]) -> "_Order":
        """Returns the order of the phase that follows `drawn` examples of this one."""
        if examples is not self.examples or not self.weights or not weights:
            return _Order(examples, weights)
        if weights == self.weights:
            return self
        # Grain mixes by whole numbers, of which the smallest is 100. It has drawn at most one more than the share.
        least = min(filter(None, self.weights))
        whole = [int(weight * (100 / least)) for weight in self.weights]
        shares = [math.floor(drawn * each / sum(whole)) + (each > 0) for each in whole]
        starts = self.starts or (0,) * len(shares)
        return _Order(examples, weights, tuple(start + share for start, share in zip(starts, shares, strict=True)))

    def numbers(self, seed: int) -> grain.MapDataset[int]:
        """Returns an endless data set of example indices, reshuffled every epoch."""
        bounds = self.examples.sources.tolist() if self.weights else [0, len(self.examples)]
        # Each source has a seed of its own, else two of equal size would be shuffled alike.
        orders = [
            grain.MapDataset.range(begin, end).seed(seed + number).shuffle().repeat()
            for number, (begin, end) in enumerate(itertools.pairwise(bounds))
        ]
        if not self.weights:
            return orders[0]
        starts = self.starts or (0,) * len(orders)
        # Grain divides by the smallest weight, so sources of weight 0 are left out.
        used = [
            (order.slice(slice(start, None)), weight)
            for order, start, weight in zip(orders, starts, self.weights, strict=True)
            if weight
        ]
        return grain.MapDataset.mix(*zip(*used, strict=True))


class SegmentPairs:
    """Segment pairs as in the reference: [CLS] A [SEP] B [SEP], lines of one document up to a target length.

    Tokens beyond the length are truncated, as in the reference; `Packed` drops none.
    """

    def __init__(self, split: Split, length: int, seed: int, special: Special):
        """Plans examples of `length` positions."""
        self._split, self._length, self._special = split, length, special
        rng = np.random.default_rng(seed)
        lines = split.lines
        first_lines: list[Ints] = []
        last_lines: list[Ints] = []
        targets: list[Ints] = []
        # All documents at once: each iteration takes the next example of every document that has lines left.
        begin, end = split.documents[:-1], split.documents[1:]
        while len(begin := begin[(more := begin < end)]):
            end = end[more]
            short = rng.random(len(begin)) < _SHORT
            target = np.where(short, rng.integers(_SHORTEST, length + 1, len(begin)), length)
            reached = np.searchsorted(lines, lines[begin] + target)  # the first line boundary at or past the target
            stop = np.minimum(reached, end)
            # Lines that have no tokens make no example.
            full = lines[stop] > lines[begin]
            first_lines.append(begin[full])
            last_lines.append(stop[full])
            targets.append(target[full])
            begin = stop
        none = np.zeros(0, np.int64)
        self._first, self._last = np.concatenate([none, *first_lines]), np.concatenate([none, *last_lines])
        # Back to the order of the text, in which `searchsorted` finds where each source begins.
        order = np.argsort(self._first)
        self._first, self._last = self._first[order], self._last[order]
        single = rng.random(len(order)) < _SINGLE_SEGMENT
        half = (np.concatenate([none, *targets])[order] - 3) // 2  # 3: [CLS] and two [SEP]
        # All lines of a single segment fit below its target; the reference has 100,000 there.
        self._targets = np.where(single, np.iinfo(np.int64).max, half)
        self._coins = rng.random(len(order)) < 0.5  # one per example is enough, see `_second_segment`
        self.sources = np.searchsorted(self._first, split.documents[split.sources])

    def __len__(self) -> int:
        return len(self._first)

    def make_batch(self, examples_B: Ints) -> Batch:
        first_B, last_B = self._first[examples_B], self._last[examples_B]
        count_B = last_B - first_B
        line = spans(first_B, count_B)
        begins = self._split.lines[line]
        lengths = self._split.lines[line + 1] - begins
        row = np.repeat(np.arange(len(examples_B)), count_B)
        in_b = _second_segment(lengths, offsets(count_B), self._targets[examples_B], self._coins[examples_B])

        # Where each line begins within its segment, and how much of it fits.
        size_a, begin_a = _within_rows(np.where(in_b, 0, lengths), row, len(examples_B))
        size_b, begin_b = _within_rows(np.where(in_b, lengths, 0), row, len(examples_B))
        # As in the reference: A may fill the example, B has what A and the special tokens leave.
        size_a = np.minimum(size_a, self._length - 2)
        size_b = np.minimum(size_b, np.maximum(self._length - size_a - 3, 0))
        inside = np.where(in_b, begin_b, begin_a)
        fitting = np.clip(np.where(in_b, size_b[row], size_a[row]) - inside, 0, lengths)
        column = np.where(in_b, 2 + size_a[row], 1) + inside

        batch = _empty_batch(len(examples_B), self._length, self._special)
        _place(batch.input_ids, row, column, self._split.tokens.take(begins, fitting), fitting)
        rows, two = np.arange(len(examples_B)), size_b > 0
        used = 2 + size_a + np.where(two, size_b + 1, 0)
        batch.input_ids[rows, 0] = self._special.cls
        batch.input_ids[rows, 1 + size_a] = self._special.sep
        batch.input_ids[rows[two], used[two] - 1] = self._special.sep
        position_L = np.arange(self._length)
        batch.sequence_ids[:] = position_L < used[:, None]
        batch.token_type_ids[:] = (position_L >= (2 + size_a)[:, None]) & (position_L < used[:, None])
        return batch


class Packed:
    """Packed sequences: documents in pieces [CLS] ... [SEP], end to end; every token is in exactly one example.

    Pieces of different documents share an example but have different `sequence_ids`. An example has at most two
    positions of padding, except at the end of every `_PACKED_TOGETHER` documents and of every source.
    """

    def __init__(self, split: Split, length: int, seed: int, special: Special):
        """Plans examples of `length` positions."""
        del seed  # the plan is not random; the loader shuffles
        self._split, self._length, self._special = split, length, special
        bounds = split.lines[split.documents]
        group_starts = [np.arange(begin, end, _PACKED_TOGETHER) for begin, end in itertools.pairwise(split.sources)]
        groups = np.concatenate([np.zeros(0, np.int64), *group_starts])
        ends = np.append(groups[1:], len(bounds) - 1)[: len(groups)]
        # All groups at once: each iteration places the next piece of every group. Pieces: (group, example, begin, end).
        document, position = groups.copy(), bounds[groups]
        room, example = np.full(len(groups), length), np.zeros(len(groups), np.int64)
        group = np.arange(len(groups))
        pieces = [np.zeros((4, 0), np.int64)]
        while len(group):
            left = bounds[document + 1] - position
            # A piece has [CLS], at least one token, and [SEP].
            full = room < 3
            room, example = np.where(full, length, room), example + full
            taken = np.minimum(left, room - 2)
            # A document without tokens has no piece.
            some = taken > 0
            pieces.append(np.stack([group, example, position, position + taken])[:, some])
            room = room - np.where(some, taken + 2, 0)
            done = taken == left
            position, document = position + taken, document + done
            more = document < ends[group]
            group, document, position, room, example = (x[more] for x in (group, document, position, room, example))
        placed = np.concatenate(pieces, axis=1)
        group, example, self._begins, self._ends = placed[:, np.argsort(placed[2])]
        starts = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(example, prepend=-1) != 0))
        self._rows = np.append(starts, len(group))
        self.sources = np.searchsorted(self._begins[starts], bounds[split.sources])

    def __len__(self) -> int:
        return len(self._rows) - 1

    def make_batch(self, examples_B: Ints) -> Batch:
        first_B = self._rows[examples_B]
        count_B = self._rows[examples_B + 1] - first_B
        piece = spans(first_B, count_B)
        begins = self._begins[piece]
        lengths = self._ends[piece] - begins
        row = np.repeat(np.arange(len(examples_B)), count_B)
        _, column = _within_rows(lengths + 2, row, len(examples_B))

        batch = _empty_batch(len(examples_B), self._length, self._special)
        _place(batch.input_ids, row, column + 1, self._split.tokens.take(begins, lengths), lengths)
        batch.input_ids[row, column] = self._special.cls
        batch.input_ids[row, column + 1 + lengths] = self._special.sep
        number = spans(np.ones_like(count_B), count_B)
        _place(batch.sequence_ids, row, column, np.repeat(number, lengths + 2), lengths + 2)
        return batch


MODES: dict[str, Callable[[Split, int, int, Special], Examples]] = {"pairs": SegmentPairs, "packed": Packed}


def _empty_batch(batch_size: int, length: int, special: Special) -> Batch:
    shape = batch_size, length
    return Batch(np.full(shape, special.pad, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32))


def _place(array_BL: Ints, rows: Ints, columns: Ints, values: Ints, lengths: Ints) -> None:
    """Writes pieces, which are concatenated in `values`, each beginning at its row and column."""
    # The flat view of the array: all pieces are one assignment.
    array_BL.ravel()[spans(rows * array_BL.shape[1] + columns, lengths)] = values


def _within_rows(lengths: Ints, row: Ints, rows: int) -> tuple[Ints, Ints]:
    """Returns (sum of each row's lengths, offset of each piece within its row); `row` must be ascending."""
    # bincount sums in float64, exact up to 2^53.
    sums = np.bincount(row, lengths, rows).astype(np.int64)
    before = np.cumsum(lengths) - lengths
    return sums, before - (np.cumsum(sums) - sums)[row]


def _second_segment(lengths: Ints, bounds: Ints, targets_B: Ints, coins_B: Ints) -> npt.NDArray[np.bool_]:
    """Returns True for each line that goes to the second segment, B, and False for the first, A.

    A line goes to A if A is empty, if the line fits below A's target, or if B is empty, A is below its target and the
    coin is heads. One coin per example is enough: heads fills A up to its target, tails puts a line into B.

    Args:
      lengths: [lines], the lines of all examples, one example after another.
      bounds: [B + 1], where the lines of each example begin.
      targets_B: target length of the first segment.
      coins_B: bool.
    """
    to_b = np.zeros(len(lengths), bool)
    in_a, in_b = np.zeros((2, len(targets_B)), np.int64)
    line, ends = bounds[:-1], bounds[1:]
    example = np.arange(len(targets_B))
    while len(example := example[(more := line < ends)]):  # takes one line of every example that has more
        line, ends = line[more], ends[more]
        n, a, b, target = lengths[line], in_a[example], in_b[example], targets_B[example]
        to_a = (a == 0) | (a + n < target) | ((b == 0) & (a < target) & coins_B[example])
        to_b[line] = ~to_a
        in_a[example] += np.where(to_a, n, 0)
        in_b[example] += np.where(to_a, 0, n)
        line = line + 1
    return to_b


def pad_rows(rows: Sequence[Sequence[int] | Ints], length: int, special: Special) -> Batch:
    """Builds a batch [rows, length] of single segments, each between [CLS] and [SEP] and padded to `length`."""
    batch = _empty_batch(len(rows), length, special)
    for row, tokens in enumerate(rows):
        batch.input_ids[row, : len(tokens) + 2] = [special.cls, *tokens, special.sep]
        batch.sequence_ids[row, : len(tokens) + 2] = 1
    return batch
