"""Parses the sources in `data.input`, and divides them into units that readers.py can read independently.

Sources are separated by semicolons; either each has a weight after an @, or none has. What follows the last @ is a
weight if it is a number, unless a file on this machine has the whole as its name. A source is a file, a folder or a
glob, on this machine or in an object store; `docstrings` (or `docstrings:PACKAGE,...`); `tfds:NAME/CONFIG`; or
`hf:USER/NAME/CONFIG:SPLIT@REVISION`.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import compression, docstrings, formats, named_sets
from electra_jax.data.named_sets import HUB, TFDS
from electra_jax.data.source_files import list_files
from electra_jax.runtime.remote_files import ListedFile, is_url

DOCSTRINGS = "docstrings"
_EXPECTED = f"files, a folder, a glob, {DOCSTRINGS!r}, '{TFDS}:NAME' or '{HUB}:USER/NAME'"
# 64 MiB of a table are a unit, so that several processes can read a large file.
_PART = 2**26
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
        raise UserError(f"input={text!r} names no source: expected {_EXPECTED}")
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
        raise UserError(f"input={pattern!r} {reason}: expected {_EXPECTED}{advice}")
    for file in readable:
        formats.check_name(file.name)
    return readable


def left_out(sources: Sequence[Source]) -> list[str]:
    """Lists the paths in the sources' folders and globs that are not read: files of other types, broken links."""
    return [name for source in sources if not _is_named(source) for name in list_files(source.name)[1]]


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
    return not is_url(source.name) and (scheme == DOCSTRINGS or (scheme in (TFDS, HUB) and bool(colon)))


def units(sources: Sequence[Source], size: int) -> Iterator[Unit]:
    """Yields the units of all sources in order: large files, or groups of small files of about `size` bytes on disk."""
    for number, source in enumerate(sources):
        if _is_named(source):
            yield from _named_units(number, source)
            continue
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


def _named_units(number: int, source: Source) -> Iterator[Unit]:
    scheme, _, name = source.name.partition(":")
    if scheme == HUB:
        found = named_sets.at_commit(name)
        parts = named_sets.count_parts(found)
        yield from (Unit(number, HUB, (str(found),), 0, (i, parts)) for i in range(parts))
    else:
        if scheme == DOCSTRINGS:
            docstrings.check(name)
        yield Unit(number, scheme, (name,), 0)


def fingerprint(sources: Sequence[Source]) -> list[str]:
    """Returns strings that change whenever the documents may have changed."""
    fingerprints = []
    for source in sources:
        scheme, _, name = source.name.partition(":")
        if not _is_named(source):
            fingerprints += [" ".join(map(str, file)) for file in files(*source)]
        elif scheme == HUB:
            fingerprints.append(f"{HUB}:{named_sets.at_commit(name)}")
        else:  # the version of a TFDS set is part of its name
            fingerprints.append(source.name if scheme == TFDS else docstrings.fingerprint())
    return fingerprints
