"""Lines as SVG: series of numbers in, the text of an image out. Nothing here knows of runs.

An image scales with its page and takes all colours from the page's style sheet: lines and what belongs to them have the
classes `c0` to `c5`, or `muted`.
"""

import bisect
import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from electra_jax.runtime.progress import short

COLOURS = 6
_WIDTH, _HEIGHT = 480, 270
_TOP, _BOTTOM, _RIGHT = 28, 40, 16
_MOST = 400  # points of a line; more than the pixels of a phone
_MARKED = 40  # points, at most, of a line whose points are marked and say their numbers
_LETTER, _LINE = 7.8, 15  # the size of a letter and of a line, on a phone, where letters are largest
_FAR = 40  # how far a label may stand from its line to get out of the way of others
_STEPS = (1, 2, 5, 10)

Point = tuple[float, float]


class Axis(NamedTuple):
    """What is along an axis.

    Attributes:
      label: its name or unit.
      log: whether equal distances are equal factors; numbers that are not above 0 have no place then.
      zero: whether it begins at 0.
    """

    label: str
    log: bool = False
    zero: bool = False


class Series(NamedTuple):
    """A line.

    Attributes:
      name: for those who cannot see it, or point at it.
      points: (x, y), x ascending.
      colour: which of the colours; None for a line that belongs to all.
      label: what stands at its end.
      dashed: whether it is something to compare with.
      band: (x, lowest, highest), drawn behind it.
    """

    name: str
    points: Sequence[Point]
    colour: int | None = None
    label: str = ""
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()


def draw(title: str, x: Axis, y: Axis, series: Sequence[Series], css: str = "") -> str:
    """An `<svg>` element.

    Args:
      title: what it shows; with the ends of each line it is what a screen reader says.
      x: the axis to the right.
      y: the axis upwards.
      series: lines; numbers that are not finite are left out.
      css: further classes of the element.
    """
    series = [_drawable(line, x, y) for line in series]
    solid = [line for line in series if line.points and not line.dashed]
    said = [f"{line.name}: {short(line.points[0][1])} to {short(line.points[-1][1])}" for line in solid]
    about = escape(f"{title}, against {x.label}. {'; '.join(said) or 'Nothing to show'}.")
    inside = _inside(x, y, series) if solid else [_text(_WIDTH / 2, _HEIGHT / 2, "no numbers yet", "middle")]
    head = f'<svg class="{f"chart {css}".strip()}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{about}</title>'
    return "".join([head, *inside, "</svg>"])


def thin(points: Sequence[Point], most: int = _MOST) -> list[Point]:
    """At most `most` of the points: both ends, and of each stretch between them the lowest and the highest."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for i in range(stretches):
        part = range(len(inner) * i // stretches, len(inner) * (i + 1) // stretches)
        ends = {min(part, key=lambda at: inner[at][1]), max(part, key=lambda at: inner[at][1])}
        kept += [inner[at] for at in sorted(ends)]
    return [*kept, points[-1]]


def bounds(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Where an axis begins and ends, so that all values have a place and are not all at the same one."""
    low, high = min(values), max(values)
    if axis.log:
        return (low, high) if high > 1.05 * low else (low / 1.5, high * 1.5)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    least = 0.01 * max(abs(low), abs(high)) or 1.0  # labels have four figures
    if high - low >= least:
        return low, high
    return (low, low + least) if axis.zero else (low - least / 2, high + least / 2)


def ticks(axis: Axis, low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count`."""
    if axis.log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = max(1, len(decades) // (count + 1))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            found = [f * 10.0**k for k in decades if k % every == 0 for f in factors if low <= f * 10.0**k <= high]
            if len(found) >= 3:
                return found
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * _STEPS[min(bisect.bisect_left(_STEPS, rough / size * 0.999), len(_STEPS) - 1)]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


class _Scale:
    """From numbers to places along an axis."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float, margin: float = 0.0):
        """`margin` is kept free at both ends, at none that is 0 where the axis begins at zero."""
        self._of = math.log10 if axis.log else float
        low, high = bounds(axis, values)
        room = margin * (self._of(high) - self._of(low))
        self._low = self._of(low) - (0 if axis.zero and low == 0 else room)
        self._high = self._of(high) + room
        self._begin, self._per = begin, (end - begin) / (self._high - self._low)
        back = (lambda value: 10.0**value) if axis.log else float
        self.ticks = ticks(axis, back(self._low), back(self._high))

    def __call__(self, value: float) -> float:
        return self._begin + (self._of(value) - self._low) * self._per


def _drawable(line: Series, x: Axis, y: Axis) -> Series:
    def has_place(at: Sequence[float]) -> bool:
        return all(map(math.isfinite, at)) and not (x.log and at[0] <= 0) and not (y.log and min(at[1:]) <= 0)

    band = [at for at in line.band if has_place(at)]
    return line._replace(points=thin([at for at in line.points if has_place(at)]), band=band)


def _inside(x: Axis, y: Axis, series: Sequence[Series]) -> list[str]:
    ys = [at[1] for line in series for at in line.points] + [
        end for line in series for at in line.band for end in at[1:]
    ]
    xs = [at[0] for line in series for at in line.points]
    up = _Scale(y, ys, _HEIGHT - _BOTTOM, _TOP, 0.05)
    left = 12 + _LETTER * max((len(short(tick)) for tick in up.ticks), default=0)
    right: float = _WIDTH - _RIGHT
    across = _Scale(x, xs, left, right)
    for line in series:
        if line.label and line.points and (share := (across(line.points[-1][0]) - left) / (_WIDTH - _RIGHT - left)):
            right = min(right, left + (_WIDTH - _width(line.label) - left) / share)  # its label has a place
    across = _Scale(x, xs, left, right)
    parts = _axes(x, y, across, up, left, right)
    for line in sorted(series, key=lambda line: not line.dashed):  # what is compared with lies behind
        parts += _line(x, line, across, up)
    return parts + _labels(series, across, up)


def _axes(x: Axis, y: Axis, across: _Scale, up: _Scale, left: float, right: float) -> list[str]:
    parts = []
    for tick in up.ticks:
        at = up(tick)
        parts.append(f'<path class="gridline" d="M{left:.1f} {at:.1f}H{right:.1f}"/>')
        parts.append(_text(left - 6, at + 4, short(tick), "end"))
    base, free = _HEIGHT - _BOTTOM, -math.inf
    parts.append(f'<path class="axis" d="M{left:.1f} {base}H{right:.1f}"/>')
    for tick in across.ticks:
        at, half = across(tick), _LETTER * len(short(tick)) / 2
        parts.append(f'<path class="axis" d="M{at:.1f} {base}v4"/>')
        if at - half > free and at + half < _WIDTH:
            parts.append(_text(at, base + 18, short(tick), "middle"))
            free = at + half + _LETTER
    parts.append(_text(right, _HEIGHT - 5, x.label, "end", "name"))
    parts.append(_text(2, 13, y.label, "start", "name"))
    return parts


def _line(x: Axis, line: Series, across: _Scale, up: _Scale) -> list[str]:
    if not line.points:
        return []
    colour = _colour(line)
    places = [(across(a), up(b)) for a, b in line.points]
    parts = []
    if len(line.band) > 1:
        there = [(across(at), up(high)) for at, _, high in line.band]
        back = [(across(at), up(low)) for at, low, _ in reversed(line.band)]
        parts.append(f'<path class="band {colour}" d="{_path([*there, *back])}Z"/>')
    parts.append(f'<path class="line {colour}{" dashed" if line.dashed else ""}" d="{_path(places)}"/>')
    if not line.dashed:
        marked = range(len(places)) if len(places) <= _MARKED else [len(places) - 1]
        for i in marked:
            says = escape(f"{line.name}: {line.points[i][1]:.5g} at {short(line.points[i][0])} {x.label}")
            css, r = ("end ", 3.5) if i == len(places) - 1 else ("", 1.8)
            parts.append(
                f'<circle class="{css}{colour}" cx="{places[i][0]:.1f}" cy="{places[i][1]:.1f}" r="{r}">'
                f"<title>{says}</title></circle>"
            )
    return parts


def _labels(series: Sequence[Series], across: _Scale, up: _Scale) -> list[str]:
    """A label beside each line's end, moved up or down where another one stands; a bar has the line's colour."""
    taken: list[tuple[float, float, float]] = []
    lines = [at for line in series for at in _dense([(across(a), up(b)) for a, b in line.points])]
    parts = []
    named = [line for line in series if line.label and line.points]
    for line in sorted(named, key=lambda line: -line.points[-1][1]):
        begin, middle = across(line.points[-1][0]) + 8, up(line.points[-1][1])
        end = begin + _width(line.label) - 8
        moves = sorted((k * _LINE / 3 for k in range(-60, 61)), key=abs)
        inside = [middle + move for move in moves if _TOP <= middle + move <= _HEIGHT - _BOTTOM]
        free = [
            at for at in inside if all(abs(at - b) >= _LINE or begin >= high or end <= low for low, high, b in taken)
        ]
        near = [b for a, b in lines if begin - 4 <= a <= end]
        clear = [at for at in free if abs(at - middle) <= _FAR and all(abs(at - b) >= _LINE / 2 + 1 for b in near)]
        at = next(iter([*clear, *free]), middle)
        taken.append((begin, end, at))
        parts.append(f'<path class="bar-of {_colour(line)}" d="M{begin:.1f} {at - 5:.1f}v10"/>')
        parts.append(_text(begin + 6, at + 4, line.label, "start", "label"))
    return parts


def _width(label: str) -> float:
    """What a label takes up, with the space before it."""
    return 16 + _LETTER * len(label)


def _dense(places: Sequence[Point]) -> list[Point]:
    """Places on a line that are so near to each other that no letter fits between them."""
    found = list(places[:1])
    for (a, b), (c, d) in pairwise(places):
        count = max(1, math.ceil(math.hypot(c - a, d - b) / 4))
        found += [(a + (c - a) * i / count, b + (d - b) * i / count) for i in range(1, count + 1)]
    return found


def _colour(line: Series) -> str:
    return "muted" if line.colour is None else f"c{line.colour % COLOURS}"


def _path(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    css = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(text)}</text>'
