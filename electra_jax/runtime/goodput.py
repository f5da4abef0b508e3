"""Goodput: where the wall time of a run goes, over all of its starts.

A `Clock` is in one phase at any time, so the seconds of the phases add up to the wall time. A checkpoint holds the
seconds up to it. `goodput.json` in the work directory holds those up to a few seconds ago: what it has and the
checkpoint has not is the time that a killed start spent after the checkpoint. Its steps are done again, so their time
is `lost` (Google's ml-goodput-measurement calls it wasted progress from disruption).
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from electra_jax.runtime.io import from_json
from electra_jax.runtime.metric_text import format_duration

FILE = "goodput.json"
PHASES = ("setup", "compile", "data", "step", "evaluation", "checkpoint")
CATEGORIES = (*PHASES, "lost")
"""What the time of all starts is divided into."""
_REDONE = ("data", "step")  # phases whose time after the checkpoint is lost with a kill
_WRITE_EVERY = 5.0  # seconds
_FILE_SIZE = 1024  # bytes; every version of the file has this size, so one write replaces all of it

Seconds = dict[str, float]


class Activity(NamedTuple):
    """What a process is doing: the phase, and for how many seconds it has been in it."""

    phase: str
    seconds: float


class Clock:
    """Counts the seconds that a process spends in each of `PHASES`; it starts in `setup`.

    One thread changes the phase; others may read.
    """

    def __init__(self, started: float | None = None, now: Callable[[], float] = time.monotonic):
        """Starts the clock.

        Args:
          started: when `setup` began, by `now`; None: now.
          now: gives the time in seconds.
        """
        self._now = now
        self._lock = threading.Lock()
        self._phase, self._since = "setup", now() if started is None else started
        self._seconds: Seconds = dict.fromkeys(CATEGORIES, 0.0)
        self._down = 0.0
        self._lapped = dict(self._seconds)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside the context as `name`, without what is inside another such context within."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, name: str) -> str:
        with self._lock:
            now = self._now()
            self._seconds[self._phase] += now - self._since
            before, self._phase, self._since = self._phase, name, now
            return before

    def activity(self) -> Activity:
        with self._lock:
            return Activity(self._phase, self._now() - self._since)

    def seconds(self) -> Seconds:
        """The seconds in each of `CATEGORIES`, over all starts."""
        with self._lock:
            return {**self._seconds, self._phase: self._seconds[self._phase] + self._now() - self._since}

    def lap(self) -> Seconds:
        """The seconds in each of `PHASES` since the last lap, or since the start of the process."""
        now = self.seconds()
        lap = {name: now[name] - self._lapped[name] for name in PHASES}
        self._lapped = now
        return lap

    def totals(self) -> Seconds:
        """`seconds_NAME` for each category, and `seconds_down`, between the starts; what checkpoints keep."""
        return {**{f"seconds_{name}": value for name, value in self.seconds().items()}, "seconds_down": self._down}

    def add_earlier(self, earlier: Mapping[str, float]) -> None:
        """Adds the `totals` of earlier starts."""
        with self._lock:
            for name in CATEGORIES:
                self._seconds[name] += earlier.get(f"seconds_{name}", 0.0)
                self._lapped[name] += earlier.get(f"seconds_{name}", 0.0)
            self._down += earlier.get("seconds_down", 0.0)


def goodput(seconds: Mapping[str, float]) -> float:
    """The share of the time of all starts that was spent in steps which were not lost."""
    return seconds["step"] / sum(seconds[name] for name in CATEGORIES)


def describe(totals: Mapping[str, float]) -> str:
    """One line about `Clock.totals`: goodput, total, and each category with its share, the largest first."""
    seconds = {name: totals[f"seconds_{name}"] for name in CATEGORIES}
    total = sum(seconds.values())
    parts = [
        f"{name} {format_duration(value)} ({value / total:.1%})"
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
        if value > 0
    ]
    down = f"; {format_duration(totals['seconds_down'])} between starts" if totals["seconds_down"] else ""
    return f"{goodput(seconds):.0%} of {format_duration(total)}: {', '.join(parts)}{down}"


class Ledger:
    """Keeps the totals of a clock in `goodput.json`. As a context manager it writes them every few seconds."""

    def __init__(self, folder: Path, clock: Clock, saved: Mapping[str, float], enabled: bool = True):
        """Adds the time of earlier starts to `clock`, and writes the sum.

        Args:
          folder: the local folder of the work directory.
          clock: the clock of this process.
          saved: the `Clock.totals` in the checkpoint that the run continues from; empty if there is none.
          enabled: whether this process keeps the file; one process of a run does.
        """
        self._path, self._clock, self._enabled = folder / FILE, clock, enabled
        if enabled:
            started = time.time() - sum(clock.seconds().values())
            clock.add_earlier(_earlier(saved, _read(self._path), started))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write_regularly, name="goodput", daemon=True)
        self.write()

    def write(self) -> None:
        """Writes the totals up to now; a kill leaves the version before or this one."""
        if not self._enabled:
            return
        text = json.dumps({**self._clock.totals(), "written": time.time()}, indent=2)
        # In place and with one call: another thread may be copying the work directory, and must find no other file.
        with contextlib.suppress(OSError), open(self._path, "r+b" if self._path.exists() else "wb", 0) as file:
            file.write(f"{text:<{_FILE_SIZE - 1}}\n".encode())
            file.truncate(_FILE_SIZE)

    def _write_regularly(self) -> None:
        while not self._stopped.wait(_WRITE_EVERY):
            self.write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self.write()


def _earlier(saved: Mapping[str, float], written: Mapping[str, float] | None, started: float) -> Seconds:
    """The `Clock.totals` of earlier starts.

    Args:
      saved: the totals in the checkpoint.
      written: the content of `goodput.json`; None if there is none. It is newer than the checkpoint, or up to
        `_WRITE_EVERY` older.
      started: when this process started, as `time.time()` gives it.
    """
    names = [f"seconds_{name}" for name in (*CATEGORIES, "down")]
    kept = {name: saved.get(name, 0.0) for name in names}
    if written is None:
        return kept
    after = {name: max(0.0, written[name] - kept[name]) for name in names}
    redone = [f"seconds_{name}" for name in _REDONE]
    earlier = {name: kept[name] + (0.0 if name in redone else after[name]) for name in names}
    earlier["seconds_lost"] += sum(after[name] for name in redone)
    counted_since = max(0.0, sum(kept.values()) - sum(written[name] for name in names))  # by the checkpoint
    earlier["seconds_down"] += max(0.0, started - written["written"] - counted_since)
    return earlier


def _read(path: Path) -> dict[str, float] | None:
    """The content of `goodput.json`; None if there is none, or it is not one of this version."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        content = from_json(path.read_text(encoding="utf-8"))
        names = [*(f"seconds_{name}" for name in (*CATEGORIES, "down")), "written"]
        return {name: float(content[name]) for name in names} if content.keys() >= set(names) else None
    return None


def process_started() -> float:
    """When this process started, as `time.monotonic()` would have said; now where the system does not tell."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])  # proc(5): field 22, starttime, since boot
        return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        return time.monotonic()
