"""Token records: ArrayRecord files of token ids, and the splits that consist of them.

A split is one long sequence of ids. A shard holds a part of it as records of `BLOCK` ids, the last one shorter, as
little-endian unsigned integers of the smallest width that fits. Record boundaries ignore documents, so the position of
a token is simple arithmetic, and a document of a million ids is read as cheaply as a short one. The lengths of lines
and documents are stored separately. No document crosses shards.
"""

import contextlib
import dataclasses
import errno
import itertools
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from electra_jax.config.errors import UserError

Ints = npt.NDArray[Any]

BLOCK = 2048  # token ids in a record
# Records are read one at a time, so each is a group of its own.
_WRITER = "group_size:1,uncompressed"
# Records are read at random positions, so none is read ahead.
_READER = "readahead_buffer_size:0,max_parallelism:0"


class Tokens(Protocol):
    """Token ids with random access."""

    def __len__(self) -> int: ...

    def take(self, begins: Ints, lengths: Ints) -> Ints:
        """Returns the ids of N pieces, concatenated.

        Args:
          begins: [N] int64, where each piece begins; a piece lies within one document.
          lengths: [N] int64, number of tokens in each piece.

        Returns:
          [sum of lengths], unsigned.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Split:
    """Documents as one sequence of token ids, without special tokens.

    Attributes:
      tokens: the T ids.
      lines: [lines + 1] int64, where each line begins in `tokens`; the last entry is T.
      documents: [documents + 1] int64, where each document begins in `lines`; the last entry is the number of lines.
      sources: [sources + 1] int64, where the documents of each source begin; the last entry is their number.
    """

    tokens: Tokens
    lines: Ints
    documents: Ints
    sources: Ints

    def __post_init__(self) -> None:
        assert self.lines[-1] == len(self.tokens)
        assert self.documents[-1] == len(self.lines) - 1
        assert self.sources[-1] == len(self.documents) - 1


def offsets(lengths: Iterable[int] | Ints) -> Ints:
    """Returns where each of N consecutive pieces begins, and where the last ends: [N + 1] int64."""
    sizes = lengths if isinstance(lengths, np.ndarray) else np.fromiter(lengths, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def spans(begins: Ints, lengths: Ints) -> Ints:
    """Returns begin, begin + 1, ..., begin + length - 1 for each pair, concatenated."""
    ends = np.cumsum(lengths)
    indices: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
    return indices


class Shards:
    """`Tokens` in ArrayRecord files. A file is opened when it is read, and the most recently read stay open."""

    def __init__(self, files: Sequence[Path], sizes: Sequence[int], dtype: np.dtype[Any]):
        """Takes the files in order, the number of tokens in each, and the type of an id."""
        self._files = list(files)
        self._starts = offsets(sizes)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        # The same for each shard, so that shard * maximum + block numbers all blocks in order.
        self._most_blocks = -(-max(sizes, default=1) // BLOCK)
        self._most_open = _openable(len(files))
        self._readers: OrderedDict[int, ArrayRecordReader] = OrderedDict()  # least recently read first

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, begins: Ints, lengths: Ints) -> Ints:
        # A piece without tokens has no block.
        kept = lengths > 0
        begins, lengths = begins[kept], lengths[kept]
        shards = np.searchsorted(self._starts, begins, side="right") - 1
        begins = begins - self._starts[shards]
        first = begins // BLOCK
        count = (begins + lengths - 1) // BLOCK - first + 1  # blocks of each piece
        needed = np.repeat(shards, count) * self._most_blocks + spans(first, count)
        # Pieces may share a block, which is read once.
        blocks, rows = np.unique(needed, return_inverse=True)
        ids = self._read(blocks)
        # The blocks of a piece need not be neighbors in `ids`, so the row of each token is looked up.
        within = spans(begins % BLOCK, lengths)
        first_block = np.repeat(np.cumsum(count) - count, lengths)
        taken: Ints = ids[rows[first_block + within // BLOCK], within % BLOCK]
        return taken

    def _read(self, blocks: Ints) -> Ints:
        """Reads blocks [N, BLOCK]; a short block is padded with zeros.

        Args:
          blocks: [N], ascending; shard * maximum number of blocks per shard + index of the block in the shard.
        """
        blocks_read = np.zeros((len(blocks), BLOCK), self._dtype)
        shards, numbers = np.divmod(blocks, self._most_blocks)
        # One read per file: blocks are in order, so those of a shard are neighbors.
        edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(blocks)]
        for begin, end in itertools.pairwise(edges):
            if begin < end:
                for row, record in enumerate(self._records(int(shards[begin]), numbers[begin:end].tolist()), begin):
                    ids = np.frombuffer(record, self._dtype)
                    blocks_read[row, : len(ids)] = ids
        return blocks_read

    def _records(self, shard: int, numbers: list[int]) -> list[bytes]:
        try:
            # Popped, so that it goes back as the one read last, and a reader that fails is not kept.
            reader = self._readers.pop(shard, None) or ArrayRecordReader(str(self._files[shard]), _READER)
            records = list(reader.read(numbers))
            size = int(self._starts[shard + 1] - self._starts[shard])
            for number, record in zip(numbers, records, strict=True):
                # Of another shard's file, for example.
                if len(record) != min(BLOCK, size - number * BLOCK) * self._dtype.itemsize:
                    raise ValueError(f"record {number} has {len(record)} bytes")
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            # Only the text of the library's error tells this from damage.
            if os.strerror(errno.EMFILE) in str(error):
                raise UserError("this process has too many open files; allow more: ulimit -n 65536") from error
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self._files[shard]} is damaged ({reason}); delete it and the manifest.json in its folder, and "
                "prepare the text again"
            ) from error
        self._readers[shard] = reader
        if len(self._readers) > self._most_open:
            self._readers.popitem(last=False)
        return records


def _openable(files: int) -> int:
    """Returns how many of `files` to keep open: all if this process may open four times as many, else fewer.

    A process starts with a soft limit, often 1,024, which is raised here up to the hard limit if that is needed.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if now < 4 * files and now < most:
        with contextlib.suppress(ValueError, OSError):  # macOS has yet another limit
            raised = min(4 * files, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, limits[1]))
            now = raised
    # A quarter of the limit for each of two splits leaves half of it for all else.
    return max(1, min(files, now // 4))


def write(path: Path, ids: Ints) -> None:
    """Writes the ids [T] of one shard.

    Raises:
      OSError: for example, the disk is full.
    """
    little_endian = ids.astype(ids.dtype.newbyteorder("<"))
    try:
        writer = ArrayRecordWriter(str(path), _WRITER)
        for begin in range(0, len(ids), BLOCK):
            writer.write(little_endian[begin : begin + BLOCK].tobytes())
        writer.close()
    except RuntimeError as error:  # the library reports errors of the system only by their text
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code), str(path)) from error
        raise
