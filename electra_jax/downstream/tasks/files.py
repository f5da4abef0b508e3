"""Readers of tables: `.tsv`, `.csv` and `.jsonl` files and TensorFlow Datasets, as records with named columns."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data import formats
from electra_jax.data.named_sets import tfds_split, tfds_splits
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.runtime.io import from_json, sha256

TFDS = "tfds:"
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can escape one, no encoding can hold one


class Record(NamedTuple):
    """A row of a table.

    Attributes:
      place: file and line.
      values: the row's values by column: text, or values of JSON or TFDS.
    """

    place: str
    values: dict[str, Any]


def find_split(folder: Path, split: str, suffixes: Sequence[str]) -> Path:
    """Returns the path of a split's file.

    Raises:
      UserError: there is none, or more than one.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: expected one with the task's files; set --data_dir to it")
    paths = [folder / f"{split}{suffix}" for suffix in suffixes if (folder / f"{split}{suffix}").is_file()]
    if not paths:
        names = " or ".join(f"{split}{suffix}" for suffix in suffixes)
        raise UserError(f"{folder} has no {names}; set --data_dir to the folder with the task's files")
    # Not the first one found: a forgotten older file would be used in silence.
    if len(paths) > 1:
        names = " and ".join(path.name for path in paths)
        raise UserError(f"{folder} has {names}: expected one of them; remove the rest")
    return paths[0]


def has_split(data_dir: str, split: str, suffixes: Sequence[str]) -> bool:
    """True if a folder, or a TFDS dataset, has the split."""
    if data_dir.startswith(TFDS):
        return _tfds_name(split) in tfds_splits(data_dir.removeprefix(TFDS))
    return any((Path(data_dir) / f"{split}{suffix}").is_file() for suffix in suffixes)


def split_digests(data_dir: str, splits: Sequence[str], suffixes: Sequence[str]) -> dict[str, str]:
    """Returns the SHA-256 of each split's file, by file name.

    For TFDS, whose datasets are versioned, it returns the dataset's name instead.

    Raises:
      UserError: a file does not exist.
    """
    if data_dir.startswith(TFDS):
        return {"set": data_dir}
    paths = [find_split(Path(data_dir), split, suffixes) for split in splits]
    return {path.name: sha256(path) for path in paths}


def read_records(
    path: Path,
    required: Sequence[str],
    bad_rows: BadRows,
    columns: Sequence[str] | None = None,
    optional: Sequence[str] = (),
) -> Iterator[Record]:
    """Yields the rows of a file, in the format given by its suffix.

    Args:
      path: the file.
      required: columns that each row must have.
      bad_rows: receives the rows that cannot be used.
      columns: names of all columns, for a table without a header line.
      optional: columns that a row may have.

    Raises:
      UserError: the file lacks a column.
    """
    if path.suffix == ".jsonl":
        yield from _read_json_lines(path, required, bad_rows, optional)
    else:
        yield from _read_table(path, required, bad_rows, columns)


def read_lines(path: Path, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Yields (number, text) of each line of a UTF-8 file.

    Raises:
      UserError: the file is in another encoding, or no text.
    """
    with path.open("rb") as file:
        yield from decode_lines(file, str(path), bad_rows)


def decode_lines(file: IO[bytes], name: str, bad_rows: BadRows) -> Iterator[tuple[int, str]]:
    """Like `read_lines`, for an open file; `name` is its name in errors and in the places of bad rows."""
    for number, line, problem in _decoded(file, name):
        if problem:
            bad_rows.add(f"{name}:{number}", problem)
        else:
            yield number, line


def _decoded(file: IO[bytes], name: str) -> Iterator[tuple[int, str, str]]:
    """Yields (number, text, problem or "") of each line; bytes that are not UTF-8 are replaced by U+FFFD."""
    # In UTF-16, every line would be read as other letters, or be left out.
    formats.check_text(cast(BufferedReader, file).peek(), name)
    for number, line in enumerate(file, 1):
        # A byte order mark can only begin a file; elsewhere U+FEFF belongs to the text.
        encoding, problem = "utf-8-sig" if number == 1 else "utf-8", ""
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            # The text still matters in .csv: its quotation marks say where a row of several lines ends.
            text = line.decode(encoding, errors="replace")
            problem = (
                f"byte {line[error.start]:#04x} in column {error.start + 1} is not valid UTF-8 (convert a file in "
                "another encoding, as with iconv -f cp1252 -t utf-8)"
            )
        yield number, text.rstrip("\r\n"), problem


def _read_table(
    path: Path, required: Sequence[str], bad_rows: BadRows, columns: Sequence[str] | None
) -> Iterator[Record]:
    header = list(columns or ())
    empty: list[Record] = []
    for number, fields in (_split_at_commas if path.suffix == ".csv" else _split_at_tabs)(path, bad_rows):
        place = f"{path}:{number}"
        if fields == [""]:
            if len(header) == 1:  # with a single column, an empty line is a row unless only empty lines follow it
                empty.append(Record(place, {header[0]: ""}))
        elif not header:
            header = fields
            _check_header(path, required, header)
            # `dict(zip(...))` would keep the last of equal columns in silence.
            if len({*header}) < len(header):
                raise UserError(f"{place}: two columns have the same name; rename one of {', '.join(header)}")
        elif len(fields) != len(header):
            bad_rows.add(place, f"{len(fields)} fields, expected {len(header)} ({', '.join(header)})")
        else:
            yield from empty
            empty = []
            yield Record(place, dict(zip(header, fields, strict=True)))
    if not header:
        _check_header(path, required, header)


def _split_at_tabs(path: Path, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) as in GLUE's files, where quotation marks have no special meaning."""
    return ((number, line.split("\t")) for number, line in read_lines(path, bad_rows))


def _split_at_commas(path: Path, bad_rows: BadRows) -> Iterator[tuple[int, list[str]]]:
    """Yields (last line number, fields) of each row; quoted fields may contain commas and line breaks (RFC 4180)."""
    # The default limit is 131,072 characters; the limit itself must fit into a C long, of 32 bits on some platforms.
    csv.field_size_limit(2**31 - 1)
    number = ended = 0
    problems: list[tuple[str, str]] = []  # (place, problem) of each line of the current row that is not UTF-8

    # csv.reader takes text, so the lines that are not UTF-8 are noted before it reads them.
    def numbered_lines(file: IO[bytes]) -> Iterator[str]:
        nonlocal number
        for line_number, line, problem in _decoded(file, str(path)):
            number = line_number
            if problem:
                problems.append((f"{path}:{number}", problem))
            # csv.reader needs the line breaks that quoted fields contain.
            yield line + "\n"

    with path.open("rb") as file:
        # Without `strict`, an open quotation mark would take the rest of the file as one field.
        reader = csv.reader(numbered_lines(file), strict=True)
        try:
            for fields in reader:
                if problems:
                    bad_rows.add(*problems[0])
                    problems.clear()
                else:
                    # csv gives no fields for an empty line, where tabs give one empty field.
                    yield number, fields or [""]
                ended = number
        except csv.Error as error:
            raise UserError(f"{path}:{ended + 1}: {error}; fix the row that begins there") from error


def _read_json_lines(
    path: Path, required: Sequence[str], bad_rows: BadRows, optional: Sequence[str]
) -> Iterator[Record]:
    for number, line in read_lines(path, bad_rows):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = from_json(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            bad_rows.add(place, "not a JSON object")
        # In other columns a surrogate does no harm: nothing reads them.
        elif surrogate := describe_surrogate(*(values.get(column) for column in (*required, *optional))):
            bad_rows.add(place, surrogate)
        elif missing := [name for name in required if name not in values]:
            bad_rows.add(place, f"no {missing[0]!r}, expected {', '.join(map(repr, required))}")
        else:
            yield Record(place, values)


def describe_surrogate(*values: Any) -> str:
    """Describes the first unpaired surrogate in the texts among `values`; empty if there is none."""
    match = _SURROGATE.search("\n".join(value for value in values if isinstance(value, str)))
    return f"unpaired surrogate {match[0]!a}" if match else ""


def _check_header(path: Path, required: Sequence[str], header: Sequence[str]) -> None:
    missing = [name for name in required if name not in header]
    if missing:
        separator = "commas" if path.suffix == ".csv" else "tabs"
        raise UserError(
            f"{path}:1: no column {missing[0]!r}; its columns are {', '.join(map(repr, header)) or 'none'}: expected a "
            f"first line with the names of the columns, separated by {separator}; correct it, or name the columns that "
            "there are"
        )


def read_tfds_records(name: str, split: str, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Yields the rows of a TensorFlow Datasets split, with class names for classes, text for bytes, lists for arrays.

    Args:
      name: `tfds:NAME/CONFIG`.
      split: the split, with the name that its file in a folder would have.
      required: columns that the dataset must have.
      optional: columns that it may have.

    Raises:
      UserError: the library, the dataset, the split or a column is missing.
    """
    split = _tfds_name(split)
    data = tfds_split(name.removeprefix(TFDS), split)
    features = data.dataset_info.features
    missing = [column for column in required if column not in features]
    if missing:
        raise UserError(f"{name} has no column {missing[0]!r}; its columns are {', '.join(map(repr, features))}")
    columns = [*required, *(column for column in optional if column in features)]

    def value_of(column: str, value: Any) -> Any:
        if hasattr(features[column], "int2str"):
            # Hidden labels of test sets are -1, which has no name.
            return features[column].int2str(int(value)) if int(value) >= 0 else ""
        return _to_json_types(value)

    for number, record in enumerate(data, 1):
        yield Record(f"{name}:{split}:{number}", {column: value_of(column, record[column]) for column in columns})


def _tfds_name(split: str) -> str:
    # Also within names: dev_matched is validation_matched there.
    return split.replace("dev", "validation")


def _to_json_types(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {name: _to_json_types(part) for name, part in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_to_json_types(part) for part in value]
    # As JSON would have it: `label_text` knows Python's numbers, not NumPy's.
    return value.item() if isinstance(value, np.generic) else value
