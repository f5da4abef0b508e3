"""From documents to training examples of a fixed length: segment pairs, or packed sequences.

Both are random-access sources: a plan of where each example lies is made once, in the order of the text, and an
example is cut when it is asked for. An example is a dict of int32 arrays [L]:

  input_ids       token ids, PAD where there is nothing
  token_type_ids  0 in the first segment, 1 in the second (its SEP included), 0 in padding
  sequence_ids    0 in padding; positions with the same number belong to one sequence and may attend to each other
"""

import itertools
from typing import Any

import numpy as np

from electra_jax.data.corpus import Split
from electra_jax.data.tokenizer import CLS, PAD, SEP

Example = dict[str, np.ndarray]

# google-research/electra, build_pretraining_dataset.py
_SINGLE_SEGMENT = 0.1  # share of examples with one segment, as in classification tasks
_SHORT = 0.05  # share of examples whose target length is uniform in [_SHORTEST, L]
_SHORTEST = 5


class SegmentPairs:
    """The reference's examples: [CLS] A [SEP] B [SEP], lines collected up to the target length, never across documents.

    What overflows the length is cut off, as the reference does; `Packed` loses nothing.
    """

    def __init__(self, split: Split, length: int, seed: int):
        self._split = split
        self._length = length
        rng = np.random.default_rng(seed)
        first: list[int] = []
        last: list[int] = []
        targets: list[int] = []
        line_lengths = np.diff(split.lines).tolist()
        target = length
        for document in range(len(split.documents) - 1):
            begin, end = split.documents[document : document + 2].tolist()
            collected = 0
            start = begin
            for line in range(begin, end):
                collected += line_lengths[line]
                if collected < target and line + 1 < end:
                    continue
                if collected:
                    first.append(start)
                    last.append(line + 1)
                    targets.append(target)
                    target = int(rng.integers(_SHORTEST, length + 1)) if rng.random() < _SHORT else length
                start, collected = line + 1, 0
        self._first, self._last = np.array(first, np.int64), np.array(last, np.int64)
        single = rng.random(len(targets)) < _SINGLE_SEGMENT
        self._targets = np.where(single, np.iinfo(np.int64).max, (np.array(targets, np.int64) - 3) // 2)
        self._coins = rng.random(len(targets)) < 0.5  # an example tosses at most once, see `_assign`

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, index: int) -> Example:
        tokens, lines = self._split.token_ids, self._split.lines
        segments: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        bounds = lines[self._first[index] : self._last[index] + 1]
        sides = self._assign(np.diff(bounds), int(self._targets[index]), bool(self._coins[index]))
        for side, begin, end in zip(sides, bounds[:-1], bounds[1:], strict=True):
            segments[side].append(tokens[begin:end])
        empty = tokens[:0]
        a = np.concatenate([empty, *segments[0]])[: self._length - 2]
        b = np.concatenate([empty, *segments[1]])[: max(0, self._length - len(a) - 3)]

        example = _empty(self._length)
        used = 2 + len(a)
        example["input_ids"][0] = CLS
        example["input_ids"][1 : used - 1] = a
        example["input_ids"][used - 1] = SEP
        if len(b):
            example["input_ids"][used : used + len(b)] = b
            example["input_ids"][used + len(b)] = SEP
            example["token_type_ids"][used : used + len(b) + 1] = 1
            used += len(b) + 1
        example["sequence_ids"][:used] = 1
        return example

    @staticmethod
    def _assign(lengths: np.ndarray, target: int, coin: bool) -> list[int]:
        """0 for each line that goes to A, 1 for B.

        A line goes to A if A is empty, or it fits, or B is empty, A is under target and the coin says so. The coin is
        asked once: heads takes A to its target, tails makes B not empty.
        """
        sides: list[int] = []
        in_a = in_b = 0
        for n in lengths.tolist():
            to_a = in_a == 0 or in_a + n < target or (in_b == 0 and in_a < target and coin)
            sides.append(0 if to_a else 1)
            in_a, in_b = (in_a + n, in_b) if to_a else (in_a, in_b + n)
        return sides


class Packed:
    """Whole documents, cut into [CLS] piece [SEP] and laid end to end; every token is in exactly one example.

    Pieces of different documents share an example but have different `sequence_ids`. At most two positions of an
    example are padding, the last one aside.
    """

    def __init__(self, split: Split, length: int, seed: int):
        del seed  # nothing is random here; the loader shuffles
        self._split = split
        self._length = length
        begins: list[int] = []
        ends: list[int] = []
        rows: list[int] = [0]  # where each example begins among the pieces
        room = length
        bounds = split.lines[split.documents].tolist()
        for position, end in itertools.pairwise(bounds):
            while position < end:
                if room < 3:
                    rows.append(len(begins))
                    room = length
                taken = min(end - position, room - 2)
                begins.append(position)
                ends.append(position + taken)
                position += taken
                room -= taken + 2
        if begins:
            rows.append(len(begins))
        self._begins, self._ends = np.array(begins, np.int64), np.array(ends, np.int64)
        self._rows = np.array(rows, np.int64)

    def __len__(self) -> int:
        return len(self._rows) - 1

    def __getitem__(self, index: int) -> Example:
        example = _empty(self._length)
        at = 0
        pieces = range(self._rows[index], self._rows[index + 1])
        for number, piece in enumerate(pieces, 1):
            tokens = self._split.token_ids[self._begins[piece] : self._ends[piece]]
            end = at + len(tokens) + 2
            example["input_ids"][at] = CLS
            example["input_ids"][at + 1 : end - 1] = tokens
            example["input_ids"][end - 1] = SEP
            example["sequence_ids"][at:end] = number
            at = end
        return example


MODES: dict[str, Any] = {"pairs": SegmentPairs, "packed": Packed}


def _empty(length: int) -> Example:
    return {
        "input_ids": np.full(length, PAD, np.int32),
        "token_type_ids": np.zeros(length, np.int32),
        "sequence_ids": np.zeros(length, np.int32),
    }
