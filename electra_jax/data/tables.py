"""Reads text from a column of Parquet and Arrow files. Parts of a file can be read independently."""

import contextlib
from collections.abc import Iterator
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.data import compression
from electra_jax.data.documents import Document, from_fields, no_field
from electra_jax.data.input_file import open_binary
from electra_jax.runtime.io import is_url

_BATCH = 2**24  # bytes of Parquet rows read together
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_ARROW_FILE = b"ARROW1"  # magic of the file format; the other is the stream format, which `datasets` writes


def read_parquet(name: str, field: str, part: tuple[int, int] = (0, 1)) -> Iterator[Document]:
    """Yields the texts of a Parquet file in order.

    Args:
      name: a path or an address.
      field: the column.
      part: (index of the part, number of parts): which of the row groups are read.

    Raises:
      UserError: the file is broken or has no such column, or pyarrow is missing.
    """
    with _pyarrow(name, "Parquet") as pyarrow, open_binary(name) as raw, pyarrow.parquet.ParquetFile(raw) as file:
        _check_field(name, field, file.schema_arrow.names)
        rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        groups, first_row, before = list[int](), 0, 0
        for i, count in enumerate(rows):
            if _is_in(part, before, sum(rows)):
                first_row = first_row if groups else before
                groups.append(i)
            before += count
        if not groups:
            return
        # The default, 65,536 rows at a time, would take gigabytes for long texts.
        batches = file.iter_batches(_rows_at_a_time(file.metadata), row_groups=groups, columns=[field])
        size = _size(raw)
        for batch in batches:
            for document in _documents(batch.column(0), field, name, first_row):
                first_row += 1
                yield document._replace(position=_position(size, part, first_row, sum(rows)))


def read_arrow(name: str, field: str, part: tuple[int, int] = (0, 1)) -> Iterator[Document]:
    """Yields the texts of an Arrow file, in the file format or the stream format, in order.

    Args:
      name: a path or an address.
      field: the column.
      part: (index of the part, number of parts): which of the batches are read.

    Raises:
      UserError: the file is broken or has no such column, or pyarrow is missing.
    """
    with _pyarrow(name, "Arrow") as pyarrow, _map(name, pyarrow) as source:
        size, first_row = source.size(), 0
        for batch, begin in _batches(source, pyarrow):
            _check_field(name, field, batch.schema.names)
            if _is_in(part, begin, size):
                for i, document in enumerate(_documents(batch.column(field), field, name, first_row)):
                    position = begin + i * batch.nbytes // batch.num_rows
                    yield document._replace(position=_position(size, part, position, size))
            # Also for other parts: a place is a row of the file.
            first_row += batch.num_rows


def _map(name: str, pyarrow: Any) -> Any:
    """Opens a file for Arrow; a local file is memory-mapped, so that batches of other parts are not read."""
    return pyarrow.PythonFile(open_binary(name)) if is_url(name) else pyarrow.memory_map(name)


def _batches(source: Any, pyarrow: Any) -> Iterator[tuple[Any, int]]:
    """Yields (batch, byte where it begins) of an Arrow file; in the file format, the byte is interpolated linearly."""
    is_file = source.read(len(_ARROW_FILE)) == _ARROW_FILE
    source.seek(0)
    if is_file:
        reader = pyarrow.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i), source.size() * i // reader.num_record_batches
        return
    # A stream has no index: every batch is visited, but of a memory-mapped one only the header is read.
    reader = pyarrow.ipc.open_stream(source)
    while True:
        begin = source.tell()
        try:
            yield reader.read_next_batch(), begin
        except StopIteration:
            # A writer that was killed between batches leaves no mark of the end.
            source.seek(max(0, source.tell() - len(_STREAM_END)))
            if source.read(len(_STREAM_END)) != _STREAM_END:
                raise pyarrow.ArrowInvalid("the stream has no mark of its end; its writer was not closed") from None
            return


@contextlib.contextmanager
def _pyarrow(name: str, kind: str) -> Iterator[Any]:
    """Context manager that yields pyarrow, for reading `name`, and converts its errors to UserErrors."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{name}: reading {kind} needs pyarrow; pip install 'electra_jax[parquet]'") from error
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError) as error:
        # With an errno, the error is the system's and not Arrow's.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        with open_binary(name) as opened:
            if compression.told_by(opened.read(16)):
                raise compressed(name) from None
        raise UserError(f"{name}: broken {kind} file ({' '.join(str(error).split())}); download it again") from error


def compressed(name: str) -> UserError:
    """Makes the error about a compressed table, in which pyarrow cannot seek."""
    return UserError(f"{name} is a table that was compressed again; unpack it")


def _check_field(name: str, field: str, names: list[str]) -> None:
    if field not in names:
        raise no_field(name, field, names)


def _is_in(part: tuple[int, int], begin: int, size: int) -> bool:
    """True if what begins at `begin` belongs to a part; each `begin` below `size` belongs to exactly one."""
    number, parts = part
    return begin * parts // max(1, size) == number


def _position(size: int, part: tuple[int, int], done: int, total: int) -> int:
    """Returns the bytes read of a part of a file, given that `done` of `total` of the whole file have been read."""
    number, parts = part
    return max(0, size * done // max(1, total) - size * number // parts)


def _size(raw: Any) -> int:
    at = raw.tell()
    size = int(raw.seek(0, 2))
    raw.seek(at)
    return size


def _documents(column: Any, field: str, name: str, row: int) -> Iterator[Document]:
    """Yields the documents of a column that begins after `row` rows of the file."""
    for value in column:
        row += 1
        yield from_fields({field: _value(value)}, field, f"{name}:{row}", 0)


def _rows_at_a_time(metadata: Any) -> int:
    """Returns how many rows of a Parquet file take about `_BATCH` bytes by its metadata, at most 1,024."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    # total_byte_size is that of the decompressed columns.
    bytes_per_row = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return int(min(max(_BATCH / max(1, bytes_per_row), 1), 1024))


def _value(scalar: Any) -> Any:
    """Returns the value of an Arrow scalar; a text as bytes, because it may not be UTF-8."""
    inner = getattr(scalar, "value", None)  # of a dictionary-encoded column; of a time it is a number
    scalar = inner if hasattr(inner, "as_py") else scalar
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes() if scalar.is_valid else None
    return None if scalar is None else scalar.as_py()
