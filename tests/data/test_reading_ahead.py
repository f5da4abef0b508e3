"""Processes that read ahead: what they read, in which order, and how they end."""

import gzip
import os
import signal

import pytest
from made_files import contents

from electra_jax.config.errors import UserError
from electra_jax.data import config, local_runner, pipeline, reading_ahead, sources
from electra_jax.data.config import CorpusConfig
from electra_jax.data.local_runner import LocalRunner
from electra_jax.data.runner import Job
from electra_jax.runtime.progress import Progress


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(config, "MEGABYTE", 1000)


@pytest.fixture
def job(tmp_path, small_shards):
    """A job of eight files with some shards each, and documents that are in several files."""
    for name in "abcdefgh":
        texts = [f"document {n} of many\nof {name if n % 3 else 'all'} files" for n in range(100)]
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    settings = CorpusConfig(
        input=f"{tmp_path}/*.gz", vocab_size=60, heldout_fraction=0.1, shard_mb=1, sample_mb=3, model_type="bpe"
    )
    (tmp_path / "out").mkdir()
    units = [unit for path in sorted(tmp_path.glob("*.gz")) for unit in sources.units(sources.parse(str(path)), 1)]
    return Job(tmp_path / "out", settings, units, Progress())


def test_chunks_are_taken_in_order_whoever_reads_them(job):
    with reading_ahead.read_ahead(job, 2) as chunks:
        found = [(chunk.unit_number, chunk.path.name, reading_ahead.take(chunk.path), chunk) for chunk in chunks]
        assert not list(job.folder.iterdir())
    assert [name for _, name, _, _ in found] == sorted(name for _, name, _, _ in found)
    assert [number for number, _, _, _ in found] == sorted(number for number, _, _, _ in found)
    assert {number for number, _, _, _ in found} == set(range(8))
    texts = [document.text for _, _, chunk, _ in found for document in chunk.documents]
    assert texts == [
        f"document {n} of many\nof {name if n % 3 else 'all'} files".encode() for name in "abcdefgh" for n in range(100)
    ]
    for _, _, chunk, read in found:
        assert read.fingerprints.digests == [document.digest for document in chunk.documents]
        assert read.position == chunk.documents[-1].position


def test_many_files_give_the_same_bytes_for_any_number_of_processes(job, tmp_path, monkeypatch):
    monkeypatch.setattr(local_runner, "_ENCODERS_A_READER", 1)
    for workers in (1, 2):
        pipeline.build_corpus(tmp_path / str(workers), job.config, LocalRunner(workers))
    one, several = contents(tmp_path / "1"), contents(tmp_path / "2")
    assert len(one) > 40
    assert one == several


def test_an_error_comes_at_its_place_and_nothing_is_left(job, tmp_path):
    path = tmp_path / "c.txt.gz"
    path.write_bytes(path.read_bytes()[:-8])
    taken = []

    def take_all():
        with reading_ahead.read_ahead(job, 2) as chunks:
            taken.extend(chunk.unit_number for chunk in chunks)

    with pytest.raises(UserError, match=r"c.txt.gz:\d+: broken compressed file"):
        take_all()
    assert set(taken) == {0, 1}
    assert list(job.folder.iterdir()) == []


def test_an_error_that_cannot_be_pickled_is_sent_as_text(monkeypatch):
    class LibraryError(Exception):
        def __init__(self):
            super().__init__("bad page")
            self.retry = lambda: None

    class TwoArgumentsError(Exception):
        """Can be pickled, but not read again."""

        def __init__(self, cause, page):
            super().__init__(f"{cause} {page}")

    monkeypatch.setattr(reading_ahead.processes, "end_with_parent", lambda: None)
    for error in (LibraryError(), TwoArgumentsError("bad", "page")):

        def read_chunks(*_, error=error):
            raise error

        monkeypatch.setattr(reading_ahead, "read_chunks", read_chunks)
        receiver, sender = reading_ahead.processes.CONTEXT.Pipe(duplex=False)
        reading_ahead._read([(0, None)], CorpusConfig(), 100, None, None, sender)
        with pytest.raises(UserError, match=f"{type(error).__name__}: bad page"):
            reading_ahead._receive(receiver)


def test_a_reader_does_not_go_far_ahead(job, monkeypatch):
    monkeypatch.setattr(reading_ahead, "_AHEAD", 2000)  # two chunks
    with reading_ahead.read_ahead(job, 2) as chunks:
        most = 0
        for chunk in chunks:
            most = max(most, len(list(job.folder.iterdir())))
            reading_ahead.take(chunk.path)
    assert 1 <= most <= 2 * 2 + 2


def test_a_reader_that_was_killed_is_reported(job, monkeypatch):
    monkeypatch.setattr(reading_ahead, "_AHEAD", 1)  # one chunk
    started = []
    original = reading_ahead._in_order

    def kill_first(job, readers):
        for each in original(job, readers):
            if not started:
                started.append(each)
                for process in reading_ahead.processes.multiprocessing.active_children():
                    os.kill(process.pid, signal.SIGKILL)
            yield each

    monkeypatch.setattr(reading_ahead, "_in_order", kill_first)
    with (
        pytest.raises(UserError, match="a worker process was killed, probably because memory ran out"),
        reading_ahead.read_ahead(job, 1) as chunks,
    ):
        list(chunks)
    assert list(job.folder.iterdir()) == []
