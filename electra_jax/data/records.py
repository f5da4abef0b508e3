"""Tokens on disk and in hand: ArrayRecord shards of token ids, and the splits that are made of them.

A split is one long run of ids. A shard holds a part of it as records of `BLOCK` ids each, little-endian unsigned
integers of the smallest width that fits, the last record shorter. Documents do not fill records of their own: where a
token stands is arithmetic then, and one of a million ids costs a reader no more than a short one. Lines and documents
are kept beside, as lengths. No document crosses a shard.
"""

import dataclasses
import errno
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from electra_jax.config.errors import UserError

BLOCK = 2048
_WRITER = "group_size:1,uncompressed"  # one record at a time is read
_READER = "readahead_buffer_size:0,max_parallelism:0"


class Tokens(Protocol):
    """Token ids that can be read anywhere."""

    def __len__(self) -> int: ...

    def take(self, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of pieces, one piece after another.

        Args:
          begins: [N] int64, where each piece begins; a piece lies in one document.
          lengths: [N] int64.

        Returns:
          [sum of lengths] unsigned.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Split:
    """Documents as one run of token ids, without special tokens.

    Attributes:
      tokens: T ids.
      lines: [lines + 1] int64, where each line begins in `tokens`; the last entry is T.
      documents: [documents + 1] int64, where each document begins in `lines`; the last entry is the number of lines.
      sources: [sources + 1] int64, where the documents of each source begin; the last entry is their number.
    """

    tokens: Tokens
    lines: np.ndarray
    documents: np.ndarray
    sources: np.ndarray

    def __post_init__(self):
        assert self.lines[-1] == len(self.tokens)
        assert self.documents[-1] == len(self.lines) - 1
        assert self.sources[-1] == len(self.documents) - 1

    @classmethod
    def from_lists(cls, *sources: Iterable[Iterable[list[int]]], dtype=np.uint16) -> "Split":
        """From sources as lists of documents as lists of lines as lists of ids, in memory."""
        of_sources = [[list(lines) for lines in documents] for documents in sources]
        docs = list(itertools.chain.from_iterable(of_sources))
        lines = [line for doc in docs for line in doc]
        ids = np.fromiter(itertools.chain.from_iterable(lines), dtype)
        return cls(InMemory(ids), offsets(map(len, lines)), offsets(map(len, docs)), offsets(map(len, of_sources)))


def offsets(lengths: Iterable[int] | np.ndarray) -> np.ndarray:
    """Where each of consecutive pieces begins, and where the last ends: [N + 1] int64."""
    each = lengths if isinstance(lengths, np.ndarray) else np.fromiter(lengths, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(each, dtype=np.int64)])


def spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, ..., begin + length - 1 of each pair, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)


class InMemory:
    """An array [T] as `Tokens`."""

    def __init__(self, ids: np.ndarray):
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self._ids[spans(begins, lengths)]


class Shards:
    """ArrayRecord files as `Tokens`; they are opened when they are read first."""

    def __init__(self, files: Sequence[Path], sizes: Sequence[int], dtype: np.dtype):
        """Takes the files in order, how many tokens each holds, and the type of an id."""
        self._files = list(files)
        self._starts = offsets(sizes)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._most_blocks = -(-max(sizes, default=1) // BLOCK)
        self._readers: dict[int, ArrayRecordReader] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        kept = lengths > 0
        begins, lengths = begins[kept], lengths[kept]
        shards = np.searchsorted(self._starts, begins, side="right") - 1
        begins = begins - self._starts[shards]
        first = begins // BLOCK
        count = (begins + lengths - 1) // BLOCK - first + 1  # blocks of each piece
        wanted = np.repeat(shards, count) * self._most_blocks + spans(first, count)
        blocks, rows = np.unique(wanted, return_inverse=True)
        read = self._read(blocks)
        # A piece's blocks are not neighbours in `read`, so each token finds its own.
        within = spans(begins % BLOCK, lengths)
        of_piece = np.repeat(np.cumsum(count) - count, lengths)
        return read[rows[of_piece + within // BLOCK], within % BLOCK]

    def _read(self, blocks: np.ndarray) -> np.ndarray:
        """Blocks by shard x most blocks + number, ascending: [N, BLOCK], zeros after the end of a short one."""
        found = np.zeros((len(blocks), BLOCK), self._dtype)
        shards, numbers = np.divmod(blocks, self._most_blocks)
        edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(blocks)]
        for begin, end in itertools.pairwise(edges):
            if begin < end:
                for row, record in enumerate(self._records(int(shards[begin]), numbers[begin:end].tolist()), begin):
                    ids = np.frombuffer(record, self._dtype)
                    found[row, : len(ids)] = ids
        return found

    def _records(self, shard: int, numbers: list[int]) -> list[bytes]:
        try:
            if shard not in self._readers:
                self._readers[shard] = ArrayRecordReader(str(self._files[shard]), _READER)
            return self._readers[shard].read(numbers)
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self._files[shard]} was changed or is damaged ({reason}); delete it and the manifest.json beside "
                "it, and prepare the text again"
            ) from error


def write(path: Path, ids: np.ndarray) -> None:
    """Writes the ids of one shard.

    Raises:
      OSError: the disk is full, or the like.
    """
    little_endian = ids.astype(ids.dtype.newbyteorder("<"))
    try:
        writer = ArrayRecordWriter(str(path), _WRITER)
        for begin in range(0, len(ids), BLOCK):
            writer.write(little_endian[begin : begin + BLOCK].tobytes())
        writer.close()
    except RuntimeError as error:  # the library tells the system's errors by their text
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code), str(path)) from error
        raise
