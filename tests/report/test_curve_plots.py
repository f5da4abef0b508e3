import itertools

import matplotlib
import pytest
from matplotlib.figure import Figure

from electra_jax.report import curve_plots


@pytest.mark.parametrize("ratio", [1.0, 1.06, 2.4, 4.0, 30.0, 1e9])
@pytest.mark.parametrize("first", [1.14e13, 9.9e17])
def test_an_axis_has_at_least_two_numbers_that_do_not_overlap(first, ratio, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    with curve_plots._panels(tmp_path / "plot", 3, "flops") as panels:
        for panel in panels:
            curve_plots._plot_line(panel, [first, first * ratio], [[1.0], [2.0]], 0, "a run")
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
