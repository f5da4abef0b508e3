"""Writes a run's output for other programs: metrics as JSON lines and TensorBoard events, profiles, versions."""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from electra_jax.config.settings import above, at_least, setting
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.run_log import METRICS, read_metrics


@contextlib.contextmanager
def _without(package: str) -> Iterator[None]:
    """Context manager in which an import of the package fails, unless it has been imported before."""
    # The import of a name for which `sys.modules` has None fails.
    hidden = sys.modules.setdefault(package, None) is None  # type: ignore[arg-type]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[package]


# The import of torch takes seconds; tensorboardX needs it only for tensors.
with _without("torch"):
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.summary import scalar

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "ml_collections")


class MetricsWriter:
    """Writer of each logged step's metrics to `metrics.jsonl`, and of the same numbers as TensorBoard events."""

    def __init__(self, workdir: Path, step: int, tensorboard: bool = True):
        """Opens the files of a run that is at `step`, and removes what a killed process logged for later steps.

        Args:
          workdir: the run's work directory.
          step: the step.
          tensorboard: whether TensorBoard events are written.
        """
        path = workdir / METRICS
        if path.exists():
            # This also drops a partial last line, to which the next one would be appended.
            kept = (line for line in read_metrics(workdir) if line["step"] <= step)
            write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._events = _Events(workdir / "tensorboard", step) if tensorboard else None

    def write(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Writes the metrics of a step; numbers that are not finite become null, because JSON has no NaN."""
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        # A kill then loses no line.
        self._file.flush()
        if self._events is not None:
            self._events.write(step, finite_numbers(metrics))

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def finite_numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the metrics that are finite numbers."""
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


class _Events:
    """A file of TensorBoard events, written in the caller's thread.

    `SummaryWriter` is not used: its thread ends when the disk is full, and the run then waits for it forever.
    """

    def __init__(self, folder: Path, step: int):
        """Opens a new file; TensorBoard drops the steps after `step` of earlier files."""
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        log = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=step + 1, session_log=log))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """A profile of some training steps."""

    at: int = setting(0, "First step to profile; 0: none.", at_least(0), resumable=True)
    steps: int = setting(3, "Number of steps to profile.", above(0), resumable=True)


class Profile:
    """Profiler of some steps; writes to `profile/` in the work directory, for TensorBoard's profiler or Perfetto."""

    def __init__(self, workdir: Path, step: int, steps: int):
        """Profiles `steps` steps from `step` on; none if `step` is 0."""
        self._folder, self._first, self._end = workdir / "profile", step, step + steps
        self._on = False

    def before(self, step: int, state: Any) -> None:
        """Starts or stops the profiler as needed; call it before each step, with the state that the step updates."""
        if step in (self._first, self._end):
            jax.block_until_ready(state)  # whole steps: the one before may still be running
        if step == self._first:
            jax.profiler.start_trace(self._folder)
            self._on = True
        elif step == self._end:
            self.close()

    def close(self) -> None:
        if self._on:
            self._on = False
            jax.profiler.stop_trace()


def environment() -> dict[str, Any]:
    """Returns versions, devices, and the commit of this package if it runs from a git checkout."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Fails if this file is not tracked, as in a virtual environment inside another repository.
        git("ls-files", "--error-unmatch", here.name)
        commit = git("describe", "--always", "--dirty", "--abbrev=40")
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "commit": commit,
    }
