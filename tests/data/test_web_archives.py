import gzip
import sys

import pytest

from electra_jax.config.errors import UserError
from electra_jax.data import documents, input_file, web_archives
from electra_jax.data.input_file import InputFile


def record(kind, content, **fields):
    header = {"WARC-Type": kind, **{name.replace("_", "-"): value for name, value in fields.items()}}
    header.setdefault("Content-Length", len(content))
    lines = "".join(f"{name}: {value}\r\n" for name, value in header.items())
    return b"WARC/1.0\r\n" + lines.encode() + b"\r\n" + content + b"\r\n\r\n"


def page(text, language=None, **fields):
    more = {} if language is None else {"WARC_Identified_Content_Language": language}
    return record("conversion", text.encode(), **more, **fields)


INFO = record("warcinfo", b"software: x\r\n")
PAGES = [INFO, page("One.\r\nTwo. \n", "eng,deu"), page("Drei über.", "deu"), page("", "eng"), page("?")]


def write(tmp_path, records, name="a.warc.wet.gz", split=True):
    """An archive; where it is compressed, each record is a stream of its own, as Common Crawl has them."""
    path = tmp_path / name
    path.write_bytes(b"".join(map(gzip.compress, records)) if name.endswith(".gz") else b"".join(records))
    return path


def read(path, languages=""):
    return list(web_archives.read_pages(InputFile(path), languages))


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "a.warc.wet"])
@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_every_page_is_a_document(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(input_file, "_BLOCK", block)
    path = write(tmp_path, PAGES, name)
    found = read(path)
    assert [each.text.decode() for each in found] == ["One.\nTwo.", "Drei über.", "", "?"]
    assert [each.place for each in found] == [f"{path}:{number}" for number in (2, 3, 4, 5)]
    assert found[-1].position <= path.stat().st_size


def test_a_page_s_first_language_decides(tmp_path):
    path = write(tmp_path, PAGES)
    assert [each.text for each in read(path, "eng")] == [b"One.\nTwo.", b"", b"", b""]
    assert [each.note for each in read(path, "eng")] == ["", documents.OTHER_LANGUAGE, "", documents.OTHER_LANGUAGE]
    for languages in ("deu, eng", "DEU,eng,"):
        assert [bool(each.note) for each in read(path, languages)] == [False, False, False, True]


def response(body, kind="text/html", status="200 OK", **fields):
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *(f"{n.replace('_', '-')}: {v}" for n, v in fields.items())]
    return record("response", "\r\n".join(lines).encode() + b"\r\n\r\n" + body)


HTML = """<html><head><title>T</title><style>p {}</style></head><body><nav><a href="/">Home</a></nav>
<main><h1>Title</h1><p>Drei <b>über</b> &amp; zwei.</p><p>Two.</p></main><footer>Imprint</footer></body></html>"""
SAID = "Title\n\nDrei über & zwei.\n\nTwo."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (HTML.encode(), "text/html"),
        (HTML.encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (HTML.encode("latin-1").replace(b"<head>", b'<head><meta charset="iso-8859-1">'), "Text/HTML"),
        (HTML.encode(), "application/xhtml+xml; charset=bogus"),
    ],
)
def test_the_main_text_of_a_page_as_it_was_fetched(tmp_path, body, kind):
    pytest.importorskip("resiliparse", reason="WARC files need an extra: pip install 'electra_jax[warc]'")
    path = write(tmp_path, [INFO, record("request", b"GET / HTTP/1.1\r\n\r\n"), response(body, kind)], "a.warc.gz")
    (found,) = read(path)
    assert found.text.decode() == SAID
    assert (found.place, found.note) == (f"{path}:3", "")


@pytest.mark.parametrize(
    ("records", "note"),
    [
        ([response(b"%PDF", "application/pdf")], documents.NOT_HTML),
        ([response(HTML.encode(), status="404 Not Found")], documents.NOT_HTML),
        ([response(gzip.compress(HTML.encode()), Content_Encoding="gzip")], documents.ENCODED),
        ([record("response", b"")], documents.NOT_HTML),
    ],
)
def test_what_is_not_a_page_is_counted(tmp_path, records, note):
    pytest.importorskip("resiliparse", reason="WARC files need an extra: pip install 'electra_jax[warc]'")
    assert [(each.text, each.note) for each in read(write(tmp_path, records, "a.warc"))] == [(b"", note)]


def test_fetched_pages_have_no_language(tmp_path):
    path = write(tmp_path, [response(HTML.encode())], "a.warc")
    with pytest.raises(UserError, match=r"language=eng has no effect on .*a.warc:1, a page as it was fetched, "):
        read(path, "eng")


def test_without_resiliparse(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resiliparse.extract.html2text", None)
    with pytest.raises(UserError, match=r"\(WARC\) need resiliparse; pip install 'electra_jax\[warc\]'"):
        read(write(tmp_path, [response(HTML.encode())], "a.warc"))


def test_an_archive_of_metadata_is_refused_and_an_empty_one_is_empty(tmp_path):
    with pytest.raises(UserError, match=r"b.wat has no record of WARC-Type conversion or response; use"):
        read(write(tmp_path, [INFO, record("metadata", b"{}")], "b.wat"))
    assert read(write(tmp_path, [INFO])) == []


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        (INFO + b"<html>" + INFO, len(INFO), "it does not begin with WARC/"),
        (INFO + b"WARC/1.0\r\nWARC-Type: conversion\r\n", len(INFO) + 5, "its header has no end"),
        (page("One.", Content_Length=3), None, "no blank lines follow its content of 3 bytes"),
        (page("One.", Content_Length=5), None, "no blank lines follow its content of 5 bytes"),
        (page("One.", Content_Length=999), None, "the file ends in its content of 999 bytes"),
        (page("One.")[:-6], None, "the file ends in its content of 4 bytes"),
        (page("One.", Content_Length="4x"), 5, "Content-Length '4x' is not a number up to 134217728"),
        (page("One.", Content_Length=10**12), 5, "Content-Length '1000000000000' is not a number"),
        (page("One.", Content_Length=""), 5, "Content-Length '' is not a number"),
    ],
)
def test_damage_is_refused_with_file_and_offset(tmp_path, data, offset, message):
    path = tmp_path / "a.warc.wet"
    path.write_bytes(data)
    offset = data.index(b"\r\n\r\n") + 4 if offset is None else offset
    with pytest.raises(UserError, match=rf"a.warc.wet: damaged WARC record at byte {offset} of the text \({message}"):
        read(path)


def test_a_truncated_stream_is_refused(tmp_path):
    path = write(tmp_path, PAGES)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a.warc.wet.gz:\d: broken compressed file \(.*\); download it again"):
        read(path)


def test_a_header_without_an_end_is_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(web_archives, "_LONGEST_HEADER", 1000)
    monkeypatch.setattr(input_file, "_BLOCK", 100)
    file = InputFile(write(tmp_path, [b"WARC/1.0\r\n" + b"x" * 10_000], "a.wet"))
    with pytest.raises(UserError, match="its header has no end"):
        list(web_archives.read_pages(file))
    assert file.position < 1500


def test_another_reader_finds_the_same_pages(tmp_path):
    archives = pytest.importorskip("warcio.archiveiterator", reason="warcio is an extra for tests")
    path = write(tmp_path, PAGES)
    with path.open("rb") as file:
        found = archives.ArchiveIterator(file)
        others = [each.content_stream().read() for each in found if each.rec_type == "conversion"]
    assert [each.text for each in read(path)] == [documents.normalize_ends(text) for text in others]
