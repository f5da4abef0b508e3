"""Tokenised text on disk: a vocabulary, a training split and a held-out split, in a folder keyed by its origin.

The folder is built beside its final name and renamed at the end, so one that is there is whole. Its manifest carries
checksums; one whose files were changed since is refused.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np

from electra_jax.data import sources, tokenizer
from electra_jax.errors import UserError

_FORMAT = 1  # raise it when the same settings give other tokens
_VOCABULARY_SAMPLE = 20_000_000  # characters the vocabulary is trained on, taken evenly from the whole
_HASH_SPACE = 2**32


@dataclasses.dataclass(frozen=True)
class Split:
    """Documents as one run of token ids.

    Attributes:
      token_ids: [T] unsigned, without special tokens.
      lines: [lines + 1] int64, where each line begins in `token_ids`; the last entry is T.
      documents: [documents + 1] int64, where each document begins in `lines`; the last entry is the number of lines.
    """

    token_ids: np.ndarray
    lines: np.ndarray
    documents: np.ndarray

    def __post_init__(self):
        assert self.lines[-1] == len(self.token_ids)
        assert self.documents[-1] == len(self.lines) - 1

    @classmethod
    def from_lists(cls, documents: Iterable[Iterable[list[int]]], dtype=np.uint16) -> "Split":
        """From documents as lists of lines as lists of ids."""
        docs = [list(lines) for lines in documents]
        lines = [line for doc in docs for line in doc]
        flat = np.fromiter((token for line in lines for token in line), dtype)
        return cls(flat, _offsets(map(len, lines)), _offsets(map(len, docs)))

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """How often each id occurs, [vocab_size] int64."""
        return np.bincount(self.token_ids, minlength=vocab_size)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A vocabulary and the two splits it was used on; `key` names what they were made from."""

    key: str
    tokenizer: tokenizer.Tokenizer
    train: Split
    heldout: Split
    characters: int


def _offsets(lengths: Iterable[int]) -> np.ndarray:
    lengths = np.fromiter(lengths, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def is_heldout(name: str, fraction: float) -> bool:
    """Whether a document is kept from training: by a hash of its name, so the choice survives changes elsewhere."""
    digest = int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")
    return digest < fraction * _HASH_SPACE


def corpus_key(settings: Any) -> str:
    """Names what a corpus is made from: the sources as they are now, and the settings that shape it."""
    origin = [_FORMAT, settings.input, sources.fingerprint(settings.input), settings.vocab_size]
    origin += [settings.lowercase, settings.heldout_fraction]
    return blake2b(json.dumps(origin).encode(), digest_size=8).hexdigest()


def load_or_build(folder: Path, settings: Any, key: str | None = None, report: Callable[[str], None] = print) -> Corpus:
    """The corpus that `settings` describe, from `folder/KEY`, made first where it is not there.

    Args:
      folder: where corpora are kept.
      settings: `input`, `vocab_size`, `lowercase`, `heldout_fraction`.
      key: the corpus that a run was begun with; it is used as it is, also where the sources have changed since.
      report: told in a line what is being done.

    Raises:
      UserError: no text, too little text, a changed file, or a corpus `key` that is gone and cannot be made again.
    """
    if key is not None and (folder / key / "manifest.json").exists():
        return _load(folder / key)
    current = corpus_key(settings)
    if key not in (None, current):
        raise UserError(
            f"the text this run was begun with ({folder / str(key)}) is gone and its sources have changed since; "
            "put it back, or begin a new run with another --workdir"
        )
    if not (folder / current / "manifest.json").exists():
        _build(folder / current, settings, report)
    return _load(folder / current)


def _changed(path: Path, name: str) -> UserError:
    return UserError(f"{path / name} is not as it was written; delete {path} to have it made again")


def _load(path: Path) -> Corpus:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except ValueError as error:
        raise _changed(path, "manifest.json") from error
    for name, digest in manifest["sha256"].items():
        with open(path / name, "rb") as file:
            if sha256(file.read()).hexdigest() != digest:
                raise _changed(path, name)

    def split(name: str) -> Split:
        parts = (np.load(path / f"{name}.{part}.npy", mmap_mode="r") for part in ("tokens", "lines", "documents"))
        return Split(*parts)

    vocabulary = tokenizer.Tokenizer.load(path / "vocab.model")
    return Corpus(path.name, vocabulary, split("train"), split("heldout"), manifest["characters"])


def _build(path: Path, settings: Any, report: Callable[[str], None]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    temporary.mkdir(parents=True)

    report(f"Reading {settings.input}")
    held: list[list[str]] = []
    kept: list[list[str]] = []
    for name, lines in sources.read_documents(settings.input):
        (held if is_heldout(name, settings.heldout_fraction) else kept).append(lines)
    if not kept or not held:
        raise UserError(
            f"config.data.input={settings.input!r} gives {len(kept)} documents to train on and {len(held)} held out; "
            "both are needed: give more text, blank lines between documents, or another config.data.heldout_fraction"
        )

    characters = sum(len(line) for lines in kept for line in lines)
    report(f"Training a vocabulary of {settings.vocab_size} pieces on {characters / 1e6:.1f} M characters")
    every = 1 + characters // _VOCABULARY_SAMPLE
    sample = [line for lines in kept for line in lines][::every]
    vocabulary = tokenizer.train(sample, settings.vocab_size, settings.lowercase)
    (temporary / "vocab.model").write_bytes(vocabulary.model)

    report("Encoding")
    dtype = np.uint16 if len(vocabulary) <= 2**16 else np.uint32
    for name, documents in (("train", kept), ("heldout", held)):
        split = Split.from_lists((vocabulary.encode(lines) for lines in documents), dtype)
        np.save(temporary / f"{name}.tokens.npy", split.token_ids)
        np.save(temporary / f"{name}.lines.npy", split.lines)
        np.save(temporary / f"{name}.documents.npy", split.documents)

    digests = {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(temporary.iterdir())}
    manifest = {
        "format": _FORMAT,
        "input": settings.input,
        "vocab_size": settings.vocab_size,
        "lowercase": settings.lowercase,
        "heldout_fraction": settings.heldout_fraction,
        "documents": len(kept),
        "heldout_documents": len(held),
        "characters": characters,
        "sha256": digests,
    }
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    shutil.rmtree(path, ignore_errors=True)
    os.replace(temporary, path)
