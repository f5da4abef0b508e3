"""What a person sees while a run goes on: a progress bar on a terminal, a line for each logged step elsewhere."""

import math
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

# What is shown of the metrics: a loss's name, and the yardstick that stands beside it; and what an area is of.
LOSSES = {
    "mlm_loss": ("MLM", "unigram_entropy"),
    "cloze_loss": ("cloze", "unigram_entropy"),
    "encoder_mlm_loss": ("encoder's MLM", "unigram_entropy"),
    "all_tokens_loss": ("all-tokens", ""),
    "all_tokens_masked_loss": ("at masked positions", "unigram_entropy"),
    "disc_loss": ("detection", "constant_entropy"),
    "nce_loss": ("noise-contrastive", "constant_entropy"),
}
AREAS = {"disc_auc": "own fakes", "nce_auc": "own noise", "unigram_auc": "unigram fakes"}


def short(number: float) -> str:
    """A large number in four figures with the SI letter: 18230 -> 18.23k."""
    for letter in ("", "k", "M", "G", "T", "P", "E"):
        if abs(number) < 1000:
            return f"{number:.4g}{letter}"
        number /= 1000
    return f"{number:.4g}Z"


def bar(console: Console, beginning: str) -> Progress:
    """A progress bar between `beginning` and the task's `numbers`, and the time that is left; terminals only."""
    return Progress(
        TextColumn(beginning),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        expand=True,
    )


class Live:
    """Reports a run. Use it as a context: the bar is drawn between enter and exit."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(soft_wrap=True)
        self._progress = bar(self.console, "step {task.completed:.0f}/{task.total:.0f}")
        self._task: Any = None

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, highlight=False)

    def start(self, step: int, steps: int) -> None:
        """Begins to draw the bar of a run that stands at `step`."""
        self._progress.start()
        self._task = self._progress.add_task("", total=steps, completed=step, numbers="")

    def advance(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def stop(self) -> None:
        self._progress.stop()

    def logged(self, step: int, steps: int, numbers: dict[str, float | None]) -> None:
        """Shows the numbers of a logged step."""
        losses = [f"{name} {numbers[key]:.4g}" for key, (name, _) in LOSSES.items() if _is_number(numbers.get(key))]
        speed = f"{short(numbers['tokens_per_second'] or 0)} tok/s · {short(numbers['total_flops'] or 0)}FLOP"
        text = " · ".join([*losses, speed])
        if self.console.is_terminal:
            self._progress.update(self._task, completed=step, numbers=text)
        else:
            self.say(f"step {step}/{steps} ({step / steps:.0%}) · {text}")

    def evaluated(self, step: int, heldout: dict[str, float]) -> None:
        """Prints a line of held-out numbers, each beside its yardstick."""
        self.say(f"step {step} held out: {heldout_line(heldout)}")


def heldout_line(h: dict[str, float]) -> str:
    """Held-out losses, each beside its yardstick where it has one, and areas under the ROC curve."""
    parts = []
    for key, (name, yardstick) in LOSSES.items():
        if _is_number(h.get(key)):
            beside = f" ({yardstick.split('_')[0]} {h[yardstick]:.3f})" if yardstick in h else ""
            parts.append(f"{name} loss {h[key]:.3f}{beside}")
    areas = [f"{h[key]:.3f} {name}" for key, name in AREAS.items() if _is_number(h.get(key))]
    return " · ".join(parts + ([f"AUC {', '.join(areas)}"] if areas else []))


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)
