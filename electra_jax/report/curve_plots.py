"""Draws the plots of `electra-jax curves`, as PNG and SVG files.

Lines show the median over seeds, bands the range from the lowest to the highest seed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from electra_jax.downstream.curves import AVERAGE, MeasuredRun, ScoreRow, group_by_task, metrics_by_task, spread
from electra_jax.downstream.paper_scores import paper_scores
from electra_jax.objectives import registry
from electra_jax.runtime.metric_text import AREAS
from electra_jax.runtime.run_log import HELDOUT

# Colors for all kinds of color vision: Okabe and Ito, 2008, https://jfly.uni-koeln.de/color/
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FILES = tuple(f"{name}.{kind}" for name in ("scores", "average", "heldout") for kind in ("png", "svg"))
_MARKERS = "osD^vP*X"  # one more than colors, so that pairs of both differ
_DASHES = ("--", ":", "-.")
_X_LABELS = {"flops": "pre-training FLOPs", "flops_paper": "pre-training FLOPs, as the paper counts them"}
_GREY = "#707070"
_PANEL_HEIGHT, _PANEL_WIDTH, _COLUMNS = 2.9, 3.6, 3  # inches
_LEGEND_ENTRY = (1.7, 0.2)  # minimum width, and height, of an entry in inches
_LEGEND_HANDLE, _LEGEND_LETTER = 0.6, 0.07  # width of an entry's line with its margins, and of a letter
_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "electra_jax",  # makes the file reproducible
}


class Line(NamedTuple):
    """A line of a plot.

    Attributes:
      name: its name in the legend.
      points: (FLOPs, scores over seeds).
      baseline: whether it is the score of a model that was not pre-trained, drawn across all FLOPs.
    """

    name: str
    points: Sequence[tuple[float, Sequence[float]]]
    baseline: bool = False


def plot_all(
    output: Path,
    runs: Sequence[MeasuredRun],
    rows: Sequence[ScoreRow],
    accounting: str,
    with_paper: bool,
    by: str = "run",
) -> None:
    """Writes `scores`, `average` and `heldout` to a folder and removes those of an earlier call.

    Args:
      output: the folder.
      runs: the runs, in the order of their colors.
      rows: their scores.
      accounting: `flops` or `flops_paper`.
      with_paper: whether to plot the average, if there is one, next to the paper's scores.
      by: `run` for a line per run, `objective` for a line per objective.
    """
    for name in FILES:
        # Not every plot is drawn each time; an old one would show other scores.
        (output / name).unlink(missing_ok=True)
    lines, metrics = lines_by_task(rows, accounting, by), metrics_by_task(rows)
    plot_scores(output / "scores", lines, metrics, accounting)
    if with_paper and AVERAGE in lines:
        plot_beside_paper(output / "average", lines[AVERAGE], list(metrics), accounting)
    plot_heldout(output / "heldout", runs, accounting)


def lines_by_task(rows: Sequence[ScoreRow], accounting: str, by: str = "run") -> dict[str, list[Line]]:
    """Returns the lines of each task; if there are several, those of their average come first.

    Args:
      rows: the scores.
      accounting: `flops` or `flops_paper`.
      by: `run` for a line per run, with a point per checkpoint; `objective` for a line per objective, with the points
        of all its runs; those of equal FLOPs are one point, with the seeds of all.
    """
    label = {row["run"]: row["run"] if by == "run" else row["objective"] for row in rows}
    # Not `row[accounting]`: the keys of a TypedDict are literals.
    at = {(row["run"], row["step"]): row["flops"] if accounting == "flops" else row["flops_paper"] for row in rows}
    lines: dict[str, list[Line]] = {}
    for task, by_run in group_by_task(rows).items():
        # All names in every task, so that a line has the same color in every panel.
        points: dict[str, dict[float, list[float]]] = {name: {} for name in label.values()}
        for run, steps in by_run.items():
            for step, seeds in steps.items():
                # Runs of the same FLOPs are one point of their objective's line.
                points[label[run]].setdefault(at[run, step], []).extend(seeds.values())
        # By FLOPs, because a line may join the points of several runs.
        lines[task] = [Line(name, sorted(of_line.items())) for name, of_line in points.items()]
    return lines


def plot_scores(path: Path, lines: Mapping[str, Sequence[Line]], metrics: Mapping[str, str], accounting: str) -> None:
    """Plots scores against FLOPs, with a panel for each task and for their average.

    Args:
      path: path of the files, without a suffix.
      lines: the lines of each task, in the order of their colors.
      metrics: the name of each task's metric.
      accounting: `flops` or `flops_paper`.
    """
    with _panels(path, len(lines), accounting) as panels:
        for panel, (task, of_task) in zip(panels, lines.items(), strict=True):
            _plot_lines(panel, of_task)
            panel.set_title(task if task == AVERAGE else f"{task}, {metrics[task]}", loc="left")


def plot_beside_paper(path: Path, lines: Sequence[Line], tasks: Sequence[str], accounting: str) -> None:
    """Plots the average score over some tasks next to the scores printed in the paper."""
    with _panels(path, 1, accounting, size=(7.5, 4.5)) as (panel,):
        _plot_lines(panel, lines)
        for name, flops, score in paper_scores(accounting):
            panel.plot([flops], [score], "x", color=_GREY, markersize=5)
            # Names are to the left of the points on the upper edge, and to the right of those below it.
            right = name.startswith(("BERT", "GPT", "RoBERTa", "ELMo"))
            offset = (5, -7) if right else (-5, -7 if name == "ELECTRA-400K" else 3)  # XLNet is close above the latter
            panel.annotate(
                name,
                (flops, score),
                offset,
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=6.5,
                color=_GREY,
            )
        # No points: the legend has one entry for all of the paper's.
        panel.plot([], [], "x", color=_GREY, markersize=5, label="the paper: GLUE dev, eight tasks")
        panel.set_ylabel(f"average of {', '.join(tasks)}")
        panel.margins(x=0.12)


def plot_heldout(path: Path, runs: Sequence[MeasuredRun], accounting: str) -> None:
    """Plots held-out metrics of pre-training against FLOPs; nothing if there are none."""
    by_run = {run.name: run.heldout() for run in runs}
    metrics = [
        f"{HELDOUT}{metric}"
        for metric in (*registry.losses(), *AREAS)
        if any(f"{HELDOUT}{metric}" in line for lines in by_run.values() for line in lines)
    ]
    if not metrics:
        return
    with _panels(path, len(metrics), accounting) as panels:
        for panel, metric in zip(panels, metrics, strict=True):
            measured = {name: [line for line in lines if metric in line] for name, lines in by_run.items()}
            points = {name: [(line[accounting], [line[metric]]) for line in lines] for name, lines in measured.items()}
            _plot_lines(panel, [Line(name, of_run) for name, of_run in points.items()])
            panel.set_title(metric.removeprefix(HELDOUT).replace("_", " "), loc="left")


def _plot_lines(panel: Axes, lines: Sequence[Line]) -> None:
    for number, line in enumerate(line for line in lines if not line.baseline):
        _plot_line(panel, line, number)
    for number, line in enumerate(line for line in lines if line.baseline):
        ((_, scores),) = line.points
        median, lowest, highest = spread(scores)
        style = _DASHES[number % len(_DASHES)]
        panel.axhline(median, color=_GREY, linestyle=style, linewidth=1.2, label=_legend_text(line.name))
        panel.axhspan(lowest, highest, color=_GREY, alpha=0.1, linewidth=0)


def _plot_line(panel: Axes, line: Line, number: int) -> None:
    """Plots the median line, and the band from the lowest to the highest score."""
    color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
    x, spreads = [flops for flops, _ in line.points], [spread(scores) for _, scores in line.points]
    median = [each.median for each in spreads]
    panel.plot(x, median, label=_legend_text(line.name), color=color, marker=marker, markersize=4, linewidth=1.4)
    lowest, highest = [each.lowest for each in spreads], [each.highest for each in spreads]
    # A band of one point would have no width, so a bar shows its range.
    if len(x) > 1:
        panel.fill_between(x, lowest, highest, color=color, alpha=0.15, linewidth=0)
    elif lowest != highest:
        panel.vlines(x, lowest, highest, color=color, alpha=0.4, linewidth=3)


def _legend_text(name: str) -> str:
    """Escapes characters with a meaning in matplotlib: $ begins a formula, and a leading _ hides a line."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


@contextmanager
def _panels(path: Path, count: int, accounting: str, size: tuple[float, float] | None = None) -> Iterator[list[Axes]]:
    """Context manager: yields panels to plot into, then adds a logarithmic FLOPs axis and a legend, and saves them.

    Args:
      path: path of the files, without a suffix.
      count: the number of panels.
      accounting: `flops` or `flops_paper`.
      size: width and height of the figure in inches; None: from the number of panels.
    """
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=size or (_PANEL_WIDTH * columns, _PANEL_HEIGHT * rows + 0.4))
        panels = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
        yield panels
        for panel in panels:  # only now: the ticks depend on the limits of what was plotted
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(_locator(*panel.get_xlim()))
            panel.xaxis.set_major_formatter(ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
            panel.xaxis.set_minor_formatter(ticker.NullFormatter())  # minor labels would overlap
            panel.set_xlabel(_X_LABELS[accounting])
        # One legend serves all panels, which have the same lines.
        _add_legend(figure, panels[0])
        figure.savefig(path.with_suffix(".png"), dpi=150)
        # Without the date, equal scores give equal files.
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _add_legend(figure: Figure, panel: Axes) -> None:
    """Adds the legend of a panel above all panels."""
    handles, labels = panel.get_legend_handles_labels()
    width, height = _LEGEND_ENTRY
    width = max(width, _LEGEND_HANDLE + _LEGEND_LETTER * max(map(len, labels), default=0))
    columns = max(1, min(len(labels), int(figure.get_figwidth() / width)))
    above = 0.15 + height * -(-len(labels) // columns)
    figure.tight_layout(rect=(0, 0, 1, 1 - above / figure.get_figheight()))
    figure.legend(handles, labels, loc="upper center", ncols=columns)


def _locator(low: float, high: float) -> ticker.Locator:
    """Returns the tick locator of a logarithmic axis.

    Ticks are at powers of ten on an axis of two decades or more. On a shorter one they are also at their multiples by 2
    and 5, or evenly spaced if that gives fewer than two ticks.
    """
    if high >= 100 * low:
        return ticker.LogLocator()
    power = 10.0 ** math.floor(math.log10(low))
    multiples = [factor * power for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
    within = [each for each in multiples if low <= each <= high]
    return ticker.FixedLocator(within) if len(within) > 1 else ticker.MaxNLocator(nbins=2)
