import bz2
import gzip
import io
import lzma
import pickle
import struct
import zipfile

import numpy as np
import pytest
import zstandard
from made_files import tar_of, zip_of

from electra_jax.config.errors import UserError
from electra_jax.data import compression, formats

PROSE = "Brackets {like these} and [these] are no JSON.\nÜber allen Gipfeln.\n".encode()
OBJECT = b'{"id": 7, "text": "One.\\nTwo \\u00fc."}'


@pytest.mark.parametrize(
    ("head", "suffix"),
    [
        *((gzip.compress(b"x"), ".gz"), (lzma.compress(b"x"), ".xz"), (bz2.compress(b"x"), ".bz2")),
        *((bz2.compress(b""), ".bz2"), (zstandard.compress(b"x"), ".zst")),
        *((b"\x52\x2a\x4d\x18\x04\0\0\0abcd", ".zst"), (b"BZh9 is a name", ""), (b"", ""), (PROSE, "")),
    ],
    ids=range(9),
)
def test_the_first_bytes_say_the_compression(head, suffix):
    assert compression.told_by(head) == suffix


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "a.jsonl"])
@pytest.mark.parametrize(
    ("head", "format"),
    [
        *((tar_of({"a": b"x"}), "tar"), (zip_of({"a": b"x"}), "zip"), (zip_of({}), "zip")),
        (tar_of({"a": b"x"}).replace(b"ustar\x0000", bytes(8)), "tar"),
        *((b"PAR1\x15\x04\x15", "parquet"), (b"ARROW1\0\0\xff\xff\xff\xff", "arrow")),
        *((b"\xff\xff\xff\xff\x78\0\0\0", "arrow"), (b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", "warc")),
    ],
)
def test_the_first_bytes_count_before_the_name(head, format, name):
    if head[257:262] == bytes(5):  # of before 1988: without a magic, its checksum without it too
        head = head[:148] + f"{sum(head[:148] + b' ' * 8 + head[156:512]):06o}\0 ".encode() + head[156:]
    assert formats.tell(head, name) == format


@pytest.mark.parametrize(
    ("head", "format"),
    [
        (OBJECT, "json"),
        (OBJECT + b"\n" + OBJECT + b"\n", "json"),
        (b"\n \r\n" + OBJECT + b"\r\n\r\n" + OBJECT, "json"),
        (OBJECT + b"\r" + OBJECT, "json"),
        (OBJECT + b"\n" + OBJECT[:20], "json"),  # the rest is not in the head, or broken
        (b'{"text": "a \\x b"}\n' + OBJECT, "json"),
        (b'{"text": "' + b"a" * formats.HEAD, "json"),  # a line longer than the head
        (b"[" + OBJECT + b",\n" + OBJECT + b"]", "json"),
        (b'[\n {\n  "text": "One."\n },\n {\n  "text": "Two."\n }\n]', "json"),
        (b'{\n "text": "One."\n}\n{\n "text": "Two."\n}', "json"),
        (b'{\n "text": "One."\n}', "json"),
        (b'[\n {\n  "a": "' + b'",\n  "b": "' * (formats.HEAD // 8), "json"),
        (PROSE, "text"),
        (b"", "text"),
        (b"{", "text"),
        (b"{}\n{}", "text"),
        (b"[1] A note.\n", "text"),
        (b"{{Infobox person}}\nText.", "text"),
        (b'{"He said": "so," he said.}', "json"),
        (OBJECT + b"\nis an object of JSON.\nAnd this is more text.", "text"),
        (b'{\n "text": "One."\n}\nis an object of JSON.', "text"),
        (b'{"name" = "x"}\n', "text"),
        (b'[{"see": 1}] is a note.\n', "text"),
        (b'"a", "b"\n', "text"),
    ],
)
def test_json_is_told_from_text_that_only_begins_like_it(head, format):
    assert formats.tell(head, "wiki_00") == format
    assert formats.tell(head, "a.txt") == format


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *(("a.jsonl", "json"), ("a.json.gz", "json"), ("a.NDJSON.zst", "json"), ("s3://b/a.parquet", "parquet")),
        *(("a.arrow", "arrow"), ("a.feather", "arrow"), ("a.warc", "warc"), ("a.wet.gz", "warc"), ("a.wat", "warc")),
        *(("a.txt", "text"), ("a.txt.xz", "text"), ("a.md", "text"), ("a", "text"), ("a.gz", "text")),
    ],
)
def test_the_name_decides_where_the_bytes_say_nothing(name, format):
    assert formats.tell(PROSE, name) == formats.kind(name) == format


def saved(write):
    out = io.BytesIO()
    write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("head", "what"),
    [
        *((b"%PDF-1.7\nText.", "a PDF"), (b"{\\rtf1\\ansi Text.}", "RTF"), (b"%!PS-Adobe-3.0\n", "PostScript")),
        *((b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive"), (b"Rar!\x1a\x07\x01\0", "a RAR archive")),
        *((b"\x04\x22\x4d\x18dp", "compressed by lz4"), (b"\x1f\x9d\x90T", r"compressed by compress \(.Z\)")),
        (lzma.compress(PROSE, lzma.FORMAT_ALONE), r"compressed by lzma \(.lzma\)"),
        (b"filedesc://x.arc 0.0.0.0 20110101000000 text/plain 9\n", r"an old archive of the web \(ARC\)"),
        (zip_of({"mimetype": b"application/epub+zip"}, zipfile.ZIP_STORED), "an EPUB or an OpenDocument file"),
        (b'<mediawiki xmlns="http://x" version="0.10">', "a dump of MediaWiki"),
        *(
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "an image"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", "an image"),
            (b"\x7fELF\2\1\1" + bytes(9), "binary data"),
        ),
        (struct.pack("<QI", 9, 123456) + b"some text", "binary data"),  # TFRecord
        (saved(lambda out: np.save(out, np.zeros(3))), "binary data"),
        (pickle.dumps([*range(999)], protocol=4), "binary data"),
        (np.random.default_rng(0).bytes(4096), "binary data"),
        *(("\ufeffOne.".encode("utf-16"), "UTF-16"), ("\ufeffOne.".encode("utf-16-be"), "UTF-16")),
        *(("One is a number.".encode("utf-16-le"), "UTF-16"), ("One.".encode("utf-32"), "UTF-32")),
        ("一二三四五六七八九十百千萬上中下左右前後東西南北".encode("utf-16-be") * 20, "binary data"),
    ],
)
def test_what_is_no_text_is_refused_with_what_it_is(head, what):
    for name in ("a", "a.txt"):
        with pytest.raises(UserError, match=rf"^{name} is {what}: expected .*; "):
            formats.tell(head, name)


@pytest.mark.parametrize(
    "head",
    [
        "Grüße, ελληνικά, русский, 漢字, हिन्दी, 😀".encode(),
        *("Grüße an alle".encode("latin-1"), "漢字かな交じり文".encode("shift-jis"), "汉字".encode("gbk")),
        *(b"N\bNA\bAM\bME\bE\n    a command, overstruck\n", b"page\f\x1b[1mbold\x1b[0m", b"One.\0\0\0"),
        *(b"PAR1 is a word.", b"ARROW1 too.", b"WARC/1.0 is a format.", b"PK is a name.", b"LZIP and Rar! too."),
        *(b"BZh is not.", b"7z archives", b"\x80" * 2500),
    ],
)
def test_text_of_any_kind_stays_text(head):
    assert formats.tell(head, "a") == "text"


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "A.TGZ", "s3://b/a.zip"])
def test_an_archive_by_name_alone_is_refused(name):
    with pytest.raises(UserError, match=r"is not an archive, as its name says; download it again, or rename it"):
        formats.tell(PROSE, name)


@pytest.mark.parametrize(("name", "told"), [("a.csv", ""), ("b/A.CSV.gz", ""), ("s3://b/a.tsv", r", sep='\\t'")])
def test_a_table_by_name_is_refused_with_how_to_convert_it(name, told):
    base = name.split("/")[-1]
    with pytest.raises(UserError, match=rf"{name} is a table by its suffix: .*pandas.read_csv\('{base}'{told}\)\.to_"):
        formats.check_name(name)
