import json
import os
from pathlib import Path

import fsspec
import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import readers, source_files, sources
from electra_jax.data.config import CorpusConfig


@pytest.fixture
def store():
    """A store in memory, empty before and after."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def names(pattern):
    return [file.name for file in source_files.list_files(pattern)[0]]


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="/b'"):
        source_files.list_files(str(tmp_path))


def test_a_folder_in_a_store_is_listed_as_one_of_this_machine(tmp_path, store):
    found = ["AA/wiki_00", "b.TXT", "c.jsonl.zst", "d.parquet", "e.json", "f.txt.xz", "w.warc.wet.gz"]
    for name in (*found, "README.md", ".hidden/a.txt", ".b.txt", "image.png.gz", "tool.py"):
        store.pipe(f"/text/{name}", b"x")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names("memory://text") == [f"memory:///text/{name}" for name in found]
    assert names(str(tmp_path)) == [str(tmp_path / name) for name in found]
    for folder in ("memory://text", str(tmp_path)):
        left_out = [Path(name).name for name in source_files.list_files(folder)[1]]
        assert left_out == ["README.md", "image.png.gz", "tool.py"]
    assert names("memory://text/*.md") == ["memory:///text/README.md"]
    assert names("memory://text/.hidden") == ["memory:///text/.hidden/a.txt"]
    assert names(str(tmp_path / ".hidden")) == [str(tmp_path / ".hidden" / "a.txt")]


def test_files_of_a_store_are_read_as_those_of_this_machine(tmp_path, store):
    import gzip
    import lzma

    files = {
        "a.txt": b"One.\n\nTwo.",
        "b.txt.xz": lzma.compress(b"Three.\n\nFour."),
        "c.jsonl.gz": gzip.compress(b'{"text": "Five."}\n'),
        "d.wet": b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 4\r\n\r\nSix.\r\n\r\n",
    }
    for name, content in files.items():
        store.pipe(f"/text/{name}", content)
        (tmp_path / name).write_bytes(content)

    def read(pattern):
        units = sources.units(sources.parse(pattern), 10)
        return [document for unit in units for document in readers.read_documents(unit, CorpusConfig())]

    there, here = read("memory://text"), read(str(tmp_path))
    assert [each.text.decode() for each in there] == ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]
    assert [each.place.removeprefix("memory:///text") for each in there] == [
        each.place.removeprefix(str(tmp_path)) for each in here
    ]
    assert [each._replace(place="") for each in there] == [each._replace(place="") for each in here]
    before = sources.fingerprint(sources.parse("memory://text"))
    store.pipe("/text/a.txt", files["a.txt"])
    assert sources.fingerprint(sources.parse("memory://text")) != before


def test_tables_of_a_store(store):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    from pyarrow import ipc, parquet

    table = pyarrow.table({"text": ["One.", "Two."]})
    with store.open("/a.parquet", "wb") as file:
        parquet.write_table(table, file)
    with store.open("/b.arrow", "wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    units = sources.units(sources.parse("memory://"), 10)
    found = [each for unit in units for each in readers.read_documents(unit, CorpusConfig())]
    assert [each.text for each in found] == [b"One.", b"Two."] * 2


def save(folder, shards):
    """As `save_to_disk` of the package datasets, but with the texts of other files."""
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in shards]}))
    for name in shards:
        (folder / name).write_bytes(b"")


def test_a_saved_set_is_the_files_of_its_state_in_their_order(tmp_path):
    save(tmp_path / "saved", ["b.arrow", "a.arrow"])
    (tmp_path / "saved" / "cache-1.arrow").write_bytes(b"")
    (tmp_path / "z.txt").write_text("")
    for pattern in (str(tmp_path), f"file://{tmp_path}"):
        assert [Path(name).name for name in names(pattern)] == ["b.arrow", "a.arrow", "z.txt"]
        assert source_files.list_files(pattern)[1] == []
    (tmp_path / "saved" / "a.arrow").unlink()
    with pytest.raises(UserError, match=r"a.arrow is missing, which state.json beside it names; copy the whole folder"):
        names(str(tmp_path / "saved"))
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state.json is not the state of a saved data set .*; save the set again"):
        names(str(tmp_path / "saved"))


@pytest.mark.parametrize(("splits", "advised"), [(["test", "train"], "train"), (["b", "a"], "a")])
def test_of_several_splits_one_must_be_named(tmp_path, splits, advised):
    (tmp_path / "dataset_dict.json").write_text("{}")
    for split in splits:
        save(tmp_path / split, ["data.arrow"])
    with pytest.raises(UserError, match=rf"splits of a saved data set .*; name its folder, as {tmp_path}/{advised}$"):
        names(str(tmp_path))
    assert names(str(tmp_path / "a" if "a" in splits else tmp_path / "train"))


@pytest.mark.slow
def test_what_the_package_datasets_saves_is_read_in_order(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is an extra")
    texts = [f"Document {n}." for n in range(50)]
    made = datasets.Dataset.from_dict({"text": texts})
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    datasets.DatasetDict({"train": made.shuffle(seed=1), "test": made}).save_to_disk(tmp_path / "splits")
    for name, expected in {"saved": texts, "splits/test": texts, "splits/train": made.shuffle(seed=1)["text"]}.items():
        units = sources.units(sources.parse(str(tmp_path / name)), 1)
        found = [each.text.decode() for unit in units for each in readers.read_documents(unit, CorpusConfig())]
        assert found == list(expected)
