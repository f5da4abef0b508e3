"""Goodput: where the wall time of a run goes, over all of its restarts.

A `Clock` is in exactly one phase at any time, so the seconds of the phases add up to the wall time. A checkpoint holds
the seconds up to it, and so does each line of metrics.jsonl. The difference between the last line and the checkpoint is
the time that a killed process spent after the checkpoint. Its steps are repeated, so their time is `lost` (Google's
ml-goodput-measurement calls it wasted progress from disruption). Not counted are its time after the last line, and lost
time if the next start is killed before its first line.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping

from electra_jax.runtime.metric_text import format_duration

PHASES = ("setup", "compile", "data", "step", "evaluation", "checkpoint")
CATEGORIES = (*PHASES, "lost")
"""What the time of all starts is divided into."""
# Phases whose time after the last checkpoint is lost if the process is killed.
_REDONE = ("data", "step")

Seconds = dict[str, float]


class Clock:
    """Clock of the seconds that a process spends in each of `PHASES`; it starts in `setup`."""

    def __init__(self, started: float | None = None, now: Callable[[], float] = time.monotonic):
        """Starts the clock.

        Args:
          started: when `setup` began, as a value of `now()`; None: now.
          now: returns the time in seconds.
        """
        self._now = now
        self._phase, self._since = "setup", now() if started is None else started
        self._seconds: Seconds = dict.fromkeys(CATEGORIES, 0.0)
        self._lapped = dict(self._seconds)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context manager that counts the time inside it as `name`, except for that of nested phases."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, name: str) -> str:
        now = self._now()
        self._seconds[self._phase] += now - self._since
        before, self._phase, self._since = self._phase, name, now
        return before

    def seconds(self) -> Seconds:
        """Returns the seconds spent in each of `CATEGORIES`, summed over all restarts of the run."""
        # The time of the current phase is added when it ends.
        return {**self._seconds, self._phase: self._seconds[self._phase] + self._now() - self._since}

    def lap(self) -> Seconds:
        """Returns the seconds spent in each of `PHASES` since the last lap, or since the start of the process."""
        now = self.seconds()
        lap = {name: now[name] - self._lapped[name] for name in PHASES}
        self._lapped = now
        return lap

    def totals(self) -> Seconds:
        """Returns `seconds_NAME` for each category, to be saved in checkpoints."""
        return {f"seconds_{name}": value for name, value in self.seconds().items()}

    def add_earlier(self, earlier: Mapping[str, float]) -> None:
        """Adds the `totals` of earlier starts."""
        for name in CATEGORIES:
            self._seconds[name] += earlier[f"seconds_{name}"]
            # A lap counts the time of this process only.
            self._lapped[name] += earlier[f"seconds_{name}"]


def goodput(seconds: Mapping[str, float]) -> float:
    """Computes the fraction of the time, over all restarts, that was spent in steps that were not lost."""
    return seconds["step"] / sum(seconds[name] for name in CATEGORIES)


def describe(totals: Mapping[str, float]) -> str:
    """Formats `Clock.totals` as one line: goodput, total, and each category with its fraction, the largest first."""
    seconds = {name: totals[f"seconds_{name}"] for name in CATEGORIES}
    total = sum(seconds.values())
    parts = [
        f"{name} {format_duration(value)} ({value / total:.1%})"
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
        if value > 0
    ]
    return f"{goodput(seconds):.0%} of {format_duration(total)}: {', '.join(parts)}"


def time_of_earlier_starts(saved: Mapping[str, float], logged: Mapping[str, float]) -> Seconds:
    """Computes the time that a resumed run adds to its clock: `seconds_NAME` for each category.

    Args:
      saved: the `Clock.totals` in the checkpoint that the run continues from; empty if there is none.
      logged: the last line of metrics.jsonl, which may be of a later step; empty if there is none.
    """
    kept = {name: saved.get(f"seconds_{name}", 0.0) for name in CATEGORIES}
    # A step is logged before its checkpoint is saved, so the checkpoint may hold more seconds than the line.
    after = {name: max(0.0, logged.get(f"total_seconds_{name}", 0.0) - kept[name]) for name in CATEGORIES}
    for name in CATEGORIES:
        kept["lost" if name in _REDONE else name] += after[name]
    return {f"seconds_{name}": seconds for name, seconds in kept.items()}


def process_started() -> float:
    """Returns when this process started, on the clock of `time.monotonic()`; now if the system does not tell."""
    try:
        with open("/proc/self/stat") as stat:
            # After the last parenthesis: the name of the command, in parentheses, may contain spaces and parentheses.
            ticks = int(stat.read().rpartition(")")[2].split()[19])  # proc(5): field 22, starttime, since boot
        return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        return time.monotonic()
