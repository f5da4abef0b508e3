"""Reads the documents of a unit: text, JSON lines, Parquet, TFDS, documentation strings; compressed or not.

Nothing is dropped in silence. What can be mended is mended and named in the document's notes; what cannot is a
`UserError` with file and line.
"""

import bz2
import codecs
import functools
import gzip
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import zstandard

from electra_jax.config.errors import UserError, first_line
from electra_jax.data import docstrings
from electra_jax.data.cleaning import NOT_UTF8
from electra_jax.data.sources import Unit
from electra_jax.runtime.io import from_json

_BLOCK = 2**20  # bytes read at a time
LONGEST = 2**26  # bytes of a document; a longer one is cut, so that memory stays flat
_BLANK = re.compile(rb"\n\s*\n")


class Document(NamedTuple):
    """A document as it was found.

    Attributes:
      place: file and line, for a message.
      text: UTF-8, or nearly; lines are sentences or paragraphs.
      read: bytes of the unit that were read up to here.
      note: what was done to it; empty for most.
      of_lines: whether its lines are those of the file from `place` on.
    """

    place: str
    text: bytes
    read: int = 0
    note: str = ""
    of_lines: bool = False


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
        yield from itertools.chain.from_iterable(map(_short, _tfds(unit.names[0], field)))
        return
    kinds: dict[str, Callable[[Path], Iterator[Document]]] = {
        "text": functools.partial(_text, whole=documents == "file"),
        "json": functools.partial(_json, field=field),
        "parquet": functools.partial(_parquet, field=field),
    }
    before = 0
    for path in map(Path, unit.names):
        for document in kinds[unit.kind](path):
            yield from _short(document._replace(read=before + document.read))
        before += path.stat().st_size


def together(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Consecutive documents until they have `size` bytes of text."""
    several: list[Document] = []
    total = 0
    for document in documents:
        several.append(document)
        total += len(document.text)
        if total >= size:
            yield several
            several, total = [], 0
    if several:
        yield several


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
        first = True
        with self.path.open("rb") as raw:
            try:
                for block in _READERS.get(suffix, _plain)(raw):
                    self.position = raw.tell()
                    yield self._begun(block) if first else block
                    first = False
                if first and suffix in _READERS:
                    raise EOFError("it is empty")
            except (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # the system's, not the decompressor's
                    error.filename = error.filename or str(self.path)
                    raise
                raise UserError(f"{self.place}: broken compressed file ({error}); fetch it again") from error

    def _begun(self, block: bytes) -> bytes:
        """The first block, without a mark that says it is UTF-8."""
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(f"{self.path} is UTF-16; convert it: iconv -f utf-16 -t utf-8")
        return block.removeprefix(codecs.BOM_UTF8)

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


def _plain(raw: IO[bytes]) -> Iterator[bytes]:
    while block := raw.read(_BLOCK):
        yield block


def _gz(raw: IO[bytes]) -> Iterator[bytes]:
    return _plain(cast(IO[bytes], gzip.open(raw)))


def _streams(make: Callable[[], Any], raw: IO[bytes]) -> Iterator[bytes]:
    """One stream after another: what stands behind the first must be one too, which the library's files do not ask."""
    stream: Any = None
    data = b""
    while True:
        if stream is None:
            data = (data or raw.read(_BLOCK)).lstrip(b"\0")  # padding between streams
            if not data:
                if not (data := raw.read(_BLOCK)):
                    return
                continue
            stream = make()
        if block := stream.decompress(data, _BLOCK):
            yield block
        data = b""
        if stream.eof:
            stream, data = None, stream.unused_data
        elif stream.needs_input and not (data := raw.read(_BLOCK)):
            raise EOFError("it ends before its end was marked")


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


_READERS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".gz": _gz,
    ".xz": functools.partial(_streams, lzma.LZMADecompressor),
    ".bz2": functools.partial(_streams, bz2.BZ2Decompressor),
    ".zst": _zst,
}


def _text(path: Path, whole: bool) -> Iterator[Document]:
    file = _Opened(path)
    text, whole_so_far = b"", True
    for block in file.blocks():
        text += block
        begin = 0
        if not whole:
            for blank in _BLANK.finditer(text):
                if blank.end() == len(text):  # more of it may follow
                    break
                yield from _found(text[begin : blank.start()], file)
                file.line += text.count(b"\n", blank.start(), blank.end())
                begin, whole_so_far = blank.end(), True
        text = text[begin:]
        while len(text) > LONGEST:  # no more of it is kept in memory
            at = _last_break(text, LONGEST)
            yield Document(file.place, text[:at].strip(), file.position, CUT if whole_so_far else "", True)
            whole_so_far = False
            file.line += text.count(b"\n", 0, at)
            text = text[at:]
    yield from _found(text, file)


def _found(text: bytes, file: _Opened) -> Iterator[Document]:
    """The document in `text`, if there is one, and the file's line after it."""
    document = text.lstrip()
    file.line += text.count(b"\n", 0, len(text) - len(document))
    if document:
        yield Document(file.place, _same_ends(document), file.position, of_lines=True)
    file.line += document.count(b"\n")


def _same_ends(text: bytes) -> bytes:
    """Without white space around it, and with one kind of line ends: so that it is the same text in any file."""
    return (text.replace(b"\r\n", b"\n") if b"\r" in text else text).strip()


def _short(document: Document) -> Iterator[Document]:
    """The document in pieces of at most `LONGEST` bytes."""
    text = document.text
    note = document.note or (CUT if len(text) > LONGEST else "")
    while len(text) > LONGEST:
        at = _last_break(text, LONGEST)
        yield document._replace(text=text[:at].strip(), note=note)
        text, note = text[at:].strip(), ""
    yield document._replace(text=text, note=note)


def _last_break(text: bytes, limit: int) -> int:
    """Where to cut `text` before `limit`: at the last line end, or white space, or character, that there is."""
    for mark in (b"\n", b" "):
        at = text.rfind(mark, limit // 2, limit)
        if at > 0:
            return at
    inside = next((back for back in range(4) if text[limit - back] & 0xC0 != 0x80), 0)  # bytes of a character cut
    return limit - inside


def _json(path: Path, field: str) -> Iterator[Document]:
    file = _Opened(path)
    for line in file.lines():
        if not line.strip():
            continue
        try:
            decoded, note = line.decode(), ""
        except UnicodeDecodeError:
            decoded, note = line.decode(errors="replace"), NOT_UTF8
        try:
            record = from_json(decoded)
        except ValueError as error:
            raise UserError(f"{file.place}: no JSON ({error}); each line must be one JSON object") from error
        if not isinstance(record, dict):
            raise UserError(f"{file.place}: a JSON {type(record).__name__}; each line must be one JSON object")
        document = _record(record, field, file.place, file.position)
        yield document._replace(note=document.note or note)


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


def tfds_splits(name: str) -> Mapping[str, Any]:
    """The splits of a TensorFlow Datasets set, each a sequence of records, with the set's features as `dataset_info`.

    Raises:
      UserError: the library or the set is not there.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(f"tfds:{name} needs tensorflow-datasets; pip install 'electra_jax[tfds]'") from error
    try:
        try:
            builder = tfds.builder(name, file_format="array_record")
        except Exception:  # a set that is there without its code, named with its version, may not be told its format
            builder = tfds.builder(name)
        if not (splits := builder.as_data_source()):
            raise FileNotFoundError("it was not prepared")
        return splits
    except Exception as error:  # of many kinds: unknown name, not prepared, another format, TensorFlow missing
        raise UserError(
            f"tfds:{name} is not there as ArrayRecord ({first_line(error)}); prepare it once with `tfds build {name} "
            "--file_format=array_record`, for which many sets need tensorflow beside 'electra_jax[tfds]'"
        ) from error


def tfds_split(name: str, split: str) -> Any:
    """One of `tfds_splits`.

    Raises:
      UserError: the library, the set or the split is not there.
    """
    splits = tfds_splits(name)
    if split not in splits:
        raise UserError(f"tfds:{name} has no split {split}; there are {', '.join(splits)}")
    return splits[split]


def _tfds(name: str, field: str) -> Iterator[Document]:
    for row, record in enumerate(tfds_split(name, "train"), 1):
        yield _record(record, field, f"tfds:{name}:{row}", 0)


def _record(record: dict[str, Any], field: str, place: str, position: int) -> Document:
    if field not in record:
        raise _no_field(place, field, list(record))
    text = record[field]
    if text is None:
        return Document(place, b"", position, NO_TEXT)
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")  # half characters are mended in cleaning
    if not isinstance(text, bytes):
        raise UserError(f"{place}: field {field!r} is no text but {type(text).__name__}; name another with --field=")
    return Document(place, _same_ends(text), position)


def _no_field(place: str, field: str, names: list[str]) -> UserError:
    return UserError(f"{place} has no field {field!r}; name one of these with --field=: {', '.join(names) or 'none'}")
