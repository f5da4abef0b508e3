"""Reads the documents of a unit: text, JSON lines, Parquet, TFDS or docstrings; plain or compressed.

Every document is hashed here, once per pass. Nothing is dropped silently: repairs are named in a document's `note`, and
input that cannot be repaired raises a `UserError` with file and line.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, cast

from electra_jax.config.errors import UserError, first_line
from electra_jax.data import docstrings
from electra_jax.data.config import CorpusConfig
from electra_jax.data.input_file import InputFile
from electra_jax.data.sources import Unit
from electra_jax.runtime.io import from_json

LONGEST = 2**26  # bytes of a document; longer ones are cut, so that memory use stays flat
_LONGEST_LINE = 2**27  # bytes of a JSON line: it is in memory as a whole before its document is cut
_BATCH = 2**24  # bytes of Parquet rows read together
_BLANK = re.compile(rb"\n\s*\n")

# Notes about documents, as they appear in reports.
CUT = "documents over 64 MB, split into several"
NO_TEXT = "records whose text is null"
NOT_UTF8 = "documents with broken UTF-8, mended with U+FFFD"


class Document(NamedTuple):
    """A document as read from its source.

    Attributes:
      place: file and line, for messages.
      text: UTF-8, possibly with errors; lines are sentences or paragraphs.
      digest: eight bytes of a hash of the text, which decide about duplicates and the held-out split.
      position: bytes of the unit read up to the end of this document.
      note: what was repaired or left out, one of the notes above; empty for most documents.
      numbered: whether its lines are consecutive lines of the file, starting at `place`.
    """

    place: str
    text: bytes
    digest: bytes
    position: int = 0
    note: str = ""
    numbered: bool = False


def make_document(place: str, text: bytes, position: int = 0, note: str = "", numbered: bool = False) -> Document:
    """A `Document` with the digest of its text."""
    return Document(place, text, blake2b(text, digest_size=8).digest(), position, note, numbered)


class _Record(NamedTuple):
    """A document before it is cut and hashed; the attributes are those of `Document`."""

    place: str
    text: bytes
    position: int = 0
    note: str = ""
    numbered: bool = False


def read_documents(unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the documents of `unit` in order.

    Args:
      unit: what to read.
      config: its `field` names the text in JSON lines, Parquet and TFDS; its `documents` says what ends a document in
        text files.

    Raises:
      UserError: a file is broken or lacks the field, or a package to read it is missing.
    """
    if unit.kind == "docstrings":
        packages = [package for package in unit.names[0].split(",") if package]
        for name, lines in docstrings.read_modules(packages):
            yield make_document(name, "\n".join(lines).encode())
        return
    if unit.kind == "tfds":
        for record in _read_tfds(unit.names[0], config.field):
            yield from _documents(record, record.position)
        return
    formats: dict[str, Callable[[Path], Iterator[_Record]]] = {
        "text": functools.partial(_read_text, whole=config.documents == "file"),
        "json": functools.partial(_read_json, field=config.field),
        "parquet": functools.partial(_read_parquet, field=config.field),
    }
    earlier_files = 0
    for path in map(Path, unit.names):
        for record in formats[unit.kind](path):
            yield from _documents(record, earlier_files + record.position)
        earlier_files += path.stat().st_size


def group_by_size(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Groups consecutive documents; each group but the last has at least `size` bytes of text."""
    group: list[Document] = []
    total = 0
    for document in documents:
        group.append(document)
        total += len(document.text)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def _documents(record: _Record, position: int) -> Iterator[Document]:
    """The record's text in documents of at most `LONGEST` bytes, usually one; all end at `position` of the unit."""
    text = record.text
    note = record.note or (CUT if len(text) > LONGEST else "")
    while len(text) > LONGEST:
        end = _last_break(text, LONGEST)
        yield make_document(record.place, text[:end].strip(), position, note, record.numbered)
        text, note = text[end:].strip(), ""
    yield make_document(record.place, text, position, note, record.numbered)


def _read_text(path: Path, whole: bool) -> Iterator[_Record]:
    file = InputFile(path)
    text, uncut = b"", True
    for block in file.blocks():
        text += block
        begin = 0
        if not whole:
            for blank in _BLANK.finditer(text):
                if blank.end() == len(text):  # the next block may continue the blank lines
                    break
                yield from _text_record(text[begin : blank.start()], file)
                file.line += text.count(b"\n", blank.start(), blank.end())
                begin, uncut = blank.end(), True
        text = text[begin:]
        while len(text) > LONGEST:  # cut it now, so that no more of it is kept in memory
            end = _last_break(text, LONGEST)
            yield _Record(file.place, text[:end].strip(), file.position, CUT if uncut else "", True)
            uncut = False
            file.line += text.count(b"\n", 0, end)
            text = text[end:]
    yield from _text_record(text, file)


def _text_record(text: bytes, file: InputFile) -> Iterator[_Record]:
    """The document in `text`, unless it is blank; moves the file's line past it."""
    document = text.lstrip()
    file.line += text.count(b"\n", 0, len(text) - len(document))
    if document:
        yield _Record(file.place, _normalize_ends(document), file.position, numbered=True)
    file.line += document.count(b"\n")


def _normalize_ends(text: bytes) -> bytes:
    """Strips white space and uses one kind of line end, so that equal texts are equal bytes whatever their file."""
    return (text.replace(b"\r\n", b"\n") if b"\r" in text else text).strip()


def _last_break(text: bytes, limit: int) -> int:
    """Where to cut `text` before `limit`: after a line if possible, else a word, else a character."""
    for mark in (b"\n", b" "):
        end = text.rfind(mark, limit // 2, limit)
        if end > 0:
            return end
    inside = next((back for back in range(4) if text[limit - back] & 0xC0 != 0x80), 0)  # bytes of a split character
    return limit - inside


def _read_json(path: Path, field: str) -> Iterator[_Record]:
    file = InputFile(path)
    for line in file.lines(_LONGEST_LINE):
        if not line.strip():
            continue
        try:
            decoded, note = line.decode(), ""
        except UnicodeDecodeError:
            decoded, note = line.decode(errors="replace"), NOT_UTF8
        try:
            values = from_json(decoded)
        except ValueError as error:
            raise UserError(f"{file.place} is not JSON ({error}): expected one JSON object per line") from error
        if not isinstance(values, dict):
            raise UserError(f"{file.place} is a JSON {type(values).__name__}: expected one JSON object per line")
        record = _record(values, field, file.place, file.position)
        yield record._replace(note=record.note or note)


def _read_parquet(path: Path, field: str) -> Iterator[_Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: reading Parquet needs pyarrow; pip install 'electra_jax[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise _no_field(str(path), field, file.schema_arrow.names)
            rows, size, row = max(1, file.metadata.num_rows), path.stat().st_size, 0
            for batch in file.iter_batches(batch_size=_rows_at_a_time(file.metadata), columns=[field]):
                for value in batch.column(0):
                    row += 1
                    yield _record({field: _parquet_value(value)}, field, f"{path}:{row}", size * row // rows)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: broken Parquet file ({error}); download it again") from error


def _rows_at_a_time(metadata: Any) -> int:
    """How many rows of a Parquet file are read together, so that they take about `_BATCH` bytes; from its metadata."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    bytes_per_row = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return int(min(max(_BATCH / max(1, bytes_per_row), 1), 1024))


def _parquet_value(scalar: Any) -> Any:
    """The value of an Arrow scalar; texts as bytes, because theirs may not be UTF-8."""
    scalar = getattr(scalar, "value", scalar)  # of a dictionary
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes() if scalar.is_valid else None
    return None if scalar is None else scalar.as_py()


def tfds_splits(name: str) -> Mapping[str, Any]:
    """The splits of a dataset of TensorFlow Datasets, each a sequence of records with the features as `dataset_info`.

    Raises:
      UserError: the library is not installed, or the set is not prepared.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(f"tfds:{name} needs tensorflow-datasets; pip install 'electra_jax[tfds]'") from error
    try:
        try:
            builder = tfds.builder(name, file_format="array_record")
        except Exception:  # a dataset without its code, named with its version, does not accept file_format
            builder = tfds.builder(name)
        if not (splits := builder.as_data_source()):
            raise FileNotFoundError("it was not prepared")
        return cast(Mapping[str, Any], splits)
    except Exception as error:  # of many kinds: unknown name, not prepared, another format, TensorFlow missing
        raise UserError(
            f"tfds:{name} is not prepared as ArrayRecord ({first_line(error)}); prepare it once with `tfds build "
            f"{name} --file_format=array_record`, for which many datasets need tensorflow besides 'electra_jax[tfds]'"
        ) from error


def tfds_split(name: str, split: str) -> Any:
    """One of `tfds_splits`.

    Raises:
      UserError: the library is not installed, the set is not prepared, or it has no such split.
    """
    splits = tfds_splits(name)
    if split not in splits:
        raise UserError(f"tfds:{name} has no split {split}: expected one of {', '.join(splits)}")
    return splits[split]


def _read_tfds(name: str, field: str) -> Iterator[_Record]:
    for row, values in enumerate(tfds_split(name, "train"), 1):
        yield _record(values, field, f"tfds:{name}:{row}", 0)


def _record(values: Mapping[str, Any], field: str, place: str, position: int) -> _Record:
    if field not in values:
        raise _no_field(place, field, list(values))
    text = values[field]
    if text is None:
        return _Record(place, b"", position, NO_TEXT)
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")  # `shards.clean` repairs lone surrogates
    if not isinstance(text, bytes):
        raise UserError(f"{place}: field {field!r} is of type {type(text).__name__}: expected text; see --field")
    return _Record(place, _normalize_ends(text), position)


def _no_field(place: str, field: str, names: list[str]) -> UserError:
    return UserError(f"{place} has no field {field!r}; name one of these with --field=: {', '.join(names) or 'none'}")
