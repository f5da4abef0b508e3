import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import records
from electra_jax.data.records import BLOCK

SIZES = [5 * BLOCK + 7, 1, BLOCK, 3]


def ids_of(size, dtype=np.uint16):
    return np.random.default_rng(size).integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)


def make(folder, sizes=SIZES, dtype=np.uint16):
    """(shards, the same ids in memory)."""
    arrays = [ids_of(size, dtype) for size in sizes]
    files = [folder / f"{number}.array_record" for number in range(len(sizes))]
    for file, ids in zip(files, arrays, strict=True):
        records.write(file, ids)
    return records.Shards(files, sizes, dtype), np.concatenate(arrays)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return make(tmp_path_factory.mktemp("records"))


def test_offsets_and_spans():
    assert records.offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert records.offsets([]).tolist() == [0]
    assert records.spans(np.array([7, 1, 4]), np.array([2, 0, 3])).tolist() == [7, 8, 4, 5, 6]
    assert records.spans(np.zeros(0, int), np.zeros(0, int)).tolist() == []


@given(st.data())
@settings(max_examples=150)
def test_pieces_are_those_of_the_array_wherever_they_lie(written, data):
    shards, ids = written
    starts = np.cumsum([0, *SIZES])
    pieces = []
    for _ in range(data.draw(st.integers(0, 9))):
        shard = data.draw(st.integers(0, len(SIZES) - 1))
        begin = data.draw(st.integers(0, SIZES[shard] - 1))
        pieces.append((starts[shard] + begin, data.draw(st.integers(0, SIZES[shard] - begin))))
    begins, lengths = np.array(pieces, np.int64).reshape(-1, 2).T
    assert len(shards) == len(ids)
    expected = np.concatenate([ids[:0], *(ids[b : b + n] for b, n in pieces)])
    np.testing.assert_array_equal(shards.take(begins, lengths), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_ids_of_each_width(tmp_path, dtype):
    shards, ids = make(tmp_path, [BLOCK + 1], dtype)
    found = shards.take(np.array([0]), np.array([BLOCK + 1]))
    np.testing.assert_array_equal(found, ids)
    assert found.dtype == dtype


@pytest.mark.parametrize("where", [0.3, 0.5, 0.9])
def test_a_damaged_record_is_refused_naming_the_file(tmp_path, where):
    shards, ids = make(tmp_path, [200 * BLOCK])
    file = tmp_path / "0.array_record"
    data = bytearray(file.read_bytes())
    data[int(where * 400 * BLOCK)] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"0.array_record is damaged \(.*hash.*\); delete it and the man"):
        shards.take(np.array([0]), np.array([len(ids)]))


def test_a_file_cut_short_is_refused(tmp_path):
    shards, ids = make(tmp_path, [200 * BLOCK])
    file = tmp_path / "0.array_record"
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(UserError, match=r"0.array_record is damaged"):
        shards.take(np.array([0]), np.array([len(ids)]))


def test_a_file_of_another_shard_is_refused(tmp_path):
    shards, ids = make(tmp_path, [BLOCK + 1, BLOCK + 2])
    (tmp_path / "0.array_record").write_bytes((tmp_path / "1.array_record").read_bytes())
    with pytest.raises(UserError, match=r"0\.array_record is damaged \(record 1 has \d+ bytes\)"):
        shards.take(np.array([0]), np.array([len(ids)]))


def test_of_many_files_few_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_openable", lambda files: 2)
    shards, ids = make(tmp_path, [BLOCK] * 6)
    for number in (3, 3, 0, 5, 3, 4, 1, 2, 3):
        begin = number * BLOCK + 7
        np.testing.assert_array_equal(shards.take(np.array([begin]), np.array([5])), ids[begin : begin + 5])
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert sorted(link for link in links if link.startswith(str(tmp_path))) == [
        str(tmp_path / f"{number}.array_record") for number in (2, 3)
    ]


@pytest.mark.parametrize(
    ("limits", "files", "expected", "set_to"),
    [
        ((1024, 1024), 100, 100, None),
        ((1024, 1024), 3000, 256, None),
        ((1024, 65536), 3000, 3000, 12000),
        ((1024, 4096), 3000, 1024, 4096),
        ((1024, resource.RLIM_INFINITY), 3000, 3000, 12000),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 3000, 3000, None),
    ],
)
def test_how_many_files_may_stay_open(limits, files, expected, set_to, monkeypatch):
    made = []
    monkeypatch.setattr(records.resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(records.resource, "setrlimit", lambda kind, both: made.append(both))
    assert records._openable(files) == expected
    assert made == ([] if set_to is None else [(set_to, limits[1])])


def test_too_many_open_files_are_no_damage(written, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("open() failed: Too many open files; path: x")

    monkeypatch.setattr(records, "ArrayRecordReader", refuse)
    shards = records.Shards([Path("x")], [5], np.uint16)
    with pytest.raises(UserError, match=r"^this process has too many open files; allow more: ulimit -n 65536$"):
        shards.take(np.array([0]), np.array([1]))
