"""A prepared text: a vocabulary, and the training and held-out splits it was used on, in a folder with a manifest.

The manifest is written last and carries the checksum of every file. `preparation.py` makes such a folder.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data import records, shards, tokenizer
from electra_jax.data.records import Split
from electra_jax.runtime.io import from_json, sha256

MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text, ready to be trained on.

    Attributes:
      key: names what it was made from.
      tokenizer: its vocabulary.
      train, heldout: the splits.
      unigram: [V] int64, how often each id occurs in the training split.
      weights: of the sources, their shares of the training examples; None for as many as they have.
    """

    key: str
    tokenizer: tokenizer.Tokenizer
    train: Split
    heldout: Split
    unigram: np.ndarray
    weights: Sequence[float] | None


def is_prepared(folder: Path) -> bool:
    """Whether there is a prepared text in `folder`."""
    return os.path.isfile(folder / MANIFEST)  # also of what is no path at all


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises UserError where it is broken, or of another version of this package."""
    if not is_prepared(folder):
        raise UserError(f"{folder / MANIFEST} is not there; give a folder that electra_jax.prepare has finished")
    try:
        manifest = from_json((folder / MANIFEST).read_text())
        version, checksum = manifest["format"], manifest.pop("checksum", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise changed(folder / MANIFEST) from error
    if version != shards.FORMAT:
        raise UserError(
            f"{folder} was prepared by another version of electra_jax (format {version}, not {shards.FORMAT}); "
            "prepare the text again into another folder"
        )
    if checksum != checksum_of(manifest):
        raise changed(folder / MANIFEST)
    return manifest


def checksum_of(manifest: dict[str, Any]) -> str:
    """Of all that is in a manifest, the checksum itself aside."""
    return blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=16).hexdigest()


def load(folder: Path) -> Corpus:
    """The corpus in `folder`. The token files are not read; a damaged record is noticed when it is.

    Raises:
      UserError: a file is missing or is not as it was written.
    """
    manifest = read_manifest(folder)
    made = [shards.Shard(**shard) for shard in manifest["shards"]]
    for name, digest in _files(manifest).items():
        of_tokens = name.endswith(shards.TOKENS)
        if not (folder / name).is_file() or (not of_tokens and sha256(folder / name) != digest):
            raise changed(folder / name)

    vocabulary = tokenizer.load(folder / manifest["vocabulary"]["file"])
    index = [dict(np.load(shards.index_file(folder, shard.name))) for shard in made]
    dtype = np.min_scalar_type(len(vocabulary) - 1)
    sources = [shard.source for shard in made]

    def split(name: str) -> Split:
        files = [shards.token_file(folder, shard.name, name) for shard in made]
        by_source = np.bincount(
            sources, [shard.documents[name] for shard in made], minlength=len(manifest["sources"])
        ).astype(np.int64)
        return Split(
            records.Shards(files, [shard.tokens[name] for shard in made], dtype),
            records.offsets(np.concatenate([arrays[f"{name}_lines"] for arrays in index])),
            records.offsets(np.concatenate([arrays[f"{name}_documents"] for arrays in index])),
            records.offsets(by_source),
        )

    unigram = np.zeros(len(vocabulary), np.int64)
    for arrays in index:
        unigram += arrays["unigram"]
    weights = [source["weight"] for source in manifest["sources"]]
    return Corpus(
        manifest["key"],
        vocabulary,
        split("train"),
        split("heldout"),
        unigram,
        None if None in weights else weights,
    )


def verify(folder: Path) -> int:
    """Reads every file of a prepared text, and returns how many there are.

    Raises:
      UserError: one is missing or is not as it was written.
    """
    manifest = read_manifest(folder)
    known = _files(manifest)
    for name, digest in known.items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise changed(folder / name)
    return len(known)


def _files(manifest: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file, by its name."""
    known = {manifest["vocabulary"]["file"]: manifest["vocabulary"]["sha256"]}
    for shard in manifest["shards"]:
        known |= shard["sha256"]
    return known


def changed(path: Path) -> UserError:
    """What to say of a file that is missing or is not as the manifest has it."""
    and_manifest = "" if path.name == MANIFEST else f" and {path.parent / MANIFEST}"
    return UserError(f"{path} is not as it was written; delete it{and_manifest}, and prepare again")
