"""From documents to a corpus on disk, and again after a kill without doing finished shards twice.

What is in a shard depends on the text alone, so whoever does the work, `local.py` with any number of processes or
`beam.py` with any number of machines, writes the same bytes.
"""

import json
import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from electra_jax.config.errors import UserError
from electra_jax.data import corpus, shards, sources, tokenizer
from electra_jax.data.chunks import MEGABYTE, Sample
from electra_jax.data.config import CorpusConfig, corpus_settings
from electra_jax.data.local_runner import LocalRunner, Watch
from electra_jax.data.shards import Shard
from electra_jax.runtime.io import from_json, sha256, write_whole

_VOCABULARY = "vocabulary.json"  # what the vocabulary in the folder was made from
_OURS = re.compile(
    r"(\d{6}-\d{6}\..+|vocab\.model|tokenizer\.json|(vocabulary|manifest|report)\.json(\.tmp)?|beam\.pickle)"
)


def corpus_key(settings: CorpusConfig) -> str:
    """Names what a corpus is made from: the sources as they are now, and the settings that shape it."""
    shaping = corpus_settings(settings)
    if settings.vocabulary:
        shaping["vocabulary"] = blake2b(tokenizer.load(Path(settings.vocabulary)).model).hexdigest()
    origin = [shards.FORMAT, shaping, sources.fingerprint(sources.parse(settings.input))]
    return blake2b(json.dumps(origin).encode(), digest_size=8).hexdigest()


class Runner(Protocol):
    """Who does the work.

    Attributes:
      watch: told what happens.
    """

    watch: Watch

    def sample(self, settings: CorpusConfig, units: list[sources.Unit]) -> Sample:
        """What a vocabulary is to be trained on."""
        ...

    def write(
        self, folder: Path, settings: CorpusConfig, vocabulary: tokenizer.Tokenizer, units: list[sources.Unit]
    ) -> list[Shard]:
        """Writes all shards; returns them in order."""
        ...


def prepare(folder: Path, settings: CorpusConfig, hands: Runner | None = None) -> corpus.Corpus:
    """Makes the corpus that `settings` describe in `folder`, or goes on with it.

    Args:
      folder: for the files; a manifest is written last.
      settings: what the corpus is prepared from.
      hands: do the work; by default all cores of this machine.

    Raises:
      UserError: no text, too little text, a broken file, or a setting that cannot be.
    """
    hands = hands or LocalRunner()
    mixture = sources.parse(settings.input)
    for source in mixture:
        if os.path.isfile(Path(source.name) / _VOCABULARY):
            raise UserError(
                f"{source.name} is a prepared text, or one whose preparation has not finished; finish that with its "
                "own command and train on it alone, or give the text that it was made from"
            )
    key = corpus_key(settings)
    units = list(sources.units(mixture, settings.shard_mb * MEGABYTE))
    for name in (name for unit in units if unit.size for name in unit.names):
        if Path(name).absolute().is_relative_to(folder.absolute()):
            raise UserError(f"{name} is in {folder}, where the records are to go; give a folder outside the input")
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            raise UserError(f"{folder} holds other things ({path.name}); give a new folder, or an empty one")
    (folder / corpus.MANIFEST).unlink(missing_ok=True)
    vocabulary = _find_vocabulary(folder, settings, key, units, hands)
    made = hands.write(folder, settings, vocabulary, units)
    documents = {split: sum(shard.documents[split] for shard in made) for split in shards.SPLITS}
    if not all(documents.values()):
        raise UserError(
            f"input={settings.input!r} gives {documents['train']} documents to train on and {documents['heldout']} "
            "held out; both are needed: give more text, blank lines between documents, or another heldout_fraction"
        )
    for number, source in enumerate(mixture):
        if not any(shard.tokens["train"] for shard in made if shard.source == number):
            raise UserError(
                f"input={settings.input!r}: {source.name} gives nothing to train on: all that is in it is empty, held "
                "out, or in an earlier source too"
            )
    _finish(folder, settings, key, mixture, made)
    return corpus.load(folder)


def settings_of(given: Path) -> dict[str, Any]:
    """What a prepared text in `given` was prepared with, its input aside; empty where there is none."""
    if not corpus.is_prepared(given):
        return {}
    return {name: value for name, value in corpus.read_manifest(given)["settings"].items() if name != "input"}


def find_or_prepare(
    folder: Path, settings: CorpusConfig, key: str | None = None, watch: Watch | None = None
) -> corpus.Corpus:
    """The corpus that `settings.input` is, or that is in `folder` under its key, made first where it is not there.

    Args:
      folder: where a run keeps the texts that it prepares itself.
      settings: what the corpus is prepared from.
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
    return prepare(folder / current, settings, LocalRunner(watch=watch))


def _finish(
    folder: Path, settings: CorpusConfig, key: str, mixture: Sequence[sources.Source], made: list[Shard]
) -> None:
    """Writes the manifest, which makes the folder a corpus, and deletes what another one left there."""
    vocabulary = tokenizer.kept_in(folder)
    file = folder / vocabulary.file
    left = sources.left_out(mixture)
    manifest = {
        "format": shards.FORMAT,
        "key": key,
        "settings": {**corpus_settings(settings), "vocab_size": len(vocabulary)},
        "sources": [{"name": source.name, "weight": source.weight} for source in mixture],
        "left_out": {"files": len(left), "first": left[0] if left else None},
        "vocabulary": {"file": file.name, "sha256": sha256(file)},
        "shards": [vars(shard) for shard in made],
    }
    kept = {file.name, _VOCABULARY, *(name for shard in made for name in (*shard.sha256, f"{shard.name}.json"))}
    for path in folder.iterdir():
        if path.name not in kept and _OURS.fullmatch(path.name):
            path.unlink()
    manifest["checksum"] = corpus.checksum_of(manifest)
    write_whole(folder / corpus.MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _find_vocabulary(
    folder: Path, settings: CorpusConfig, key: str, units: list[sources.Unit], hands: Runner
) -> tokenizer.Tokenizer:
    if settings.vocabulary:
        found = tokenizer.load(Path(settings.vocabulary), settings.normalization.endswith("_cf"))
    else:
        there = folder / tokenizer.SentencePiece.file
        if there.exists() and _json(folder / _VOCABULARY) == {"key": key, "sha256": sha256(there)}:
            return tokenizer.load(there)
        sample = hands.sample(settings, units).lines()
        if not sample:
            raise UserError(
                f"input={settings.input!r} gives no document to train on; give more text, or another heldout_fraction"
            )
        characters = sum(map(len, sample))
        hands.watch.say(f"Training a vocabulary of {settings.vocab_size} pieces on {characters / 1e6:.1f} M characters")
        found = tokenizer.train(sample, settings)
    tokenizer.keep(found, folder)
    write_whole(folder / _VOCABULARY, json.dumps({"key": key, "sha256": sha256(folder / found.file)}))
    return found


def _json(path: Path) -> Any:
    try:
        return from_json(path.read_text())
    except (OSError, ValueError):
        return None
