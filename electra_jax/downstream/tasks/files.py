"""Rows with named columns, from `.tsv`, `.csv` and `.jsonl` files or TensorFlow Datasets, each with its place."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.readers import tfds_split, tfds_splits
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.runtime.io import from_json, sha256

TFDS = "tfds:"
_HALF = re.compile("[\ud800-\udfff]")  # which JSON can have, and no encoding


class Record(NamedTuple):
    """A row.

    Attributes:
      place: file and line.
      values: by column; text, or of JSON and TFDS what they have.
    """

    place: str
    values: dict[str, Any]


def find(folder: Path, split: str, suffixes: Sequence[str]) -> Path:
    """The file of a split.

    Raises:
      UserError: there is none, or more than one.
    """
    there = [folder / f"{split}{suffix}" for suffix in suffixes if (folder / f"{split}{suffix}").is_file()]
    if not there:
        names = " or ".join(f"{split}{suffix}" for suffix in suffixes)
        raise UserError(f"{folder} has no {names}; give the folder with the task's files as --data_dir")
    if len(there) > 1:
        raise UserError(f"{folder} has {' and '.join(path.name for path in there)}; leave the one that is meant")
    return there[0]


def has(place: str, split: str, suffixes: Sequence[str]) -> bool:
    """Whether a folder, or a TFDS set, has the split."""
    if place.startswith(TFDS):
        return _tfds_name(split) in tfds_splits(place.removeprefix(TFDS))
    return any((Path(place) / f"{split}{suffix}").is_file() for suffix in suffixes)


def digests(place: str, splits: Sequence[str], suffixes: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each split's file, by its name; of TFDS, whose sets have versions, what the set is called.

    Raises:
      UserError: a file is not there.
    """
    if place.startswith(TFDS):
        return {"set": place}
    paths = [find(Path(place), split, suffixes) for split in splits]
    return {path.name: sha256(path) for path in paths}


def read(
    path: Path,
    wanted: Sequence[str],
    faults: BadRows,
    columns: Sequence[str] | None = None,
    also: Sequence[str] = (),
) -> Iterator[Record]:
    """The rows of a file, by its suffix.

    Args:
      path: the file.
      wanted: columns that each row must have.
      faults: told of rows that cannot be used.
      columns: of a table without a first line that names them.
      also: columns that it may have.

    Raises:
      UserError: the file lacks a column.
    """
    if path.suffix == ".jsonl":
        yield from _objects(path, wanted, faults, also)
    else:
        yield from _table(path, wanted, faults, columns)


def lines(path: Path, faults: BadRows) -> Iterator[tuple[int, str]]:
    """(number, text) of each line of a file in UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                faults(f"{path}:{number}", f"byte {line[error.start]:#04x} in column {error.start + 1} is no UTF-8")


def _table(path: Path, wanted: Sequence[str], faults: BadRows, columns: Sequence[str] | None) -> Iterator[Record]:
    header = list(columns or ())
    empty: list[Record] = []
    for number, fields in (_comma_separated if path.suffix == ".csv" else _tab_separated)(path, faults):
        if fields == [""]:
            if len(header) == 1:  # of one column: a row, unless it is the last
                empty.append(Record(f"{path}:{number}", {header[0]: ""}))
        elif not header:
            header = fields
            _check_columns(path, wanted, header)
            if len({*header}) < len(header):
                raise UserError(f"{path}:{number}: two columns have the same name; rename one of {', '.join(header)}")
        elif len(fields) != len(header):
            what = f"{len(fields)} fields, expected {len(header)} ({', '.join(header)})"
            faults(f"{path}:{number}", what)
        else:
            yield from empty
            empty = []
            yield Record(f"{path}:{number}", dict(zip(header, fields, strict=True)))


def _tab_separated(path: Path, faults: BadRows) -> Iterator[tuple[int, list[str]]]:
    """As GLUE's files are, whose quotation marks are nothing but that."""
    return ((number, line.split("\t")) for number, line in lines(path, faults))


def _comma_separated(path: Path, faults: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Fields may be quoted, and have commas and new lines then (RFC 4180)."""
    csv.field_size_limit(2**31 - 1)
    number = ended = 0

    def counted() -> Iterator[str]:
        nonlocal number
        for at, line in lines(path, faults):
            number = at
            yield line + "\n"

    reader = csv.reader(counted(), strict=True)
    try:
        for fields in reader:
            yield number, fields or [""]
            ended = number
    except csv.Error as error:
        raise UserError(f"{path}:{ended + 1}: {error}; mend the row that begins there") from error


def _objects(path: Path, wanted: Sequence[str], faults: BadRows, also: Sequence[str]) -> Iterator[Record]:
    for number, line in lines(path, faults):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            found = from_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            faults(place, "no JSON object")
            continue
        if half := half_character(*(found.get(column) for column in (*wanted, *also))):
            faults(place, half)
            continue
        missing = [name for name in wanted if name not in found]
        if missing:
            faults(place, f"no {missing[0]!r}, expected {', '.join(map(repr, wanted))}")
            continue
        yield Record(place, found)


def half_character(*values: Any) -> str:
    """What is wrong with the texts among `values`, if one has a surrogate without its other; else empty."""
    half = _HALF.search("\n".join(value for value in values if isinstance(value, str)))
    return f"half a character, {half[0]!a}" if half else ""


def _check_columns(path: Path, wanted: Sequence[str], header: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in header]
    if missing:
        raise UserError(f"{path}:1: no column {missing[0]!r}; its columns are {', '.join(map(repr, header)) or 'none'}")


def read_tfds(place: str, split: str, wanted: Sequence[str], also: Sequence[str] = ()) -> Iterator[Record]:
    """The rows of a split of a TensorFlow Datasets set; classes by their names, bytes as text, arrays as lists.

    Args:
      place: `tfds:NAME/CONFIG`.
      split: as a folder's files are called.
      wanted: columns that it must have.
      also: columns that it may have.

    Raises:
      UserError: the library, the set, the split or a column is not there.
    """
    split = _tfds_name(split)
    data = tfds_split(place.removeprefix(TFDS), split)
    features = data.dataset_info.features
    missing = [column for column in wanted if column not in features]
    if missing:
        raise UserError(f"{place} has no column {missing[0]!r}; its columns are {', '.join(map(repr, features))}")
    columns = [*wanted, *(column for column in also if column in features)]

    def value_of(column: str, value: Any) -> Any:
        if hasattr(features[column], "int2str"):
            return features[column].int2str(int(value)) if int(value) >= 0 else ""
        return _plain(value)

    for number, record in enumerate(data, 1):
        yield Record(f"{place}:{split}:{number}", {column: value_of(column, record[column]) for column in columns})


def _tfds_name(split: str) -> str:
    return split.replace("dev", "validation")


def _plain(value: Any) -> Any:
    """As JSON would have it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
