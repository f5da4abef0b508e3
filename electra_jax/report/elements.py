"""Elements of the page: tables, and the keys that give each run a color and a short label."""

import string
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from electra_jax.report import plots

_LONGEST_LABEL = 12  # longer names do not fit beside a line in a chart


class Key(NamedTuple):
    """The marking of a run throughout the page.

    Attributes:
      color: the index of its color.
      name: its full name.
      label: the text beside its lines: the name, or a letter if names are long.
    """

    color: int
    name: str
    label: str

    @property
    def html(self) -> str:
        label = "" if self.label == self.name else f"<b>{escape(self.label)}</b> "
        return f'<span class="key c{self.color % plots.COLORS}">{label}{escape(self.name)}</span>'


def keys(names: Sequence[str], colors: Sequence[int] | None = None) -> list[Key]:
    """Returns a key for each name; without `colors`, colors are numbered in order."""
    short = all(len(name) <= _LONGEST_LABEL for name in names)
    return [
        Key(i if colors is None else colors[i], name, name if short else _letter(i)) for i, name in enumerate(names)
    ]


def _letter(i: int) -> str:
    """Returns A, B, ..., Z, A1, B1, ..."""
    turn, index = divmod(i, len(string.ascii_uppercase))
    return string.ascii_uppercase[index] + (str(turn) if turn else "")


def legend(keys: Sequence[Key]) -> str:
    return f'<ul class="legend">{"".join(f"<li>{key.html}</li>" for key in keys)}</ul>'


def table(columns: Sequence[Key], bodies: Sequence[str], caption: str) -> str:
    """Returns a table in a scrolling box, with a column for each key; `bodies` are its `<tbody>` elements."""
    head = "".join(f'<th scope="col">{key.html}</th>' for key in columns)
    # With a `tabindex` the keyboard can scroll the box.
    return (
        f'<div class="card scroll" tabindex="0"><table><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr><td></td>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


def body(rows: Sequence[tuple[str, Sequence[str]]], heading: str = "") -> str:
    """Returns a `<tbody>` of rows, (name, cells), under an optional heading."""
    parts = []
    if heading:
        width = 1 + max(len(cells) for _, cells in rows)
        parts.append(f'<tr><th scope="rowgroup" colspan="{width}"><span>{escape(heading)}</span></th></tr>')
    parts += [f'<tr><th scope="row">{_breakable(escape(name))}</th>{"".join(cells)}</tr>' for name, cells in rows]
    return f"<tbody>{''.join(parts)}</tbody>"


def _breakable(name: str) -> str:
    """Allows a line break after each dot and underscore in the name of a setting."""
    return name.replace(".", ".<wbr>").replace("_", "_<wbr>")


def cell(text: str, beside: str = "", exact: str = "") -> str:
    """Returns a `<td>` with `beside` in small print after the text, and a tooltip with the exact value."""
    title = f' title="{escape(exact)}"' if exact and exact != text else ""
    small = f"\u2002<small>{escape(beside)}</small>" if beside else ""
    return f"<td{title}>{escape(text)}{small}</td>"
