"""From documents to a corpus on disk, on all cores, and again after a kill without doing finished shards twice.

This process reads, in order, and leaves out duplicates; others clean, encode and write, a shard at a time. What is in a
shard depends on the text alone, so any number of workers writes the same bytes.
"""

import gc
import heapq
import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax import arguments
from electra_jax.data import cleaning, corpus, readers, shards, sources, tokenizer
from electra_jax.data.readers import Document
from electra_jax.data.shards import Shard
from electra_jax.errors import UserError
from electra_jax.files import sha256, write_whole

# What a text is prepared with; `config.data` has them too, for a run that prepares its text itself.
SETTINGS: dict[str, Any] = {
    "input": "docstrings",  # see sources.py
    "vocabulary": "",  # a file; without one it is trained, with the next six
    "vocab_size": 30522,
    "model_type": "unigram",
    "normalization": "nmt_nfkc_cf",
    "byte_fallback": False,
    "character_coverage": 0.9995,
    "sample_mb": 20,  # of text that the vocabulary is trained on
    "heldout_fraction": 0.02,
    "field": "text",
    "documents": "blank_line",
    "shard_mb": 8,  # of text
}
CHECKS = {
    "vocab_size": arguments.above(5),
    "model_type": arguments.one_of(*tokenizer.MODEL_TYPES),
    "normalization": arguments.one_of(*tokenizer.NORMALIZATIONS),
    "character_coverage": arguments.within(0.98, 1),  # SentencePiece's bounds
    "sample_mb": arguments.above(0),
    "heldout_fraction": arguments.between(0, 1),
    "documents": arguments.one_of("blank_line", "file"),
    "shard_mb": arguments.above(0),
}
OF_TRAINING_A_VOCABULARY = ("vocab_size", "model_type", "byte_fallback", "character_coverage", "sample_mb")
MEGABYTE = 10**6
DUPLICATE = "duplicates of earlier documents, left out"
_VOCABULARY = "vocabulary.json"  # what the vocabulary in the folder was made from


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


def corpus_key(settings: Any) -> str:
    """Names what a corpus is made from: the sources as they are now, and the settings that shape it."""
    shaping = {name: settings[name] for name in SETTINGS}
    if settings.vocabulary:
        shaping["vocabulary"] = blake2b(tokenizer.load(Path(settings.vocabulary)).model).hexdigest()
    origin = [shards.FORMAT, shaping, sources.fingerprint(sources.parse(settings.input))]
    return blake2b(json.dumps(origin).encode(), digest_size=8).hexdigest()


def prepare(folder: Path, settings: Any, workers: int | None = None, watch: Watch | None = None) -> corpus.Corpus:
    """Makes the corpus that `settings` describe in `folder`, or goes on with it.

    Args:
      folder: for the files; a manifest is written last.
      settings: as `SETTINGS`.
      workers: processes that encode; by default one a core. They start with the second shard.
      watch: told what happens.

    Raises:
      UserError: no text, too little text, a broken file, or a setting that cannot be.
    """
    workers, watch = workers or os.cpu_count() or 1, watch or Watch()
    mixture = sources.parse(settings.input)
    key = corpus_key(settings)
    units = list(sources.units(mixture, settings.shard_mb * MEGABYTE))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / corpus.MANIFEST).unlink(missing_ok=True)
    vocabulary = _find_vocabulary(folder, settings, key, units, watch)
    made, notes = _write_shards(folder, settings, vocabulary, units, workers, watch)
    documents = {split: sum(shard.documents[split] for shard in made) for split in shards.SPLITS}
    if not all(documents.values()):
        raise UserError(
            f"input={settings.input!r} gives {documents['train']} documents to train on and {documents['heldout']} "
            "held out; both are needed: give more text, blank lines between documents, or another heldout_fraction"
        )
    for number, source in enumerate(mixture):
        if not any(shard.documents["train"] for shard in made if shard.source == number):
            raise UserError(f"input={settings.input!r}: {source.name} gives no document to train on")
    finish(folder, settings, key, mixture, made, notes)
    return corpus.load(folder)


def settings_of(given: Path) -> dict[str, Any]:
    """What a prepared text in `given` was prepared with, its input aside; empty where there is none."""
    if not corpus.is_prepared(given):
        return {}
    return {name: value for name, value in corpus.read_manifest(given)["settings"].items() if name != "input"}


def find_or_prepare(folder: Path, settings: Any, key: str | None = None, watch: Watch | None = None) -> corpus.Corpus:
    """The corpus that `settings.input` is, or that is in `folder` under its key, made first where it is not there.

    Args:
      folder: where a run keeps the texts that it prepares itself.
      settings: as `SETTINGS`.
      key: the corpus that a run was begun with; it is used as it is, also where the sources have changed since.
      watch: told what happens.

    Raises:
      UserError: as `prepare`; or a corpus `key` is gone and cannot be made again.
    """
    watch = watch or Watch()
    given = Path(settings.input)
    if corpus.is_prepared(given):
        found = corpus.load(given)
        if key not in (None, found.key):
            raise UserError(
                f"{given} holds another text than the one this run was begun with; put that back, or begin a new run "
                "with another --workdir"
            )
        return found
    if key is not None and corpus.is_prepared(folder / key):
        return corpus.load(folder / key)
    current = corpus_key(settings)
    if key not in (None, current):
        raise UserError(
            f"the text this run was begun with ({folder / str(key)}) is gone and its sources have changed since; "
            "put it back, or begin a new run with another --workdir"
        )
    if corpus.is_prepared(folder / current):
        return corpus.load(folder / current)
    watch.say(f"Reading {settings.input}")
    return prepare(folder / current, settings, watch=watch)


def finish(
    folder: Path, settings: Any, key: str, mixture: list[sources.Source], made: list[Shard], notes: cleaning.Notes
) -> None:
    """Writes the manifest, which makes the folder a corpus, and deletes what does not belong to it."""
    file = folder / tokenizer.kept_in(folder).file
    manifest = {
        "format": shards.FORMAT,
        "key": key,
        "settings": {name: settings[name] for name in SETTINGS},
        "sources": [{"name": source.name, "weight": source.weight} for source in mixture],
        "vocabulary": {"file": file.name, "sha256": sha256(file)},
        "notes": cleaning.merge([notes, *(shard.notes for shard in made)]),
        "shards": [vars(shard) for shard in made],
    }
    kept = {file.name, _VOCABULARY, *(name for shard in made for name in (*shard.sha256, f"{shard.name}.json"))}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
    write_whole(folder / corpus.MANIFEST, json.dumps(manifest, indent=1) + "\n")


def chunks(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    """Consecutive documents until they have `size` bytes of text: what goes into one shard, duplicates included."""
    chunk: list[Document] = []
    total = 0
    for document in documents:
        chunk.append(document)
        total += len(document.text)
        if total >= size:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def shard_name(unit: int, chunk: int) -> str:
    """Of the files of one shard; they sort in the order of the text."""
    return f"{unit:06d}-{chunk:06d}"


def _find_vocabulary(
    folder: Path, settings: Any, key: str, units: list[sources.Unit], watch: Watch
) -> tokenizer.Tokenizer:
    if settings.vocabulary:
        found = tokenizer.load(Path(settings.vocabulary), settings.normalization.endswith("_cf"))
    else:
        there = folder / tokenizer.SentencePiece.file
        if there.exists() and _json(folder / _VOCABULARY) == {"key": key, "sha256": sha256(there)}:
            return tokenizer.load(there)
        watch.begin("reading a sample")
        sample = _sample(settings, units, watch)
        characters = sum(map(len, sample))
        watch.say(f"Training a vocabulary of {settings.vocab_size} pieces on {characters / 1e6:.1f} M characters")
        found = tokenizer.train(sample, settings)
    tokenizer.keep(found, folder)
    write_whole(folder / _VOCABULARY, json.dumps({"key": key, "sha256": sha256(folder / found.file)}))
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _sample(settings: Any, units: list[sources.Unit], watch: Watch) -> list[str]:
    """Lines of training documents that are drawn by a hash of their text, `sample_mb` at most, in the text's order."""
    limit = settings.sample_mb * MEGABYTE
    drawn: list[tuple[int, int, Document]] = []  # a heap: the highest hash goes first
    size = 0
    for order, (document, share) in enumerate(_reading(settings, units)):
        digest = shards.digest(document)
        if shards.is_heldout(digest, settings.heldout_fraction):
            continue
        heapq.heappush(drawn, (-int.from_bytes(digest[4:], "big"), order, document))
        size += len(document.text)
        while size > limit and len(drawn) > 1:
            size -= len(heapq.heappop(drawn)[2].text)
        if order % 1000 == 0:
            watch.advance(Done(order, size, share))
    ordered = sorted((order, document) for _, order, document in drawn)
    return [line for _, document in ordered for line in cleaning.lines(document.text, document.place, {})]


def _reading(settings: Any, units: list[sources.Unit]) -> Iterator[tuple[Document, float]]:
    """Every document, and the share of the input that has been read with it."""
    whole = sum(unit.size for unit in units) or 1
    before = 0
    for unit in units:
        for document in readers.read(unit, settings.field, settings.documents):
            yield document, (before + document.read) / whole
        before += unit.size


def _write_shards(
    folder: Path,
    settings: Any,
    vocabulary: tokenizer.Tokenizer,
    units: list[sources.Unit],
    workers: int,
    watch: Watch,
) -> tuple[list[Shard], cleaning.Notes]:
    """Writes all shards; returns them in order, and what was noted of documents that no shard has."""
    notes: cleaning.Notes = {}
    jobs = _jobs(folder, settings, units, notes)
    made: list[Shard] = []
    documents = text = 0
    watch.begin("encoding")
    # What fits about one shard is not worth the start of processes; what TFDS has is seldom so little.
    small = all(unit.kind != "tfds" for unit in units) and sum(u.size for u in units) <= settings.shard_mb * MEGABYTE
    if small or workers == 1:
        doing = _here(jobs, vocabulary, settings.heldout_fraction, workers)
    else:
        doing = _in_processes(jobs, folder / vocabulary.file, settings.heldout_fraction, workers)
    for shard, share in doing:
        made.append(shard)
        documents, text = documents + sum(shard.documents.values()), text + shard.bytes
        watch.advance(Done(documents, text, share))
    return made, notes


class _Job(NamedTuple):
    """A shard to be written: the arguments of `shards.write`, and the share of the input read with it."""

    folder: Path
    name: str
    source: int
    documents: list[Document]
    digests: list[bytes]
    share: float


def _jobs(folder: Path, settings: Any, units: list[sources.Unit], notes: cleaning.Notes) -> Iterator[_Job]:
    """One job a shard, in order, without duplicates, which are told to `notes`."""
    whole = sum(unit.size for unit in units) or 1
    before = 0
    seen: set[bytes] = set()
    for number, unit in enumerate(units):
        documents = readers.read(unit, settings.field, settings.documents)
        for k, chunk in enumerate(chunks(documents, settings.shard_mb * MEGABYTE)):
            new: list[Document] = []
            digests = []
            for document in chunk:
                digest = shards.digest(document)
                if digest in seen and document.text:
                    cleaning.note(notes, DUPLICATE, document.place)
                    continue
                seen.add(digest)
                digests.append(digest)
                new.append(document)
            share = (before + chunk[-1].read) / whole
            yield _Job(folder, shard_name(number, k), unit.source, new, digests, share)
        before += unit.size


def _here(
    jobs: Iterator[_Job], vocabulary: tokenizer.Tokenizer, heldout_fraction: float, threads: int
) -> Iterator[tuple[Shard, float]]:
    """Does the jobs, and gives each shard with its share of the input."""
    for job in jobs:
        yield shards.write(*job[:-1], vocabulary, heldout_fraction, threads), job.share


def _in_processes(
    jobs: Iterator[_Job], file: Path, heldout_fraction: float, workers: int
) -> Iterator[tuple[Shard, float]]:
    """Does the jobs in worker processes, and gives each shard with its share of the input, in order."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker, (file, heldout_fraction))
    running: deque[tuple[Future[Shard], float]] = deque()
    try:
        for _ in range(workers):
            pool.submit(int)  # so that they start while the first shard is read
        for job in jobs:
            running.append((pool.submit(_do, *job[:-1]), job.share))
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


def _do(folder: Path, name: str, source: int, documents: list[Document], digests: list[bytes]) -> Shard:
    return shards.write(folder, name, source, documents, digests, **_worker)
