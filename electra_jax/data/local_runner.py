"""Prepares on this machine: one process reads in order and finds duplicates; others clean, encode and write shards."""

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.data.documents import Document
from electra_jax.data.readers import read_documents
from electra_jax.data.runner import Job, Runner
from electra_jax.data.sample import Sample
from electra_jax.data.shards import Chunk, Shard, read_chunks, write_shard
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.data.tokenizer import load as load_tokenizer
from electra_jax.runtime.progress import Progress

_SAMPLED_BETWEEN_UPDATES = 1000  # documents


class LocalRunner(Runner):
    """Uses several processes, or threads where the input is small."""

    def __init__(self, workers: int = 0):
        """Takes the number of processes that encode; 0: one per core."""
        self._workers = workers or os.cpu_count() or 1

    def draw_sample(self, job: Job) -> Sample:
        sample = Sample(job.config.sample_bytes, job.config.heldout_fraction)
        meter = _Meter(job.progress)
        before, total = _sizes_before(job)
        for unit_number, unit in enumerate(job.units):
            for number, document in enumerate(read_documents(unit, job.config)):
                sample.add((unit_number, number), document)
                meter.count(1, len(document.text))
                if meter.documents % _SAMPLED_BETWEEN_UPDATES == 0:
                    meter.show((before[unit_number] + document.position) / total)
        return sample

    def write_shards(self, job: Job, tokenizer: Tokenizer) -> list[Shard]:
        # Starting processes takes longer than encoding about one shard. Sets whose size is unknown are larger.
        small = sum(unit.size for unit in job.units) <= job.config.shard_bytes
        if self._workers == 1 or (small and all(not unit.is_library for unit in job.units)):
            written = _write_in_threads(job, tokenizer, self._workers)
        else:
            written = _write_in_processes(job, tokenizer, self._workers)
        shards: list[Shard] = []
        meter = _Meter(job.progress)
        for shard, share in written:
            shards.append(shard)
            meter.count(sum(shard.documents.values()), shard.bytes)
            meter.show(share)
        return shards


def _sizes_before(job: Job) -> tuple[list[int], int]:
    """(bytes of the units before each unit, bytes of all); sizes that are not known count as 0."""
    *before, total = itertools.accumulate((unit.size for unit in job.units), initial=0)
    return before, total or 1


def _distinct_chunks(job: Job) -> Iterator[tuple[Chunk, float]]:
    """All chunks in order without duplicates, and the share of the input read so far."""
    before, total = _sizes_before(job)
    seen: set[bytes] = set()
    for unit_number, unit in enumerate(job.units):
        for chunk in read_chunks(unit_number, unit, job.config):
            share = (before[unit_number] + chunk.documents[-1].position) / total
            yield chunk.without(_duplicates(chunk.documents, seen)), share


def _duplicates(documents: list[Document], seen: set[bytes]) -> set[int]:
    """Indices of the documents whose digests are in `seen`; adds all digests to it. Empty documents are kept."""
    duplicates = set()
    for i, document in enumerate(documents):
        if document.digest in seen and document.text:
            duplicates.add(i)
        seen.add(document.digest)
    return duplicates


def _write_in_threads(job: Job, tokenizer: Tokenizer, threads: int) -> Iterator[tuple[Shard, float]]:
    for chunk, share in _distinct_chunks(job):
        yield write_shard(job.folder, chunk, tokenizer, job.config.heldout_fraction, threads), share


def _write_in_processes(job: Job, tokenizer: Tokenizer, workers: int) -> Iterator[tuple[Shard, float]]:
    arguments = (job.folder, job.folder / tokenizer.file, job.config.heldout_fraction)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker, arguments)
    running: deque[tuple[Future[Shard], float]] = deque()
    try:
        # Starts the processes while the first chunk is read. They inherit that Ctrl-C does not reach them: this process
        # handles it, and theirs would print a traceback if it came during their imports.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(workers):
            pool.submit(int)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for chunk, share in _distinct_chunks(job):
            running.append((pool.submit(_write_in_worker, chunk), share))
            while len(running) > workers + 1:  # waiting chunks are held in memory
                yield running[0][0].result(), running.popleft()[1]
        while running:
            yield running[0][0].result(), running.popleft()[1]
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, probably because memory ran out; run the same command with fewer --workers, "
            "it continues after the finished shards"
        ) from error
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the chunks that are being written
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_worker: tuple[Path, Tokenizer, float] | None = None  # in a worker process: folder, tokenizer, held-out fraction


def _start_worker(folder: Path, tokenizer_file: Path, heldout_fraction: float) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    gc.disable()  # there are no cycles, and scanning millions of integers for them is slow
    _worker = folder, load_tokenizer(tokenizer_file), heldout_fraction


def _end_with_parent() -> None:
    """Ends this process when its parent has been killed, which cannot end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write_in_worker(chunk: Chunk) -> Shard:
    assert _worker is not None
    folder, tokenizer, heldout_fraction = _worker
    return write_shard(folder, chunk, tokenizer, heldout_fraction)


class _Meter:
    """Counts documents and bytes, and shows them with the speed."""

    def __init__(self, progress: Progress):
        self.documents = self._bytes = 0
        self._progress = progress
        self._started = time.monotonic()

    def count(self, documents: int, size: int) -> None:
        self.documents += documents
        self._bytes += size

    def show(self, share: float) -> None:
        speed = self._bytes / 1e6 / max(time.monotonic() - self._started, 1e-9)
        self._progress.update(share, f"{self.documents:,} documents · {speed:.1f} MB/s")
