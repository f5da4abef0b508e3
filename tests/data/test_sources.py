import bz2
import gzip
import lzma
import os

import pytest

from electra_jax.data import sources
from electra_jax.errors import UserError

TEXT = "First line.\nSecond  line,\twith spaces. \n\n\n \t\nAn ümlaut.\r\n\r\nThe last, without a line end."
LINES = [["First line.", "Second line, with spaces."], ["An ümlaut."], ["The last, without a line end."]]
COMPRESS = {".txt": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
MANY = "\n\n".join(f"Document {n} says {n * n * 7919 % 10007}." for n in range(2000)).encode()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_blank_lines_part_documents_in_each_kind_of_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT.encode()))
    names = [f"a{suffix}:{number}" for number in range(3)]
    assert list(sources.read_documents(str(path))) == list(zip(names, LINES, strict=True))


def test_files_are_read_in_the_order_of_their_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("sub/c.txt", "b.txt", "a.txt", "no.md"):
        (tmp_path / name).write_text(f"{name}\n")
    documents = list(sources.read_documents(str(tmp_path / "**" / "*.txt")))
    assert documents == [("a.txt:0", ["a.txt"]), ("b.txt:0", ["b.txt"]), ("c.txt:0", ["sub/c.txt"])]


def test_names_stay_when_other_files_come_and_the_folder_moves(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "b.txt").write_text(TEXT)
    before = list(sources.read_documents(str(tmp_path / "old" / "*.txt")))
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new" / "a.txt").write_text("One more.\n")
    after = list(sources.read_documents(str(tmp_path / "new" / "*.txt")))
    assert after == [("a.txt:0", ["One more."]), *before]


@pytest.mark.parametrize("pattern", ["none.txt", "*.none", "folder", "docstring"])
def test_pattern_without_a_file_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for use in (sources.fingerprint, lambda source: list(sources.read_documents(source))):
        with pytest.raises(UserError, match=r"config\.data\.input=.* matches no file") as error:
            use(pattern)
        assert repr(pattern) in str(error.value)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_text_that_is_not_utf8_is_refused_naming_the_file(tmp_path, suffix):
    path = tmp_path / f"latin{suffix}"
    path.write_bytes(COMPRESS[suffix]("Erste Zeile.\n\nGrüße.\n".encode("latin-1")))
    with pytest.raises(UserError, match=rf"latin{suffix}.*not UTF-8"):
        list(sources.read_documents(str(path)))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
@pytest.mark.parametrize(
    "breakage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"this was never compressed",
        # Byte 10 begins the gzip data, the first block's kind in its lowest bits; it lies in the header of the others.
        lambda data: data[:10] + bytes([data[10] ^ 6]) + data[11:],
        lambda data: data[:-8] + bytes(byte ^ 90 for byte in data[-8:]),
    ],
    ids=["truncated", "not compressed", "head changed", "tail changed"],
)
def test_broken_compressed_file_is_refused_naming_the_file(tmp_path, suffix, breakage):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(breakage(COMPRESS[suffix](MANY)))
    with pytest.raises(UserError, match=rf"broken{suffix}.*broken compressed file"):
        list(sources.read_documents(str(path)))


def test_fingerprint_changes_with_the_files(tmp_path):
    path, pattern = tmp_path / "a.txt", str(tmp_path / "*.txt")
    path.write_text("One line.\n")
    seen = [sources.fingerprint(pattern)]
    assert sources.fingerprint(pattern) == seen[0]

    path.write_text("One more line.\n")
    os.utime(path, ns=(1, 1))
    seen.append(sources.fingerprint(pattern))
    os.utime(path, ns=(1, 2))  # same size, as after another text of the same length
    seen.append(sources.fingerprint(pattern))
    path.rename(tmp_path / "b.txt")
    seen.append(sources.fingerprint(pattern))
    (tmp_path / "c.txt").write_text("")
    seen.append(sources.fingerprint(pattern))
    assert len(set(seen)) == 5


def test_docstrings_of_the_packages_named():
    names = [name for name, _ in sources.read_documents("docstrings:json,argparse")]
    assert {name.split(".")[0] for name in names} == {"json", "argparse"}
    assert names == sorted(names)


def test_docstrings_have_a_fingerprint_without_files():
    assert sources.fingerprint("docstrings:json") == sources.fingerprint("docstrings")
    assert sources.fingerprint("docstrings").startswith("python ")
