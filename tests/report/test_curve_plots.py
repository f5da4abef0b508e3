import itertools

import pytest

from electra_jax.report import plots


@pytest.mark.parametrize("ratio", [1.0, 1.06, 2.4, 4.0, 30.0, 1e9])
@pytest.mark.parametrize("first", [1.14e13, 9.9e17])
def test_numbers_on_the_axis_are_two_or_more_and_apart(first, ratio, tmp_path):
    plt = plots._matplotlib()
    with plt.rc_context(plots._SETTINGS):
        figure, axes = plots._panels(plt, plots._COLUMNS)
        for panel in axes:
            plots._line(panel, [first, first * ratio], [[1.0], [2.0]], 0, "a run")
        plots._finish(figure, axes, len(axes), "FLOPs", tmp_path / "picture")
        figure.canvas.draw()
        for panel in axes:
            lowest, highest = panel.get_xlim()
            shown = [
                tick.label1.get_window_extent()
                for tick in panel.xaxis.get_major_ticks()
                if tick.label1.get_text() and lowest <= tick.get_loc() <= highest
            ]
            assert len(shown) >= 2
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(shown))
        plt.close(figure)
