import io

import pytest

from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.progress import ConsoleProgress, Progress

NUMBERS = "MLM 4.25 · detection 0.3012 · 18.23k tok/s · 3.2TFLOP"


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def shown(width=150, terminal=False):
    """The text of a small run: a bar with numbers, then a line."""
    out = io.StringIO()
    console = PlainConsole(file=out, width=width, force_terminal=terminal)
    with ConsoleProgress(console) as progress:
        progress.start("step", 40)
        progress.update(5)
        progress.update(10, NUMBERS)
        progress.say("step 10 held out: [loss] 1")
    return out.getvalue()


def test_without_a_terminal_each_update_with_numbers_is_a_line():
    assert shown().splitlines() == [f"step 10/40 (25%) · {NUMBERS}", "step 10 held out: [loss] 1"]


def test_a_fraction_is_shown_as_percent():
    out = io.StringIO()
    with ConsoleProgress(PlainConsole(file=out, width=150)) as progress:
        progress.start("encoding")
        progress.update(0.25, "3 documents")
    assert out.getvalue() == "encoding: 25% · 3 documents\n"


def test_without_a_terminal_lines_may_be_some_seconds_apart():
    out, clock = io.StringIO(), Clock()
    with ConsoleProgress(PlainConsole(file=out, width=150), line_every=30, clock=clock) as progress:
        progress.start("seed", 5)
        for clock.seconds in (10, 29, 31, 40, 62):
            progress.update(clock.seconds / 31)
    assert out.getvalue().splitlines() == ["seed 1/5 (20%)", "seed 2/5 (40%)"]


def test_on_a_wide_terminal_the_bar_has_everything():
    for part in ("step 10/40", "━", "25%", NUMBERS, "left", "held out: [loss] 1"):
        assert part in shown(terminal=True)


@pytest.mark.parametrize("width", [60, 80, 90])
def test_on_a_narrow_terminal_numbers_give_way_to_bar_and_time(width):
    lines = [line for line in shown(width, terminal=True).splitlines() if "step 10/40" in line]
    assert lines
    for part in ("━━━━", "25%", "MLM 4.25", "left"):
        assert part in lines[-1]
    assert "TFLOP" not in lines[-1]


def test_a_new_stage_ends_the_one_before():
    out = io.StringIO()
    with ConsoleProgress(PlainConsole(file=out, width=80, force_terminal=True)) as progress:
        progress.update(1)  # before any stage
        progress.start("reading")
        progress.update(1.0)
        progress.start("encoding", 0)
        progress.update(0)
    assert out.getvalue().rindex("encoding") > out.getvalue().rindex("reading")


def test_the_base_class_is_silent(capsys):
    with Progress() as progress:
        progress.start("step", 40)
        progress.update(10, NUMBERS)
        progress.say("a line")
    assert capsys.readouterr().out == ""
