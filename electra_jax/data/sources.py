"""What to read: from `data.input` to units of work, pieces of the input that can be read on their own.

`readers.py` does the reading. The grammar: sources with semicolons between, each with its weight after an @ or none
with any. A source is a file, a folder, a glob, `docstrings`, or `tfds:NAME/CONFIG`.
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
COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet",)
_TEXT = (".txt", ".text", "")  # in a folder, files of other kinds are left out; WikiExtractor's have no suffix


class Source(NamedTuple):
    """One source of a mixture.

    Attributes:
      name: as it was given.
      weight: its share of the training examples, relative to those of the others; None where none was given.
    """

    name: str
    weight: float | None


class Unit(NamedTuple):
    """A piece of one source.

    Attributes:
      source: number of the source.
      kind: `text`, `json`, `parquet`, `docstrings` or `tfds`.
      names: files, or what to ask the kind's reader for.
      size: bytes on disk; 0 where that is not known.
    """

    source: int
    kind: str
    names: tuple[str, ...]
    size: int


def parse(text: str) -> list[Source]:
    """The sources of a mixture.

    Raises:
      UserError: no source, or weights that are not positive numbers, or not given to all.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        name, at, weight = map(str.strip, part.rpartition("@"))
        try:
            found.append(Source(name, float(weight)) if at else Source(part, None))
        except ValueError:
            found.append(Source(part, None))  # an @ of the file's name
    if not found or not all(source.name for source in found):
        raise UserError(f"input={text!r} names nothing; give files, a folder, a glob, {DOCSTRINGS!r} or 'tfds:NAME'")
    weights = [source.weight for source in found]
    if any(weight is not None and not 0 < weight < float("inf") for weight in weights) or (
        None in weights and any(weights)
    ):
        raise UserError(f"input={text!r}: give each source a weight of more than 0 (NAME@WEIGHT), or none to any")
    return found


def files(pattern: str) -> list[Path]:
    """The files of a path, a folder (and those below it) or a glob, sorted.

    Raises:
      UserError: there is none.
    """
    taken, left = _listed(pattern)
    if not taken:
        kinds = " ".join(filter(None, (*_TEXT, *_JSON, *_PARQUET)))
        reason = f"has no text in it ({kinds}, plain or {' '.join(COMPRESSIONS)})" if left else "matches no file"
        raise UserError(f"input={pattern!r} {reason}; give a file, a folder, a glob, {DOCSTRINGS!r} or 'tfds:NAME'")
    return taken


def left_out(sources: Sequence[Source]) -> list[str]:
    """What stands in a mixture's folders, or is matched by its globs, and is not read: other kinds, broken links."""
    return [str(path) for source in sources if not _is_named(source) for path in _listed(source.name)[1]]


def _listed(pattern: str) -> tuple[list[Path], list[Path]]:
    """The files to read, and what is left out."""
    path = Path(pattern)
    if path.is_file():
        return [path], []
    if path.is_dir():
        found = sorted(_below(path))
        taken = [p for p in found if p.is_file() and suffix(p) in (*_TEXT, *_JSON, *_PARQUET)]
    else:
        found = [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]
        taken = [p for p in found if p.is_file()]
        found = [p for p in found if not (p.is_dir() and "**" in pattern)]  # such a pattern means the files in them
    return taken, sorted(set(found) - set(taken))


def _below(folder: Path) -> Iterator[Path]:
    """The files in a folder and those below it, also through links, hidden ones aside."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(".")]
        if real not in seen:
            yield from (Path(place) / name for name in names if not name.startswith("."))
        seen.add(real)


def _is_named(source: Source) -> bool:
    """Whether it is no path: `docstrings`, `docstrings:NAME`, `tfds:NAME`."""
    scheme, colon, _ = source.name.partition(":")
    return scheme == DOCSTRINGS or (scheme == TFDS and bool(colon))


def suffix(path: Path) -> str:
    """The suffix that says what is in a file, that of its compression aside."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSIONS else path.suffix.lower()


def units(sources: Sequence[Source], size: int) -> Iterator[Unit]:
    """The units of all sources in order: a file, or small files together until they have `size` bytes on disk."""
    for number, source in enumerate(sources):
        if _is_named(source):
            scheme, _, rest = source.name.partition(":")
            yield Unit(number, scheme, (rest,), 0)
            continue
        kind, total = "", 0
        together: list[str] = []
        for path in files(source.name):
            ending = suffix(path)
            its_kind = "json" if ending in _JSON else "parquet" if ending in _PARQUET else "text"
            if together and (total >= size or its_kind != kind):
                yield Unit(number, kind, tuple(together), total)
                together, total = [], 0
            kind = its_kind
            together.append(str(path))
            total += path.stat().st_size
        yield Unit(number, kind, tuple(together), total)


def fingerprint(sources: Sequence[Source]) -> list[str]:
    """Texts that change whenever the documents may have changed."""
    found = []
    for source in sources:
        if _is_named(source):  # the version of a TFDS set is part of its name
            found.append(source.name if source.name.startswith(TFDS) else docstrings.fingerprint())
        else:
            stats = [(path, path.stat()) for path in files(source.name)]
            found += [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]
    return found
