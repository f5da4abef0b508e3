"""What to read: from `data.input` to units of work, pieces of the input that can be read on their own.

`readers.py` does the reading. The grammar: sources with semicolons between, each with its weight after an @ or none
with any. A source is a file, a folder, a glob, `docstrings`, or `tfds:NAME/CONFIG`.
"""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.data import docstrings
from electra_jax.errors import UserError

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
        name, at, weight = part.rpartition("@")
        try:
            found.append(Source(name, float(weight)) if at else Source(part, None))
        except ValueError:
            found.append(Source(part, None))  # an @ of the file's name
    if not found:
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
    path = Path(pattern)
    if path.is_dir():
        below = (p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts))
        found = sorted(p for p in below if p.is_file() and suffix(p) in (*_TEXT, *_JSON, *_PARQUET))
        kinds = " ".join(filter(None, (*_TEXT, *_JSON, *_PARQUET)))
        reason = f"is a folder without text in it ({kinds}, plain or {' '.join(COMPRESSIONS)})"
    else:
        found = [path] if path.is_file() else [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]
        found = [p for p in found if p.is_file()]
        reason = "matches no file"
    if not found:
        raise UserError(f"input={pattern!r} {reason}; give a file, a folder, a glob, {DOCSTRINGS!r} or 'tfds:NAME'")
    return found


def suffix(path: Path) -> str:
    """The suffix that says what is in a file, that of its compression aside."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSIONS else path.suffix.lower()


def units(sources: Sequence[Source], size: int) -> Iterator[Unit]:
    """The units of all sources in order: a file, or small files together until they have `size` bytes on disk."""
    for number, source in enumerate(sources):
        scheme, colon, rest = source.name.partition(":")
        if scheme == DOCSTRINGS or (scheme == TFDS and colon):
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
        scheme, colon, _ = source.name.partition(":")
        if scheme == DOCSTRINGS:
            found.append(docstrings.fingerprint())
        elif scheme == TFDS and colon:
            found.append(source.name)  # its version is part of the name
        else:
            stats = [(path, path.stat()) for path in files(source.name)]
            found += [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]
    return found
