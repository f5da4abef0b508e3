"""Reads the documents of a unit in any format: text, JSON lines, tables, archives, web archives and data sets.

Every document is hashed here, once per pass. Input that cannot be repaired raises a `UserError` with file and line.
"""

import codecs
import re
from collections.abc import Iterator

from electra_jax.config.errors import UserError
from electra_jax.data import archives, docstrings, documents, formats, named_sets, sources, tables, web_archives
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import (
    CUT,
    NOT_UTF8,
    OTHER_MEMBER,
    Document,
    from_fields,
    last_break,
    normalize_ends,
    split_long,
)
from electra_jax.data.input_file import InputFile
from electra_jax.data.sources import Unit
from electra_jax.runtime.io import from_json

# 128 MiB: a JSON line is in memory as a whole before its document is cut.
_MENDED = "\ufffd".encode()
_LONGEST_LINE = 2**27
_BLANK = re.compile(rb"\n\s*\n")
_TABLES = {"parquet": tables.read_parquet, "arrow": tables.read_arrow}


def read_documents(unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the documents of `unit` in order.

    Args:
      unit: what to read.
      config: its `field` names the text in JSON lines, tables and data sets; its `documents` says what ends a document
        in text files; its `language` selects the pages of a web archive.

    Raises:
      UserError: a file is broken or lacks the field, or a package to read it is missing.
    """
    # The readers of files count positions in their file, here they are in the unit.
    earlier_names = 0
    for name in unit.names:
        position = 0
        for document in _read(name, unit, config):
            position = document.position
            yield from split_long(document, earlier_names + position)
        earlier_names += position


def open_files(name: str) -> Iterator[tuple[InputFile, str]]:
    """Yields (file, its format) for a file, or for each file in an archive. Read a file before requesting the next.

    The format is one that `formats.tell` returns, except archives; it is empty for files in archives that are not read.

    Raises:
      UserError: a file is broken, or its format is not supported.
    """
    file = InputFile(name)
    try:
        found = formats.tell(file.head(), name)
        if found not in formats.ARCHIVES:
            yield file, found
            return
        for member, is_read in archives.read_members(file, found):
            told = formats.tell(member.head(), member.name) if is_read else ""
            # Told by the bytes; `read_members` has refused those with the name of an archive.
            if told in (*formats.ARCHIVES, *formats.TABLES):
                raise archives.nested(member, file)
            yield member, told
    finally:
        # Also if the caller wants no more than the first bytes, as `unused_settings` does.
        file.close()


def _read(name: str, unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the records of one of the unit's names."""
    match unit.kind:
        # Not through `open_files`: pyarrow looks at the bytes itself, and reads one part.
        case "parquet" | "arrow":
            yield from _TABLES[unit.kind](name, config.field, unit.part)
        case named_sets.TFDS:
            yield from named_sets.read_tfds(name, config.field)
        case named_sets.HUB:
            yield from named_sets.read_hub(name, config.field, unit.part)
        case sources.DOCSTRINGS:
            for place, lines in docstrings.read_modules(docstrings.packages_in(name)):
                yield Document(place, "\n".join(lines).encode())
        case _:
            for file, found in open_files(name):
                yield from _read_file(file, found, config)


def _read_file(file: InputFile, found: str, config: CorpusConfig) -> Iterator[Document]:
    match found:
        case "text":
            return _read_text(file, whole=config.documents == "file")
        case "json":
            return _read_json(file, config.field)
        case "warc":
            return web_archives.read_pages(file, config.language)
        case "parquet" | "arrow":
            if file.is_compressed:
                raise tables.compressed(file.name)
            # A table that only its bytes show. pyarrow seeks, so it opens the file itself.
            file.close()
            return _TABLES[found](file.name, config.field)
        case "":
            # A document without text, so that the report counts the file.
            return iter([Document(file.name, b"", file.position, OTHER_MEMBER)])
    raise AssertionError(found)


def _read_text(file: InputFile, whole: bool) -> Iterator[Document]:
    text, uncut = b"", True
    for block in file.text_blocks():
        text += block
        begin = 0
        if not whole:
            for blank in _BLANK.finditer(text):
                # The next block may continue the blank lines.
                if blank.end() == len(text):
                    break
                yield from _text_record(text[begin : blank.start()], file)
                file.line += text.count(b"\n", blank.start(), blank.end())
                begin, uncut = blank.end(), True
        text = text[begin:]
        # Cut here and not in `split_long`, so that no more of the text is kept in memory.
        while len(text) > documents.LONGEST:
            end = last_break(text, documents.LONGEST)
            if piece := normalize_ends(text[:end]):
                yield Document(file.place, piece, file.position, CUT if uncut else "", True)
            uncut = False
            file.line += text.count(b"\n", 0, end)
            text = text[end:]
    yield from _text_record(text, file)


def _text_record(text: bytes, file: InputFile) -> Iterator[Document]:
    """Yields the document in `text` unless it is blank; moves the file's line past it."""
    document = text.lstrip()
    file.line += text.count(b"\n", 0, len(text) - len(document))
    if document:
        yield Document(file.place, normalize_ends(document), file.position, numbered=True)
    file.line += document.count(b"\n")


def _read_json(file: InputFile, field: str) -> Iterator[Document]:
    for line in file.lines(_LONGEST_LINE):
        if not line.strip():
            continue
        line = line.removeprefix(codecs.BOM_UTF8)  # as where files have been joined
        try:
            decoded, note = line.decode(), ""
        except UnicodeDecodeError:
            # Mended before it is parsed, because json refuses bytes that are not UTF-8.
            decoded, note = line.decode(errors="replace"), NOT_UTF8
        try:
            values = from_json(decoded)
        except ValueError as error:
            raise UserError(f"{file.place} is not JSON ({error}): expected one JSON object per line") from error
        if not isinstance(values, dict):
            raise UserError(f"{file.place} is a JSON {type(values).__name__}: expected one JSON object per line")
        document = from_fields(values, field, file.place, file.position)
        # Another field may be the broken one.
        mended = note if _MENDED in document.text else ""
        yield document._replace(note=document.note or mended)
