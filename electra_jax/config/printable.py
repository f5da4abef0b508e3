"""Text of others on a terminal: file names, keys of JSON and lines of text may hold characters that control it."""

import re

# C0 except line ends and tabs, DEL, C1, and the characters that change the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""`text` with control characters as escapes, such as \x1b, that a terminal shows and does not obey."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
