"""The section with scores of tasks: a small chart for each, and the last scores as a table."""

from collections.abc import Mapping, Sequence
from html import escape

from electra_jax.report import charts, elements, summary
from electra_jax.report.charts import Axis, Series
from electra_jax.report.curves import Task, span
from electra_jax.report.elements import Key
from electra_jax.runtime.run_log import Run


def section(tasks: Sequence[Task], runs: Sequence[Run]) -> str:
    """Scores against FLOPs; a run that the page is about has the colour it has elsewhere."""
    keys = _keys(tasks, runs)
    figures = "".join(_figure(task, keys, span(tasks)) for task in tasks)
    rows = [(f"{task.name}, {task.metric}", _last(task, list(keys))) for task in tasks]
    caption = "At the last step that was scored: the median over the seeds, and the lowest and the highest."
    return (
        '<section><h2>Scores of tasks</h2><p class="note">The median over the seeds; a band is from the lowest to the '
        "highest. FLOPs are those of pre-training, on a logarithmic axis; dashed is the score before any.</p>"
        f'<div class="bar">{elements.legend(list(keys.values()))}</div><div class="grid">{figures}</div>'
        f"<h3>Last scores</h3>{elements.table(list(keys.values()), [elements.body(rows)], caption)}</section>"
    )


def _keys(tasks: Sequence[Task], runs: Sequence[Run]) -> dict[str, Key]:
    """By the names that the scores have for runs."""
    owners = {curve.run: curve.owner for task in tasks for curve in task.curves}
    others = [name for name, owner in owners.items() if owner is None]
    colours = [len(runs) + others.index(name) if owner is None else owner for name, owner in owners.items()]
    return {key.name: key for key in elements.keys(list(owners), colours)}


def _figure(task: Task, keys: Mapping[str, Key], ends: tuple[float, float]) -> str:
    series = []
    for curve in task.curves:
        key = keys[curve.run]
        after = [at for at in curve.places if at.flops > 0]
        band = [(at.flops, at.score.lowest, at.score.highest) for at in after]
        points = [(at.flops, at.score.median) for at in after]
        series.append(Series(curve.run, points, key.colour, key.label if len(keys) > 1 else "", band=band))
        before = [at.score.median for at in curve.places if at.flops <= 0]
        series += [Series("before", [(end, score) for end in ends], key.colour, dashed=True) for score in before]
    image = charts.draw(task.name, Axis("FLOPs", log=True), Axis(task.metric), series)
    return f"<figure><figcaption>{escape(task.name)}</figcaption>{image}</figure>"


def _last(task: Task, names: Sequence[str]) -> list[str]:
    last = {curve.run: curve.places[-1] for curve in task.curves}
    cells = []
    for name in names:
        at = last.get(name)
        spread = f"{at.score.lowest:.4g} to {at.score.highest:.4g}, {at.seeds} seeds" if at and at.seeds > 1 else ""
        cells.append(elements.cell(f"{at.score.median:.4g}" if at else summary.NONE, spread))
    return cells
