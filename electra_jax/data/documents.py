"""Documents, as read from any source, and the steps that all readers share: repairing, splitting and hashing.

Nothing is dropped silently: a document's `note` says what was repaired or left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError

LONGEST = 2**26  # bytes of a document; longer ones are split, so that memory use is bounded

# Notes about documents, as they appear in reports.
CUT = "documents over 64 MB, split into several"
NO_TEXT = "records whose text is null"
NOT_UTF8 = "documents with broken UTF-8, mended with U+FFFD"
OTHER_LANGUAGE = "pages in other languages, left out"
OTHER_MEMBER = "files of other kinds in archives, left out"
NOT_HTML = "responses that are not HTML pages, left out"
ENCODED = "pages with a Content-Encoding or Transfer-Encoding, left out"
LEFT_OUT = (NO_TEXT, OTHER_LANGUAGE, OTHER_MEMBER, NOT_HTML, ENCODED)  # notes on records without text for this reason


class Document(NamedTuple):
    """A document as read from its source.

    Attributes:
      place: file and line, for messages.
      text: UTF-8, possibly with errors; lines are sentences or paragraphs.
      position: bytes of the unit read up to the end of this document.
      note: what was repaired or left out, one of the notes above; empty for most documents.
      numbered: whether its lines are consecutive lines of the file, starting at `place`.
      digest: 8-byte hash of the text, which decides deduplication and the held-out split; empty until `hashed`.
    """

    place: str
    text: bytes
    position: int = 0
    note: str = ""
    numbered: bool = False
    digest: bytes = b""


def hashed(document: Document) -> Document:
    """Returns the document with the digest of its text."""
    # 8 bytes: among 10^8 different texts, two have the same digest with a probability of 0.03%.
    return document._replace(digest=blake2b(document.text, digest_size=8).digest())


def split_long(document: Document, position: int) -> Iterator[Document]:
    """Yields a document in hashed parts of at most `LONGEST` bytes, usually one, ending at `position` of the unit."""
    text = document.text
    note = document.note or (CUT if len(text) > LONGEST else "")
    while len(text) > LONGEST:
        end = last_break(text, LONGEST)
        yield hashed(document._replace(text=text[:end].strip(), position=position, note=note))
        # Notes count documents, so only the first piece has it.
        text, note = text[end:].strip(), ""
    yield hashed(document._replace(text=text, position=position, note=note))


def from_fields(values: Mapping[str, Any], field: str, place: str, position: int) -> Document:
    """Makes a document from the text in one of several fields.

    Raises:
      UserError: there is no such field, or it holds no text.
    """
    if field not in values:
        raise no_field(place, field, list(values))
    text = values[field]
    if text is None:
        return Document(place, b"", position, NO_TEXT)
    if isinstance(text, str):
        # JSON can hold lone surrogates; `shards.clean` repairs them.
        text = text.encode("utf-8", "surrogatepass")
    if not isinstance(text, bytes):
        raise UserError(f"{place}: field {field!r} is of type {type(text).__name__}: expected text; see --field")
    return Document(place, normalize_ends(split_old_lines(text)), position)


def no_field(place: str, field: str, names: list[str]) -> UserError:
    return UserError(f"{place} has no field {field!r}; name one of these with --field=: {', '.join(names) or 'none'}")


def normalize_ends(text: bytes) -> bytes:
    """Strips white space and converts CRLF to LF, so that equal texts have equal bytes in any file."""
    return (text.replace(b"\r\n", b"\n") if b"\r" in text else text).strip()


def split_old_lines(text: bytes) -> bytes:
    """Converts CR to LF in a record's text if its lines end with CR alone, as on the Macintosh before 2001."""
    return text.replace(b"\r", b"\n") if has_old_line_ends(text) else text


def has_old_line_ends(text: bytes) -> bool:
    """True if `text` has line ends and all of them are CR alone."""
    return b"\r" in text and b"\n" not in text


def last_break(text: bytes, limit: int) -> int:
    """Returns where to split `text` before `limit`: after a line if possible, else a word, else a character."""
    # In the second half only, else one early break would make a short piece.
    for mark in (b"\n", b" "):
        end = text.rfind(mark, limit // 2, limit)
        if end > 0:
            return end
    # If the byte at the limit continues a character (0b10......), the piece ends before that character.
    inside = next((back for back in range(4) if text[limit - back] & 0xC0 != 0x80), 0)
    return limit - inside


def group_by_size(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Groups consecutive documents; each group but the last has at least `size` bytes of text."""
    group: list[Document] = []
    total = 0
    for document in documents:
        group.append(document)
        total += len(document.text)
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group
