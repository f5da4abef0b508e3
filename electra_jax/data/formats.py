"""Detects the format of a file by its first decompressed bytes, and by its name only if these are not conclusive.

Detection is a pure function of both, so a file has the same format on this machine, in an object store or an archive.
"""

import json
import os
import re
import tarfile

from electra_jax.config.errors import UserError
from electra_jax.data import compression

HEAD = 2**20  # bytes of a file to detect its format by: a page of prose may begin as JSON does
ARCHIVES = ("tar", "zip")
TABLES = ("parquet", "arrow")

_KINDS = {
    "text": (".txt", ".text", ""),  # other kinds of files in a folder are left out; WikiExtractor's have no suffix
    "json": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "warc": (".wet", ".warc", ".wat"),
}
_SUFFIXES = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
_ARCHIVE_SUFFIXES = (".tar", ".zip", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst")
_TABLES_OF_TEXT = {".csv": "", ".tsv": ", sep='\\t'"}  # suffix -> further arguments of pandas.read_csv

# Formats by their first bytes. Tar files are detected by the checksum of the first header: old ones have no magic.
_MAGIC = {
    "parquet": rb"PAR1\x15",  # \x15 begins the first header, of a page or of an empty file
    "arrow": rb"ARROW1\0|\xff\xff\xff\xff",  # the file format, the stream format
    "warc": rb"WARC/\d\.\d\r?\n",
    "zip": rb"PK(\x03\x04|\x05\x06|\x07\x08)",
}
# Formats that are not read, some of which begin with plain text.
_OTHERS = {
    "a PDF": rb"%PDF-\d",
    "PostScript": rb"%!PS-",
    "an image": rb"\x89PNG\r\n|\xff\xd8\xff",
    "RTF": rb"\{\\rtf\d",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a RAR archive": rb"Rar!\x1a\x07",
    "an ar archive": rb"!<arch>\n",
    "compressed by lzip": rb"LZIP[\0\x01]",
    "compressed by lz4": rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18",
    "compressed by compress (.Z)": rb"\x1f[\x9d\xa0]",
    "compressed by lzma (.lzma)": rb"\x5d\0\0",
    "an old archive of the web (ARC)": rb"filedesc://",
    "an EPUB or an OpenDocument file": rb"PK\x03\x04.{26}mimetypeapplication/",
    "a dump of MediaWiki": rb"<mediawiki\s",
    "UTF-32": rb"\xff\xfe\0\0|\0\0\xfe\xff",
    "UTF-16": rb"\xff\xfe|\xfe\xff",
}
_ADVICE = {
    "UTF-16": "convert it with iconv -f utf-16 -t utf-8",
    "UTF-32": "convert it with iconv -f utf-32 -t utf-8",
    "a dump of MediaWiki": "extract its text, for example with WikiExtractor --json",
}
# Control characters that are rare in text: all but bell, backspace, white space, shifts, escape and separators.
_BINARY = bytes([*range(7), *range(0x10, 0x1B)])
_MOST_BINARY = 0.02  # fraction of the first bytes; random bytes have .07, UTF-16 without a mark more than .03
_ZEROS = b"\0\0\0\0"  # at the beginning: part of a length in TFRecord, NumPy, pickle or safetensors
_BEGINNING = 64  # bytes

# Up to the first colon: a brace alone begins other texts too, such as {{Infobox}} in a wiki.
_KEY = r'\{\s*"(?:[^"\\]|\\.)*"\s*:'
_JSON = re.compile(rf"\s*(?:\[\s*)?{_KEY}")
_OBJECT = re.compile(rf"\s*{_KEY}")
_JSON_BYTES = re.compile(rb'\s*(?:\[\s*)?\{\s*"')  # a fast test before the head is decoded


def kind(name: str) -> str:
    """Returns the format of a file by its suffix; "text" if the suffix is unknown."""
    return _SUFFIXES.get(suffix(name), "text")


def suffix(name: str) -> str:
    """Returns the suffix of a file before that of its compression: ".txt" for "a.txt.gz"."""
    base, ending = os.path.splitext(os.path.basename(name))
    return os.path.splitext(base)[1].lower() if ending.lower() in compression.SUFFIXES else ending.lower()


def is_known(name: str) -> bool:
    """True if files with this suffix are read in a folder or in an archive."""
    return suffix(name) in _SUFFIXES


def is_archive(name: str) -> bool:
    """True if the suffix is that of an archive, compressed or not."""
    return suffix(name) in _ARCHIVE_SUFFIXES


def known_suffixes() -> str:
    """Returns the suffixes of the files that are read in a folder, for messages."""
    return " ".join(filter(None, _SUFFIXES))


def check_name(name: str) -> None:
    """Raises UserError if the suffix is that of a table that would be read as prose."""
    if (ending := suffix(name)) in _TABLES_OF_TEXT:
        raise UserError(
            f"{name} is a table by its suffix: expected text, JSON lines or Parquet; convert it, for example with "
            f"pandas.read_csv({os.path.basename(name)!r}{_TABLES_OF_TEXT[ending]})"
            ".to_json('a.jsonl', orient='records', lines=True)"
        )


def magic(head: bytes) -> str:
    """Returns the format that the first 512 bytes identify: one of `TABLES`, `ARCHIVES`, "warc"; else empty."""
    found = next((format for format, mark in _MAGIC.items() if re.match(mark, head)), "")
    return found or ("tar" if _begins_tar(head) else "")


def check_text(head: bytes, name: str) -> None:
    """Raises UserError if a file that begins with `head` is another format than text in UTF-8."""
    _check_others(head, name)
    if _is_binary(head):
        # ASCII text in UTF-16 without a mark has a zero in every second byte; binary formats have runs of zeros.
        raise _refused(name, "UTF-16" if _ZEROS not in head and head.count(b"\0") * 4 > len(head) else "binary data")


def _check_others(head: bytes, name: str) -> None:
    # UTF-32's mark begins with UTF-16's, so it comes first.
    for other, mark in _OTHERS.items():
        if re.match(mark, head, re.DOTALL):
            raise _refused(name, other)


def tell(head: bytes, name: str) -> str:
    """Returns the format of a file: text, json, parquet, arrow, warc, tar or zip.

    Args:
      head: its first `HEAD` bytes, decompressed; all bytes of a shorter file.
      name: its path or address.

    Raises:
      UserError: the format is not supported, or is not the one that the name says.
    """
    # Before `magic`, for which an EPUB is a zip archive.
    _check_others(head, name)
    by_name = kind(name)
    if found := magic(head):
        return found
    if is_archive(name):
        raise UserError(f"{name} is not an archive, as its name says; download it again, or rename it")
    # The name is believed: the reader of its format says what is broken, and in which line.
    if by_name != "text":
        return by_name
    check_text(head, name)
    return "json" if _is_json(head) else "text"


def _refused(name: str, what: str) -> UserError:
    advice = _ADVICE.get(what, "convert it to text, or leave it out")
    return UserError(f"{name} is {what}: expected {'UTF-8' if what.startswith('UTF') else 'text'}; {advice}")


def _begins_tar(head: bytes) -> bool:
    try:
        return bool(tarfile.TarInfo.frombuf(head[:512], "utf-8", "replace"))
    except tarfile.TarError:
        return False


def _is_binary(head: bytes) -> bool:
    count = len(head) - len(head.translate(None, _BINARY))
    return _ZEROS in head[:_BEGINNING] or count > max(7, _MOST_BINARY * len(head))


def _is_json(head: bytes) -> bool:
    """True if the text is JSON. A text that merely begins with an object, such as a tutorial, is not.

    JSON lines that are broken further down count as JSON, so that the error names the line.
    """
    if not _JSON_BYTES.match(head):
        return False
    text = head.decode(errors="replace")
    if not _JSON.match(text):
        return False
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    if sum(bool(_OBJECT.match(line)) for line in lines) * 2 > len(lines):
        return True
    try:
        # An array, or objects over several lines.
        _, end = json.JSONDecoder().raw_decode(text := text.lstrip())
    except (ValueError, RecursionError):
        # It may go on behind the head; in a shorter file it is broken, so the file is text.
        return len(head) >= HEAD
    rest = text[end:].lstrip().removeprefix(",")
    return not rest or bool(_OBJECT.match(rest))
