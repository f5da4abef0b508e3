"""Prepares a corpus on this machine.

Some processes read ahead, one deduplicates in text order, and others clean, encode and write shards. The process that
deduplicates sees only fingerprints, no text.
"""

import gc
import itertools
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from electra_jax.data import processes
from electra_jax.data.config import CorpusConfig
from electra_jax.data.duplicates import SeenDocuments, fingerprints
from electra_jax.data.readers import read_documents
from electra_jax.data.runner import Job, Runner
from electra_jax.data.sample import Sample
from electra_jax.data.shards import Chunk, Shard, read_chunks, write_shard
from electra_jax.data.sources import Unit
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.data.tokenizer import load as load_tokenizer
from electra_jax.runtime.progress import Progress

_SAMPLED_BETWEEN_UPDATES = 1000  # documents between two updates of the progress
# Reading takes less than a fifth of the time of encoding; with MinHash signatures it takes more.
_ENCODERS_A_READER = 4


class LocalRunner(Runner):
    """A runner that uses several processes, or threads if the input is small."""

    def __init__(self, workers: int = 0):
        """Takes the number of encoding processes; 0: one per core."""
        self._workers = workers or processes.cores()

    def draw_sample(self, job: Job) -> Sample:
        # One process reads a unit as a whole.
        if self._is_alone(job) or len(job.units) == 1:
            return _draw_alone(job)
        return _draw_in_processes(job, self._workers)

    def write_shards(self, job: Job, tokenizer: Tokenizer) -> list[Shard]:
        if self._is_alone(job):
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

    def _is_alone(self, job: Job) -> bool:
        """True if this process does all the work.

        Starting processes takes longer than encoding about one shard. Data sets of unknown size are assumed to be
        larger.
        """
        small = sum(unit.size for unit in job.units) <= job.config.shard_bytes
        return self._workers == 1 or (small and not any(unit.is_library for unit in job.units))


def count_readers(workers: int, config: CorpusConfig) -> int:
    """Returns the number of reading processes for `workers` encoding processes."""
    return workers if config.near_duplicates else -(-workers // _ENCODERS_A_READER)


def _sizes_before(job: Job) -> tuple[list[int], int]:
    """Returns (bytes of the units before each unit, bytes of all units); unknown sizes count as 0."""
    *before, total = itertools.accumulate((unit.size for unit in job.units), initial=0)
    # Docstrings and data sets have no size.
    return before, total or 1


def _draw_alone(job: Job) -> Sample:
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


def _draw_in_processes(job: Job, workers: int) -> Sample:
    """Draws the same sample as `_draw_alone`, from units that are read in parallel."""
    sample = Sample(job.config.sample_bytes, job.config.heldout_fraction)
    meter = _Meter(job.progress)
    before, total = _sizes_before(job)
    running: deque[tuple[Future[tuple[Sample, int, int]], int]] = deque()

    def merge_first() -> None:
        future, unit_number = running.popleft()
        part, documents, size = future.result()
        sample.merge(part)
        meter.count(documents, size)
        meter.show((before[unit_number] + job.units[unit_number].size) / total)

    with processes.pool(min(workers, len(job.units)), processes.end_with_parent, ()) as pool:
        for unit_number, unit in enumerate(job.units):
            # Documents at or above the bound would be dropped by the merge, so workers need not return them.
            part = Sample(job.config.sample_bytes, job.config.heldout_fraction, sample.bound)
            running.append((pool.submit(_draw_from_unit, part, unit_number, unit, job.config), unit_number))
            # One task more than workers: none of them waits for a merge, and few samples are in memory.
            if len(running) > workers + 1:
                merge_first()
        while running:
            merge_first()
    return sample


def _draw_from_unit(sample: Sample, unit_number: int, unit: Unit, config: CorpusConfig) -> tuple[Sample, int, int]:
    """Adds the documents of a unit to `sample`; returns (sample, their number, bytes of their text)."""
    count = size = 0
    for number, document in enumerate(read_documents(unit, config)):
        sample.add((unit_number, number), document)
        count += 1
        size += len(document.text)
    return sample, count, size


def _write_in_threads(job: Job, tokenizer: Tokenizer, threads: int) -> Iterator[tuple[Shard, float]]:
    before, total = _sizes_before(job)
    seen = SeenDocuments(job.config.near_duplicates)
    for unit_number, unit in enumerate(job.units):
        for chunk in read_chunks(unit_number, unit, job.config, job.config.shard_bytes):
            share = (before[unit_number] + chunk.documents[-1].position) / total
            duplicates = seen.find_duplicates(fingerprints(chunk.documents, job.config.near_duplicates))
            distinct = chunk.without(duplicates)
            yield write_shard(job.folder, distinct, tokenizer, job.config.heldout_fraction, threads), share


def _write_in_processes(job: Job, tokenizer: Tokenizer, workers: int) -> Iterator[tuple[Shard, float]]:
    from electra_jax.data import reading_ahead  # only a large text is read by several processes

    before, total = _sizes_before(job)
    seen = SeenDocuments(job.config.near_duplicates)
    running: deque[tuple[Future[Shard], float]] = deque()
    arguments = (job.folder, job.folder / tokenizer.file, job.config.heldout_fraction)
    # In this order: the pool has ended when read_ahead deletes the chunks that its workers read.
    with (
        reading_ahead.read_ahead(job, count_readers(workers, job.config)) as chunks,
        processes.pool(workers, _start_worker, arguments) as pool,
    ):
        for chunk in chunks:
            share = (before[chunk.unit_number] + chunk.position) / total
            # In this process and in the order of the text, so that the first of several copies is kept.
            duplicates = seen.find_duplicates(chunk.fingerprints)
            running.append((pool.submit(_write_in_worker, chunk.path, duplicates), share))
            # The oldest first: shards are returned in the order of the text.
            while len(running) > workers + 1:
                yield running[0][0].result(), running.popleft()[1]
        while running:
            yield running[0][0].result(), running.popleft()[1]


# In a worker process: folder, tokenizer and held-out fraction, which are the same for all of its tasks.
_worker: tuple[Path, Tokenizer, float] | None = None


def _start_worker(folder: Path, tokenizer_file: Path, heldout_fraction: float) -> None:
    global _worker
    processes.end_with_parent()
    # The workers are the parallelism: the library's own threads would compete for the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # There are no cycles, and scanning millions of integers for them is slow.
    gc.disable()
    _worker = folder, load_tokenizer(tokenizer_file), heldout_fraction


def _write_in_worker(path: Path, duplicates: dict[int, str]) -> Shard:
    assert _worker is not None
    folder, tokenizer, heldout_fraction = _worker
    from electra_jax.data import reading_ahead

    chunk: Chunk = reading_ahead.take(path)
    return write_shard(folder, chunk.without(duplicates), tokenizer, heldout_fraction)


class _Meter:
    """A counter of documents and bytes, which shows them with the speed."""

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
