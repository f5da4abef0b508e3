"""The charts of runs: what was logged, against steps, FLOPs or time."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from electra_jax.report import charts, elements, summary
from electra_jax.report.charts import Axis, Series
from electra_jax.report.elements import Key
from electra_jax.runtime.run_log import Run

_HOUR, _MINUTE = 3600.0, 60.0
_YARDSTICKS = {
    "unigram_entropy": "unigram entropy",
    "constant_entropy": "constant predictor",
}
_NOTE = (
    '<p class="note">Dashed is what is reached without reading the context: by how often each token occurs (unigram '
    "entropy), by what share of the tokens is replaced (constant predictor), or by chance.</p>"
)


class Against(NamedTuple):
    """What charts are drawn against.

    Attributes:
      css: the class of the images.
      key: of the metrics.
      unit: how much of it is one on the axis.
      label: of the axis.
      button: what a person picks it by.
    """

    css: str
    key: str
    unit: float
    label: str
    button: str


class _Measure(NamedTuple):
    """A chart: the key of the metrics, and what it is compared with, another key or a number, and what that knows."""

    key: str
    title: str
    axis: Axis
    yardstick: str | float = ""
    note: str = ""


def axes(runs: Sequence[Run]) -> list[Against]:
    """What the charts of `runs` can be drawn against; the first is shown before anything is picked."""
    longest = max((seconds for run in runs for seconds, _ in run.points("device_seconds", "step")), default=0.0)
    unit, name = (_HOUR, "hours") if longest >= _HOUR else (_MINUTE, "minutes")
    return [
        Against("by-step", "step", 1.0, "steps", "steps"),
        Against("by-flops", "total_flops", 1.0, "FLOPs", "FLOPs"),
        Against("by-time", "device_seconds", unit, f"device {name}", name),
    ]


def section(runs: Sequence[Run], keys: Sequence[Key], against: Sequence[Against]) -> str:
    """All charts, and what picks their axis: buttons without a script."""
    picks = [
        f'<input class="pick" type="radio" name="against" id="{x.css}"{" checked" if x is against[0] else ""}>'
        for x in against
    ]
    buttons = "".join(f'<label for="{x.css}">{escape(x.button)}</label>' for x in against)
    groups = []
    for heading, measures in _measures(runs).items():
        figures = "".join(_figure(runs, keys, measure, against) for measure in measures)
        groups.append(f'<h3>{heading}</h3><div class="grid">{figures}</div>')
    return (
        f'<section><h2>Curves</h2>{_NOTE}{"".join(picks)}<div class="bar"><span>against '
        f'<span class="switch">{buttons}</span></span>{elements.legend(keys)}</div>'
        f'<div class="all">{"".join(groups)}</div></section>'
    )


def _measures(runs: Sequence[Run]) -> Mapping[str, list[_Measure]]:
    """The charts under each heading; what no run has logged is left out."""
    area, held = Axis("area under the ROC curve"), []
    for key in summary.measures(runs, "_loss", heldout=True):
        yardstick = summary.yardstick(key)
        compared = (f"heldout_{yardstick}", _YARDSTICKS.get(yardstick, yardstick)) if yardstick else ()
        held.append(_Measure(f"heldout_{key}", summary.name(key), Axis("nats a token"), *compared))
    detected = [
        _Measure(f"heldout_{key}", summary.name(key), area, summary.CHANCE, "chance")
        for key in summary.measures(runs, "_auc", heldout=True)
    ]
    trained = [
        _Measure(key, summary.name(key), Axis("weighted sum" if key == "loss" else "nats a token"))
        for key in summary.measures(runs, "loss", heldout=False)
    ]
    trained += [
        _Measure(key, summary.name(key), area, summary.CHANCE, "chance")
        for key in summary.measures(runs, "_auc", heldout=False)
    ]
    step = [
        _Measure("replaced_fraction", "Replaced by the generator", Axis("share of all tokens")),
        _Measure("learning_rate", "Learning rate", Axis("", zero=True)),
        _Measure("grad_norm", "Gradient norm", Axis("before clipping, logarithmic", log=True)),
        _Measure("tokens_per_second", "Speed", Axis("tokens a second", zero=True)),
        _Measure("loader_wait", "Waiting for the loader", Axis("share of the time", zero=True)),
        _Measure("mfu", "Model FLOPs utilisation", Axis("share of the peak", zero=True)),
    ]
    step = [measure for measure in step if any(run.points("step", measure.key) for run in runs)]
    found = {"Held-out losses": held, "Held-out detection": detected, "In training": trained, "The step": step}
    return {heading: some for heading, some in found.items() if some}


def _figure(runs: Sequence[Run], keys: Sequence[Key], measure: _Measure, against: Sequence[Against]) -> str:
    images = []
    for x in against:
        series = [*_lines(runs, keys, measure, x), *_yardsticks(runs, keys, measure, x)]
        images.append(charts.draw(measure.title, Axis(x.label, zero=True), measure.axis, series, x.css))
    note = f"<small>dashed: {escape(measure.note)}</small>" if measure.note else ""
    return f"<figure><figcaption>{escape(measure.title)} {note}</figcaption>{''.join(images)}</figure>"


def _points(run: Run, key: str, x: Against) -> list[charts.Point]:
    return [(at / x.unit, value) for at, value in run.points(x.key, key)]


def _lines(runs: Sequence[Run], keys: Sequence[Key], measure: _Measure, x: Against) -> list[Series]:
    """One for each run, labelled by its key; a run that is alone by its last number."""
    found = []
    for run, key in zip(runs, keys, strict=True):
        points = _points(run, measure.key, x)
        alone = f"{points[-1][1]:.4g}" if points else ""
        found.append(Series(run.name, points, key.colour, key.label if len(runs) > 1 else alone))
    return found


def _yardsticks(runs: Sequence[Run], keys: Sequence[Key], measure: _Measure, x: Against) -> list[Series]:
    """Those of each run that has what is compared; a single line for runs in which they are the same at all times."""
    measured = [(run, key) for run, key in zip(runs, keys, strict=True) if run.points(x.key, measure.key)]
    if not measure.yardstick or not measured:
        return []
    if isinstance(measure.yardstick, float):
        return [
            _level(measure, measure.yardstick, max(at for run, _ in measured for at, _ in _points(run, measure.key, x)))
        ]
    same: dict[tuple[float, ...], list[Series]] = {}
    for run, key in measured:
        line = Series(measure.note, _points(run, measure.yardstick, x), key.colour, dashed=True)
        same.setdefault(tuple(dict.fromkeys(value for _, value in line.points)), []).append(line)
    found = []
    for values, lines in same.items():
        if len(values) == 1 and (len(lines) > 1 or len(same) == 1):
            found.append(_level(measure, values[0], max(line.points[-1][0] for line in lines)))
        else:
            found += lines
    return found


def _level(measure: _Measure, value: float, end: float) -> Series:
    return Series(measure.note, [(0.0, value), (end, value)], dashed=True)
