"""Reads the texts of web pages from Common Crawl's archives: WET files, which hold text, and WARC files, with HTML.

A WARC record is a text header, followed by as many bytes as the header says (ISO 28500). The few fields needed here are
read with one split, so no library is needed, and damage is reported like that of other files.
"""

from collections.abc import Iterator

from electra_jax.config.errors import UserError
from electra_jax.data import fetched_pages
from electra_jax.data.compression import Stream
from electra_jax.data.documents import OTHER_LANGUAGE, Document, normalize_ends
from electra_jax.data.input_file import InputFile

_SHORT_HEADER, _LONGEST_HEADER = 2**12, 2**20  # bytes
_LONGEST_PAGE = 2**27  # bytes: a page is in memory as a whole
_END = b"\r\n\r\n"  # of a header, and of a record
_WITHOUT_PAGES = (b"warcinfo", b"request", b"revisit")  # other types of records in archives with pages


def read_pages(file: InputFile, languages: str = "") -> Iterator[Document]:
    """Yields the texts of the pages of an archive, in order; their place is the number of the record.

    A record of type `conversion` is the text of a page; a record of type `response` is a fetched page, from which the
    main text is extracted.

    Args:
      file: the archive, compressed or not.
      languages: codes as in `WARC-Identified-Content-Language` of WET files, separated by commas. Pages whose first
        language is another, or unknown, have an empty text and a note. Empty: all pages are kept.

    Raises:
      UserError: the archive is damaged or has no pages, the language of its pages is not known, or the package that
        extracts text is not installed.
    """
    wanted = {code for each in languages.split(",") if (code := each.strip().lower().encode())} or None
    data = _Bytes(file.blocks())
    extract: fetched_pages.Extractor | None = None
    others = pages = 0
    for number, (header, size) in enumerate(_headers(data, file), 1):
        file.line = number
        content = _take_content(data, file, size)
        kind = header.get(b"warc-type", b"").lower()
        if kind == b"response":
            if wanted is not None:
                raise UserError(
                    f"language={languages} has no effect on {file.place}, a page as it was fetched, whose language is "
                    "not known; leave it out, or use the crawl's WET files"
                )
            pages += 1
            # Only now, because WET files need no package.
            extract = extract or fetched_pages.make_extractor()
            text, note = extract(content)
            yield Document(file.place, normalize_ends(text), file.position, note)
        elif kind == b"conversion":
            pages += 1
            identified = header.get(b"warc-identified-content-language", b"").split(b",")[0]
            if wanted is not None and identified not in wanted:
                yield Document(file.place, b"", file.position, OTHER_LANGUAGE)
            else:
                yield Document(file.place, normalize_ends(content), file.position)
        # For example the metadata of a WAT file.
        elif kind not in _WITHOUT_PAGES:
            others += 1
    if others and not pages:
        raise UserError(
            f"{file.name} has no record of WARC-Type conversion or response; use the WET or WARC files of the crawl"
        )


class _Bytes(Stream):
    """A byte stream over blocks; `offset` is the number of bytes taken."""

    offset = 0

    def take(self, size: int) -> bytes:
        """Takes the next `size` bytes; fewer at the end."""
        parts = []
        # `read` returns bytes of one block only.
        while size and (part := self.read(size)):
            parts.append(part)
            size -= len(part)
            self.offset += len(part)
        return b"".join(parts)

    def take_until(self, mark: bytes, longest: int) -> bytes | None:
        """Takes the bytes before `mark`, and drops the mark; None if it does not begin in the next `longest` bytes."""
        # `peek` copies, and nearly all headers are short.
        for most in (min(_SHORT_HEADER, longest), longest):
            size = self.peek(most + len(mark)).find(mark)
            if size >= 0:
                return self.take(size + len(mark))[:size]
        return None


def _headers(data: _Bytes, file: InputFile) -> Iterator[tuple[dict[bytes, bytes], int]]:
    """Yields (fields by lower-case name, bytes of content) of each record. Take the content before the next record."""
    while version := data.take(5):
        if version != b"WARC/":
            raise _damaged(file, data.offset - len(version), "it does not begin with WARC/")
        begin = data.offset
        if (lines := data.take_until(_END, _LONGEST_HEADER)) is None:
            raise _damaged(file, begin, "its header has no end")
        fields = (line.partition(b":") for line in lines.split(b"\r\n")[1:])
        header = {name.strip().lower(): value.strip() for name, _, value in fields}
        length = header.get(b"content-length", b"")
        # Before int(), which refuses numbers of more than 4,300 digits.
        if not length.isdigit() or len(length) > 18 or int(length) > _LONGEST_PAGE:
            shown = length[:20].decode(errors="replace")
            raise _damaged(file, begin, f"Content-Length {shown!r} is not a number up to {_LONGEST_PAGE}")
        yield header, int(length)


def _take_content(data: _Bytes, file: InputFile, size: int) -> bytes:
    begin = data.offset
    content = data.take(size)
    if len(content) < size:
        raise _damaged(file, begin, f"the file ends in its content of {size} bytes")
    # With a wrong length, the text of the next record would be read as a header.
    if data.take(len(_END)) != _END:
        raise _damaged(file, begin, f"no blank lines follow its content of {size} bytes")
    return content


def _damaged(file: InputFile, offset: int, reason: str) -> UserError:
    return UserError(f"{file.name}: damaged WARC record at byte {offset} of the text ({reason}); download it again")
