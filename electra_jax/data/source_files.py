"""Lists and reads the files of a source: a path, a folder or a glob, on this machine or in an object store.

In a folder, files with a known text suffix are read. Archives are not, as they often contain the files beside them. A
folder that `datasets` has saved is read as its own state says.
"""

import codecs
import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.data import compression, documents, formats
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import (
    CUT,
    NOT_UTF8,
    OTHER_MEMBER,
    Document,
    from_fields,
    last_break,
    normalize_ends,
)
from electra_jax.data.input_file import InputFile, open_binary
from electra_jax.data.sources import EXPECTED, Source, Unit
from electra_jax.runtime import remote_files
from electra_jax.runtime.io import from_json, is_url
from electra_jax.runtime.remote_files import ListedFile

# 64 MiB of a table are a unit, so that several processes can read a large file.
_PART = 2**26
_MENDED = "\ufffd".encode()
# 128 MiB: a JSON line is in memory as a whole before its document is cut.
_LONGEST_LINE = 2**27
_BLANK = re.compile(rb"\n\s*\n")
# Metadata that `save_to_disk` of the package datasets writes beside a data set's files, and beside folders of splits.
_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def list_files(pattern: str) -> tuple[list[ListedFile], list[str]]:
    """Returns (files to read, in order; names of those to leave out) of a path, a folder with subfolders, or a glob.

    Raises:
      UserError: a folder holds several splits of a data set, or a store cannot be read.
    """
    files, others, folder = _list_remote(pattern) if is_url(pattern) else _list_local(pattern)
    if folder is None:
        return files, others
    known = [file for file in files if formats.is_known(file.name)]
    others += sorted({file.name for file in files} - {file.name for file in known})
    readable = _without_other_files_of_saved_sets(known, folder)
    return readable, sorted(others)


def _list_local(pattern: str) -> tuple[list[ListedFile], list[str], str | None]:
    """Returns (files, names of other things that were found, the folder if it is one)."""
    path = Path(pattern)
    # Before the pattern: the name of a file may have brackets.
    if path.is_file():
        return [_local_file(path)], [], None
    if path.is_dir():
        # Sorted, because the file system may list a copied folder in another order.
        paths = sorted(_walk(path))
    else:
        paths = [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]
        # ** also matches the folders of the files.
        paths = [p for p in paths if not (p.is_dir() and "**" in pattern)]
    files = [_local_file(p) for p in paths if p.is_file()]
    return files, sorted(str(p) for p in paths if not p.is_file()), pattern if path.is_dir() else None


def _local_file(path: Path) -> ListedFile:
    stat = path.stat()
    return ListedFile(str(path), stat.st_size, str(stat.st_mtime_ns))


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder and its subfolders, following links, without hidden ones.

    Raises:
      OSError: a folder cannot be listed.
    """

    # os.walk leaves out a folder that it cannot list, unless it is told to raise.
    def refuse(error: OSError) -> None:
        raise error

    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        # A link may lead back to a folder above it.
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else [name for name in folders if not _is_of_the_system(name)]
        if real not in seen:
            yield from (Path(parent) / name for name in names if not _is_of_the_system(name))
        seen.add(real)


def _is_of_the_system(name: str) -> bool:
    return name.startswith(".") or name == "lost+found"  # which only root can list


def _list_remote(pattern: str) -> tuple[list[ListedFile], list[str], str | None]:
    """Like `_list_local`, for an address."""
    files, is_folder = remote_files.list_files(pattern)
    if is_folder:
        files = [file for file in files if not _is_hidden(file.name, pattern)]
    return files, [], pattern if is_folder else None


def _is_hidden(name: str, folder: str) -> bool:
    # The folder's own name may begin with a dot. Without schemes, because fsspec adds a slash to that of memory://.
    path, above = (each.partition("://")[2].strip("/") for each in (name, folder))
    return any(part.startswith(".") for part in path.removeprefix(above).split("/"))


def _without_other_files_of_saved_sets(files: Sequence[ListedFile], folder: str) -> list[ListedFile]:
    """Returns the files of a folder; of a data set saved by `datasets`, those that its state names, in that order."""
    # posixpath throughout: addresses have slashes on every machine.
    names = {file.name: file for file in files}
    folders = {posixpath.dirname(file.name) for file in files}
    splits = sorted(
        posixpath.basename(each) for each in folders if posixpath.join(posixpath.dirname(each), _SPLITS) in names
    )
    if splits:
        raise UserError(
            f"{folder} holds splits of a saved data set ({', '.join(splits)}): expected one of them; name its folder, "
            f"as {folder.rstrip('/')}/{'train' if 'train' in splits else splits[0]}"
        )
    saved = {each for each in folders if {posixpath.join(each, name) for name in (_STATE, _INFO)} <= set(names)}
    kept = []
    for file in files:
        parent = posixpath.dirname(file.name)
        if parent not in saved:
            kept.append(file)
        elif posixpath.basename(file.name) == _STATE:
            # In the order of the rows, which need not be that of the names.
            for name in _data_files(file.name):
                if name not in names:
                    raise UserError(f"{name} is missing, which {_STATE} beside it names; copy the whole folder")
                kept.append(names[name])
    return kept


def _data_files(state: str) -> list[str]:
    """Reads the files of a saved data set, in the order of its rows, from its state.json."""
    try:
        with open_binary(state) as file:
            files = from_json(file.read().decode())["_data_files"]
        return [posixpath.join(posixpath.dirname(state), each["filename"]) for each in files]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{state} is not the state of a saved data set ({error!r}); save the set again") from error


def files(pattern: str, weight: float | None = None) -> list[ListedFile]:
    """Lists the files of a path, a folder (with its subfolders), a glob, or an address of these, in order.

    Args:
      pattern: one of these.
      weight: what was read as its weight, for messages.

    Raises:
      UserError: there are none, they cannot be listed, or one is a table that would be read as prose.
    """
    readable, others = list_files(pattern)
    if not readable:
        kinds = f"{formats.known_suffixes()}, plain or {' '.join(compression.SUFFIXES)}"
        reason = "is a folder without files" if os.path.isdir(pattern) else "matches no file"
        advice = ""
        if others:
            reason = f"holds no text ({kinds}), only files of other kinds: {len(others):,}, the first {others[0]}"
            advice = "; name those that are text, or archives of texts, by a pattern"
        if weight is not None:
            advice += f"; @{weight:.15g} was read as its weight"
        raise UserError(f"input={pattern!r} {reason}: expected {EXPECTED}{advice}")
    for file in readable:
        formats.check_name(file.name)
    return readable


def units(number: int, source: Source, size: int) -> Iterator[Unit]:
    """Yields the units of a source: large files, or groups of small files of about `size` bytes on disk."""
    unit_kind, total = "", 0
    together: list[str] = []
    for file in files(*source):
        file_kind = formats.kind(file.name)
        parts = _count_parts(file, file_kind)
        # Smaller files come before the one that cannot join them, so that units keep the order of the files.
        if together and (total >= size or file_kind != unit_kind or parts > 1):
            yield Unit(number, unit_kind, tuple(together), total)
            together, total = [], 0
        if parts > 1:
            yield from (Unit(number, file_kind, (file.name,), file.size // parts, (i, parts)) for i in range(parts))
            continue
        unit_kind = file_kind
        together.append(file.name)
        total += file.size
    if together:
        yield Unit(number, unit_kind, tuple(together), total)


def _count_parts(file: ListedFile, file_kind: str) -> int:
    """Returns the number of parts in which a file is read."""
    if file_kind not in formats.TABLES or (file_kind == "arrow" and is_url(file.name)):  # a stream has no index
        return 1
    # Rounded down, so that no file is divided into parts of less than 64 MiB.
    return max(1, file.size // _PART)


def fingerprint(source: Source) -> list[str]:
    """Returns strings that change whenever the source's documents may have changed."""
    return [" ".join(map(str, file)) for file in files(*source)]


def left_out(source: Source) -> list[str]:
    """Lists the paths in a folder or glob that are not read: files of other types, broken links."""
    return list_files(source.name)[1]


def read(name: str, unit: Unit, config: CorpusConfig) -> Iterator[Document]:
    """Yields the documents of one of the unit's files."""
    # Not through `open_files`: pyarrow looks at the bytes itself, and reads one part.
    if unit.kind in formats.TABLES:
        yield from _read_table(unit.kind, name, config.field, unit.part)
        return
    for file, found in open_files(name):
        yield from _read_file(file, found, config)


def _read_table(kind: str, name: str, field: str, part: tuple[int, int] = (0, 1)) -> Iterator[Document]:
    from electra_jax.data import tables  # needs pyarrow

    return {"parquet": tables.read_parquet, "arrow": tables.read_arrow}[kind](name, field, part)


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
        from electra_jax.data import archives

        for member, is_read in archives.read_members(file, found):
            told = formats.tell(member.head(), member.name) if is_read else ""
            # Told by the bytes; `read_members` has refused those with the name of an archive.
            if told in (*formats.ARCHIVES, *formats.TABLES):
                raise archives.nested(member, file)
            yield member, told
    finally:
        # Also if the caller wants no more than the first bytes, as `unused_settings` does.
        file.close()


def _read_file(file: InputFile, found: str, config: CorpusConfig) -> Iterator[Document]:
    match found:
        case "text":
            return _read_text(file, whole=config.documents == "file")
        case "json":
            return _read_json(file, config.field)
        case "warc":
            from electra_jax.data import web_archives

            return web_archives.read_pages(file, config.language)
        case "parquet" | "arrow":
            if file.is_compressed:
                from electra_jax.data.tables import compressed

                raise compressed(file.name)
            # A table that only its bytes show. pyarrow seeks, so it opens the file itself.
            file.close()
            return _read_table(found, file.name, config.field)
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
