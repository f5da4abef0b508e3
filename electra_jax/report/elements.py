"""What the page is made of: tables, and the keys that say which colour and which letter is whose."""

import string
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from electra_jax.report import charts

_LONGEST_LABEL = 12  # letters of a name that can stand in a chart


class Key(NamedTuple):
    """How something is known on the page.

    Attributes:
      colour: of its lines.
      name: in full.
      label: what stands beside its lines: its name, or a letter where names are long.
    """

    colour: int
    name: str
    label: str

    @property
    def html(self) -> str:
        label = "" if self.label == self.name else f"<b>{escape(self.label)}</b> "
        return f'<span class="key c{self.colour % charts.COLOURS}">{label}{escape(self.name)}</span>'


def keys(names: Sequence[str], colours: Sequence[int] | None = None) -> list[Key]:
    """A key for each name, with the colours in order where none are given."""
    short = all(len(name) <= _LONGEST_LABEL for name in names)
    return [
        Key(i if colours is None else colours[i], name, name if short else _letter(i)) for i, name in enumerate(names)
    ]


def _letter(i: int) -> str:
    turn, at = divmod(i, len(string.ascii_uppercase))
    return string.ascii_uppercase[at] + (str(turn) if turn else "")


def legend(of: Sequence[Key]) -> str:
    return f'<ul class="legend">{"".join(f"<li>{key.html}</li>" for key in of)}</ul>'


def table(columns: Sequence[Key], bodies: Sequence[str], caption: str) -> str:
    """A table with a column for each key, in a box of its own that scrolls; `bodies` are its `<tbody>`s."""
    head = "".join(f'<th scope="col">{key.html}</th>' for key in columns)
    return (
        f'<div class="card scroll" tabindex="0"><table><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr><td></td>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


def body(rows: Sequence[tuple[str, Sequence[str]]], heading: str = "") -> str:
    """A `<tbody>` of rows, (what, cells), under a heading if there is one."""
    parts = []
    if heading:
        width = 1 + max(len(cells) for _, cells in rows)
        parts.append(f'<tr><th scope="rowgroup" colspan="{width}"><span>{escape(heading)}</span></th></tr>')
    parts += [f'<tr><th scope="row">{_breaking(escape(what))}</th>{"".join(cells)}</tr>' for what, cells in rows]
    return f"<tbody>{''.join(parts)}</tbody>"


def _breaking(name: str) -> str:
    """The name of a setting can be broken where a part of it ends."""
    return name.replace(".", ".<wbr>").replace("_", "_<wbr>")


def cell(text: str, beside: str = "", exact: str = "") -> str:
    """A `<td>`; what stands beside the text is small, what is exact is said to a pointer that pretrained_generator on it."""
    title = f' title="{escape(exact)}"' if exact and exact != text else ""
    small = f"\u2002<small>{escape(beside)}</small>" if beside else ""
    return f"<td{title}>{escape(text)}{small}</td>"
