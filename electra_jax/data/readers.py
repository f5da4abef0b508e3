"""Reads the documents of a unit: text, JSON lines, Parquet, TFDS, documentation strings; compressed or not.

Nothing is dropped in silence. What can be mended is mended and named in the document's notes; what cannot is a
`UserError` with file and line.
"""

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from electra_jax.data import docstrings
from electra_jax.data.sources import Unit
from electra_jax.errors import UserError

_BLOCK = 2**20  # bytes read at a time
LONGEST = 2**26  # bytes of a document; a longer one is cut, so that memory stays flat
_BLANK = re.compile(rb"\n\s*\n")
_BREAK = re.compile(rb"\s")


class Document(NamedTuple):
    """A document as it was found.

    Attributes:
      place: file and line, for a message.
      text: UTF-8, or nearly; lines are sentences or paragraphs.
      read: bytes of the unit that were read up to here.
      note: what was done to it; empty for most.
    """

    place: str
    text: bytes
    read: int = 0
    note: str = ""


CUT = "documents over 64 MB, cut"
NO_TEXT = "records whose text is null"


def read(unit: Unit, field: str, documents: str) -> Iterator[Document]:
    """Yields the documents of `unit` in order.

    Args:
      unit: what to read.
      field: where the text is in JSON lines, Parquet and TFDS.
      documents: `blank_line`, one ends a document in text; or `file`, a text file is one document.

    Raises:
      UserError: a file is broken, or has no such field, or a package is missing that reads it.
    """
    if unit.kind == "docstrings":
        for name, lines in docstrings.read_documents([package for package in unit.names[0].split(",") if package]):
            yield Document(name, "\n".join(lines).encode())
        return
    if unit.kind == "tfds":
        yield from _tfds(unit.names[0], field)
        return
    before = 0
    for name in unit.names:
        path = Path(name)
        reader: Callable[..., Iterator[Document]] = {
            "text": lambda path: _text(path, documents == "file"),
            "json": lambda path: _json(path, field),
            "parquet": lambda path: _parquet(path, field),
        }[unit.kind]
        for document in reader(path):
            yield document._replace(read=before + document.read)
        before += path.stat().st_size


class _Opened:
    """A file, decompressed as it is read.

    Attributes:
      path: where it is.
      line: number of the line that is being read.
      position: bytes read of the file on disk.

    Raises:
      UserError: in `blocks` and `lines`, where the compressed data is broken or ends early.
    """

    def __init__(self, path: Path):
        self.path = path
        self.line = 1
        self.position = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def blocks(self) -> Iterator[bytes]:
        suffix = self.path.suffix.lower()
        with self.path.open("rb") as raw:
            try:
                for block in _zst(raw) if suffix == ".zst" else _stream(suffix, raw):
                    self.position = raw.tell()
                    yield block
            except (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # the system's, not the decompressor's
                    raise
                raise UserError(f"{self.place}: broken compressed file ({error}); fetch it again") from error

    def lines(self) -> Iterator[bytes]:
        """Lines without their ends; `line` is the number of the one that was given last."""
        rest: list[bytes] = []
        self.line = 0
        for block in self.blocks():
            first, *others = block.split(b"\n")
            rest.append(first)
            for following in others:
                self.line += 1
                yield b"".join(rest)
                rest = [following]
        if any(rest):
            self.line += 1
            yield b"".join(rest)


def _stream(suffix: str, raw: IO[bytes]) -> Iterator[bytes]:
    openers: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    file = openers[suffix](raw) if suffix in openers else raw
    while block := file.read(_BLOCK):
        yield block


def _zst(raw: IO[bytes]) -> Iterator[bytes]:
    """Frame by frame, since the library's stream says nothing of a file that ends early."""
    frame = None
    while data := raw.read(_BLOCK):
        while data:
            frame = frame or zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            if block := frame.decompress(data):
                yield block
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("it ends before its end was marked")


def _text(path: Path, whole: bool) -> Iterator[Document]:
    file = _Opened(path)
    text = b""
    for block in file.blocks():
        text += block
        begin = 0
        if not whole:
            for blank in _BLANK.finditer(text):
                if blank.end() == len(text):  # more of it may follow
                    break
                yield from _found(text[begin : blank.start()], file)
                file.line += text.count(b"\n", blank.start(), blank.end())
                begin = blank.end()
        text = text[begin:]
        while len(text) > LONGEST:
            at = _last_break(text, LONGEST)
            yield Document(file.place, text[:at], file.position, CUT)
            file.line += text.count(b"\n", 0, at)
            text = text[at:]
    yield from _found(text, file)


def _found(text: bytes, file: _Opened) -> Iterator[Document]:
    """The document in `text`, if there is one, and the file's line after it."""
    document = text.lstrip()
    file.line += text.count(b"\n", 0, len(text) - len(document))
    if document:
        yield Document(file.place, document, file.position)
    file.line += document.count(b"\n")


def _last_break(text: bytes, limit: int) -> int:
    """Where to cut `text` before `limit`: at the last line end, or white space, or character, that there is."""
    for mark in (b"\n", b" "):
        at = text.rfind(mark, limit // 2, limit)
        if at > 0:
            return at
    while limit and text[limit] & 0xC0 == 0x80:  # inside a character
        limit -= 1
    return limit


def _json(path: Path, field: str) -> Iterator[Document]:
    file = _Opened(path)
    for line in file.lines():
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            what = "a JSON array" if line.lstrip().startswith(b"[") else f"no JSON ({error})"
            raise UserError(f"{file.place}: {what}; each line must be one JSON object") from error
        yield _record(record, field, file.place, file.position)


def _parquet(path: Path, field: str) -> Iterator[Document]:
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
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for record in batch.to_pylist():
                    row += 1
                    yield _record(record, field, f"{path}:{row}", size * row // rows)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: broken Parquet file ({error}); fetch it again") from error


def _tfds(name: str, field: str) -> Iterator[Document]:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(f"tfds:{name} needs tensorflow-datasets; pip install 'electra_jax[tfds]'") from error
    try:
        try:
            builder = tfds.builder(name, file_format="array_record")
        except Exception:  # a set that is there without its code, named with its version, may not be told its format
            builder = tfds.builder(name)
        data = builder.as_data_source(split="train")
    except Exception as error:  # of many kinds: unknown name, not prepared, another format, TensorFlow missing
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"tfds:{name} is not there as ArrayRecord ({reason}); prepare it once with `tfds build {name} "
            "--file_format=array_record`, for which many sets need tensorflow beside 'electra_jax[tfds]'"
        ) from error
    for row, record in enumerate(data, 1):
        yield _record(record, field, f"tfds:{name}:{row}", 0)


def _record(record: Any, field: str, place: str, position: int) -> Document:
    if not isinstance(record, dict) or field not in record:
        raise _no_field(place, field, list(record) if isinstance(record, dict) else [])
    text = record[field]
    if text is None:
        return Document(place, b"", position, NO_TEXT)
    if isinstance(text, bytes):
        return Document(place, text, position)
    if not isinstance(text, str):
        raise UserError(f"{place}: field {field!r} is no text but {type(text).__name__}; name another with field=")
    return Document(place, text.encode("utf-8", "surrogatepass"), position)  # broken characters are mended in cleaning


def _no_field(place: str, field: str, names: list[str]) -> UserError:
    return UserError(f"{place} has no field {field!r}; name one of these with field=: {', '.join(names) or 'none'}")
