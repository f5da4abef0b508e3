"""From a document's bytes to its lines: what is broken is mended, and each repair is counted with its first place."""

import re
from collections.abc import Iterable, Iterator

LONGEST_LINE = 4000  # characters; so that a line of 200 MB is no reason to run out of memory
NOT_UTF8 = "documents with broken UTF-8, mended with U+FFFD"
CONTROL = "documents with control characters, removed"
LONG_LINE = "documents with lines over 4000 characters, cut"
EMPTY = "empty documents"

# White space aside, which includes some of them: C0, DEL, C1, byte order marks, and what is no character.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff]+")

Notes = dict[str, tuple[int, str]]  # what happened -> (how many times, where first)


def note(notes: Notes, kind: str, place: str, count: int = 1) -> None:
    """Counts `kind`, keeping the first place."""
    before, first = notes.get(kind, (0, place))
    notes[kind] = before + count, first


def lines(text: bytes, place: str, notes: Notes, of_lines: bool = False) -> list[str]:
    """The lines of a document that hold something, white space made spaces; runs of them are one to every tokenizer.

    Args:
      text: UTF-8, or nearly.
      place: of the document.
      notes: told what was done.
      of_lines: whether its lines are lines of the file from `place` on, so that theirs can be named.
    """
    happened: dict[str, int] = {}  # what -> how many lines down, first
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        decoded = text.decode(errors="replace")
        happened[NOT_UTF8] = text.count(b"\n", 0, error.start)
    found: list[str] = []
    for number, line in enumerate(decoded.split("\n")):
        if not line.isprintable():  # cheap to ask; a space is the only white space that can be printed
            plain = " ".join(line.split())
            line = " ".join(_CONTROL.sub("", plain).split())
            if line != plain:
                happened.setdefault(CONTROL, number)
        elif line[:1] == " " or line[-1:] == " ":
            line = line.strip()
        if len(line) > LONGEST_LINE:
            pieces = list(_cut(line))
            if len(pieces) > 1:
                happened.setdefault(LONG_LINE, number)
            found += pieces
        elif line:
            found.append(line)
    if not found:
        happened[EMPTY] = 0
    for kind, number in happened.items():
        note(notes, kind, _below(place, number) if of_lines else place)
    return found


def merge(all_notes: Iterable[Notes]) -> Notes:
    """The sums, with the place of the first."""
    together: Notes = {}
    for notes in all_notes:
        for kind, (count, place) in notes.items():
            note(together, kind, place, count)
    return together


def _cut(line: str) -> Iterator[str]:
    """Pieces of at most `LONGEST_LINE` characters, between words where there are any."""
    begin = 0
    line = " ".join(line.split())
    while len(line) - begin > LONGEST_LINE:
        end = line.rfind(" ", begin + LONGEST_LINE // 2, begin + LONGEST_LINE)
        end = end if end > 0 else begin + LONGEST_LINE
        yield line[begin:end].strip()
        begin = end
    yield line[begin:].strip()


def _below(place: str, lines: int) -> str:
    """The place that many lines further down, where the place is a line of a file."""
    name, colon, number = place.rpartition(":")
    return f"{name}:{int(number) + lines}" if colon and number.isdigit() else place
