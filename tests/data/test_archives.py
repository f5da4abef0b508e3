import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile

import fsspec
import pytest
import zstandard
from made_files import tar_of, zip_of

from electra_jax.config.errors import UserError
from electra_jax.data import archives, documents, input_file, readers, sources
from electra_jax.data.config import CorpusConfig

FILES = {
    "b/wiki_00": b'{"text": "One.\\n\\nTwo."}\n{"text": "Three."}\n',
    "a.txt": b"\xef\xbb\xbfFour.\n\nFive.\r\nSix.",
    "b/c.txt.gz": gzip.compress(b"Seven.\n"),
    "d.jsonl.zst": zstandard.compress(b'{"text": "Eight."}'),
    "empty.txt": b"",
    "e.txt": lzma.compress(b"Nine."),
    "w.wet": b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 4\r\n\r\nTen.\r\n\r\n",
}
PASSED_OVER = {"__MACOSX/a.txt": b"\0\5\26\7", ".git/x": b"\0", "b/.b.txt": b"no"}
OTHERS = {"README.md": b"no", "b/a.png": b"\x89PNG\0"}
TEXTS = [b"One.\n\nTwo.", b"Three.", b"Four.", b"Five.\nSix.", b"Seven.", b"Eight.", b"Nine.", b"Ten."]
LINES = ["b/wiki_00:1", "b/wiki_00:2", "a.txt:1", "a.txt:3", "b/c.txt.gz:1", "d.jsonl.zst:1", "e.txt:1", "w.wet:1"]


def read(path, **settings):
    units = sources.units(sources.parse(str(path)), 2**20)
    return [each for unit in units for each in readers.read_documents(unit, CorpusConfig(**settings))]


def write(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


PACKED = {
    "a.tar": tar_of(FILES),
    "gnu.tar": tar_of(FILES, tarfile.GNU_FORMAT),
    "a.tar.gz": gzip.compress(tar_of(FILES)),
    "a.tgz": gzip.compress(tar_of(FILES)),
    "urlsf_subset00-0_data.xz": lzma.compress(tar_of(FILES)),
    "a.tar.bz2": bz2.compress(tar_of(FILES)),
    "a.tar.zst": zstandard.compress(tar_of(FILES)),
    "as_text.txt": tar_of(FILES),
    "no_suffix": gzip.compress(tar_of(FILES)),
    "twice.tar.gz": gzip.compress(gzip.compress(tar_of(FILES))),
    "a.zip": zip_of(FILES),
    "stored.zip": zip_of(FILES, zipfile.ZIP_STORED),
    "lzma.zip": zip_of(FILES, zipfile.ZIP_LZMA),
    "a.gz": zip_of(FILES),
    "joined.tar": tar_of(dict([*FILES.items()][:3])) + tar_of(dict([*FILES.items()][3:])),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("block", [7, 2**20])
def test_files_in_an_archive_are_read_as_any_others_in_its_order(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(input_file, "_BLOCK", block)
    path = write(tmp_path, name, PACKED[name])
    found = read(path)
    assert [each.text for each in found] == TEXTS
    assert [each.place.removeprefix(f"{path}/") for each in found] == LINES
    positions = [each.position for each in found]
    assert positions == sorted(positions)
    assert 0 < positions[-1] <= path.stat().st_size


@pytest.mark.parametrize("name", ["s.tar.xz", "s.zip"])
def test_an_archive_in_a_store_and_in_a_pattern(tmp_path, name):
    content = zip_of(FILES) if name.endswith("zip") else lzma.compress(tar_of(FILES))
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pipe(f"/texts/{name}", content)
    files.pipe("/texts/z.txt", b"Last.")
    assert [each.text for each in read("memory://texts/*")] == [*TEXTS, b"Last."]
    files.store.clear()
    write(tmp_path, name, content)
    assert [each.text for each in read(tmp_path / "*")] == TEXTS


def test_in_a_folder_archives_are_left_out_and_named(tmp_path):
    """They are often those of the files beside them."""
    for name in ("a.tar", "a.zip", "a.tgz", "a.tar.gz"):
        write(tmp_path, name, PACKED[name])
    with pytest.raises(
        UserError, match=r"holds no text .*; name those that are text, or archives of texts, by a pattern"
    ):
        read(tmp_path)
    write(tmp_path, "z.txt", b"Last.")
    assert [each.text for each in read(tmp_path)] == [b"Last."]
    assert len(sources.left_out(sources.parse(str(tmp_path)))) == 4
    write(tmp_path, "urlsf_data.xz", lzma.compress(tar_of({"x.txt": b"First."})))  # not an archive by its name
    assert [each.text for each in read(tmp_path)] == [b"First.", b"Last."]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_hidden_files_are_passed_over_and_other_kinds_counted(tmp_path, pack):
    path = write(tmp_path, "a.pack", pack({**PASSED_OVER, **OTHERS, "a.txt": b"One."}))
    found = read(path)
    assert [(each.text, each.note) for each in found] == [
        (b"", documents.OTHER_MEMBER),
        (b"", documents.OTHER_MEMBER),
        (b"One.", ""),
    ]
    assert [each.place for each in found] == [f"{path}/README.md", f"{path}/b/a.png", f"{path}/a.txt:1"]


def test_folders_are_no_files_and_links_are_counted(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (
            ("./b.txt", tarfile.DIRTYPE),
            ("l.txt", tarfile.SYMTYPE),
            ("./b.txt/a.txt", tarfile.REGTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "x", 4 * (kind == tarfile.REGTYPE)
            archive.addfile(info, io.BytesIO(b"One."))
    found = read(write(tmp_path, "a.tar", out.getvalue()))
    assert [(each.place.removeprefix(f"{tmp_path}/a.tar/"), each.text, each.note) for each in found] == [
        ("l.txt", b"", documents.OTHER_MEMBER),
        ("b.txt/a.txt:1", b"One.", ""),
    ]
    zipped = write(tmp_path, "a.zip", zip_of({"folder.txt/": b"", "folder.txt/a": b"One."}))
    assert [each.text for each in read(zipped)] == [b"One."]
    link = zipfile.ZipInfo("l.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr(link, "folder.txt/a")
    assert [(each.text, each.note) for each in read(zipped)] == [(b"One.", ""), (b"", documents.OTHER_MEMBER)]


def test_each_file_of_an_archive_can_be_a_document(tmp_path):
    path = write(tmp_path, "a.tar", tar_of({"a.txt": b"One.\n\nTwo.", "b.txt": b"Three."}))
    assert [each.text for each in read(path, documents="file")] == [b"One.\n\nTwo.", b"Three."]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": b"x", "b.md": b"x"}, r"a.pack is an archive that holds no text \(.txt .*, plain or compressed\)"),
        ({"word/document.xml": b"<x/>", "[Content_Types].xml": b"<x/>"}, "a.pack is an archive that holds no text"),
        ({"a.txt": b"One.", "b.tar.gz": b"x"}, "a.pack/b.tar.gz is an archive or a table in an archive: .*; unpack"),
        ({"a.zip": b"x"}, "a.pack/a.zip is an archive or a table in an archive: .*; unpack .*a.pack$"),
        ({"data.xz": lzma.compress(tar_of({"a": b"x"}))}, "a.pack/data.xz is an archive or a table in an archive"),
        ({"a": zip_of({"a": b"x"})}, "a.pack/a is an archive or a table in an archive"),
        ({"a.parquet": b"PAR1\x15"}, "a.pack/a.parquet is an archive or a table in an archive"),
        ({"x.txt": b"%PDF-1.5"}, "a.pack/x.txt is a PDF: expected text"),
        ({"x": bytes(99)}, "a.pack/x is binary data: expected text"),
        ({"x.gz": b"never compressed"}, "a.pack/x.gz:1: broken compressed file"),
        ({"x.gz": gzip.compress(b"x" * 999)[:-9]}, r"a.pack/x.gz:1: broken compressed file"),
        ({"a.jsonl": b'{"text": "x"}\n{'}, "a.pack/a.jsonl:2 is not JSON"),
    ],
)
def test_what_cannot_be_read_in_an_archive_is_refused(tmp_path, pack, files, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, "a.pack", pack(files)))


def test_an_archive_without_files_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a.zip is an archive that holds no text"):
        read(write(tmp_path, "a.zip", zip_of({})))
    with pytest.raises(UserError, match=r"b.tar is not an archive, as its name says"):  # it is nothing but zeros
        read(write(tmp_path, "b.tar", tar_of({})))


BIG = {f"{n}.txt": random.Random(n).randbytes(1500).hex().encode() for n in range(9)}


@pytest.mark.parametrize("cut", [700, 3000, 5 * 3584, 5 * 3584 + 100, 5 * 3584 + 512, 9 * 3584], ids=range(6))
def test_a_truncated_tar_file_is_refused_wherever_it_ends(tmp_path, cut):
    content = tar_of(BIG)
    assert content[5 * 3584 :].startswith(b"5.txt\0")
    with pytest.raises(UserError, match=r"a.tar.*: broken archive \(.*\); download it again"):
        read(write(tmp_path, "a.tar", content[:cut]))
    with pytest.raises(UserError, match=r"a.tar.gz.*: broken (archive|compressed file) \(.*\); download it again"):
        read(write(tmp_path, "a.tar.gz", gzip.compress(content)[: cut // 4]))


def test_a_damaged_header_is_not_the_end(tmp_path):
    content = bytearray(tar_of(BIG))
    content[5 * 3584 + 3] ^= 1
    with pytest.raises(UserError, match=r"a.tar: broken archive \(header at byte 17920: bad checksum\); download"):
        read(write(tmp_path, "a.tar", bytes(content)))


def test_data_after_the_end_is_not_passed_over(tmp_path):
    with pytest.raises(UserError, match=r"a.tar: broken archive \(header at byte \d+: .*\)"):
        read(write(tmp_path, "a.tar", tar_of({"a.txt": b"One."}) + b"More text. " * 99))


@pytest.mark.parametrize("cut", [20, -30])
def test_a_truncated_zip_file_is_refused(tmp_path, cut):
    with pytest.raises(UserError, match=r"a.zip: broken archive \(File is not a zip file\); download it again"):
        read(write(tmp_path, "a.zip", zip_of(FILES)[:cut]))


def test_a_damaged_list_in_a_zip_file_is_refused(tmp_path):
    content = bytearray(zip_of({"a.txt": b"One.", "b.txt": b"Two."}))
    content[content.index(b"PK\1\2") + 32] = 46 + 5  # length of the first file's comment, which takes in the second
    with pytest.raises(UserError, match=r"a.zip: broken archive \(its list has 1 files, its end says 2\); download it"):
        read(write(tmp_path, "a.zip", bytes(content)))
    content = zip_of({"a.txt": b"One."}).replace(b"PK\5\6", b"PK\5\7")
    with pytest.raises(UserError, match=r"a.zip: broken archive \(File is not a zip file\)"):
        read(write(tmp_path, "a.zip", content))


def test_a_zip_file_with_a_comment(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = b"made by hand"
        archive.writestr("a.txt", b"One.")
    assert [each.text for each in read(path)] == [b"One."]
    path.write_bytes(path.read_bytes() + b"\r\n")  # which some writers add
    assert [each.text for each in read(path)] == [b"One."]


def test_a_damaged_file_in_a_zip_file_is_refused(tmp_path):
    content = zip_of({"a.txt": b"One or two or three."}, zipfile.ZIP_STORED).replace(b"two", b"TWO")
    with pytest.raises(UserError, match=r"a.zip/a.txt:1: broken archive \(Bad CRC-32 .*\); download it again"):
        read(write(tmp_path, "a.zip", content))


@pytest.mark.parametrize(
    ("offsets", "value", "message"),
    [
        ((6, 8), 1, "a.zip/a.txt is encrypted: expected text; unpack .*a.zip"),
        ((8, 10), 9, "a.zip: .* compression .*; unpack it, and give the files"),  # Deflate64
    ],
)
def test_a_zip_file_that_the_library_cannot_read_is_refused(tmp_path, offsets, value, message):
    content = bytearray(zip_of({"a.txt": b"One."}))
    content[offsets[0]] = value
    content[content.index(b"PK\1\2") + offsets[1]] = value
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, "a.zip", bytes(content)))


def test_a_zip_file_that_was_compressed_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a.zip.gz is a zip archive that was compressed again; unpack it"):
        read(write(tmp_path, "a.zip.gz", gzip.compress(zip_of(FILES))))


def test_names_with_other_bytes_can_be_printed(tmp_path):
    (found,) = read(write(tmp_path, "a.tar", tar_of({"K\udcf6ln.txt": b"One."}, tarfile.USTAR_FORMAT)))
    found.place.encode()


def test_a_member_that_is_not_read_is_passed_over(tmp_path):
    file = input_file.InputFile(write(tmp_path, "a.tar", tar_of(BIG)))
    assert [member.name[-5:] for member, _ in archives.read_members(file, "tar")] == list(BIG)
