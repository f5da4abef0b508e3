"""Makes untrusted text safe to print: file names, JSON keys and lines of text may contain terminal control codes."""

import re

# C0 except line ends and tabs, DEL, C1, and the characters that change the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Replaces control characters in `text` by escapes such as \x1b, which a terminal shows instead of obeying."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
