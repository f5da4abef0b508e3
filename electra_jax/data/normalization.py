"""Normalization that is done before SentencePiece's own, and the offsets of its characters in the text."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

WIDE_MARKS = {"\uff9e": "\u3099", "\uff9f": "\u309a"}  # marks of half-width kana -> combining marks
SPACES = "[\t\n\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]"  # that NFKC keeps, and nmt_* in part removes
_SPACE, _WORD = re.compile(SPACES), re.compile(r"\S+")
_JOINED = re.compile("[^\\s\u200c]\u200c[^\\s\u200c]")
_MANY_JOINED = 0.001  # fraction of the lines


def compose(line: str, normalization: str) -> str:
    """Composes the marks of `line` (NFC), and lowercases it if the normalization folds case.

    After that, a model's own normalization does not depend on how letters with marks were encoded, and tokenizer.json
    can reproduce it character by character: see converted.py.
    """
    if normalization == "identity":
        return line
    # A fast test: none of these is printable.
    if not line.isprintable():
        line = _SPACE.sub(" ", line)
    if line.isascii():
        # ASCII has no marks, and the model folds its case itself.
        return line
    for wide, mark in WIDE_MARKS.items():
        line = line.replace(wide, mark)
    # NFC last: h with a line below is one character (U+1E96), but no capital is.
    return unicodedata.normalize("NFC", line.lower() if normalization.endswith("_cf") else line)


def has_joiners(lines: Sequence[str]) -> bool:
    """True if many lines have zero-width non-joiners in words, as in Persian; the rules `nmt_*` make each a space."""
    return sum(_JOINED.search(line) is not None for line in lines) > _MANY_JOINED * len(lines)


def places(text: str, composed: str, normalization: str) -> list[tuple[int, int]]:
    """Maps each character of `composed`, and its end, to the characters [begin, end) of `text` that it was made from.

    `compose` keeps spaces. In a word whose characters did not change one to one, each character maps to the whole word.
    """
    if text == composed:
        return [*((i, i + 1) for i in range(len(text))), (len(text), len(text))]

    def parts() -> Iterator[tuple[int, int]]:
        at = 0
        for word, other in zip(_WORD.finditer(text), _WORD.finditer(composed), strict=True):
            yield from ((i, i + 1) for i in range(at, word.start()))
            at = word.end()
            # Equal lengths are not enough: one letter may have become two, and two others one.
            changed = word[0] if word[0] != other[0] and not word[0].isascii() else ""
            if len(word[0]) == len(other[0]) and all(len(compose(letter, normalization)) == 1 for letter in changed):
                yield from ((i, i + 1) for i in range(*word.span()))
            else:
                yield from [word.span()] * len(other[0])
        yield from ((i, i + 1) for i in range(at, len(text)))

    return [*parts(), (len(text), len(text))]


def trim(text: str, begin: int, end: int) -> tuple[int, int]:
    """Returns [begin, end) of `text` without the spaces around it; a span of spaces becomes empty, at its end."""
    inner = text[begin:end].lstrip()
    begin = end - len(inner)
    return begin, begin + len(inner.rstrip())
