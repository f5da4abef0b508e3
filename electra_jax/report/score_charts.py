"""Makes the section of the page about task scores: a chart for each task, and a table of the last scores."""

from collections.abc import Mapping, Sequence
from html import escape

from electra_jax.report import elements, plots, summary
from electra_jax.report.elements import Key
from electra_jax.report.plots import Axis, Series
from electra_jax.report.task_scores import TaskScores
from electra_jax.runtime.run_log import RunLog


def make_section(tasks: Sequence[TaskScores], runs: Sequence[RunLog]) -> str:
    """Returns the section. Runs of the page keep their colors."""
    keys = _make_keys(tasks, runs)
    figures = "".join(_make_figure(task, keys) for task in tasks)
    rows = [(f"{task.name}, {task.metric}", _last_scores(task, list(keys))) for task in tasks]
    caption = "Scores of the last checkpoint that was fine-tuned: median over seeds, lowest to highest."
    return (
        '<section><h2>Task scores</h2><p class="note">Lines: median over seeds. Bands: lowest to highest seed. '
        "FLOPs are those of pre-training, on a logarithmic axis.</p>"
        f'<div class="bar">{elements.legend(list(keys.values()))}</div><div class="grid">{figures}</div>'
        f"<h3>Last scores</h3>{elements.table(list(keys.values()), [elements.body(rows)], caption)}</section>"
    )


def _make_keys(tasks: Sequence[TaskScores], runs: Sequence[RunLog]) -> dict[str, Key]:
    """Returns the key of each run, by its name in the scores."""
    indices = {curve.run: curve.page_index for task in tasks for curve in task.curves}
    others = [name for name, index in indices.items() if index is None]
    # Runs that the page is not about get the colors after those of its runs.
    colors = [len(runs) + others.index(name) if index is None else index for name, index in indices.items()]
    return {key.name: key for key in elements.keys(list(indices), colors)}


def _make_figure(task: TaskScores, keys: Mapping[str, Key]) -> str:
    series = []
    for curve in task.curves:
        key = keys[curve.run]
        band = [(point.flops, point.score.lowest, point.score.highest) for point in curve.points]
        median = [(point.flops, point.score.median) for point in curve.points]
        series.append(Series(curve.run, median, key.color, key.label if len(keys) > 1 else "", band=band))
    chart = plots.draw_chart(task.name, Axis("FLOPs", log=True), Axis(task.metric), series)
    return f"<figure><figcaption>{escape(task.name)}</figcaption>{chart}</figure>"


def _last_scores(task: TaskScores, names: Sequence[str]) -> list[str]:
    last = {curve.run: curve.points[-1] for curve in task.curves}
    cells = []
    for name in names:
        point = last.get(name)
        if point is None:
            cells.append(elements.cell(summary.NONE))
        else:
            spread = f"{point.score.lowest:.4g} to {point.score.highest:.4g}, {point.seeds} seeds"
            cells.append(elements.cell(f"{point.score.median:.4g}", spread if point.seeds > 1 else ""))
    return cells
