"""Parses the sources in `data.input`, and divides them into units that can be read independently.

Sources are separated by semicolons; either each has a weight after an @, or none has. What follows the last @ is a
weight if it is a number, unless a file on this machine has the whole as its name. A source is a file, a folder or a
glob, on this machine or in an object store; `docstrings` (or `docstrings:PACKAGE,...`); `tfds:NAME/CONFIG`; or
`hf:USER/NAME/CONFIG:SPLIT@REVISION`.
"""

import glob
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.runtime.io import is_url

DOCSTRINGS, TFDS, HUB = "docstrings", "tfds", "hf"
# The modules of sources whose name begins with such a word. Each has `units`, `fingerprint` and `read`, as
# source_files.py has for all others. Only those that a corpus needs are imported.
_MODULES = {DOCSTRINGS: "docstrings", TFDS: "named_sets", HUB: "named_sets"}
EXPECTED = f"files, a folder, a glob, {DOCSTRINGS!r}, '{TFDS}:NAME' or '{HUB}:USER/NAME'"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf)", re.IGNORECASE)  # not 2023_01_01


class Source(NamedTuple):
    """One source of a mixture.

    Attributes:
      name: the source as given, without its weight.
      weight: its relative sampling weight; None if no weights are given.
    """

    name: str
    weight: float | None


class Unit(NamedTuple):
    """A part of one source that is read as a whole.

    Attributes:
      source: index of the source.
      kind: the format of files by their names (`text`, `json`, `parquet`, `arrow`, `warc`), or `docstrings`, `tfds` or
        `hf`. The format of files other than tables is detected by their first bytes when they are read.
      names: files; for `docstrings` the packages, for `tfds` and `hf` the data set.
      size: bytes on disk; 0 if unknown.
      part: (index of the part, number of parts), for tables and data sets that are read in parts.
    """

    source: int
    kind: str
    names: tuple[str, ...]
    size: int
    part: tuple[int, int] = (0, 1)

    @property
    def is_library(self) -> bool:
        """True if it is part of a data set that a library resolves by name. Its size is unknown and usually large."""
        return self.kind in (TFDS, HUB)


def parse(text: str) -> list[Source]:
    """Parses the sources that `data.input` names.

    Raises:
      UserError: there is no source, a weight is not positive, or only some sources have weights.
    """
    sources = []
    for part in filter(None, map(str.strip, text.split(";"))):
        # The last @: a revision of a data set on the Hub has one of its own.
        name, at, weight = map(str.strip, part.rpartition("@"))
        has_weight = at and _NUMBER.fullmatch(weight) and not _exists(part)
        sources.append(Source(name, float(weight)) if has_weight else Source(part, None))
    if not sources or not all(source.name for source in sources):
        raise UserError(f"input={text!r} names no source: expected {EXPECTED}")
    weights = [source.weight for source in sources]
    # Written so that nan is refused.
    if any(weight is not None and not 0 < weight < float("inf") for weight in weights) or (
        None in weights and any(weights)
    ):
        raise UserError(f"input={text!r} has invalid weights: expected NAME@WEIGHT, above 0, for all sources or none")
    return sources


def _exists(name: str) -> bool:
    """True if there are files of this name on this machine, so that an @ in it does not begin a weight."""
    return not is_url(name) and (os.path.lexists(name) or bool(glob.glob(name)))


def left_out(sources: Sequence[Source]) -> list[str]:
    """Lists the paths in the sources' folders and globs that are not read: files of other types, broken links."""
    return [name for source in sources if not _is_named(source) for name in reader().left_out(source)]


def reads_below(source: Source, folder: Path) -> bool:
    """True if a source is a folder on this machine whose files include those of `folder`."""
    if _is_named(source) or is_url(source.name) or not os.path.isdir(source.name):
        return False
    inside, whole = Path(os.path.realpath(folder)), Path(os.path.realpath(source.name))
    # Hidden folders are not read.
    return inside.is_relative_to(whole) and not any(part.startswith(".") for part in inside.relative_to(whole).parts)


def _is_named(source: Source) -> bool:
    """True if a source is a name, not files: `docstrings`, `docstrings:PACKAGE`, `tfds:NAME`, `hf:USER/NAME`."""
    # hf://... is the address of files, hf:... a data set.
    scheme, colon, _ = source.name.partition(":")
    return not is_url(source.name) and scheme in _MODULES and (bool(colon) or scheme == DOCSTRINGS)


def units(sources: Sequence[Source], size: int) -> Iterator[Unit]:
    """Yields the units of all sources in order: large files, or groups of small files of about `size` bytes on disk."""
    for number, source in enumerate(sources):
        yield from reader(_scheme(source)).units(number, source, size)


def fingerprint(sources: Sequence[Source]) -> list[str]:
    """Returns strings that change whenever the documents may have changed."""
    return [each for source in sources for each in reader(_scheme(source)).fingerprint(source)]


def _scheme(source: Source) -> str:
    return source.name.partition(":")[0] if _is_named(source) else ""


def reader(kind: str = "") -> Any:
    """Imports the module that lists and reads sources of a scheme, or units of a kind."""
    return importlib.import_module(f"electra_jax.data.{_MODULES.get(kind, 'source_files')}")
