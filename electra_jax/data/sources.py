"""The sources in `data.input`, divided into units that can be read independently; readers.py reads them.

Sources are separated by semicolons; either each has a weight after an @, or none has. A source is a file, a folder, a
glob, `docstrings` (or `docstrings:PACKAGE,...`), or `tfds:NAME/CONFIG`.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import docstrings

DOCSTRINGS = "docstrings"
TFDS = "tfds"
_EXPECTED = f"files, a folder, a glob, {DOCSTRINGS!r} or 'tfds:NAME'"
COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet",)
_TEXT = (".txt", ".text", "")  # other kinds of files in a folder are left out; WikiExtractor's files have no suffix


class Source(NamedTuple):
    """One source of a mixture.

    Attributes:
      name: the source as given, without its weight.
      weight: its share of the training examples, relative to the other sources; None where no weights are given.
    """

    name: str
    weight: float | None


class Unit(NamedTuple):
    """A part of one source that is read as a whole.

    Attributes:
      source: number of the source.
      kind: `text`, `json`, `parquet`, `docstrings` or `tfds`.
      names: files; for `docstrings` the packages, for `tfds` the set.
      size: bytes on disk; 0 where it is unknown.
    """

    source: int
    kind: str
    names: tuple[str, ...]
    size: int


def parse(text: str) -> list[Source]:
    """The sources that `data.input` names.

    Raises:
      UserError: there is no source, a weight is not positive, or only some sources have weights.
    """
    sources = []
    for part in filter(None, map(str.strip, text.split(";"))):
        name, at, weight = map(str.strip, part.rpartition("@"))
        try:
            sources.append(Source(name, float(weight)) if at else Source(part, None))
        except ValueError:
            sources.append(Source(part, None))  # the @ is part of a file's name
    if not sources or not all(source.name for source in sources):
        raise UserError(f"input={text!r} names no source: expected {_EXPECTED}")
    weights = [source.weight for source in sources]
    if any(weight is not None and not 0 < weight < float("inf") for weight in weights) or (
        None in weights and any(weights)
    ):
        raise UserError(f"input={text!r} has invalid weights: expected NAME@WEIGHT, above 0, for all sources or none")
    return sources


def files(pattern: str) -> list[Path]:
    """The files of a path, a folder (with its subfolders) or a glob, sorted.

    Raises:
      UserError: there are none.
    """
    readable, others = _list_files(pattern)
    if not readable:
        kinds = " ".join(filter(None, (*_TEXT, *_JSON, *_PARQUET)))
        reason = f"holds no text ({kinds}, plain or {' '.join(COMPRESSIONS)})" if others else "matches no file"
        raise UserError(f"input={pattern!r} {reason}: expected {_EXPECTED}")
    return readable


def left_out(sources: Sequence[Source]) -> list[str]:
    """Paths in the sources' folders and globs that are not read: files of other kinds, broken links."""
    return [str(path) for source in sources if not _is_named(source) for path in _list_files(source.name)[1]]


def _list_files(pattern: str) -> tuple[list[Path], list[Path]]:
    """(files to read, paths to leave out)."""
    path = Path(pattern)
    if path.is_file():
        return [path], []
    if path.is_dir():
        paths = sorted(_walk(path))
        readable = [p for p in paths if p.is_file() and suffix(p) in (*_TEXT, *_JSON, *_PARQUET)]
    else:
        paths = [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]
        readable = [p for p in paths if p.is_file()]
        paths = [p for p in paths if not (p.is_dir() and "**" in pattern)]  # ** also matches the folders of the files
    return readable, sorted(set(paths) - set(readable))


def _walk(folder: Path) -> Iterator[Path]:
    """The files in a folder and its subfolders, following links, without hidden ones."""
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(".")]
        if real not in seen:
            yield from (Path(parent) / name for name in names if not name.startswith("."))
        seen.add(real)


def _is_named(source: Source) -> bool:
    """Whether a source is a name, not a path: `docstrings`, `docstrings:PACKAGE`, `tfds:NAME`."""
    scheme, colon, _ = source.name.partition(":")
    return scheme == DOCSTRINGS or (scheme == TFDS and bool(colon))


def suffix(path: Path) -> str:
    """The suffix of a file without that of its compression: ".txt" for "a.txt.gz"."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSIONS else path.suffix.lower()


def units(sources: Sequence[Source], size: int) -> Iterator[Unit]:
    """The units of all sources in order: large files, or small files together up to about `size` bytes on disk."""
    for number, source in enumerate(sources):
        if _is_named(source):
            scheme, _, rest = source.name.partition(":")
            yield Unit(number, scheme, (rest,), 0)
            continue
        kind, total = "", 0
        together: list[str] = []
        for path in files(source.name):
            path_kind = _kind(path)
            if together and (total >= size or path_kind != kind):
                yield Unit(number, kind, tuple(together), total)
                together, total = [], 0
            kind = path_kind
            together.append(str(path))
            total += path.stat().st_size
        yield Unit(number, kind, tuple(together), total)


def _kind(path: Path) -> str:
    ending = suffix(path)
    return "json" if ending in _JSON else "parquet" if ending in _PARQUET else "text"


def fingerprint(sources: Sequence[Source]) -> list[str]:
    """Strings that change whenever the documents may have changed."""
    fingerprints = []
    for source in sources:
        if _is_named(source):  # the version of a TFDS set is part of its name
            fingerprints.append(source.name if source.name.startswith(TFDS) else docstrings.fingerprint())
        else:
            stats = [(path, path.stat()) for path in files(source.name)]
            fingerprints += [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]
    return fingerprints
