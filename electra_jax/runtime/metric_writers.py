"""What a run leaves behind for other programs: metrics as JSON lines and TensorBoard events, config, environment."""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax
from tensorboardX import SummaryWriter

from electra_jax.config.settings import above, at_least, setting
from electra_jax.runtime.io import from_json, write_whole

METRICS = "metrics.jsonl"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece", "ml_collections")


class MetricsWriter:
    """Writes one object a logged step to `metrics.jsonl`, and the same numbers as TensorBoard events."""

    def __init__(self, workdir: Path, step: int):
        """Opens both for a run that stands at `step`; what a killed run wrote of later steps is dropped."""
        path = workdir / METRICS
        if path.exists():
            write_whole(path, "".join(json.dumps(line) + "\n" for line in logged(workdir) if line["step"] <= step))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, numbers: dict[str, float | None]) -> None:
        """Numbers that are not finite become null: JSON has no NaN."""
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in numbers.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in finite.items():
            if value is not None:
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        self._events.close()


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """A trace of some steps, written to `profile/` in the work directory."""

    at: int = setting(0, "First step to trace; 0: none.", at_least(0), resumable=True)
    steps: int = setting(3, "Steps to trace.", above(0), resumable=True)


class Profile:
    """A trace of some steps, for TensorBoard's profiler or Perfetto, in `profile/` of the work directory."""

    def __init__(self, workdir: Path, step: int, steps: int):
        """Of `steps` steps from `step` on; of none where `step` is 0."""
        self._folder, self._first, self._end = workdir / "profile", step, step + steps
        self._on = False

    def before(self, step: int) -> None:
        """Begins or ends it, where `step` is the one that comes now."""
        if step == self._first:
            jax.profiler.start_trace(self._folder)
            self._on = True
        elif step == self._end:
            self.close()

    def close(self) -> None:
        if self._on:
            self._on = False
            jax.profiler.stop_trace()


def logged(workdir: Path) -> list[dict[str, Any]]:
    """What `MetricsWriter` has written in `workdir`, by steps; the line at which a kill struck is left out."""
    path, found = workdir / METRICS, {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            line = from_json(text)
            if isinstance(line, dict) and type(line.get("step")) is int:
                found[line["step"]] = line
    return [found[step] for step in sorted(found)]


def environment() -> dict[str, Any]:
    """Versions, devices and the commit of the code that runs."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
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
