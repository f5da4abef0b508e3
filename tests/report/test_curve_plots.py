import itertools

import matplotlib
import pytest
from matplotlib.figure import Figure

from electra_jax.report import curve_plots
from electra_jax.report.curve_plots import Line


@pytest.mark.parametrize("ratios", [(1.0, 1.06, 2.4), (4.0, 30.0, 1e9)])
@pytest.mark.parametrize("first", [1.14e13, 9.9e17])
def test_an_axis_has_at_least_two_numbers_that_do_not_overlap(first, ratios, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    with curve_plots._panels(tmp_path / "plot", 3, "flops") as panels:
        for panel, ratio in zip(panels, ratios, strict=True):
            curve_plots._plot_line(panel, Line("a run", [(first, [1.0]), (first * ratio, [2.0])]), 0)
    with matplotlib.rc_context(curve_plots._SETTINGS):
        figures[0].canvas.draw()
    for panel in panels:
        lowest, highest = panel.get_xlim()
        shown = [
            tick.label1.get_window_extent()
            for tick in panel.xaxis.get_major_ticks()
            if tick.label1.get_text() and lowest <= tick.get_loc() <= highest
        ]
        assert len(shown) >= 2
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(shown))


def row(run, objective, step, task, seed, score):
    flops = {"flops": 10.0 * step, "flops_paper": 12.0 * step}
    return {"run": run, "objective": objective, "step": step, "task": task, "seed": seed, "score": score, **flops}


def test_lines_join_the_checkpoints_of_a_run_or_the_runs_of_an_objective():
    rows = [
        row("long", "electra", 4, "cola", 0, 40.0),
        row("long", "electra", 4, "cola", 1, 44.0),
        row("long", "electra", 4, "rte", 0, 60.0),
        row("other", "mlm", 4, "cola", 0, 30.0),
        row("short", "electra", 2, "cola", 0, 20.0),
        row("short", "electra", 2, "rte", 0, 50.0),
    ]
    runs = curve_plots.lines_by_task(rows, "flops")
    assert list(runs) == ["average", "cola", "rte"]
    assert runs["cola"] == [
        Line("long", [(40.0, [40.0, 44.0])]),
        Line("other", [(40.0, [30.0])]),
        Line("short", [(20.0, [20.0])]),
    ]
    objectives = curve_plots.lines_by_task(rows, "flops_paper", by="objective")
    assert objectives["cola"] == [
        Line("electra", [(24.0, [20.0]), (48.0, [40.0, 44.0])]),
        Line("mlm", [(48.0, [30.0])]),
    ]
    assert objectives["average"] == [Line("electra", [(24.0, [35.0]), (48.0, [50.0])]), Line("mlm", [])]


def test_runs_of_an_objective_with_equal_flops_are_one_point():
    rows = [row(run, "electra", step, "cola", 0, 10.0 * step + n) for n, run in enumerate("ab") for step in (2, 4)]
    (line,) = curve_plots.lines_by_task(rows, "flops", by="objective")["cola"]
    assert line.points == [(20.0, [20.0, 21.0]), (40.0, [40.0, 41.0])]


def test_a_baseline_is_drawn_over_all_flops(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    lines = [Line("electra", [(1e13, [40.0]), (1e14, [50.0])]), Line("untrained", [(0.0, [20.0, 22.0, 21.0])], True)]
    curve_plots.plot_scores(tmp_path / "plot", {"cola": lines}, {"cola": "matthews"}, "flops")
    (panel,) = figures[0].axes
    baseline = next(line for line in panel.get_lines() if line.get_label() == "untrained")
    assert set(baseline.get_ydata()) == {21.0}
    assert panel.get_xlim()[0] > 1e12
