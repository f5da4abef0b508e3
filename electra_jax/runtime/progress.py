"""Progress of long work: `Progress` is silent, `ConsoleProgress` draws a bar on a terminal, or else prints lines."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column
from rich.text import Text

from electra_jax.config.printable import printable
from electra_jax.runtime.console import PlainConsole

# Seconds between two lines of a command's progress without a terminal.
LINE_EVERY = 30.0
_SEPARATOR = " · "
_BAR_WIDTH = 8  # columns that the bar keeps on a narrow terminal
_TIME_WIDTH = 7  # of "1:23:45"


class Progress:
    """Listener for the progress of long work. This base class ignores it.

    Work may have several stages, one after another; `start` ends the previous stage. As a context manager it calls
    `stop` on exit.
    """

    def say(self, text: str) -> None:
        """Reports a line of text."""

    def start(self, stage: str, total: float = 1.0, completed: float = 0.0) -> None:
        """Starts a stage.

        Args:
          stage: its name.
          total: the amount of work. With 1.0 `completed` is a fraction; any other total is a count, shown with the
            stage's name.
          completed: the amount that is already done.
        """

    def update(self, completed: float, numbers: str = "") -> None:
        """Reports how much of the stage is done.

        Args:
          completed: the amount of work done so far, including what was done when the stage began, in the unit of
            `total`.
          numbers: text to show with it, parts separated by " · "; if there is no room, the last parts are left out.
        """

    def stop(self) -> None:
        """Ends the last stage."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class ConsoleProgress(Progress):
    """Progress on a console: a bar on a terminal, lines of text elsewhere.

    Attributes:
      console: where it is shown.
    """

    def __init__(
        self,
        console: PlainConsole | None = None,
        line_every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Creates a listener without a stage.

        Args:
          console: where to show it; None: standard output.
          line_every: without a terminal, the minimum number of seconds between two lines of `update`; None: a line for
            each update that has numbers.
          clock: returns the time in seconds.
        """
        self.console = console or PlainConsole()
        self._line_every, self._clock, self._line_at = line_every, clock, clock()
        self._stage, self._total, self._numbers = "", 1.0, ""
        self._bar: rich_progress.Progress | None = None
        self._task = rich_progress.TaskID(0)

    def say(self, text: str) -> None:
        self.console.print(text)

    def start(self, stage: str, total: float = 1.0, completed: float = 0.0) -> None:
        self.stop()
        self._stage, self._total, self._numbers = printable(stage), total, ""
        if self.console.is_terminal:
            self._bar = _make_bar(self.console)
            self._bar.start()
            self._task = self._bar.add_task("", total=total, numbers="")
            self.update(completed)

    def update(self, completed: float, numbers: str = "") -> None:
        if self._bar is not None:
            # The bar keeps the last numbers: most steps have none.
            self._numbers = printable(numbers) or self._numbers
            name = self._name(completed)
            self._bar.update(self._task, completed=completed, description=name, numbers=self._numbers)
        elif not self.console.is_terminal and self._is_line_due(numbers):
            self._line_at = self._clock()
            # A stage without work has a total of 0.
            share = f"{completed / self._total:.0%}" if self._total else "100%"
            name = f"{self._name(completed)} ({share})" if self._counts else f"{self._stage}: {share}"
            self.say(_SEPARATOR.join(filter(None, (name, numbers))))

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _counts(self) -> bool:
        return self._total != 1.0

    def _name(self, completed: float) -> str:
        return f"{self._stage} {completed:.0f}/{self._total:.0f}" if self._counts else self._stage

    def _is_line_due(self, numbers: str) -> bool:
        if self._line_every is None:
            return bool(numbers)
        return self._clock() - self._line_at >= self._line_every


class _Numbers:
    """One line of text that leaves out its last parts if it is too long."""

    def __init__(self, text: str):
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(self._text)
        # Cells and not characters: a wide character takes two.
        while text.cell_len > options.max_width and _SEPARATOR in text.plain:
            text = Text(text.plain.rpartition(_SEPARATOR)[0])
        text.truncate(options.max_width, overflow="ellipsis")
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        # A minimum of 1 lets the table shrink this column.
        return Measurement(1, Text(self._text).cell_len)


class _NumbersColumn(rich_progress.ProgressColumn):
    def render(self, task: rich_progress.Task) -> _Numbers:
        return _Numbers(str(task.fields["numbers"]))


def _make_bar(console: Console) -> rich_progress.Progress:
    """Makes a bar: stage, bar, percent, numbers, time left. Only numbers and bar shrink on a narrow terminal."""
    fixed = Column(no_wrap=True)
    time_left = Column(no_wrap=True, min_width=_TIME_WIDTH, justify="right")
    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False, table_column=fixed),
        rich_progress.BarColumn(bar_width=None, table_column=Column(width=_BAR_WIDTH, ratio=1)),
        rich_progress.TaskProgressColumn(table_column=fixed),
        _NumbersColumn(),
        rich_progress.TimeRemainingColumn(compact=True, table_column=time_left),
        rich_progress.TextColumn("left", table_column=fixed),
        console=console,
        expand=True,
    )
