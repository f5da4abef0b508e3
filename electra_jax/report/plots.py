"""Draws line charts for the report page with matplotlib, as SVG.

matplotlib lays out a chart. Its colors and fonts are then replaced by CSS classes, so that both come from the style
sheet of the page. A line and its marks have the class `c0` to `c5`, or `muted`.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.run_log import is_number

COLORS = 6
_WIDTH, _HEIGHT = 480, 270
_TOP, _BOTTOM, _RIGHT = 28, 40, 16
_LETTER, _LINE = 7.8, 15  # the width of a letter and the height of a line on a phone, where text is largest
_FAR = 40  # a label moves at most this far from its line's end to be clear of other lines
_MOST_POINTS = 400  # per line; more than the pixels of a phone
_MOST_MARKS = 40  # a line of up to this many points has a mark with a tooltip at each
_SMALLEST = 1e-100  # smaller numbers, except 0, are left out: ratios of the others still fit into a float
_MARGIN = 0.05  # fraction of the y-axis above and below the lines
_TICKS = 5
# Text stays text instead of becoming paths, so that the page sets its font.
_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "font.size": 12}

Point = tuple[float, float]


class Axis(NamedTuple):
    """An axis of a chart.

    Attributes:
      label: its name or unit.
      log: whether it is logarithmic; numbers that are not positive are left out.
      zero: whether it begins at 0.
    """

    label: str
    log: bool = False
    zero: bool = False


class Series(NamedTuple):
    """A line of a chart.

    Attributes:
      name: its name for screen readers and tooltips.
      points: (x, y), x ascending.
      color: the index of its color; None for a line that belongs to all runs.
      label: text at its end.
      dashed: whether it is a baseline.
      band: (x, lowest, highest), shaded behind the line.
    """

    name: str
    points: Sequence[Point]
    color: int | None = None
    label: str = ""
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()

    @property
    def css(self) -> str:
        return "muted" if self.color is None else f"c{self.color % COLORS}"


def draw_chart(title: str, x: Axis, y: Axis, series: Sequence[Series], css: str = "") -> str:
    """Draws a chart.

    Args:
      title: what the chart shows; a screen reader reads it out, with the first and last number of each line.
      x: the horizontal axis.
      y: the vertical axis.
      series: the lines; numbers that are not finite are left out.
      css: additional classes of the element.

    Returns:
      An `<svg>` element for an HTML page, without ids.
    """
    series = [_drawable(line, x, y) for line in series]
    solid = [line for line in series if line.points and not line.dashed]
    ends = [f"{line.name}: {short_number(line.points[0][1])} to {short_number(line.points[-1][1])}" for line in solid]
    root = ElementTree.Element(
        "svg", {"class": f"chart {css}".strip(), "viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img"}
    )
    ElementTree.SubElement(root, "title").text = f"{title}, against {x.label}. {'; '.join(ends) or 'Nothing to show'}."
    if solid:
        _Chart(x, y, series).append_to(root)
    else:
        at = {"x": str(_WIDTH / 2), "y": str(_HEIGHT / 2), "text-anchor": "middle"}
        ElementTree.SubElement(root, "text", at).text = "no numbers yet"
    return ElementTree.tostring(root, encoding="unicode")


def _drawable(line: Series, x: Axis, y: Axis) -> Series:
    """Returns the line without points that the chart cannot show."""

    def has_place(at: Sequence[float]) -> bool:
        return (
            all(map(is_number, at))
            and not (x.log and at[0] < _SMALLEST)
            and not (y.log and min(at[1:]) < _SMALLEST)
            and all(value == 0 or abs(value) >= _SMALLEST for value in at)
        )

    # As floats: NumPy has no logarithm of an integer of more than 64 bits.
    band = [(float(x), float(low), float(high)) for x, low, high in line.band if has_place((x, low, high))]
    points = [(float(x), float(y)) for x, y in line.points if has_place((x, y))]
    return line._replace(points=thin(points), band=band)


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Thins a line to at most `most` points: both ends, and the lowest and highest of each stretch between them."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for i in range(stretches):
        part = range(len(inner) * i // stretches, len(inner) * (i + 1) // stretches)
        # Both extremes, because a mean would hide spikes.
        extremes = {min(part, key=lambda at: inner[at][1]), max(part, key=lambda at: inner[at][1])}
        kept += [inner[at] for at in sorted(extremes)]
    return [*kept, points[-1]]


class _Chart:
    """A matplotlib figure of one panel, in pixels of the SVG, and the CSS class of each of its artists."""

    def __init__(self, x: Axis, y: Axis, series: Sequence[Series]):
        self._series = sorted(series, key=lambda line: not line.dashed)  # baselines are drawn first
        self._x = x
        self._classes: dict[str, str] = {}  # by gid
        # At 72 dots per inch matplotlib's points are the pixels of the SVG.
        self._figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72)
        with matplotlib.rc_context(_SETTINGS):
            self._axes = self._figure.add_axes((0, 0, 1, 1))
            self._lay_out(x, y)
            for line in self._series:
                self._draw_line(line)
            self._draw_labels()

    def append_to(self, root: ElementTree.Element) -> None:
        """Appends the content of the figure to an SVG element."""
        # Again with the settings, because `savefig` reads them when it draws.
        file = io.StringIO()
        with matplotlib.rc_context(_SETTINGS):
            self._figure.savefig(file, format="svg")
        root.extend(_flatten(ElementTree.fromstring(file.getvalue()), self._classes))
        for line in self._series:
            if not line.dashed:
                root.extend(self._marks(line))

    def _mark(self, css: str) -> str:
        """Returns a new gid for an artist that gets the class `css`."""
        # matplotlib writes it as the id of the artist's group, by which `_flatten` finds the class.
        gid = f"gid{len(self._classes)}"
        self._classes[gid] = css
        return gid

    def _lay_out(self, x: Axis, y: Axis) -> None:
        axes = self._axes
        xs = [at[0] for line in self._series for at in line.points]
        ys = [at[1] for line in self._series for at in line.points]
        ys += [end for line in self._series for at in line.band for end in at[1:]]
        for scale, axis in ((axes.set_xscale, x), (axes.set_yscale, y)):
            scale("log" if axis.log else "linear")
        axes.set_xlim(limits(x, xs))
        axes.set_ylim(_with_margin(y, *limits(y, ys)))
        x_ticks, y_ticks = ticks(x, *axes.get_xlim()), ticks(y, *axes.get_ylim())
        self._place(12 + _LETTER * max((len(short_number(tick)) for tick in y_ticks), default=0))
        axes.set_xticks(x_ticks, [short_number(tick) for tick in x_ticks])
        axes.set_yticks(y_ticks, [short_number(tick) for tick in y_ticks])
        axes.minorticks_off()
        axes.tick_params(length=0, pad=6)
        axes.grid(True, clip_on=False)
        for tick in (*axes.xaxis.get_major_ticks(), *axes.yaxis.get_major_ticks()):
            tick.gridline.set_gid(self._mark("gridline"))
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.spines["bottom"].set_gid(self._mark("axis"))
        # The background is that of the page, light or dark.
        for patch in (axes.patch, self._figure.patch):
            patch.set_visible(False)
        right = axes.get_position().x1 * _WIDTH
        for text, at, align in ((x.label, (right, 5), "right"), (y.label, (2, _HEIGHT - 13), "left")):
            self._write(text, at, align, "name")

    def _place(self, left: float) -> None:
        """Positions the axes so that each label at the end of a line has room."""
        low, high = self._axes.get_xlim()
        transform = self._axes.transScale.transform
        # y is 1, because a logarithmic axis has no place for 0.
        (begin, _), (end, _) = transform([(low, 1), (high, 1)])
        right: float = _WIDTH - _RIGHT
        for line in self._series:
            if line.label and line.points:
                share = (transform((line.points[-1][0], 1))[0] - begin) / (end - begin)
                if share > 0:
                    # The line ends at `share` of the axis, and its label's width must remain.
                    right = min(right, left + (_WIDTH - _label_width(line.label) - left) / share)
        # A label may be wider than the chart; axes need some width.
        right = max(right, left + 1)
        height = _HEIGHT - _BOTTOM - _TOP
        self._axes.set_position((left / _WIDTH, _BOTTOM / _HEIGHT, (right - left) / _WIDTH, height / _HEIGHT))

    def _draw_line(self, line: Series) -> None:
        if not line.points:
            return
        # A band of one point would have no width.
        if len(line.band) > 1:
            x, lowest, highest = ([at[i] for at in line.band] for i in range(3))
            band = self._axes.fill_between(x, lowest, highest, clip_on=False)
            band.set_gid(self._mark(f"band {line.css}"))
        css = f"line {line.css}{' dashed' if line.dashed else ''}"
        self._axes.plot(*zip(*line.points, strict=True), clip_on=False, gid=self._mark(css))

    def _draw_labels(self) -> None:
        """Draws a label at each line's end, with a bar of the line's color."""
        pixels = [self._axes.transData.transform(line.points) for line in self._series if line.points]
        taken: list[tuple[float, float, float]] = []  # begin, end and height of each label
        labeled = [line for line in self._series if line.label and line.points]
        for line in sorted(labeled, key=lambda line: -line.points[-1][1]):
            x, y = self._pixel(line.points[-1])
            begin, end = x + 8, x + _label_width(line.label)
            labels = [height for low, high, height in taken if begin < high and end > low]
            height = place_label(y, labels, _crossing(pixels, begin - 4, end), _BOTTOM, _HEIGHT - _TOP)
            taken.append((begin, end, height))
            bar = [begin, begin], [height - 5, height + 5]
            self._figure.add_artist(Line2D(*bar, transform=None, gid=self._mark(f"bar-of {line.css}")))
            self._write(line.label, (begin + 6, height - 4), "left", "label")

    def _write(self, text: str, pixel: Point, align: str, css: str) -> None:
        """Draws text with its baseline at a pixel."""
        # A $ in a name does not begin a formula.
        self._figure.text(
            pixel[0] / _WIDTH, pixel[1] / _HEIGHT, text, ha=align, va="baseline", gid=self._mark(css), parse_math=False
        )

    def _pixel(self, point: Point) -> Point:
        x, y = self._axes.transData.transform(point)
        return float(x), float(y)

    def _marks(self, line: Series) -> Iterator[ElementTree.Element]:
        """Yields circles with tooltips: at each point of a short line, else at the last."""
        for i, point in enumerate(line.points):
            last = i == len(line.points) - 1
            if last or len(line.points) <= _MOST_MARKS:
                x, y = self._pixel(point)
                # y counts downwards in SVG, upwards in matplotlib.
                at = {"cx": f"{x:.1f}", "cy": f"{_HEIGHT - y:.1f}", "r": "3.5" if last else "1.8"}
                circle = ElementTree.Element("circle", {"class": f"{'end ' if last else ''}{line.css}", **at})
                tooltip = f"{line.name}: {point[1]:.5g} at {short_number(point[0])} {self._x.label}"
                ElementTree.SubElement(circle, "title").text = tooltip
                yield circle


def _flatten(root: ElementTree.Element, classes: dict[str, str], css: str = "") -> Iterator[ElementTree.Element]:
    """Yields the paths and texts of matplotlib's SVG, with classes instead of ids and styles."""
    for element in root:
        own = classes.get(element.get("id", ""), css)
        # Without the namespace. Elements of no branch, such as `defs`, are left out.
        tag = element.tag.rpartition("}")[2]
        if tag == "g":
            yield from _flatten(element, classes, own)
        elif tag == "path":
            yield ElementTree.Element("path", {"class": own, "d": _rounded(element.get("d", ""))})
        elif tag == "text":
            style = element.get("style", "")
            anchor = re.search(r"text-anchor: (\w+)", style)
            place = {name: _rounded(element.get(name, "0")) for name in ("x", "y")}
            attributes = {"class": own} if own else {}
            text = ElementTree.Element("text", {**place, "text-anchor": anchor[1] if anchor else "start", **attributes})
            text.text = element.text
            yield text


def _rounded(numbers: str) -> str:
    """Rounds path data or a number to one decimal and removes line breaks."""
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", " ".join(numbers.split()))


def limits(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Returns the limits of an axis around all values. They differ by at least 1%, because ticks show four digits."""
    low, high = min(values), max(values)
    if axis.log:
        return (low, high) if high > 1.05 * low else (low / 1.5, high * 1.5)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # 1 where all values are 0.
    least = 0.01 * max(abs(low), abs(high)) or 1.0
    if high - low >= least:
        return low, high
    return (low, low + least) if axis.zero else (low - least / 2, high + least / 2)


def _with_margin(axis: Axis, low: float, high: float) -> tuple[float, float]:
    if axis.log:
        factor = (high / low) ** _MARGIN
        return low / factor, high * factor
    margin = _MARGIN * (high - low)
    return low - (0 if axis.zero and low == 0 else margin), high + margin


def ticks(axis: Axis, low: float, high: float) -> list[float]:
    """Returns about five round numbers from `low` to `high`."""
    linear = ticker.MaxNLocator(_TICKS, steps=[1, 2, 5, 10]).tick_values(low, high)
    if not axis.log:
        # By rounding, a tick at the end of the axis may lie just outside.
        slack = 1e-9 * (high - low)
        return _within(linear, low - slack, high + slack)
    # Powers of ten if at least three fit, else with multiples between them, else evenly spaced numbers.
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        values = ticker.LogLocator(subs=factors, numticks=_TICKS + 1).tick_values(low, high)
        within = _within(values, low * (1 - 1e-9), high * (1 + 1e-9))
        if len(within) >= 3:
            return within
    return _within(linear, low, high)


def _within(values: Iterable[float], low: float, high: float) -> list[float]:
    return [float(value) for value in values if low <= value <= high]


def place_label(height: float, labels: Sequence[float], lines: Sequence[float], low: float, high: float) -> float:
    """Returns the height for a label, as near as possible to the end of its line.

    Args:
      height: the height of the end of its line.
      labels: the heights of neighboring labels, which it does not overlap if there is room.
      lines: the heights of passing lines, which it does not overlap if there is room nearby.
      low: the minimum height.
      high: the maximum height.
    """
    # Up and down in turn, by up to 20 lines, which is more than the height of the chart.
    moves = sorted((k * _LINE / 3 for k in range(-60, 61)), key=abs)
    heights = [height + move for move in moves if low <= height + move <= high]
    free = [at for at in heights if all(abs(at - label) >= _LINE for label in labels)]
    clear = [at for at in free if abs(at - height) <= _FAR and all(abs(at - line) > _LINE / 2 for line in lines)]
    # A label may cross a line that has no room beside it, and another label only if there is no room at all.
    return next(iter([*clear, *free]), height)


def _crossing(lines: Sequence[np.ndarray], begin: float, end: float) -> list[float]:
    """Samples the heights of lines, each [N, 2] in pixels, between two places on the x-axis."""
    heights: list[float] = []
    for line in lines:
        # Only where the line is: `np.interp` would go on with its last height.
        x = np.arange(max(begin, line[0, 0]), min(end, line[-1, 0]) + 1, 4)
        heights += np.interp(x, line[:, 0], line[:, 1]).tolist()
    return heights


def _label_width(label: str) -> float:
    """Returns the width of a label with the space and the bar before it, in pixels."""
    return 16 + _LETTER * len(label)
