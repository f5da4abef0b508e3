"""Makes the section of the page with charts of logged metrics, against steps, FLOPs or time."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from electra_jax.report import elements, plots, summary
from electra_jax.report.elements import Key
from electra_jax.report.plots import Axis, Point, Series
from electra_jax.runtime.run_log import HELDOUT, RunLog

_HOUR, _MINUTE = 3600.0, 60.0
_BASELINES = {"unigram_entropy": "unigram entropy", "constant_entropy": "constant predictor"}
_MOST_SOURCES = 12  # sources with their own charts, which take time and space; the summary has all sources
_NOTE = (
    '<p class="note">Dashed lines are baselines that ignore the context: the entropy of the unigram distribution, a '
    "constant predictor (which knows only the share of replaced tokens), or chance.</p>"
)


class XAxis(NamedTuple):
    """An x-axis that all charts can be drawn against.

    Attributes:
      css: the class of the charts.
      metric: its name in the log.
      unit: the value of the metric that is 1 on the axis.
      label: the label of the axis.
      button: the label of the button that selects it.
    """

    css: str
    metric: str
    unit: float
    label: str
    button: str


class _Chart(NamedTuple):
    """A chart of a metric, with its baseline: another metric or a number."""

    metric: str
    title: str
    axis: Axis
    baseline: str | float = ""
    baseline_name: str = ""


def x_axes(runs: Sequence[RunLog]) -> list[XAxis]:
    """Returns the x-axes that charts of `runs` can be drawn against; the first is selected initially."""
    longest = max((seconds for run in runs for seconds, _ in run.points("device_seconds", "step")), default=0.0)
    unit, name = (_HOUR, "hours") if longest >= _HOUR else (_MINUTE, "minutes")
    return [
        XAxis("by-step", "step", 1.0, "steps", "steps"),
        XAxis("by-flops", "total_flops", 1.0, "FLOPs", "FLOPs"),
        XAxis("by-time", "device_seconds", unit, f"device {name}", name),
    ]


def make_section(runs: Sequence[RunLog], keys: Sequence[Key], axes: Sequence[XAxis]) -> str:
    """Returns all charts, with radio buttons that switch their x-axis without a script."""
    # Before the bar and the charts, as siblings: `style.switch` selects what follows the checked button.
    buttons = [
        f'<input class="pick" type="radio" name="against" id="{x.css}"{" checked" if x is axes[0] else ""}>'
        for x in axes
    ]
    labels = "".join(f'<label for="{x.css}">{escape(x.button)}</label>' for x in axes)
    groups = []
    for heading, charts in _list_charts(runs).items():
        figures = "".join(_make_figure(runs, keys, chart, axes) for chart in charts)
        groups.append(f'<h3>{heading}</h3><div class="grid">{figures}</div>')
    return (
        f'<section><h2>Curves</h2>{_NOTE}{"".join(buttons)}<div class="bar"><span>against '
        f'<span class="switch">{labels}</span></span>{elements.legend(keys)}</div>'
        f'<div class="all">{"".join(groups)}</div></section>'
    )


def _list_charts(runs: Sequence[RunLog]) -> Mapping[str, list[_Chart]]:
    """Returns the charts under each heading, of the metrics that any run has logged."""
    nats, area = Axis("nats per token"), Axis("area under the ROC curve")
    losses = summary.logged_metrics(runs, "_loss", heldout=True)
    heldout = [_heldout_loss(metric) for metric in losses]
    sources = summary.logged_sources(runs)[:_MOST_SOURCES]
    by_source = [_heldout_loss(metric, source) for metric in losses for source in sources]
    detection = [
        _Chart(f"{HELDOUT}{metric}", summary.title_of(metric), area, summary.CHANCE, "chance")
        for metric in summary.logged_metrics(runs, "_auc", heldout=True)
    ]
    training = [
        _Chart(metric, summary.title_of(metric), Axis("weighted sum") if metric == "loss" else nats)
        for metric in summary.logged_metrics(runs, "loss", heldout=False)
    ]
    training += [
        _Chart(metric, summary.title_of(metric), area, summary.CHANCE, "chance")
        for metric in summary.logged_metrics(runs, "_auc", heldout=False)
    ]
    step = [
        _Chart("replaced_fraction", "Replaced tokens", Axis("share of all tokens")),
        _Chart("learning_rate", "Learning rate", Axis("", zero=True)),
        _Chart("grad_norm", "Gradient norm", Axis("before clipping, logarithmic", log=True)),
        _Chart("tokens_per_second", "Speed", Axis("tokens per second", zero=True)),
        _Chart("loader_wait", "Waiting for data", Axis("share of the time", zero=True)),
        _Chart("goodput", "Goodput", Axis("share of the time of all starts", zero=True)),
        _Chart("mfu", "Model FLOPs utilization", Axis("share of the peak", zero=True)),
    ]
    # Charts of these two groups are left out where no run has a number; the others are listed from the log.
    by_source, step = (
        [chart for chart in charts if any(run.points("step", chart.metric) for run in runs)]
        for charts in (by_source, step)
    )
    groups = {
        "Held-out losses": heldout,
        "Held-out losses by source": by_source,
        "Held-out detection": detection,
        "Training losses and detection": training,
        "Training steps": step,
    }
    return {heading: charts for heading, charts in groups.items() if charts}


def _heldout_loss(metric: str, source: str = "") -> _Chart:
    """Returns the chart of a held-out loss, of all text or of one source, with its baseline if it has one."""
    suffix, beside = (f"/{source}", f", {source}") if source else ("", "")
    baseline = summary.baseline_of(metric)
    compared = (f"{HELDOUT}{baseline}{suffix}", _BASELINES.get(baseline, baseline)) if baseline else ()
    title = summary.title_of(metric) + beside
    return _Chart(f"{HELDOUT}{metric}{suffix}", title, Axis("nats per token"), *compared)


def _make_figure(runs: Sequence[RunLog], keys: Sequence[Key], chart: _Chart, axes: Sequence[XAxis]) -> str:
    images = []
    # An image per x-axis, of which the style sheet shows the one that is selected.
    for x in axes:
        series = [*_make_lines(runs, keys, chart, x), *_make_baselines(runs, keys, chart, x)]
        images.append(plots.draw_chart(chart.title, Axis(x.label, zero=True), chart.axis, series, x.css))
    note = f"<small>dashed: {escape(chart.baseline_name)}</small>" if chart.baseline_name else ""
    return f"<figure><figcaption>{escape(chart.title)} {note}</figcaption>{''.join(images)}</figure>"


def _points(run: RunLog, metric: str, x: XAxis) -> list[Point]:
    return [(at / x.unit, value) for at, value in run.points(x.metric, metric)]


def _make_lines(runs: Sequence[RunLog], keys: Sequence[Key], chart: _Chart, x: XAxis) -> Iterator[Series]:
    """Yields a line for each run, labeled with its key; the line of a single run is labeled with its last number."""
    for run, key in zip(runs, keys, strict=True):
        points = _points(run, chart.metric, x)
        last = f"{points[-1][1]:.4g}" if points else ""
        yield Series(run.name, points, key.color, key.label if len(runs) > 1 else last)


def _make_baselines(runs: Sequence[RunLog], keys: Sequence[Key], chart: _Chart, x: XAxis) -> list[Series]:
    """Returns the baseline of each run that has the metric; runs with the same constant baseline share a line."""
    measured = [(run, key) for run, key in zip(runs, keys, strict=True) if run.points(x.metric, chart.metric)]
    if not chart.baseline or not measured:
        return []
    if isinstance(chart.baseline, float):
        end = max(at for run, _ in measured for at, _ in _points(run, chart.metric, x))
        return [_make_level(chart, chart.baseline, end)]
    by_values: dict[tuple[float, ...], list[Series]] = {}
    for run, key in measured:
        line = Series(chart.baseline_name, _points(run, chart.baseline, x), key.color, dashed=True)
        # The distinct values: runs that were measured on the same text have the same one.
        by_values.setdefault(tuple(dict.fromkeys(value for _, value in line.points)), []).append(line)
    baselines = []
    for values, lines in by_values.items():
        # One gray line for a constant that runs share; a run's own baseline has its color.
        if len(values) == 1 and (len(lines) > 1 or len(by_values) == 1):
            baselines.append(_make_level(chart, values[0], max(line.points[-1][0] for line in lines)))
        else:
            baselines += lines
    return baselines


def _make_level(chart: _Chart, value: float, end: float) -> Series:
    return Series(chart.baseline_name, [(0.0, value), (end, value)], dashed=True)
