"""Processes that read units in parallel, ahead of the process that takes their chunks in text order.

Reader r of R reads the units r, r + R, r + 2R, ... It writes each chunk to a file in the output folder, which begins
with the chunk's fingerprints. The process that deduplicates reads only these, and the process that encodes reads the
rest: no text passes through the former. A reader is at most `_AHEAD` bytes ahead of what has been taken from it.
"""

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError, describe
from electra_jax.data import processes
from electra_jax.data.config import CorpusConfig
from electra_jax.data.duplicates import Fingerprints, fingerprints
from electra_jax.data.runner import Job
from electra_jax.data.shards import Chunk, read_chunks
from electra_jax.data.sources import Unit

_AHEAD = 2**29  # bytes of text; files up to this size are read at the same time, larger ones in part
_SUFFIX = ".documents"


class ReadChunk(NamedTuple):
    """A chunk that a reader has written to a file.

    Attributes:
      path: the file.
      fingerprints: of its documents.
      unit_number: index of its unit in the whole input.
      position: bytes of the unit read up to its end.
    """

    path: Path
    fingerprints: Fingerprints
    unit_number: int
    position: int


def leave(folder: Path, chunk: Chunk, near_duplicates: float) -> Path:
    """Writes the fingerprints of a chunk and the chunk to a file, and returns its path."""
    path = folder / f"{chunk.name}{_SUFFIX}"
    with path.open("wb") as file:
        # First, because deduplication reads no further.
        pickle.dump(fingerprints(chunk.documents, near_duplicates), file, pickle.HIGHEST_PROTOCOL)
        pickle.dump(chunk, file, pickle.HIGHEST_PROTOCOL)
    return path


def read_fingerprints(path: Path) -> Fingerprints:
    """Reads the fingerprints in a chunk's file."""
    with path.open("rb") as file:
        found: Fingerprints = pickle.load(file)
    return found


def take(path: Path) -> Chunk:
    """Reads the chunk in a file, and deletes the file."""
    with path.open("rb") as file:
        pickle.load(file)  # the fingerprints
        chunk: Chunk = pickle.load(file)
    path.unlink()
    return chunk


@contextlib.contextmanager
def read_ahead(job: Job, readers: int) -> Iterator[Iterator[ReadChunk]]:
    """Context manager that yields an iterator over all chunks of a job in order, which processes read meanwhile.

    Args:
      job: what to read.
      readers: number of processes.

    Raises:
      UserError: while chunks are taken: a file is broken, at its place in the order; or a reader was killed.
    """
    started = []
    try:
        with processes.starting():
            for number in range(min(readers, len(job.units))):
                # At least one chunk, if a shard is larger than what may be read ahead.
                allowance = processes.CONTEXT.Semaphore(max(1, _AHEAD // job.config.shard_bytes))
                receiver, sender = processes.CONTEXT.Pipe(duplex=False)
                # Interleaved: with consecutive units, one reader would work while the others wait for an allowance.
                units = [(i, job.units[i]) for i in range(number, len(job.units), readers)]
                arguments = (units, job.config, job.config.shard_bytes, job.folder, allowance, sender)
                process = processes.CONTEXT.Process(target=_read, args=arguments, name=f"reader {number}", daemon=True)
                process.start()
                # So that `recv` raises EOFError once the reader has gone.
                sender.close()
                started.append((process, receiver, allowance))
        yield _in_order(job, [(receiver, allowance) for _, receiver, allowance in started])
    finally:
        for process, receiver, _ in started:
            # It has finished, or nobody waits for it.
            process.terminate()
            process.join()
            receiver.close()
        # Chunks that were not taken, after an error or an interrupt.
        for path in job.folder.glob(f"*{_SUFFIX}"):
            path.unlink(missing_ok=True)


def _in_order(job: Job, readers: list[tuple["Connection[Any, Any]", Semaphore]]) -> Iterator[ReadChunk]:
    for unit_number in range(len(job.units)):
        receiver, allowance = readers[unit_number % len(readers)]
        while (message := _receive(receiver)) is not None:
            name, position = message
            path = job.folder / name
            yield ReadChunk(path, read_fingerprints(path), unit_number, position)
            # Reached when the next chunk is requested: this one has been taken.
            allowance.release()


def _receive(receiver: "Connection[Any, Any]") -> tuple[str, int] | None:
    """Receives (file, position) of the next chunk of a unit, or None at its end; raises the reader's error."""
    try:
        message: tuple[str, int] | Exception | None = receiver.recv()
    except EOFError as error:
        raise processes.killed() from error
    if isinstance(message, Exception):
        raise message
    return message


def _read(
    units: Sequence[tuple[int, Unit]],
    config: CorpusConfig,
    size: int,
    folder: Path,
    allowance: Semaphore,
    sender: "Connection[Any, Any]",
) -> None:
    """Runs in a reader process: reads units into chunks of `size` bytes."""
    processes.end_with_parent()
    try:
        for unit_number, unit in units:
            for chunk in read_chunks(unit_number, unit, config, size):
                # Before the chunk is written, so that the allowance bounds the disk space, too.
                allowance.acquire()
                path = leave(folder, chunk, config.near_duplicates)
                sender.send((path.name, chunk.documents[-1].position))
            sender.send(None)
    # Sent, to be raised at its place in the order of the text.
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error of a library, which another process cannot read
            error = UserError(describe(error))
        sender.send(error)
