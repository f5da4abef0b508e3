"""Pictures of curves: a line a run at the median over seeds, a band from the lowest seed to the highest."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.downstream import paper_scores
from electra_jax.downstream.curves import Measured, Scores, spread
from electra_jax.runtime.progress import AREAS, LOSSES
from electra_jax.runtime.run_log import is_number

# Okabe and Ito's colours, told apart by the colour-blind too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*"
_AXIS = {"flops": "pre-training FLOPs", "flops_paper": "pre-training FLOPs, as the paper counts them"}
_GREY = "#707070"
_TALL, _WIDE, _COLUMNS = 2.9, 3.6, 3  # inches of a panel
_LABEL = (1.7, 0.2)  # inches of a name in the legend, as most are
_SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "electra_jax",  # the same picture is the same bytes
}


def scores(
    path: Path,
    tasks: Mapping[str, Scores],
    metrics: Mapping[str, str],
    runs: Sequence[Measured],
    accounting: str,
) -> None:
    """Draws score against operations, a panel for each task and for their average, as PNG and SVG.

    Args:
      path: of the pictures, without a suffix.
      tasks: from `points.by_task`.
      metrics: the name of each task's score.
      runs: in the order of their colours.
      accounting: `flops` or `flops_paper`.
    """
    plt = _matplotlib()
    with plt.rc_context(_SETTINGS):
        figure, axes = _panels(plt, len(tasks))
        for panel, (task, by_run) in zip(axes, tasks.items(), strict=False):
            _lines(panel, by_run, runs, accounting)
            panel.set_title("average" if task == "average" else f"{task}, {metrics[task]}", loc="left")
        _finish(figure, axes, len(tasks), _AXIS[accounting], path)
        plt.close(figure)


def beside_the_paper(path: Path, tasks: Mapping[str, Scores], runs: Sequence[Measured], accounting: str) -> None:
    """Draws the average score of runs beside the paper's own points, as PNG and SVG."""
    plt = _matplotlib()
    with plt.rc_context(_SETTINGS):
        figure, panel = plt.subplots(figsize=(7.5, 4.5))
        _lines(panel, tasks["average"], runs, accounting)
        points = paper_scores.points("paper" if accounting == "flops_paper" else "model")
        for name, operations, score in points:
            panel.plot([operations], [score], "x", color=_GREY, markersize=5)
            # Names stand above and before; not those of models below the curve, and of one of two close ones.
            behind = name.startswith(("BERT", "GPT", "RoBERTa", "ELMo"))
            offset, align = ((5, -7), "left") if behind else ((-5, -7 if name == "ELECTRA-400K" else 3), "right")
            text = {"textcoords": "offset points", "ha": align, "fontsize": 6.5, "color": _GREY}
            panel.annotate(name, (operations, score), offset, **text)
        panel.plot([], [], "x", color=_GREY, markersize=5, label="the paper: GLUE dev, eight tasks")
        panel.set_ylabel(f"average of {', '.join(task for task in tasks if task != 'average')}")
        panel.margins(x=0.12)
        _finish(figure, [panel], 1, _AXIS[accounting], path)
        plt.close(figure)


def heldout(path: Path, runs: Sequence[Measured], accounting: str) -> None:
    """Draws held-out numbers of pre-training against operations, where there are any."""
    lines = {run.name: run.heldout() for run in runs}
    names = [
        name
        for name in (f"heldout_{key}" for key in (*LOSSES, *AREAS))
        if any(is_number(line.get(name)) for logged in lines.values() for line in logged)
    ]
    if not names:
        return
    plt = _matplotlib()
    with plt.rc_context(_SETTINGS):
        figure, axes = _panels(plt, len(names))
        for panel, name in zip(axes, names, strict=False):
            for number, run in enumerate(runs):
                there = [line for line in lines[run.name] if is_number(line.get(name))]
                _line(panel, [line[accounting] for line in there], [[line[name]] for line in there], number, run.name)
            panel.set_title(name.removeprefix("heldout_").replace("_", " "), loc="left")
        _finish(figure, axes, len(names), _AXIS[accounting], path)
        plt.close(figure)


def _lines(panel: Any, by_run: Scores, runs: Sequence[Measured], accounting: str) -> None:
    for number, run in enumerate(runs):
        steps = by_run.get(run.name, {})
        x = [run.counted(step)[accounting] for step in steps]
        _line(panel, x, [list(seeds.values()) for seeds in steps.values()], number, run.name)


def _line(panel: Any, x: Sequence[float], values: Sequence[Sequence[float]], number: int, name: str) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    spreads = [spread(each) for each in values]
    style = {"color": colour, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.4}
    panel.plot(x, [each.median for each in spreads], label=_written(name), **style)
    lowest, highest = [each.lowest for each in spreads], [each.highest for each in spreads]
    if len(x) > 1:
        panel.fill_between(x, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    elif lowest != highest:
        panel.vlines(x, lowest, highest, color=colour, alpha=0.4, linewidth=3)


def _written(name: str) -> str:
    """As a legend shows it: $ would begin a formula, and a first _ hides a line."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def _panels(plt: Any, count: int) -> tuple[Any, list[Any]]:
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(_WIDE * columns, _TALL * rows + 0.4), squeeze=False)
    return figure, list(axes.flat)


def _finish(figure: Any, axes: Sequence[Any], count: int, axis: str, path: Path) -> None:
    from matplotlib import ticker

    for panel in axes[count:]:
        panel.remove()
    for panel in axes[:count]:
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(_ticks(*panel.get_xlim()))
        panel.xaxis.set_major_formatter(ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())  # whose labels would run into each other
        panel.set_xlabel(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = max(1, min(len(labels), int(figure.get_figwidth() / _LABEL[0])))
    above = 0.15 + _LABEL[1] * -(-len(labels) // columns)
    figure.tight_layout(rect=(0, 0, 1, 1 - above / figure.get_figheight()))
    figure.legend(handles, labels, loc="upper center", ncols=columns)
    for suffix in ("png", "svg"):
        metadata = {"Date": None} if suffix == "svg" else {}
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=150, metadata=metadata)


def _ticks(lowest: float, highest: float) -> Any:
    """Powers of ten on a long axis, on a short one twice and five times these too; where there are few, even steps."""
    from matplotlib import ticker

    if highest >= 100 * lowest:
        return ticker.LogLocator()
    power = 10.0 ** math.floor(math.log10(lowest))
    round_ = [factor * power for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
    within = [each for each in round_ if lowest <= each <= highest]
    return ticker.FixedLocator(within) if len(within) > 1 else ticker.MaxNLocator(nbins=2)


def require() -> None:
    """Raises UserError where matplotlib is missing: before the work, not after it."""
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("pictures need matplotlib; pip install 'electra_jax[downstream]'") from error
    matplotlib.use("Agg")  # no window
    from matplotlib import pyplot

    return pyplot
