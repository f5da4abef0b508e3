import gzip
import random

import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import readers, sources, tables
from electra_jax.data.config import CorpusConfig
from electra_jax.data.documents import NO_TEXT

pytest.importorskip("pyarrow", reason="pyarrow is an extra")
import pyarrow
from pyarrow import ipc, parquet

TEXTS = [f"Document {n}." for n in range(100)]


def read(path, **settings):
    units = sources.units(sources.parse(str(path)), 2**20)
    return [document for unit in units for document in readers.read_documents(unit, CorpusConfig(**settings))]


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["One.\nTwo.", None, "Three."], "id": [1, 2, 3]}), path)
    found = read(path)
    assert [document.text for document in found] == [b"One.\nTwo.", b"", b"Three."]
    assert [document.place for document in found] == [f"{path}:{row}" for row in (1, 2, 3)]
    assert found[-1].position == path.stat().st_size
    with pytest.raises(UserError, match=r"a.parquet has no field 'body'; name one of these with --field=: text, id"):
        read(path, field="body")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"a.parquet: broken Parquet file"):
        read(path)


def test_parquet_text_that_is_no_utf8_is_mended_like_any_other(tmp_path):
    broken = pyarrow.array([b"good", b"caf\xe9", None])
    path = tmp_path / "a.parquet"
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(broken), broken.buffers())
    parquet.write_table(pyarrow.table({"text": text}), path)
    assert [document.text for document in read(path)] == [b"good", b"caf\xe9", b""]
    parquet.write_table(pyarrow.table({"text": [["a"]]}), path)
    with pytest.raises(UserError, match=r"a.parquet:1: field 'text' is of type list: expected text"):
        read(path)


def test_long_parquet_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BATCH", 10_000)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{n} " * 500 for n in range(100)]}), path)
    with parquet.ParquetFile(path) as file:
        assert 5 <= tables._rows_at_a_time(file.metadata) <= 20
    assert len(read(path)) == 100


def write_arrow(path, table, file_format, rows=7):
    make = ipc.new_file if file_format else ipc.new_stream
    with pyarrow.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.fixture(params=["stream", "file", "parquet"])
def table_file(tmp_path, request):
    """A table of 100 texts in 15 batches or row groups."""
    table = pyarrow.table({"text": TEXTS, "id": list(range(100))})
    path = tmp_path / ("a.parquet" if request.param == "parquet" else "a.arrow")
    if request.param == "parquet":
        parquet.write_table(table, path, row_group_size=7)
    else:
        write_arrow(path, table, request.param == "file")
    return path


def test_a_table_is_its_rows_in_order(table_file):
    found = read(table_file)
    assert [document.text.decode() for document in found] == TEXTS
    assert [document.place for document in found] == [f"{table_file}:{row}" for row in range(1, 101)]
    positions = [document.position for document in found]
    assert positions == sorted(positions)
    assert 0.9 * table_file.stat().st_size < positions[-1] <= table_file.stat().st_size
    with pytest.raises(UserError, match=r" has no field 'body'; name one of these with --field=: text, id"):
        read(table_file, field="body")


@pytest.mark.parametrize("parts", [1, 2, 3, 40])
def test_the_parts_of_a_table_are_the_table(table_file, monkeypatch, parts):
    size = table_file.stat().st_size
    monkeypatch.setattr(sources, "_PART", size // parts)
    units = list(sources.units(sources.parse(str(table_file)), 1))
    assert len(units) >= parts
    found = [list(readers.read_documents(unit, CorpusConfig())) for unit in units]
    assert [document.text.decode() for part in found for document in part] == TEXTS
    assert [document.place for part in found for document in part] == [f"{table_file}:{row}" for row in range(1, 101)]
    if parts == 3:
        assert all(15 < len(part) < 60 for part in found)
    for unit, part in zip(units, found, strict=True):
        assert all(0 <= document.position <= size / len(units) + 1000 for document in part), unit


def test_a_large_table_between_small_files_is_in_order(tmp_path, monkeypatch):
    for name, rows in {"a": 1, "b": 100, "c": 1}.items():
        table = pyarrow.table({"text": [f"{name}{n}" for n in range(rows)]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    monkeypatch.setattr(sources, "_PART", (tmp_path / "b.parquet").stat().st_size // 2)
    found = [document.text.decode() for document in read(tmp_path)]
    assert found == ["a0", *(f"b{n}" for n in range(100)), "c0"]


def test_null_and_broken_texts_of_arrow(tmp_path):
    broken = pyarrow.array([b"good", b"caf\xe9", None])
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(broken), broken.buffers())
    write_arrow(tmp_path / "a.arrow", pyarrow.table({"text": text}), False)
    found = read(tmp_path / "a.arrow")
    assert [document.text for document in found] == [b"good", b"caf\xe9", b""]
    assert found[2].note == NO_TEXT


@pytest.mark.parametrize("file_format", [True, False])
def test_a_broken_arrow_file_is_refused(tmp_path, file_format):
    path = tmp_path / "a.arrow"
    write_arrow(path, pyarrow.table({"text": TEXTS}), file_format)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2 + 3], random.Random(0).randbytes(1000), b""):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"^.*a.arrow: broken Arrow file \(.*\); download it again$"):
            read(path)


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


def test_a_column_of_times_is_refused_as_no_text(tmp_path):
    parquet.write_table(pyarrow.table({"text": pyarrow.array([1], pyarrow.timestamp("s"))}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet:1: field 'text' is of type datetime: expected text"):
        read(tmp_path / "a.parquet")


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
