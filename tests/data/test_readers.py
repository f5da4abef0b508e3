import bz2
import gzip
import io
import json
import lzma
import sys
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import compression, documents, formats, input_file, readers, source_files, sources
from electra_jax.data.config import CorpusConfig

COMPRESS = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
compressed = pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix != ".txt"])
MANY = "\n\n".join(f"Document {n} says {n * n * 7919 % 10007}." for n in range(2000)).encode()


def read(path, **settings):
    (unit,) = sources.units(sources.parse(str(path)), 2**20)
    return list(readers.read_documents(unit, CorpusConfig(**settings)))


def texts(path, **how):
    return [document.text for document in read(path, **how)]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_blank_lines_part_documents_in_each_kind_of_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESS[suffix](b"\n\nOne.\nTwo. \n\n\n \t\nThree.\r\n\r\nFour, without an end."))
    found = read(path)
    assert [document.text for document in found] == [b"One.\nTwo.", b"Three.", b"Four, without an end."]
    assert [document.place for document in found] == [f"{path}:{line}" for line in (3, 8, 10)]
    assert found[-1].position == path.stat().st_size
    assert not any(document.note for document in found)


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", " \n", "bc", "\r\n"]), max_size=30), st.integers(1, 4))
@settings(max_examples=200)
def test_where_blocks_end_makes_no_difference(tmp_path_factory, pieces, block):
    """The definition: groups of lines that hold something, each at the number of its first line."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes("".join(pieces).encode())
    wanted, group = [], []
    for number, line in enumerate([*path.read_bytes().split(b"\n"), b""], 1):
        if line.strip():
            group.append((number, line.strip()))
        elif group:
            wanted.append((f"{path}:{group[0][0]}", [line for _, line in group]))
            group = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "_BLOCK", block)
        found = [(document.place, document.text.strip().split(b"\n")) for document in read(path)]
    assert [(place, [line.strip() for line in lines]) for place, lines in found] == wanted


def test_a_file_can_be_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    (tmp_path / "b.txt").write_text("Three.\n")
    (tmp_path / "c.txt").write_text(" \n")
    assert texts(tmp_path, documents="file") == [b"One.\n\nTwo.", b"Three."]


def test_what_was_read_grows_over_files(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("One.\n\nTwo.\n\nThree.")
    size = (tmp_path / "a").stat().st_size
    found = [document.position for document in read(tmp_path)]
    assert found == sorted(found)
    assert found[2::3] == [size, 2 * size, 3 * size]


@pytest.mark.parametrize("mark", [b"#\n", b" ", b""])
def test_a_document_too_long_is_cut_and_nothing_is_lost(tmp_path, monkeypatch, mark):
    monkeypatch.setattr(documents, "LONGEST", 1000)
    monkeypatch.setattr(input_file, "_BLOCK", 64)
    text = mark.join(f"Wörter{n}".encode() for n in range(500))
    path = tmp_path / "a.txt"
    path.write_bytes(text + b"\n\nAnother.")
    *pieces, other = read(path)
    assert b"".join(b"".join(piece.text for piece in pieces).split()) == b"".join(text.split())
    assert all(len(piece.text) <= 1000 for piece in pieces)
    assert [piece.note for piece in pieces] == [documents.CUT] + [""] * (len(pieces) - 1)
    for piece in pieces:
        piece.text.decode()  # no character is cut
    assert other.text == b"Another."
    assert other.place == f"{path}:{text.count(b'#') + 3}"


def test_a_line_of_many_megabytes_is_read_in_memory_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 2**21)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"word " * 4_000_000, compresslevel=1))
    tracemalloc.start()
    (unit,) = sources.units(sources.parse(str(path)), 1)
    lengths = [len(document.text) for document in readers.read_documents(unit, CorpusConfig())]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 <= 20_000_000 - sum(lengths) <= len(lengths)  # the white space at a cut
    assert peak < 5 * documents.LONGEST


@compressed
@pytest.mark.parametrize(
    "breakage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"this was never compressed",
        # Byte 10 begins the gzip data, the first block's kind in its lowest bits; it lies in the header of the others.
        lambda data: data[:10] + bytes([data[10] ^ 6]) + data[11:],
    ],
    ids=["truncated", "last byte lost", "not compressed", "changed"],
)
def test_a_broken_compressed_file_is_refused_naming_file_and_line(tmp_path, suffix, breakage):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(breakage(COMPRESS[suffix](MANY)))
    with pytest.raises(UserError, match=rf"broken{suffix}:\d+: broken compressed file .*; download it again"):
        read(path)


@compressed
@pytest.mark.parametrize("rest", ["another", "zeros", "garbage", "half"])
def test_what_stands_behind_the_first_stream_is_read_or_refused(tmp_path, suffix, rest):
    """As in files of parallel compressors; the standard library drops what it cannot read there."""
    one, two = (COMPRESS[suffix](text) for text in (b"One.\n\nTw", b"o.\n\nThree."))
    path = tmp_path / f"a{suffix}"
    path.write_bytes(one + {"another": two, "zeros": bytes(8), "garbage": b"garbage!", "half": two[:-6]}[rest])
    if rest == "another":
        assert texts(path) == [b"One.", b"Two.", b"Three."]
    elif rest == "zeros" and suffix != ".zst":
        assert texts(path) == [b"One.", b"Tw"]
    else:
        with pytest.raises(UserError, match=rf"a{suffix}:\d+: broken compressed file"):
            read(path)


@compressed
def test_an_empty_compressed_file_is_a_download_that_failed(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(b"")
    with pytest.raises(UserError, match=r"broken compressed file \(the file is empty\)"):
        read(tmp_path / f"a{suffix}")


@compressed
def test_an_empty_text_may_be_compressed(tmp_path, suffix):
    """As programs leave it that write a fixed number of parts."""
    (tmp_path / f"a{suffix}").write_bytes(COMPRESS[suffix](b""))
    assert read(tmp_path / f"a{suffix}") == []


def test_the_same_text_is_the_same_document_in_any_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\nTwo.")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n")
    (tmp_path / "c.txt").write_bytes(b"\n One.\nTwo. \n\nlast")
    (tmp_path / "d.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "One.\\nTwo.\\n"}\n')
    (tmp_path / "e.txt").write_bytes(b"One.\rTwo.\r")
    (tmp_path / "f.jsonl").write_bytes(b'{"text": "One.\\rTwo.\\r"}\n')
    found = [read(tmp_path / name)[0].text for name in ("a.txt", "b.txt", "c.txt", "d.jsonl", "e.txt", "f.jsonl")]
    assert found == [b"One.\nTwo."] * 6


OLD = b"\xef\xbb\xbfOne.\rTwo.\r\r \rThree.\r"


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("block", [5, 2**20])
def test_lines_that_end_with_cr_alone_are_lines(tmp_path, monkeypatch, suffix, block):
    """As on the Macintosh before 2001."""
    monkeypatch.setattr(input_file, "_BLOCK", block)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESS[suffix](OLD))
    found = read(path)
    assert [(each.text, each.place) for each in found] == [(b"One.\nTwo.", f"{path}:1"), (b"Three.", f"{path}:5")]
    assert texts(path, documents="file") == [b"One.\nTwo.\n\n \nThree."]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_line_ends_that_change_further_down_part_no_documents(tmp_path, monkeypatch, block):
    monkeypatch.setattr(input_file, "_BLOCK", block)
    monkeypatch.setattr(formats, "HEAD", 6)
    (tmp_path / "a.txt").write_bytes(b"One.\rTwo.\r\nThree.\nFour.\r\r")
    assert texts(tmp_path / "a.txt") == [b"One.\nTwo.\nThree.\nFour."]


def test_cr_in_lines_that_end_otherwise_is_white_space(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"50%\r100%\n\nTwo.\r\n")
    assert texts(tmp_path / "a.txt") == [b"50%\r100%", b"Two."]


def test_records_with_old_line_ends(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "One.\\rTwo.\\r"}\r{"text": "50%\\r100%\\nTwo."}\r')
    found = read(tmp_path / "a.jsonl")
    assert [each.text for each in found] == [b"One.\nTwo.", b"50%\r100%\nTwo."]
    assert [each.place[-1] for each in found] == ["1", "2"]


@pytest.mark.parametrize("name", ["wiki_00", "part-0.gz", "RC_2010-01.zst", "a.txt", "a.md", "page.bz2"])
def test_json_lines_need_no_suffix(tmp_path, name):
    path = tmp_path / name
    lines = b'{"id": 1, "text": "One.\\n\\nTwo \\u00fc."}\n{"id": 2, "text": "Three."}\n'
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(lines))
    found = read(path)
    assert [(each.text.decode(), each.place) for each in found] == [
        ("One.\n\nTwo ü.", f"{path}:1"),
        ("Three.", f"{path}:2"),
    ]
    with pytest.raises(UserError, match=rf"{name}:1 has no field 'body'; name one of these with --field=: id, text"):
        read(path, field="body")


@pytest.mark.parametrize("name", ["wiki_00", "a.json"])
def test_a_json_array_is_refused(tmp_path, name):
    for text in ('[{"text": "One."}, {"text": "Two."}]', '[\n{"text": "One."},\n{"text": "Two."}\n]'):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=rf"{name}:\d is .*: expected one JSON object per line"):
            read(tmp_path / name)


@compressed
@pytest.mark.parametrize("name", ["a.txt", "a", "a.jsonl.gz", "a.xz"])
def test_compression_is_told_by_the_bytes(tmp_path, suffix, name):
    (tmp_path / name).write_bytes(COMPRESS[suffix](b'{"text": "One."}\n'))
    assert texts(tmp_path / name) == [b"One."]


@compressed
def test_what_was_compressed_twice_is_unpacked_twice(tmp_path, suffix):
    pack, path = COMPRESS[suffix], tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(pack(MANY)))
    assert b"\n\n".join(texts(path)) == MANY
    path.write_bytes(gzip.compress(pack(MANY)[:-5]))
    with pytest.raises(UserError, match=r"a\.\w+:\d+: broken compressed file"):
        read(path)
    path.write_bytes(pack(pack(pack(pack(MANY)))))
    with pytest.raises(UserError, match=r"is compressed more than 3 times; unpack it"):
        read(path)


def test_frames_that_zstd_passes_over(tmp_path):
    (tmp_path / "a").write_bytes(b"\x50\x2a\x4d\x18\4\0\0\0abcd" + COMPRESS[".zst"](b"One."))
    assert texts(tmp_path / "a") == [b"One."]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_refused_with_how_to_convert_it(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("\ufeffOne.\n\nTwo.".encode(encoding))
    with pytest.raises(UserError, match=r"a.txt is UTF-16: expected UTF-8; convert it with iconv"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_document_without_characters_to_cut_at_is_cut_all_the_same(tmp_path, monkeypatch, name):
    monkeypatch.setattr(documents, "LONGEST", 1000)
    data = b"\x80" * 2500
    (tmp_path / name).write_bytes(data if name == "a.txt" else json.dumps({"text": "x" * 2500}).encode())
    found = read(tmp_path / name)
    assert [len(document.text) for document in found] == [1000, 1000, 500]
    assert [document.note for document in found] == [documents.CUT, "", ""]


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "One.\\nTwo.", "id": 1}\n\n{"text": "Drei \\u00fc \U0001f600."}\r\n{"text": null}\n{"text": ""}'
    )
    found = read(path)
    assert [document.text.decode() for document in found] == ["One.\nTwo.", "Drei ü \U0001f600.", "", ""]
    assert [document.place for document in found] == [f"{path}:{line}" for line in (1, 3, 4, 5)]
    assert [document.note for document in found] == ["", "", documents.NO_TEXT, ""]


def test_broken_characters_in_json_are_kept_for_cleaning(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a \xff b"}\n{"text": "a \\ud83d b"}\n')
    broken, half = read(path)
    assert broken.text.decode() == "a \ufffd b"
    assert broken.note == documents.NOT_UTF8
    assert "\ufffd" in half.text.decode(errors="replace")
    assert half.note == ""
    path.write_bytes(b'{"text": "a", "other": "\xff"}\n\xef\xbb\xbf{"text": "b"}\n')  # as where files have been joined
    assert [(each.text, each.note) for each in read(path)] == [(b"a", ""), (b"b", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "x", "title": "y"}', r"a.jsonl:2 has no field 'text'; name one of these with --field=: body, title"),
        ('"x"', r"a.jsonl:2 is a JSON str: expected one JSON object per line"),
        ('{"text": "x"', r"a.jsonl:2 is not JSON \(.*\): expected one JSON object per line"),
        ('[{"text": "x"}]', r"a.jsonl:2 is a JSON list: expected one JSON object per line"),
        ('[{"text": "x"}', r"a.jsonl:2 is not JSON"),
        ('{"text": ["x"]}', r"a.jsonl:2: field 'text' is of type list: expected text"),
        ("[" * 100_000, r"a.jsonl:2 is not JSON"),
    ],
)
def test_a_json_line_that_is_no_document_is_refused_naming_file_and_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UserError, match=message):
        read(path)


def test_another_field(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "no", "body": "yes"}')
    assert texts(tmp_path / "a.jsonl", field="body") == [b"yes"]


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("tfds:x", "tensorflow_datasets", "tfds"), ("a.parquet", "pyarrow", "parquet")]
)
def test_a_missing_package_is_refused_naming_the_extra(tmp_path, monkeypatch, name, package, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    (unit,) = sources.units(sources.parse(name), 1)
    with pytest.raises(UserError, match=rf"pip install 'electra_jax\[{extra}\]'"):
        list(readers.read_documents(unit, CorpusConfig()))


def test_documentation_strings_of_the_packages_named():
    (unit,) = sources.units(sources.parse("docstrings:json, argparse"), 1)
    found = [document.place for document in readers.read_documents(unit, CorpusConfig())]
    assert {place.split(".")[0] for place in found} == {"json", "argparse"}
    assert found == sorted(found)
    with pytest.raises(UserError, match=r"docstrings:json,nosuch has no package nosuch here"):
        list(sources.units(sources.parse("docstrings:json,nosuch"), 1))


def test_a_line_of_json_without_an_end_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "_LONGEST_LINE", 2**21)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "short"}\n{"text": "' + b"a" * 2**26, compresslevel=1))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a.jsonl.gz:2 is longer than 2 MB: expected one record per line; split"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize(("suffix", "size", "most"), [(".xz", 2**22, 2**20), (".zst", 2**26, 2**25 + 2**20)])
def test_a_small_file_that_unpacks_to_one_long_line_is_unpacked_piece_by_piece(suffix, size, most):
    small = io.BufferedReader(io.BytesIO(COMPRESS[suffix](b"a" * size)))
    assert max(map(len, compression.decompress(suffix, small, 2**20))) <= most
