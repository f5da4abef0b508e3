"""One shard: documents become tokens, token files, an index, and what is to be reported of them.

This is all of the work; what is around it, processes on one machine (`preparation.py`) or many machines (`beam.py`),
only hands it out. A shard's JSON file is written last: where it is, the shard is whole.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from electra_jax.data import cleaning, records
from electra_jax.data.readers import Document
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.files import sha256, write_whole

FORMAT = 2  # raise it when the same text and settings give other files
SPLITS = ("train", "heldout")
_AT_ONCE = 2**20  # bytes of text encoded together
_HASH_SPACE = 2**32
_LONGEST = 10  # documents named in the report
_HEAD = 60  # characters of a document that show which it is


@dataclasses.dataclass
class Shard:
    """What is known of a shard, in its JSON file.

    Attributes:
      name: of its files.
      source: number of the source its documents are from.
      key: of all that it was made from.
      sha256: of each file.
      tokens, documents: of each split.
      characters, bytes, lines, unknown: of the text after cleaning, both splits together; unknown are tokens.
      lengths: how many documents have from 2**(i-1) to 2**i - 1 tokens, by i in 0..31.
      longest: (tokens, place, first words) of the longest documents.
      notes: what was mended or left out, see `cleaning`.
    """

    name: str
    source: int
    key: str
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)
    tokens: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    characters: int = 0
    bytes: int = 0
    lines: int = 0
    unknown: int = 0
    lengths: list[int] = dataclasses.field(default_factory=lambda: [0] * 32)
    longest: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)
    notes: cleaning.Notes = dataclasses.field(default_factory=dict)


def digest(document: Document) -> bytes:
    """Eight bytes that tell a text from others: duplicates and the held-out split are decided by it."""
    return blake2b(document.text, digest_size=8).digest()


def is_heldout(digest: bytes, fraction: float) -> bool:
    """Whether a text is kept from training: by its digest, so that the choice survives changes elsewhere."""
    return int.from_bytes(digest[:4], "big") < fraction * _HASH_SPACE


def settings_key(vocabulary: Tokenizer, heldout_fraction: float) -> str:
    """Names what all shards of a text have in common."""
    return json.dumps([FORMAT, blake2b(vocabulary.model).hexdigest(), heldout_fraction])


def shard_key(settings_key: str, digests: Iterable[bytes]) -> str:
    """Names what a shard is made from: the settings, the vocabulary and the texts."""
    return blake2b(settings_key.encode() + b"".join(digests), digest_size=16).hexdigest()


def write(
    folder: Path,
    name: str,
    source: int,
    documents: Sequence[Document],
    key: str,
    vocabulary: Tokenizer,
    heldout_fraction: float,
    threads: int = 1,
) -> Shard:
    """Makes a shard's files, or finds that they are there.

    Args:
      folder: where they go.
      name: of the files.
      source: number of the source.
      documents: its texts, duplicates left out.
      key: see `shard_key`.
      vocabulary: encodes.
      heldout_fraction: share of the documents that is kept from training.
      threads: to encode with.
    """
    if (there := _read(folder, name)) is not None and there.key == key:
        return there
    shard = Shard(name, source, key)
    ids_of: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    lines_of: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    documents_of: dict[str, list[int]] = {split: [] for split in SPLITS}
    dtype = np.min_scalar_type(len(vocabulary) - 1)

    for several in _together(documents):
        cleaned = [cleaning.lines(document.text, document.place, shard.notes) for document in several]
        encoded = iter(vocabulary.encode(list(itertools.chain.from_iterable(cleaned)), threads))
        for document, lines in zip(several, cleaned, strict=True):
            if document.note:
                cleaning.note(shard.notes, document.note, document.place)
            if not lines:
                continue
            pieces = list(itertools.islice(encoded, len(lines)))
            ids = np.fromiter(itertools.chain.from_iterable(pieces), dtype)
            split = "heldout" if is_heldout(digest(document), heldout_fraction) else "train"
            ids_of[split].append(ids)
            lines_of[split].append(np.fromiter(map(len, pieces), np.uint32, len(pieces)))
            documents_of[split].append(len(pieces))
            shard.characters += sum(map(len, lines))
            shard.bytes += sum(len(line) if line.isascii() else len(line.encode()) for line in lines)
            shard.lines += len(lines)
            shard.unknown += int(np.count_nonzero(ids == vocabulary.special.unk))
            shard.lengths[len(ids).bit_length()] += 1
            shard.longest.append((len(ids), document.place, lines[0][:_HEAD]))
        shard.longest = longest(shard.longest)

    index: dict[str, Any] = {"unigram": np.zeros(len(vocabulary), np.int64)}
    for split in SPLITS:
        ids = np.concatenate([np.zeros(0, dtype), *ids_of[split]])
        shard.tokens[split], shard.documents[split] = len(ids), len(documents_of[split])
        index[f"{split}_lines"] = np.concatenate([np.zeros(0, np.uint32), *lines_of[split]])
        index[f"{split}_documents"] = np.array(documents_of[split], np.uint32)
        if split == "train":
            index["unigram"] = np.bincount(ids, minlength=len(vocabulary))
        if len(ids):
            records.write(token_file(folder, name, split), ids)
    np.savez_compressed(index_file(folder, name), **index)
    made = [index_file(folder, name), *(token_file(folder, name, split) for split in SPLITS if shard.tokens[split])]
    shard.sha256 = {path.name: sha256(path) for path in made}
    write_whole(folder / f"{name}.json", json.dumps(dataclasses.asdict(shard), indent=1))
    return shard


def token_file(folder: Path, name: str, split: str) -> Path:
    return folder / f"{name}.{split}.array_record"


def index_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def longest(found: Iterable[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """The longest documents first; of equal ones the earlier."""
    return sorted(found, key=lambda entry: -entry[0])[:_LONGEST]


def _read(folder: Path, name: str) -> Shard | None:
    """The shard whose files are in `folder` as they were written, or None."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        shard = Shard(**json.loads((folder / f"{name}.json").read_text()))
        if all(sha256(folder / file) == known for file, known in shard.sha256.items()):
            return shard
    return None


def _together(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Groups of documents of about a megabyte: few calls of the tokenizer, and few ids in hand as Python integers."""
    several: list[Document] = []
    size = 0
    for document in documents:
        several.append(document)
        size += len(document.text)
        if size >= _AT_ONCE:
            yield several
            several, size = [], 0
    if several:
        yield several
