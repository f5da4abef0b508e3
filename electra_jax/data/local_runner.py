"""Does the work of a preparation on this machine: this process reads, in order, and finds duplicates; others clean,
encode and write, a shard at a time.
"""

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import readers, shards, sources, tokenizer
from electra_jax.data.chunks import MEGABYTE, Job, Sample, job
from electra_jax.data.config import CorpusConfig
from electra_jax.data.readers import Document
from electra_jax.data.shards import Shard


class Done(NamedTuple):
    """How far a preparation is: documents and bytes of text that are finished, and the share of the input read."""

    documents: int
    bytes: int
    share: float


class Watch:
    """Told what happens. This one keeps it to itself."""

    def say(self, text: str) -> None:
        """A line for the person."""

    def begin(self, stage: str) -> None:
        """`stage` begins."""

    def advance(self, done: Done) -> None:
        """So much of the stage is done."""


class LocalRunner:
    """Works on all cores."""

    def __init__(self, workers: int = 0, watch: Watch | None = None):
        """Takes the number of processes that encode, 0 for one a core, and who is told what happens."""
        self._workers = workers or os.cpu_count() or 1
        self.watch = watch or Watch()

    def sample(self, settings: CorpusConfig, units: list[sources.Unit]) -> Sample:
        """Reads all of the text for a sample of it."""
        drawn = Sample(settings.sample_mb * MEGABYTE, settings.heldout_fraction)
        self.watch.begin("reading a sample")
        size = 0
        for order, (document, share) in enumerate(_reading(settings, units)):
            drawn.add((order,), document)
            size += len(document.text)
            if order % 1000 == 0:
                self.watch.advance(Done(order, size, share))
        return drawn

    def write(
        self, folder: Path, settings: CorpusConfig, vocabulary: tokenizer.Tokenizer, units: list[sources.Unit]
    ) -> list[Shard]:
        """Writes all shards; returns them in order."""
        jobs = _jobs(folder, settings, units)
        made: list[Shard] = []
        documents = text = 0
        self.watch.begin("encoding")
        # What fits about one shard is not worth the start of processes; what TFDS has is seldom so little.
        small = sum(unit.size for unit in units) <= settings.shard_mb * MEGABYTE
        if self._workers == 1 or (small and all(unit.kind != "tfds" for unit in units)):
            doing = _in_threads(jobs, vocabulary, settings.heldout_fraction, self._workers)
        else:
            doing = _in_processes(jobs, folder / vocabulary.file, settings.heldout_fraction, self._workers)
        for shard, share in doing:
            made.append(shard)
            documents, text = documents + sum(shard.documents.values()), text + shard.bytes
            self.watch.advance(Done(documents, text, share))
        return made


def _reading(settings: CorpusConfig, units: list[sources.Unit]) -> Iterator[tuple[Document, float]]:
    """Every document, and the share of the input that has been read with it."""
    whole = sum(unit.size for unit in units) or 1
    before = 0
    for unit in units:
        for document in readers.read(unit, settings.field, settings.documents):
            yield document, (before + document.read) / whole
        before += unit.size


def _jobs(folder: Path, settings: CorpusConfig, units: list[sources.Unit]) -> Iterator[tuple[Job, float]]:
    """One job a shard, in order, and the share of the input read with it. A text seen before is a duplicate."""
    whole = sum(unit.size for unit in units) or 1
    before = 0
    seen: set[bytes] = set()
    for numbered in enumerate(units):
        unit = numbered[1]
        documents = readers.read(unit, settings.field, settings.documents)
        for k, chunk in enumerate(readers.together(documents, settings.shard_mb * MEGABYTE)):
            duplicates = set()
            for i, document in enumerate(chunk):
                digest = shards.digest(document)
                if digest in seen and document.text:
                    duplicates.add(i)
                seen.add(digest)
            yield job(folder, numbered, k, chunk, duplicates), (before + chunk[-1].read) / whole
        before += unit.size


def _in_threads(
    jobs: Iterator[tuple[Job, float]], vocabulary: tokenizer.Tokenizer, heldout_fraction: float, threads: int
) -> Iterator[tuple[Shard, float]]:
    """Does the jobs, and gives each shard with its share of the input."""
    for todo, share in jobs:
        yield shards.write(*todo, vocabulary, heldout_fraction, threads), share


def _in_processes(
    jobs: Iterator[tuple[Job, float]], file: Path, heldout_fraction: float, workers: int
) -> Iterator[tuple[Shard, float]]:
    """Does the jobs in worker processes, and gives each shard with its share of the input, in order."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker, (file, heldout_fraction))
    running: deque[tuple[Future[Shard], float]] = deque()
    try:
        for _ in range(workers):
            pool.submit(int)  # so that they start while the first shard is read
        for todo, share in jobs:
            running.append((pool.submit(_do, todo), share))
            while len(running) > workers + 1:  # what waits is held in memory
                yield running[0][0].result(), running.popleft()[1]
        while running:
            yield running[0][0].result(), running.popleft()[1]
    except BrokenProcessPool as error:
        raise UserError(
            "a worker was killed, most likely for want of memory; the same command goes on from the finished shards: "
            "give it fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker: dict[str, Any] = {}  # of a worker process: what all its shards share


def _begin_worker(file: Path, heldout_fraction: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    gc.disable()  # nothing here is in a cycle, and there are millions of integers to look through
    _worker.update(vocabulary=tokenizer.load(file), heldout_fraction=heldout_fraction)


def _do(todo: Job) -> Shard:
    return shards.write(*todo, **_worker)
