"""Shards: consecutive documents are cleaned, encoded and written as token files, an index and statistics.

The files depend only on the documents and the settings, not on who writes them: a process on this machine
(local_runner.py) or another machine (beam_runner.py). A shard's JSON file is written last; if it exists, the shard is
complete.
"""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from electra_jax.data import records
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import LEFT_OUT, NOT_UTF8, Document, group_by_size
from electra_jax.data.readers import read_documents
from electra_jax.data.records import Ints
from electra_jax.data.sources import Unit
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.runtime.io import sha256, write_whole

FORMAT = 2  # increase it when the same text and settings give other files
SPLITS = ("train", "heldout")
TOKENS_SUFFIX = ".array_record"
LONGEST_LINE = 4000  # characters; bounds the memory that encoding one line takes

# Notes about documents besides those of the readers, as they appear in reports.
CONTROL = "documents with control characters, removed"
LONG_LINE = "documents with lines over 4000 characters, split into several lines"
EMPTY = "empty documents"

_ENCODED_TOGETHER = 2**20  # bytes of text: few tokenizer calls, but also few ids in memory as Python integers
_HASH_SPACE = 2**32
_LONGEST_DOCUMENTS = 10  # named in the report
_LENGTH_BUCKETS = 32  # of the histogram of lengths
_HEAD_CHARACTERS = 60  # of a document, to recognize it by
# C0, DEL, C1, byte order marks and noncharacters, except those that are white space. The last two of each plane are
# noncharacters, too.
_PLANES = "".join(map(chr, (plane + last for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))))
_CONTROL = re.compile(f"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufdd0-\ufdef{_PLANES}]+")

Notes = dict[str, tuple[int, str]]  # note -> (number of documents, place of the first)


class Chunk(NamedTuple):
    """Consecutive documents of one unit, which become one shard.

    Attributes:
      name: the shard's name; names sort in the order of the text.
      source: number of the source.
      documents: the documents.
      notes: what was left out of the chunk.
    """

    name: str
    source: int
    documents: list[Document]
    notes: Notes

    def without(self, duplicates: Mapping[int, str]) -> "Chunk":
        """Returns the chunk without the documents at these indices, and with their notes counted."""
        notes = dict(self.notes)
        for i, note in sorted(duplicates.items()):
            add_note(notes, note, self.documents[i].place)
        kept = [document for i, document in enumerate(self.documents) if i not in duplicates]
        return self._replace(documents=kept, notes=notes)


@dataclasses.dataclass
class Shard:
    """Metadata of a written shard: the content of its JSON file.

    Attributes:
      name: common prefix of its files' names.
      source: number of the source of its documents.
      key: hash of everything it was made from.
      sha256: checksum of each file, by name.
      tokens, documents: numbers of tokens and documents by split.
      bytes, lines, unknown: size of the cleaned text, number of its lines and of its unknown tokens, in both splits.
      lengths: entry i is the number of documents with 2**(i-1) to 2**i - 1 tokens.
      longest: (tokens, place, first words) of the longest documents.
      notes: what was repaired or left out.
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
    lengths: list[int] = dataclasses.field(default_factory=lambda: [0] * _LENGTH_BUCKETS)
    longest: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)
    notes: Notes = dataclasses.field(default_factory=dict)


def read_chunks(unit_number: int, unit: Unit, config: CorpusConfig, size: int) -> Iterator[Chunk]:
    """Reads a unit in chunks.

    Args:
      unit_number: index of the unit in the whole input.
      unit: what to read.
      config: how to read it.
      size: bytes of text in a chunk, `config.shard_bytes`.
    """
    groups = group_by_size(read_documents(unit, config), size)
    for number, documents in enumerate(groups):
        yield Chunk(f"{unit_number:06d}-{number:06d}", unit.source, documents, {})


def is_heldout(digest: bytes, fraction: float) -> bool:
    """True if a text is held out. Its digest alone decides, so changes elsewhere in the input do not matter."""
    return place_in_split(digest) < fraction


def place_in_split(digest: bytes) -> float:
    """Maps a digest to [0, 1), uniformly over texts; texts below the held-out fraction are held out."""
    return int.from_bytes(digest[:4], "big") / _HASH_SPACE


def write_shard(folder: Path, chunk: Chunk, tokenizer: Tokenizer, heldout_fraction: float, threads: int = 1) -> Shard:
    """Writes a shard's files, unless they already exist for the same documents and settings.

    Args:
      folder: where to write them.
      chunk: the documents, duplicates left out.
      tokenizer: encodes the text.
      heldout_fraction: fraction of the documents that is held out.
      threads: number of threads that encode.
    """
    key = _shard_key(chunk, tokenizer, heldout_fraction)
    if (existing := _read_shard(folder, chunk.name)) is not None and existing.key == key:
        return existing
    shard = Shard(chunk.name, chunk.source, key, notes=dict(chunk.notes))
    text = _encode(chunk.documents, tokenizer, heldout_fraction, threads, shard)
    _describe(text, tokenizer, shard)

    index: dict[str, Ints] = {}
    for split in SPLITS:
        ids, line_lengths, line_counts = text.split(split)
        shard.tokens[split], shard.documents[split] = len(ids), len(line_counts)
        index |= {f"{split}_lines": line_lengths, f"{split}_documents": line_counts}
        if split == "train":
            # Counted on the training text only: held-out losses are compared with these frequencies.
            index["unigram"] = np.bincount(ids, minlength=len(tokenizer)).astype(np.uint32)
        # A split without tokens has no file.
        if len(ids):
            records.write(token_file(folder, chunk.name, split), ids)
    # It stores no times, so that equal shards have equal bytes.
    np.savez(index_file(folder, chunk.name), **index)  # type: ignore[arg-type]
    written = [token_file(folder, chunk.name, split) for split in SPLITS if shard.tokens[split]]
    shard.sha256 = {path.name: sha256(path) for path in (index_file(folder, chunk.name), *written)}
    # Last: it marks the shard as complete.
    write_whole(folder / f"{chunk.name}.json", json.dumps(dataclasses.asdict(shard), indent=1))
    return shard


def token_file(folder: Path, name: str, split: str) -> Path:
    return folder / f"{name}.{split}{TOKENS_SUFFIX}"


def index_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def clean(document: Document, notes: Notes) -> list[str]:
    """Returns the non-empty lines of a document. White space becomes single spaces, which all tokenizers treat alike.

    Args:
      document: its text may hold broken UTF-8, control characters and lines of any length.
      notes: repairs are counted here.
    """
    first_lines: dict[str, int] = {}  # note -> index of the first line that it is about
    try:
        decoded = document.text.decode()
    except UnicodeDecodeError as error:
        decoded = document.text.decode(errors="replace")
        first_lines[NOT_UTF8] = document.text.count(b"\n", 0, error.start)
    lines: list[str] = []
    for number, line in enumerate(decoded.split("\n")):
        # A fast test for most lines: of all white space, only the space is printable.
        if not line.isprintable():
            # White space first: that it becomes single spaces is not noted as a repair.
            plain = " ".join(line.split())
            line = " ".join(_CONTROL.sub("", plain).split())
            if line != plain:
                first_lines.setdefault(CONTROL, number)
        elif "  " in line or line[:1] == " " or line[-1:] == " ":
            line = " ".join(line.split())
        if len(line) > LONGEST_LINE:
            first_lines.setdefault(LONG_LINE, number)
            lines += _cut_line(line)
        elif line:
            lines.append(line)
    # A record without text for another reason is counted for that reason only.
    if not lines and document.note not in LEFT_OUT:
        first_lines[EMPTY] = 0
    for note, number in first_lines.items():
        add_note(notes, note, _place_below(document.place, number) if document.numbered else document.place)
    return lines


def add_note(notes: Notes, note: str, place: str, count: int = 1) -> None:
    """Counts a note, keeping the place of its first occurrence."""
    before, first_place = notes.get(note, (0, place))
    notes[note] = before + count, first_place


def merge_notes(all_notes: Iterable[Notes]) -> Notes:
    """Sums the counts of notes, keeping the place of the first occurrence of each."""
    merged: Notes = {}
    for notes in all_notes:
        for note, (count, place) in notes.items():
            add_note(merged, note, place, count)
    return merged


def longest_documents(candidates: Iterable[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Returns the longest documents, longest first; ties keep their order."""
    return sorted(candidates, key=lambda entry: -entry[0])[:_LONGEST_DOCUMENTS]


def _cut_line(line: str) -> Iterator[str]:
    """Yields pieces of at most `LONGEST_LINE` characters, cut between words if possible."""
    # An index: cutting pieces off the line would copy its rest each time.
    begin = 0
    while len(line) - begin > LONGEST_LINE:
        end = line.rfind(" ", begin + LONGEST_LINE // 2, begin + LONGEST_LINE)
        end = end if end > 0 else begin + LONGEST_LINE
        yield line[begin:end].strip()
        begin = end
    yield line[begin:].strip()


def _place_below(place: str, lines: int) -> str:
    """Adds `lines` to the line number of FILE:LINE; returns other places unchanged."""
    name, colon, number = place.rpartition(":")
    return f"{name}:{int(number) + lines}" if colon and number.isdigit() else place


def _shard_key(chunk: Chunk, tokenizer: Tokenizer, heldout_fraction: float) -> str:
    # Places and notes are in the shard's JSON file, too.
    described = [(document.place, document.note) for document in chunk.documents]
    settings = [FORMAT, blake2b(tokenizer.model).hexdigest(), heldout_fraction, chunk.source, chunk.notes]
    digests = b"".join(document.digest for document in chunk.documents)
    return blake2b(json.dumps([*settings, described]).encode() + digests, digest_size=16).hexdigest()


class _Encoded(NamedTuple):
    """The non-empty documents of a shard, encoded.

    Attributes:
      ids: [tokens], all token ids.
      line_lengths: [lines], number of tokens in each line.
      line_counts: [documents], number of lines in each document.
      heldout: [documents], whether each document is held out.
      heads: (place, first words) of each document.
    """

    ids: Ints
    line_lengths: Ints
    line_counts: Ints
    heldout: npt.NDArray[np.bool_]
    heads: list[tuple[str, str]]

    @property
    def document_lengths(self) -> Ints:
        """[documents], number of tokens in each document."""
        return np.diff(records.offsets(self.line_lengths)[records.offsets(self.line_counts)])

    def split(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Returns token ids, line lengths and line counts of one split."""
        # [documents] -> [lines] -> [tokens]
        documents = self.heldout == (name == "heldout")
        lines = np.repeat(documents, self.line_counts)
        tokens = np.repeat(lines, self.line_lengths)
        return self.ids[tokens], self.line_lengths[lines], self.line_counts[documents]


def _encode(
    documents: list[Document], tokenizer: Tokenizer, heldout_fraction: float, threads: int, shard: Shard
) -> _Encoded:
    """Cleans and encodes documents; adds the notes and the size of the text to `shard`."""
    # uint16 for up to 65,536 pieces, which halves the files.
    dtype = np.min_scalar_type(len(tokenizer) - 1)
    # Empty arrays, because np.concatenate needs one.
    ids, line_lengths = [np.zeros(0, dtype)], [np.zeros(0, np.uint32)]
    line_counts: list[int] = []
    heldout: list[bool] = []
    heads: list[tuple[str, str]] = []
    for group in group_by_size(documents, _ENCODED_TOGETHER):
        lines: list[str] = []
        follows: list[bool] = []
        for document in group:
            own_lines = clean(document, shard.notes)
            if document.note:
                add_note(shard.notes, document.note, document.place)
            # An empty document has been noted, and is in no split.
            if own_lines:
                lines += own_lines
                # The first line begins the document; the others follow a space, which some tokenizers encode.
                follows += [number > 0 for number in range(len(own_lines))]
                line_counts.append(len(own_lines))
                heldout.append(is_heldout(document.digest, heldout_fraction))
                heads.append((document.place, own_lines[0][:_HEAD_CHARACTERS]))
        encoded = tokenizer.encode_parts(lines, follows, threads)
        line_lengths.append(np.fromiter(map(len, encoded), np.uint32, len(encoded)))
        ids.append(np.fromiter(itertools.chain.from_iterable(encoded), dtype, int(line_lengths[-1].sum())))
        # ASCII has a byte per character, and most lines need not be encoded to be counted.
        shard.bytes += sum(len(line) if line.isascii() else len(line.encode()) for line in lines)
    return _Encoded(
        np.concatenate(ids),
        np.concatenate(line_lengths),
        np.array(line_counts, np.uint32),
        np.array(heldout, bool),
        heads,
    )


def _describe(text: _Encoded, tokenizer: Tokenizer, shard: Shard) -> None:
    """Adds the statistics of an encoded text to `shard`."""
    lengths = text.document_lengths
    shard.lines = len(text.line_lengths)
    shard.unknown = int(np.count_nonzero(text.ids == tokenizer.special.unk))
    # The exponent that frexp returns is the number of bits of a length.
    shard.lengths = np.bincount(np.frexp(lengths)[1], minlength=_LENGTH_BUCKETS).tolist()
    # Stable, so that ties keep the order of the text.
    longest = np.argsort(-lengths, kind="stable")[:_LONGEST_DOCUMENTS]
    shard.longest = [(int(lengths[i]), *text.heads[i]) for i in longest]


def _read_shard(folder: Path, name: str) -> Shard | None:
    """Returns the shard in `folder` if all its files are intact; else None."""
    # TypeError: another version wrote other fields.
    with contextlib.suppress(OSError, ValueError, TypeError):
        shard = Shard(**json.loads((folder / f"{name}.json").read_text()))
        if all(sha256(folder / file) == checksum for file, checksum in shard.sha256.items()):
            return shard
    return None
