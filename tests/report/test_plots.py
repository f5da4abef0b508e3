import itertools
import math
import re
import runpy
import sys
from xml.etree import ElementTree

import pytest

from electra_jax import report
from electra_jax.config.errors import UserError
from electra_jax.report import plots
from electra_jax.report.plots import Axis, Series
from electra_jax.runtime.metric_text import short_number

X, Y = Axis("steps"), Axis("nats")


def drawn(*series, x=X, y=Y, title="A loss"):
    return ElementTree.fromstring(plots.draw_chart(title, x, y, list(series)))


def places(root, css="line"):
    """The points of each path of a class."""
    paths = [path for path in root.iter("path") if css in path.get("class").split()]
    return [[tuple(map(float, pair.split())) for pair in path.get("d").strip("Mz ").split("L")] for path in paths]


def assert_circles_are_inside(root):
    for circle in root.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= 480
        assert 0 <= float(circle.get("cy")) <= 270


def texts(root, css=None):
    return [text.text for text in root.iter("text") if css is None or text.get("class") == css]


def test_a_line_goes_where_its_numbers_are():
    (line,) = places(drawn(Series("a", [(0, 4.0), (50, 3.0), (100, 1.0)])))
    (x0, y0), (x1, y1), (x2, y2) = line
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 < y1 < y2  # downwards on a screen
    assert (y2 - y1) / (y1 - y0) == pytest.approx(2, rel=0.02)


def test_on_a_logarithmic_axis_equal_factors_are_equally_far():
    (line,) = places(drawn(Series("a", [(1e12, 1), (1e13, 2), (1e14, 3)]), x=Axis("FLOPs", log=True)))
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.2)
    (line,) = places(drawn(Series("a", [(0, 1), (1, 2), (1e14, 3)]), x=Axis("FLOPs", log=True)))
    assert len(line) == 2  # 0 has no place there


def test_an_image_says_what_it_shows():
    root = drawn(Series("tiny", [(1, 4.0), (2, 3.25)]), Series("entropy", [(1, 6.0), (2, 6.0)], dashed=True))
    assert (root.get("role"), root[0].tag) == ("img", "title")
    assert root[0].text == "A loss, against steps. tiny: 4 to 3.25."
    assert [circle.find("title").text for circle in root.iter("circle")] == [
        "tiny: 4 at 1 steps",
        "tiny: 3.25 at 2 steps",
    ]
    assert {"steps", "nats"} <= set(texts(root, "name"))


def test_text_is_escaped_and_not_read_as_a_formula():
    hostile = """</svg><script>alert("1")</script> & 'x' $a_b$"""
    root = drawn(Series(hostile, [(1, 2), (3, 4)], label=hostile), title=hostile, y=Axis(hostile))
    assert {element.tag for element in root.iter()} == {"svg", "title", "path", "text", "circle"}
    assert hostile in texts(root)


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [
        (0, 1060, False),
        (5.9, 5.9, False),
        (0, 0, False),
        (-3, 7, False),
        (12861, 12869, False),
        (0.00012, 0.00013, False),
        (1e24, 3e27, False),
        (-1e-9, 1e-9, False),
        (1e12, 3e12, True),
        (1e12, 1.04e12, True),
        (3, 40_000, True),
        (1e-3, 1e21, True),
    ],
)
def test_ticks_are_round_few_and_told_apart(low, high, log):
    axis = Axis("", log=log)
    begin, end = plots.limits(axis, [low, high])
    assert begin <= low <= high <= end
    assert begin < end
    ticks = plots.ticks(axis, begin, end)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
    assert begin - 1e-9 * abs(begin) <= ticks[0] <= ticks[-1] <= end + 1e-9 * abs(end)
    assert len({short_number(tick) for tick in ticks}) == len(ticks)
    for tick in ticks:
        figures = f"{abs(tick):.6e}".partition("e")[0].rstrip("0").rstrip(".")
        assert len(figures) <= 6  # of 12862


def test_an_axis_that_begins_at_zero_does():
    assert plots.limits(Axis("", zero=True), [3, 4]) == (0, 4)
    assert plots.limits(Axis("", zero=True), [0, 0]) == (0, 1)


def test_a_long_line_is_thinned_but_keeps_its_ends_and_extremes():
    points = [(float(i), math.sin(i / 300)) for i in range(10_000)]
    points[4321], points[777] = (4321.0, 99.0), (777.0, -99.0)
    thin = plots.thin(points)
    assert len(thin) <= 400
    assert thin == sorted(thin)
    assert {points[0], points[-1], points[4321], points[777]} <= set(thin) <= set(points)
    assert plots.thin(points[:400]) == points[:400]
    assert len(plots.draw_chart("", X, Y, [Series("a", points)])) < 8000


def test_what_is_no_number_is_left_out():
    (line,) = places(drawn(Series("a", [(1, math.nan), (2, 3.0), (3, math.inf), (4, 2.0)])))
    assert len(line) == 2
    empty = drawn(Series("a", [(1, math.nan)]), Series("b", []))
    assert texts(empty) == ["no numbers yet"]
    assert empty[0].text == "A loss, against steps. Nothing to show."


@pytest.mark.parametrize("axis", [Axis("x"), Axis("x", zero=True), Axis("x", log=True)])
def test_a_single_point_and_lines_without_extent_are_drawn(axis):
    for points in ([(5.0, 3.0)], [(5.0, 3.0), (5.0, 3.0)], [(1.0, 2.0), (9.0, 2.0)]):
        root = drawn(Series("a", points, label="a", band=[(x, y, y) for x, y in points]), x=axis, y=axis)
        assert [*root.iter("circle")]
        assert_circles_are_inside(root)


def test_labels_keep_clear_of_each_other_and_of_the_edge():
    series = [Series(f"run {i}", [(0, 5.0), (100, 3.0 + i / 1000)], i, label=f"run-number-{i}") for i in range(8)]
    root = drawn(*series)
    labels = [text for text in root.iter("text") if text.get("class") == "label"]
    assert len(labels) == 8
    for one, other in itertools.combinations(labels, 2):
        assert abs(float(one.get("y")) - float(other.get("y"))) >= 14
    assert all(float(text.get("x")) + 7 * len(text.text) <= 480 for text in labels)


def test_a_label_gets_out_of_the_way_of_a_line():
    short_line, long_line = Series("a", [(0, 5.0), (30, 4.0)], 0, "a"), Series("b", [(0, 4.0), (100, 4.0)], 1, "b")
    (label,) = [text for text in drawn(short_line, long_line).iter("text") if text.text == "a"]
    (_, line) = places(drawn(short_line, long_line))
    assert abs(float(label.get("y")) - 4 - line[0][1]) > 7


def test_a_band_lies_around_its_line_and_what_is_compared_with_behind_it():
    line = Series("a", [(1, 3.0), (2, 5.0)], 0, band=[(1, 2.0, 4.0), (2, 4.5, 6.0)])
    root = drawn(line, Series("yardstick", [(1, 3.0), (2, 3.0)], dashed=True))
    (band,) = places(root, "band")
    yardstick, above = places(root)
    heights = [y for x, y in band if x == above[0][0]]
    assert min(heights) < above[0][1] < max(heights)
    assert yardstick[0][1] == yardstick[1][1]
    assert [circle.get("class") for circle in root.iter("circle")] == ["c0", "end c0"]  # none on what is compared with


def test_colors_are_the_pages():
    text = plots.draw_chart("", X, Y, [Series("a", [(1, 2)], i) for i in (0, 5, 6, None)], css="by-step")
    assert set(re.findall(r'circle class="end (\w+)"', text)) == {"c0", "c5", "muted"}
    assert 'class="chart by-step"' in text
    assert "#" not in text
    assert "style" not in text


@pytest.mark.parametrize(
    ("x", "y"),
    [(Axis("x"), Axis("y", log=True)), (Axis("x", log=True), Axis("y", zero=True))],
)
def test_extreme_numbers_are_drawn_or_left_out(x, y):
    numbers = [-sys.float_info.max, -(10**99), 2**64, 10**400, -5e-324, 0.0, 5e-324, 1.0, 1e100, sys.float_info.max]
    for values in (*itertools.combinations(numbers, 2), numbers):
        root = drawn(Series("a", [(value, value) for value in values], label="a"), x=x, y=y)
        assert_circles_are_inside(root)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"plots need matplotlib.*; pip install 'electra_jax\[downstream\]'"):
        runpy.run_path(report.__file__)
