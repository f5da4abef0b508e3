"""Prepares a corpus: sources -> documents -> vocabulary -> shards of token ids -> manifest.

An interrupted preparation continues after its finished shards. Shards depend only on the text and the settings, so any
runner, with any number of processes or machines, writes the same bytes.
"""

import dataclasses
import hashlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_effects, from_dict, validate
from electra_jax.data import corpus, mixtures, processes, readers, shards, sources, tokenizer, unused_settings
from electra_jax.data.config import SENTENCE_PIECE, CorpusConfig, corpus_settings
from electra_jax.data.corpus import Corpus, CorpusReport
from electra_jax.data.duplicates import require_package
from electra_jax.data.local_runner import LocalRunner
from electra_jax.data.normalization import has_joiners
from electra_jax.data.runner import Job, Runner
from electra_jax.data.shards import Shard
from electra_jax.runtime.io import from_json, is_url, json_checksum, sha256, write_whole
from electra_jax.runtime.lock import lock
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.workdir import LOCK

_VOCABULARY_ORIGIN = "vocabulary.json"  # what the vocabulary in the folder was trained on
_REPORT = "report.json"
_OWN_FILES = re.compile(
    r"(\d{6}-\d{6}\..+|vocab\.model|tokenizer\.json|(vocabulary|manifest|report)\.json(\.tmp)?|beam\.pickle|\.lock)"
)


def prepare(
    output: str | Path,
    config: CorpusConfig | None = None,
    *,
    runner: Runner | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> CorpusReport:
    """Turns documents into a vocabulary and tokenized records, to train on with `config.data.input=OUTPUT`.

    Does nothing if `output` is already prepared from the same sources and settings. An interrupted preparation
    continues after its finished shards.

    Args:
      output: folder for the corpus; it may not hold other files.
      config: what to prepare the corpus from; None: its defaults.
      runner: does the work; None: processes on all cores of this machine.
      progress: receives the progress; None: no output.
      **settings: settings of `CorpusConfig` to change.

    Returns:
      Statistics of the corpus, which are also in `output`/report.json.

    Raises:
      UserError: a setting is invalid, a file is broken, the text is too small, or `output` holds something else.

    Example:
      >>> report = electra_jax.prepare("data/mine", input="text/", vocab_size=16000)  # doctest: +SKIP
    """
    if is_url(str(output)):
        raise UserError(f"output={output} is an address: expected a folder of this machine; copy the corpus from there")
    folder, progress = Path(output), progress or Progress()
    config = _with_settings(config or CorpusConfig(), settings)
    if corpus.is_prepared(Path(config.input)):
        raise UserError(f"{config.input} is a prepared corpus; train on it with --config.data.input={config.input}")
    if corpus.is_prepared(folder):
        if corpus.read_manifest(folder)["key"] != corpus_key(config):
            raise UserError(f"{folder} holds a corpus of other sources or settings; use another output folder")
        progress.say(f"{folder} is prepared already")
    else:
        build_corpus(folder, config, runner, progress)
    report = corpus.report(folder)
    write_whole(folder / _REPORT, json.dumps(dataclasses.asdict(report), indent=1) + "\n")
    return report


def _with_settings(config: CorpusConfig, changes: dict[str, Any]) -> CorpusConfig:
    """Returns a validated copy of `config` with some settings changed."""
    if not isinstance(config, CorpusConfig):
        raise UserError(f"config={config!r} is invalid: expected a CorpusConfig; give the sources by name, as input=")
    config = from_dict(CorpusConfig, {**corpus_settings(config), **changes}, prefix="")
    if config.vocabulary:
        # Only as arguments, because config files of runs have these two for any vocabulary.
        unused = changes.keys() & {"vocab_size", *(() if config.vocabulary.endswith(".txt") else ("normalization",))}
        check_effects(config, [(name, False, f"on the given vocabulary={config.vocabulary}") for name in unused], "")
    validate(config, "")
    return config


def corpus_key(config: CorpusConfig) -> str:
    """Hashes what a corpus is prepared from: the sources as they are now, and the settings."""
    defaults = corpus_settings(CorpusConfig())
    # Settings at their defaults are left out, so that adding a setting does not change the keys of earlier corpora.
    settings = {name: value for name, value in corpus_settings(config).items() if value != defaults[name]}
    if config.vocabulary:
        from electra_jax.data import vocabulary  # only needed if one is given

        # What is in the file counts, not where it is.
        settings["vocabulary"] = blake2b(vocabulary.read(Path(config.vocabulary)).tokenizer.model).hexdigest()
    origin = [shards.FORMAT, settings, sources.fingerprint(mixtures.parse(config))]
    return blake2b(json.dumps(origin).encode(), digest_size=8).hexdigest()


def settings_of(folder: Path) -> dict[str, Any]:
    """Returns the settings, without the input, that the corpus in `folder` was prepared with; empty if none."""
    if not corpus.is_prepared(folder):
        return {}
    # A corpus that is older than a setting was prepared as with its default.
    settings = {**corpus_settings(CorpusConfig()), **corpus.read_manifest(folder)["settings"]}
    return {name: value for name, value in settings.items() if name != "input"}


def find_or_prepare(
    folder: Path, config: CorpusConfig, key: str | None = None, progress: Progress | None = None
) -> Corpus:
    """Returns the corpus for a run: `config.input` if it is prepared, else `folder`/KEY, which is prepared if missing.

    Args:
      folder: where the run keeps the corpora that it prepares itself.
      config: what the corpus is prepared from.
      key: key of the corpus that the run started with, which is used even if the sources have changed since; None for
        a new run.
      progress: receives the progress; None: no output.

    Raises:
      UserError: as in `build_corpus`; or `config.input` is a corpus with another key; or the corpus `key` is missing
        and cannot be prepared again.
    """
    progress = progress or Progress()
    given = Path(config.input)
    if corpus.is_prepared(given):
        prepared = corpus.load(given)
        if key not in (None, prepared.key):
            raise UserError(
                f"{given} holds another corpus than the one this run started with; restore that one, or start a new "
                "run with another --workdir"
            )
        return prepared
    # Before the sources are listed: they may have changed since, or be gone.
    if key is not None and corpus.is_prepared(folder / key):
        return corpus.load(folder / key)
    current_key = corpus_key(config)
    if key not in (None, current_key):
        raise UserError(
            f"the corpus this run started with ({folder / str(key)}) is missing and its sources have changed since; "
            "restore it, or start a new run with another --workdir"
        )
    if corpus.is_prepared(folder / current_key):
        return corpus.load(folder / current_key)
    progress.say(f"Reading {config.input}")
    return build_corpus(folder / current_key, config, progress=progress, key=current_key)


def build_corpus(
    folder: Path,
    config: CorpusConfig,
    runner: Runner | None = None,
    progress: Progress | None = None,
    key: str | None = None,
) -> Corpus:
    """Prepares the corpus of `config` in `folder`, or continues an interrupted preparation.

    Args:
      folder: output folder; the manifest is written last.
      config: what to prepare the corpus from.
      runner: does the work; None: processes on all cores of this machine.
      progress: receives the progress; None: no output.
      key: `corpus_key(config)` if it is known: all sources are listed for it, and a vocabulary is read.

    Raises:
      UserError: a setting is invalid, a file is broken, the text is too small, or `folder` holds something else.
    """
    # First: a worker that runs the user's script again must not start workers itself.
    processes.check_main_is_guarded()
    runner, progress = runner or LocalRunner(), progress or Progress()
    if config.near_duplicates:
        require_package()
    mixture = mixtures.parse(config)
    units = _list_units(mixture, config)
    # Listed beside the units: hours later the sources may have changed, or a store may not answer.
    left_out = sources.left_out(mixture)
    # Before the folder is made, so that a refusal leaves nothing behind.
    unused_settings.check(units, config)
    key = key or corpus_key(config)
    made = not folder.exists()
    _make_folder(folder, mixture, units)
    job = Job(folder, config, units, progress)
    # Another preparation would replace the vocabulary, and delete what this one has written.
    with lock(folder, progress.say):
        try:
            _check_split(job)
            vocabulary = _make_vocabulary(job, runner, key)
            progress.start("encoding")
            written = runner.write_shards(job, vocabulary)
        # BaseException: an interrupt leaves no empty folder, either.
        except BaseException:
            if made and [path.name for path in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
            raise
        finally:
            progress.stop()
        # Only now: documents may turn out to be empty, or duplicates.
        _check_enough(config, mixture, written)
        _write_manifest(job, key, mixture, left_out, vocabulary, written)
    return corpus.load(folder)


def _list_units(mixture: Sequence[sources.Source], config: CorpusConfig) -> list[sources.Unit]:
    for source in mixture:
        # An unfinished corpus has this file, too, but no manifest.
        origin = _read_json(Path(source.name) / _VOCABULARY_ORIGIN)
        if isinstance(origin, dict) and origin.keys() == {"key", "sha256"}:
            raise UserError(
                f"{source.name} is a prepared corpus or an unfinished one: expected text; finish the preparation and "
                "train on it alone, or give the text that it was prepared from"
            )
    return list(sources.units(mixture, config.shard_bytes))


def _make_folder(folder: Path, mixture: Sequence[sources.Source], units: Sequence[sources.Unit]) -> None:
    """Creates the output folder.

    Raises:
      UserError: the output folder and the input overlap, or the folder holds other files.
    """
    # Units without a size are names of data sets or packages, not paths.
    for name in (name for unit in units if unit.size for name in unit.names if not is_url(name)):
        if Path(name).absolute().is_relative_to(folder.absolute()):
            raise UserError(f"{name} is in the output folder {folder}; use an output folder outside the input")
    for source in mixture:
        if sources.reads_below(source, folder):
            raise UserError(
                f"the output folder {folder} is inside the input {source.name}, so its files would be read as text; "
                "use an output folder outside the input"
            )
    folder.mkdir(parents=True, exist_ok=True)
    # Refused and never cleared: the files may be the user's only copy.
    for path in folder.iterdir():
        if not _OWN_FILES.fullmatch(path.name):
            raise UserError(f"{folder} holds other files ({path.name}); use a new folder, or an empty one")


def _check_split(job: Job) -> None:
    """Raises UserError, before any long work, if the hashes of all documents put them into the same split.

    Stops reading once it has seen a document of each split: after a few documents of a large text.
    """
    fraction, places = job.config.heldout_fraction, list[float]()
    for unit in job.units:
        for document in readers.read_documents(unit, job.config):
            if not document.text:
                continue
            places.append(shards.place_in_split(document.digest))
            # Comparing with the first is enough: two documents in different splits include one that differs from it.
            if min(places[-1], places[0]) < fraction <= max(places[-1], places[0]):
                return
    if not places:  # reported later, with what was found instead
        return
    which = "all" if places[0] < fraction else "none"
    # Rounded up, and above the lowest place: a document is held out if its place is below the fraction.
    enough = math.floor(min(places) * 1000 + 1) / 1000
    advice = f"use heldout_fraction={enough:g}, or " if which == "none" and len(places) > 1 and enough < 0.5 else ""
    documents = f"{len(places)} document{'s' if len(places) > 1 else ''}"
    raise UserError(
        f"input={job.config.input!r} has {documents}; heldout_fraction={fraction:g} holds out {which}: "
        f"expected some to train on and some held out; {advice}use more text, or put blank lines between documents"
    )


def _make_vocabulary(job: Job, runner: Runner, key: str) -> tokenizer.Tokenizer:
    """Returns the given vocabulary, the one already in the folder, or a newly trained one; saves it in the folder."""
    config, origin_file = job.config, job.folder / _VOCABULARY_ORIGIN
    if config.vocabulary:
        from electra_jax.data import vocabulary

        made = vocabulary.read(Path(config.vocabulary), config.normalization.endswith("_cf"))
    else:
        existing = tokenizer.find_file(job.folder)
        # The vocabulary may be of other sources, or a kill may have come before its origin was written.
        if existing is not None and _read_json(origin_file) == {"key": key, "sha256": sha256(existing)}:
            return tokenizer.load(existing)
        from electra_jax.data import proof  # only needed if a vocabulary is trained

        made = proof.settle(_train_vocabulary(job, runner))
    for note in made.notes:
        job.progress.say(f"vocabulary: {note}")
    tokenizer.save(made.tokenizer, job.folder)
    # Last: a vocabulary whose origin is not on record is trained again.
    write_whole(origin_file, json.dumps({"key": key, "sha256": sha256(job.folder / made.tokenizer.file)}))
    return made.tokenizer


def _train_vocabulary(job: Job, runner: Runner) -> tokenizer.Tokenizer:
    job.progress.start("reading a sample")
    lines = runner.draw_sample(job).lines()
    if not lines:
        raise UserError(
            f"input={job.config.input!r} has no document to train on: expected text that is not held out; use more "
            "text, or a lower heldout_fraction"
        )
    config, millions = job.config, sum(map(len, lines)) / 1e6
    if config.model_type == "wordpiece" and has_joiners(lines):
        job.progress.say(
            "words have zero-width non-joiners (U+200C), which BERT's normalization removes: model_type=unigram or "
            "byte_bpe keeps them"
        )
    if config.model_type in SENTENCE_PIECE and config.normalization.startswith("nmt_") and has_joiners(lines):
        config = dataclasses.replace(config, normalization=config.normalization.removeprefix("nmt_"))
        job.progress.say(
            f"words have zero-width non-joiners (U+200C), of which {job.config.normalization} would make spaces: the "
            f"vocabulary has normalization={config.normalization}"
        )
    lowercased = "lowercased " if config.normalization.endswith("_cf") else ""
    job.progress.say(
        f"Training a vocabulary of {config.vocab_size} {lowercased}pieces on {millions:.1f} M characters"
        f"{' (to keep upper case, set normalization=nmt_nfkc)' if lowercased else ''}"
    )
    from electra_jax.data import vocabulary_training

    return vocabulary_training.train(lines, config)


def _check_enough(config: CorpusConfig, mixture: Sequence[sources.Source], written: Sequence[Shard]) -> None:
    """Raises UserError if a split is empty or a source has nothing to train on."""
    documents = {split: sum(shard.documents[split] for shard in written) for split in shards.SPLITS}
    if not all(documents.values()):
        raise UserError(
            f"input={config.input!r} has {documents['train']} documents to train on and {documents['heldout']} held "
            "out: expected some of both; use more text, blank lines between documents, or another heldout_fraction"
        )
    for number, source in enumerate(mixture):
        if not any(shard.tokens["train"] for shard in written if shard.source == number):
            raise UserError(
                f"input={config.input!r}: {source.name} has nothing to train on; its documents are empty, held out, or "
                "duplicates of an earlier source's"
            )


def _write_manifest(
    job: Job,
    key: str,
    mixture: Sequence[sources.Source],
    left_out: Sequence[str],
    vocabulary: tokenizer.Tokenizer,
    written: Sequence[Shard],
) -> None:
    """Deletes files left by other preparations, then writes the manifest, which makes the folder a corpus."""
    weights = [source.weight for source in mixture]
    if job.config.temperature != 1:
        # Only now are the tokens counted.
        sizes = [sum(shard.tokens["train"] for shard in written if shard.source == i) for i in range(len(mixture))]
        weights = [*mixtures.shares(sizes, job.config.temperature)]
    commits = {unit.source: f"{unit.kind}:{unit.names[0]}" for unit in job.units if unit.kind == sources.HUB}
    manifest = {
        "format": shards.FORMAT,
        "key": key,
        # A given vocabulary has its own size.
        "settings": {**corpus_settings(job.config), "vocab_size": len(vocabulary)},
        "sources": [
            {"name": source.name, "weight": weights[i]} | ({"read": commits[i]} if i in commits else {})
            for i, source in enumerate(mixture)
        ],
        "left_out": {"files": len(left_out), "first": left_out[0] if left_out else None},
        "vocabulary": {"file": vocabulary.file, "sha256": hashlib.sha256(vocabulary.model).hexdigest()},
        "shards": [vars(shard) for shard in written],
    }
    manifest["checksum"] = json_checksum(manifest)
    kept = {vocabulary.file, _VOCABULARY_ORIGIN, LOCK}
    kept |= {name for shard in written for name in (*shard.sha256, f"{shard.name}.json")}
    # Before the manifest, which says that the folder is finished.
    for path in job.folder.iterdir():
        if path.name not in kept and _OWN_FILES.fullmatch(path.name):
            path.unlink()
    write_whole(job.folder / corpus.MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return from_json(path.read_text())
    except (OSError, ValueError):
        return None
