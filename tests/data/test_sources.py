import os

import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import source_files, sources
from electra_jax.data.sources import Source


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docstrings", [Source("docstrings", None)]),
        ("a/*.txt", [Source("a/*.txt", None)]),
        (" a.txt ; b ;", [Source("a.txt", None), Source("b", None)]),
        ("a@3;tfds:wiki/20230601.en@1.5", [Source("a", 3.0), Source("tfds:wiki/20230601.en", 1.5)]),
        ("a.txt @ 3", [Source("a.txt", 3.0)]),
        ("me@home/a.txt", [Source("me@home/a.txt", None)]),
        ("me@home/a.txt@2", [Source("me@home/a.txt", 2.0)]),
    ],
)
def test_sources_and_their_weights(text, found):
    assert sources.parse(text) == found


def test_a_number_in_the_name_of_a_file_is_no_weight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enwiki@20230101").write_text("x")
    (tmp_path / "parts@2").mkdir()
    for name in ("enwiki@20230101", "parts@2", "en*@20230101"):
        assert sources.parse(name) == [Source(name, None)]
        assert sources.parse(f"{name}@2.5;b@1") == [Source(name, 2.5), Source("b", 1.0)]
    assert sources.parse("dewiki@20230101") == [Source("dewiki", 20230101.0)]  # there is no such file
    for name in ("dewiki@2023_01_01", "dewiki@2023-01-01", "dewiki@0x10", "a@"):
        assert sources.parse(name) == [Source(name, None)]


@pytest.mark.parametrize("pattern", ["enwiki@20230101", "memory://enwiki@20230101"])
def test_a_missing_file_whose_number_was_taken_for_a_weight(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    (source,) = sources.parse(pattern)
    with pytest.raises(UserError, match=r"enwiki' matches no file: .*; @20230101 was read as its weight$"):
        list(sources.units([source], 9))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz"])
def test_a_table_is_no_prose(tmp_path, name):
    make(tmp_path, [name, "b.txt"])
    for pattern in (tmp_path / name, tmp_path / "*"):
        with pytest.raises(UserError, match=rf"{name} is a table by its suffix: expected text, JSON lines or Parquet"):
            sources.fingerprint(sources.parse(str(pattern)))
    assert sources.left_out(sources.parse(str(tmp_path))) == [str(tmp_path / name)]


@pytest.mark.parametrize("text", ["a@0", "a@-1;b@1", "a@1;b", "a;b@1", "a@nan", "a@inf"])
def test_invalid_weights_are_refused(text):
    with pytest.raises(UserError, match=r"has invalid weights: expected NAME@WEIGHT, above 0, for all sources or none"):
        sources.parse(text)


@pytest.mark.parametrize("text", ["", " ; ", "@3"])
def test_no_source_is_refused(text):
    with pytest.raises(UserError, match="names no source: expected files, a folder"):
        sources.parse(text)


def make(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def below(folder, paths):
    return [os.path.relpath(file.name, folder) for file in paths]


def test_files_of_a_glob_are_sorted(tmp_path):
    make(tmp_path, ["sub/c.txt", "b.txt", "a.txt", "no.md"])
    assert below(tmp_path, source_files.files(str(tmp_path / "**" / "*.txt"))) == ["a.txt", "b.txt", "sub/c.txt"]
    assert below(tmp_path, source_files.files(str(tmp_path / "no.md"))) == ["no.md"]


def test_what_is_left_out_of_all_sources_is_listed(tmp_path):
    make(tmp_path, ["a/b.txt", "a/c.md", "d/e.txt", "d/f.md"])
    left = sources.left_out(sources.parse(f"{tmp_path}/a;{tmp_path}/d;docstrings"))
    assert left == [str(tmp_path / name) for name in ("a/c.md", "d/f.md")]


def test_links_are_followed_and_broken_ones_named(tmp_path):
    make(tmp_path, ["in/a.txt", "elsewhere/b.txt"])
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    assert below(tmp_path / "in", source_files.files(str(tmp_path / "in"))) == ["a.txt", "link/b.txt"]
    assert sources.left_out(sources.parse(str(tmp_path / "in"))) == [str(tmp_path / "in" / "gone.txt")]


def test_folders_that_a_glob_matches_are_left_out(tmp_path):
    make(tmp_path, ["a.txt", "sub/b.txt"])
    assert sources.left_out(sources.parse(f"{tmp_path}/*")) == [str(tmp_path / "sub")]
    assert sources.left_out(sources.parse(f"{tmp_path}/**")) == []


@pytest.mark.parametrize("pattern", ["none.txt", "*.none", "docstring"])
def test_a_pattern_without_a_file_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    for use in (sources.fingerprint, lambda these: list(sources.units(these, 9))):
        with pytest.raises(UserError, match=r"input='.*' matches no file: expected files, a folder") as error:
            use(sources.parse(pattern))
        assert repr(pattern) in str(error.value)


def test_a_folder_without_text_is_refused(tmp_path):
    make(tmp_path, ["a.png"])
    with pytest.raises(UserError, match="holds no text"):
        source_files.files(str(tmp_path))


def test_small_files_are_read_together_and_large_ones_alone(tmp_path):
    for name, size in {"a": 4, "b": 4, "c": 30, "d": 1, "e.jsonl": 1, "f": 2}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    found = list(sources.units([Source(str(tmp_path), None), Source("docstrings:json,email", None)], 8))
    assert [
        (unit.source, unit.kind, [name[-7:].split("/")[-1] for name in unit.names], unit.size) for unit in found[:-1]
    ] == [
        (0, "text", ["a", "b"], 8),
        (0, "text", ["c"], 30),
        (0, "text", ["d"], 1),
        (0, "json", ["e.jsonl"], 1),
        (0, "text", ["f"], 2),
    ]
    assert found[-1] == sources.Unit(1, "docstrings", ("json,email",), 0)


def test_the_fingerprint_changes_with_the_files(tmp_path):
    path, these = tmp_path / "a.txt", [Source(str(tmp_path / "*.txt"), None)]
    path.write_text("One line.\n")
    seen = [sources.fingerprint(these)]
    assert sources.fingerprint(these) == seen[0]

    path.write_text("One more line.\n")
    os.utime(path, ns=(1, 1))
    seen.append(sources.fingerprint(these))
    os.utime(path, ns=(1, 2))  # same size, as after another text of the same length
    seen.append(sources.fingerprint(these))
    path.rename(tmp_path / "b.txt")
    seen.append(sources.fingerprint(these))
    (tmp_path / "c.txt").write_text("")
    seen.append(sources.fingerprint(these))
    assert len(set(map(tuple, seen))) == 5


def test_sources_without_files_have_a_fingerprint():
    assert sources.fingerprint(sources.parse("docstrings:json")) == sources.fingerprint(sources.parse("docstrings"))
    assert sources.fingerprint(sources.parse("docstrings"))[0].startswith("python ")
    assert sources.fingerprint(sources.parse("tfds:wiki/1.0")) != sources.fingerprint(sources.parse("tfds:wiki/2.0"))
