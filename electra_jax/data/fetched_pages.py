"""Extracts the text of fetched web pages: HTTP responses with HTML, as stored in WARC files.

resiliparse extracts the main text, without navigation, headers and footers, as it does for other corpora made from
Common Crawl (such as DCLM, arXiv 2406.11794).
"""

import re
from collections.abc import Callable

from electra_jax.config.errors import UserError
from electra_jax.data.documents import ENCODED, NOT_HTML

_HTML = (b"text/html", b"application/xhtml+xml")
_ENCODINGS = (b"content-encoding", b"transfer-encoding")
_SUCCESS = re.compile(rb"HTTP/[\d.]+ 2")
_CHARSET = re.compile(rb"charset=[\"']?([\w.:-]+)", re.IGNORECASE)

Extractor = Callable[[bytes], tuple[bytes, str]]


def make_extractor() -> Extractor:
    """Returns a function that maps a response, header included, to (text in UTF-8, note).

    A page that is left out has a note and no text; others have no note.

    Raises:
      UserError: resiliparse is not installed.
    """
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5
    except ImportError as error:
        raise UserError(
            "pages as they were fetched (WARC) need resiliparse; pip install 'electra_jax[warc]', or use the crawl's "
            "WET files"
        ) from error

    def extract(response: bytes) -> tuple[bytes, str]:
        fields, body = _split(response)
        kind = fields.get(b"content-type", b"")
        if kind.partition(b";")[0].strip().lower() not in _HTML or not _SUCCESS.match(response):
            return b"", NOT_HTML
        # Common Crawl stores decoded bodies, and renames the header fields that named the encoding.
        if any(fields.get(name, b"identity").lower() != b"identity" for name in _ENCODINGS):
            return b"", ENCODED
        # The header counts before the page's own meta element, as in browsers.
        named = _CHARSET.search(kind)
        encoding = map_encoding_to_html5(named[1].decode(), False) if named else None
        html = bytes_to_str(body, encoding or detect_encoding(body, from_html_meta=True), errors="replace")
        text: str = extract_plain_text(html, main_content=True, alt_texts=False)
        return text.encode(), ""

    return extract


def _split(response: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Splits a response into the fields of its header, by lower-case name, and its body."""
    header, _, body = response.partition(b"\r\n\r\n")
    fields = (line.partition(b":") for line in header.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in fields}, body
