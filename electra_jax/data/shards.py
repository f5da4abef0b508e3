"""One shard: documents become tokens, token files, an index, and what is to be reported of them.

This is all of the work; what is around it, processes on one machine (`local.py`) or many machines (`beam.py`), only
hands it out. A shard's JSON file is written last: where it is, the shard is whole.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from electra_jax.data import cleaning, records
from electra_jax.data.readers import Document, together
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.runtime.io import sha256, write_whole

FORMAT = 2  # raise it when the same text and settings give other files
SPLITS = ("train", "heldout")
TOKENS = ".array_record"  # how the names of token files end
_AT_ONCE = 2**20  # bytes of text encoded together
_HASH_SPACE = 2**32
_LONGEST = 10  # documents named in the report
_BUCKETS = 32  # of the histogram of lengths
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
      bytes, lines, unknown: of the text after cleaning, both splits together; unknown are tokens.
      lengths: how many documents have from 2**(i-1) to 2**i - 1 tokens, by i below 32.
      longest: (tokens, place, first words) of the longest documents.
      notes: what was mended or left out, see `cleaning`.
    """

    name: str
    source: int
    key: str
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)
    tokens: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    bytes: int = 0
    lines: int = 0
    unknown: int = 0
    lengths: list[int] = dataclasses.field(default_factory=lambda: [0] * _BUCKETS)
    longest: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)
    notes: cleaning.Notes = dataclasses.field(default_factory=dict)


def digest(document: Document) -> bytes:
    """Eight bytes that tell a text from others: duplicates and the held-out split are decided by it."""
    return blake2b(document.text, digest_size=8).digest()


def is_heldout(digest: bytes, fraction: float) -> bool:
    """Whether a text is kept from training: by its digest, so that the choice survives changes elsewhere."""
    return int.from_bytes(digest[:4], "big") < fraction * _HASH_SPACE


def write(
    folder: Path,
    name: str,
    source: int,
    documents: Sequence[Document],
    digests: Sequence[bytes],
    notes: cleaning.Notes,
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
      digests: of the texts.
      notes: what was left out before.
      vocabulary: encodes.
      heldout_fraction: share of the documents that is kept from training.
      threads: to encode with.
    """
    of_documents = [(document.place, document.note) for document in documents]
    of_all = [FORMAT, blake2b(vocabulary.model).hexdigest(), heldout_fraction, source, notes]
    made_from = json.dumps([*of_all, of_documents])
    key = blake2b(made_from.encode() + b"".join(digests), digest_size=16).hexdigest()
    if (there := _read(folder, name)) is not None and there.key == key:
        return there
    shard = Shard(name, source, key, notes=dict(notes))

    text = _encode(documents, digests, vocabulary, heldout_fraction, threads, shard)
    shard.lines, shard.unknown = len(text.sizes), int(np.count_nonzero(text.ids == vocabulary.special.unk))
    lengths = text.lengths
    shard.lengths = np.bincount(np.frexp(lengths)[1], minlength=_BUCKETS).tolist()
    first = np.argsort(-lengths, kind="stable")[:_LONGEST]
    shard.longest = [(int(lengths[i]), *text.heads[i]) for i in first]

    index: dict[str, np.ndarray] = {}
    for split in SPLITS:
        ids, sizes, counts = text.of(split)
        shard.tokens[split], shard.documents[split] = len(ids), len(counts)
        index |= {f"{split}_lines": sizes, f"{split}_documents": counts}
        if split == "train":
            index["unigram"] = np.bincount(ids, minlength=len(vocabulary)).astype(np.uint32)
        if len(ids):
            records.write(token_file(folder, name, split), ids)
    np.savez(index_file(folder, name), **index)  # type: ignore[arg-type]
    made = [index_file(folder, name), *(token_file(folder, name, split) for split in SPLITS if shard.tokens[split])]
    shard.sha256 = {path.name: sha256(path) for path in made}
    write_whole(folder / f"{name}.json", json.dumps(dataclasses.asdict(shard), indent=1))
    return shard


class _Encoded(NamedTuple):
    """The documents of a shard that hold something.

    Attributes:
      ids: of all their tokens.
      sizes: tokens of each line.
      counts: lines of each document.
      held: whether each document is held out.
      heads: (place, first words) of each document.
    """

    ids: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray
    held: np.ndarray
    heads: list[tuple[str, str]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document."""
        return np.diff(records.offsets(self.sizes)[records.offsets(self.counts)])

    def of(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, sizes and counts of one split."""
        documents = self.held == (split == "heldout")
        lines = np.repeat(documents, self.counts)
        return self.ids[np.repeat(lines, self.sizes)], self.sizes[lines], self.counts[documents]


def _encode(
    documents: Sequence[Document],
    digests: Sequence[bytes],
    vocabulary: Tokenizer,
    heldout_fraction: float,
    threads: int,
    shard: Shard,
) -> _Encoded:
    """Cleans and encodes; tells `shard` what was mended, and how large the text is."""
    dtype = np.min_scalar_type(len(vocabulary) - 1)
    ids, sizes = [np.zeros(0, dtype)], [np.zeros(0, np.uint32)]
    counts: list[int] = []
    held: list[bool] = []
    heads: list[tuple[str, str]] = []
    digest_of = iter(digests)
    # A megabyte at a time: few calls of the tokenizer, and few ids in hand as Python integers.
    for several in together(documents, _AT_ONCE):
        lines: list[str] = []
        for document, digest in zip(several, digest_of, strict=False):
            own = cleaning.lines(document.text, document.place, shard.notes, document.of_lines)
            if document.note:
                cleaning.note(shard.notes, document.note, document.place)
            if own:
                lines += own
                counts.append(len(own))
                held.append(is_heldout(digest, heldout_fraction))
                heads.append((document.place, own[0][:_HEAD]))
        encoded = vocabulary.encode(lines, threads)
        sizes.append(np.fromiter(map(len, encoded), np.uint32, len(encoded)))
        ids.append(np.fromiter(itertools.chain.from_iterable(encoded), dtype, int(sizes[-1].sum())))
        shard.bytes += len("".join(lines).encode())
    return _Encoded(
        np.concatenate(ids), np.concatenate(sizes), np.array(counts, np.uint32), np.array(held, bool), heads
    )


def token_file(folder: Path, name: str, split: str) -> Path:
    return folder / f"{name}.{split}{TOKENS}"


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
