"""Where documents come from: the embedded documentation text, or files of plain text.

A document is (name, lines). Names are stable, since the held-out split is decided by a hash of them.
"""

import bz2
import glob
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from electra_jax.data import docstrings
from electra_jax.errors import UserError

Document = tuple[str, list[str]]
DOCSTRINGS = "docstrings"

_OPENERS: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def _files(pattern: str) -> list[Path]:
    paths = [Path(p) for p in sorted(glob.glob(pattern, recursive=True)) if Path(p).is_file()]
    if not paths:
        raise UserError(f"config.data.input={pattern!r} matches no file; give a glob of text files or {DOCSTRINGS!r}")
    return paths


def _packages(source: str) -> list[str] | None:
    """Which packages `docstrings` or `docstrings:NAME,NAME` asks for, none meaning all; None for another source."""
    kind, _, names = source.partition(":")
    return [name for name in names.split(",") if name] if kind == DOCSTRINGS else None


def fingerprint(source: str) -> str:
    """A text that changes whenever the documents of `source` may have changed."""
    if _packages(source) is not None:
        return docstrings.fingerprint()
    stats = [(path, path.stat()) for path in _files(source)]
    return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def read_documents(source: str) -> Iterator[Document]:
    """Yields the documents of `source`.

    Args:
      source: `docstrings`, `docstrings:NAME,NAME` for some packages alone, or a glob of UTF-8 text files (plain, .gz,
        .xz or .bz2) in which a blank line ends a document and every other line is a sentence or paragraph.

    Raises:
      UserError: no file matches, or a file cannot be read as text.
    """
    packages = _packages(source)
    if packages is not None:
        yield from docstrings.read_documents(packages)
        return
    for path in _files(source):
        yield from _read_text(path)


def _read_text(path: Path) -> Iterator[Document]:
    opener = _OPENERS.get(path.suffix, open)
    lines: list[str] = []
    count = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                line = " ".join(line.split())
                if line:
                    lines.append(line)
                elif lines:
                    yield f"{path.name}:{count}", lines
                    lines, count = [], count + 1
        if lines:
            yield f"{path.name}:{count}", lines
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, after document {count}: not UTF-8 ({error.reason}); convert it, e.g. with iconv"
        ) from error
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not the decompressor's
            raise
        raise UserError(f"{path}, after document {count}: broken compressed file ({error}); fetch it again") from error
