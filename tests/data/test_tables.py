import gzip
import random

import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import readers, source_files, sources, tables
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import NO_TEXT

pytest.importorskip("pyarrow", reason="pyarrow is an extra")
import pyarrow
from pyarrow import ipc, parquet

TEXTS = [f"Document {n}." for n in range(100)]


def read(path, **settings):
    units = sources.units(sources.parse(str(path)), 2**20)
    return [document for unit in units for document in readers.read_documents(unit, CorpusConfig(**settings))]


@pytest.fixture(params=["stream.arrow", "file.arrow", "a.parquet"])
def path(tmp_path, request):
    return tmp_path / request.param


def write(path, table, rows=7):
    """In batches or row groups of some rows; the name says the format."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows)
        return
    make = ipc.new_file if path.stem == "file" else ipc.new_stream
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def test_text_that_is_null_or_no_utf8_is_mended_like_any_other(path):
    broken = pyarrow.array([b"good", b"caf\xe9", None])
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(broken), broken.buffers())
    write(path, pyarrow.table({"text": text}))
    assert [(each.text, each.note) for each in read(path)] == [(b"good", ""), (b"caf\xe9", ""), (b"", NO_TEXT)]


@pytest.mark.parametrize(
    ("values", "kind"), [([["a"]], "list"), (pyarrow.array([1], pyarrow.timestamp("s")), "datetime")]
)
def test_a_column_of_another_type_is_refused(tmp_path, values, kind):
    write(tmp_path / "a.parquet", pyarrow.table({"text": values}))
    with pytest.raises(UserError, match=rf"a.parquet:1: field 'text' is of type {kind}: expected text"):
        read(tmp_path / "a.parquet")


def test_long_parquet_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BATCH", 10_000)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{n} " * 500 for n in range(100)]}), path)
    rows, documents = [], tables._documents
    monkeypatch.setattr(tables, "_documents", lambda column, *of: rows.append(len(column)) or documents(column, *of))
    assert len(read(path)) == sum(rows) == 100
    assert 5 <= max(rows) <= 20


@pytest.fixture
def table_file(path):
    """A table of 100 texts in 15 batches or row groups."""
    write(path, pyarrow.table({"text": TEXTS, "id": list(range(100))}))
    return path


def test_a_table_is_its_rows_in_order(table_file):
    found = read(table_file)
    assert [document.text.decode() for document in found] == TEXTS
    assert [document.place for document in found] == [f"{table_file}:{row}" for row in range(1, 101)]
    positions = [document.position for document in found]
    assert positions == sorted(positions)
    size = table_file.stat().st_size
    assert (1 if table_file.suffix == ".parquet" else 0.9) * size <= positions[-1] <= size
    with pytest.raises(UserError, match=r" has no field 'body'; name one of these with --field=: text, id"):
        read(table_file, field="body")


@pytest.mark.parametrize("parts", [1, 2, 3, 40])
def test_the_parts_of_a_table_are_the_table(table_file, monkeypatch, parts):
    size = table_file.stat().st_size
    monkeypatch.setattr(source_files, "_PART", size // parts)
    units = list(sources.units(sources.parse(str(table_file)), 1))
    assert len(units) >= parts
    found = [list(readers.read_documents(unit, CorpusConfig())) for unit in units]
    assert [document.text.decode() for part in found for document in part] == TEXTS
    assert [document.place for part in found for document in part] == [f"{table_file}:{row}" for row in range(1, 101)]
    if parts == 3:
        assert all(15 < len(part) < 60 and part[-1].position > size / 6 for part in found)
    for unit, part in zip(units, found, strict=True):
        assert all(0 <= document.position <= size / len(units) + 1000 for document in part), unit


def test_a_large_table_between_small_files_is_in_order(tmp_path, monkeypatch):
    for name, rows in {"a": 1, "b": 100, "c": 1}.items():
        table = pyarrow.table({"text": [f"{name}{n}" for n in range(rows)]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    monkeypatch.setattr(source_files, "_PART", (tmp_path / "b.parquet").stat().st_size // 2)
    found = [document.text.decode() for document in read(tmp_path)]
    assert found == ["a0", *(f"b{n}" for n in range(100)), "c0"]


def test_a_broken_table_is_refused(table_file):
    whole, kind = table_file.read_bytes(), "Parquet" if table_file.suffix == ".parquet" else "Arrow"
    for broken in (whole[: len(whole) // 2 + 3], whole[:-30], random.Random(0).randbytes(1000), b""):
        table_file.write_bytes(broken)
        with pytest.raises(UserError, match=rf"^{table_file}: broken {kind} file \(.*\); download it again$"):
            read(table_file)


def test_an_arrow_stream_that_ends_between_batches_is_refused(tmp_path):
    path = tmp_path / "a.arrow"
    with ipc.new_stream(path, pyarrow.schema([("text", pyarrow.string())])) as writer:
        writer.write_table(pyarrow.table({"text": TEXTS}))
        writer.write_table(pyarrow.table({"text": TEXTS}))
    whole = path.read_bytes()
    assert len(read(path)) == 2 * len(TEXTS)
    path.write_bytes(whole[:-8])
    with pytest.raises(UserError, match=r"a\.arrow: broken Arrow file \(the stream has no mark of its end"):
        read(path)


@pytest.mark.parametrize("name", ["part-0", "a.txt", "a.jsonl"])
def test_tables_are_told_by_their_bytes(tmp_path, name):
    path, table = tmp_path / name, pyarrow.table({"text": ["One.", "Two."]})
    parquet.write_table(table, path)
    assert [(each.text, each.place) for each in read(path)] == [(b"One.", f"{path}:1"), (b"Two.", f"{path}:2")]
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UserError, match=rf"{name} is a table that was compressed again; unpack it"):
        read(path)
    named = path.rename(tmp_path / "a.parquet.gz")
    with pytest.raises(UserError, match=r"a\.parquet\.gz is a table that was compressed again; unpack it"):
        read(named)
    parquet.write_table(table.slice(0, 0), path)
    assert read(path) == []
    for new in (ipc.new_file, ipc.new_stream):
        with new(path, table.schema) as writer:
            writer.write_table(table)
        assert [each.text for each in read(path)] == [b"One.", b"Two."]
