"""Reads what a run has written to its work directory: config, metrics, versions and devices.

This is the only reader of `metrics.jsonl`. It needs no JAX.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from electra_jax.config.errors import UserError
from electra_jax.config.settings import flatten
from electra_jax.runtime.io import check_regular, from_json, read_json

METRICS = "metrics.jsonl"
HELDOUT = "heldout_"  # prefix of the metrics of an evaluation
# Sums, products and axes of such numbers still fit into a float.
_LARGEST = 1e100
_CONFIG_TYPES = {"objective": dict, "model": dict, "data": dict, "steps": int}
_ENVIRONMENT_TYPES = {"python": str, "packages": dict, "devices": list, "processes": int, "commit": str}


class Evaluation(NamedTuple):
    """The metrics of one evaluation on held-out text.

    Attributes:
      step: the step after which it was made.
      metrics: its numbers, named without `heldout_`; numbers that are not finite are left out.
      by_source: the same numbers for each source of a mixture, `heldout_NAME/SOURCE` in the log, by source and name.
    """

    step: int
    metrics: dict[str, float]
    by_source: Mapping[str, Mapping[str, float]] = MappingProxyType({})


class RunLog(NamedTuple):
    """Log of a run.

    Attributes:
      name: the shortest suffix of its path that is unique among the runs read together.
      workdir: its work directory.
      settings: its config.
      metrics: one object for each logged step, in order.
      environment: versions, devices and commit; parts that were not written are missing.
    """

    name: str
    workdir: Path
    settings: dict[str, Any]
    metrics: list[dict[str, Any]]
    environment: dict[str, Any]

    def __repr__(self) -> str:  # a notebook would print all lines of the log
        return f"<RunLog of {self.workdir}: step {self.last['step']} of {self.steps}>"

    @property
    def objective(self) -> str:
        return str(self.settings["objective"]["name"])

    @property
    def steps(self) -> int:
        """The number of training steps in the config."""
        return int(self.settings["steps"])

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the last logged step."""
        return self.metrics[-1]

    def evaluations(self) -> list[Evaluation]:
        return evaluations(self.metrics)

    def heldout(self, until_step: int | None = None) -> Evaluation | None:
        """Returns the last evaluation, not counting those after `until_step`; None if there was none."""
        return last_evaluation(self.metrics, until_step)

    def points(self, x: str, y: str) -> list[tuple[float, float]]:
        """Returns (x, y) for each logged step that has numbers for both metrics."""
        return [(line[x], line[y]) for line in self.metrics if is_number(line.get(x)) and is_number(line.get(y))]


def read_run_logs(workdirs: Sequence[Path]) -> list[RunLog]:
    """Reads the logs of several runs.

    Raises:
      UserError: a directory is not a run's, has no metrics yet, or is given twice.
    """
    given: dict[Path, Path] = {}
    for workdir in workdirs:
        # By resolved path: a folder may be given under two names.
        if given.setdefault(workdir.resolve(), workdir) is not workdir:
            raise UserError(f"--runs names {workdir} twice; name each run once")
    names = unique_names(workdirs)
    return [read_run_log(workdir)._replace(name=name) for workdir, name in zip(workdirs, names, strict=True)]


def read_run_log(workdir: Path) -> RunLog:
    """Reads the log of a run.

    Raises:
      UserError: `workdir` is not a run's, or has no metrics yet.
    """
    if not workdir.is_dir():
        raise UserError(f"{workdir} does not exist: expected the work directory of a run, such as runs/tiny")
    settings = read_config(workdir)
    metrics = read_metrics(workdir)
    if not metrics:
        raise UserError(f"{workdir} has no metrics yet; wait until its run has logged its first step")
    path = workdir / "environment.json"
    written = read_json(path) if path.exists() else {}
    types = _ENVIRONMENT_TYPES.items()
    environment = {name: written[name] for name, kind in types if isinstance(written.get(name), kind)}
    return RunLog(workdir.name, workdir, settings, metrics, environment)


def read_config(workdir: Path) -> dict[str, Any]:
    """Reads the config of a run from its config.json.

    Raises:
      UserError: there is none, or it is not a run's.
    """
    path = workdir / "config.json"
    if not path.exists():
        raise UserError(f"{workdir} has no config.json: expected the work directory of a run, such as runs/tiny")
    config = read_json(path)
    if not is_run_config(config):
        raise UserError(f"{path} is not the config of a run; give the work directory of a run")
    return config


def is_run_config(config: Mapping[str, Any]) -> bool:
    """True if the content of a config.json is that of a run, not of a Hugging Face model or a fine-tuning."""
    return (
        all(isinstance(config.get(name), kind) for name, kind in _CONFIG_TYPES.items())
        and isinstance(config["objective"].get("name"), str)
        and is_number(config["steps"])
        and config["steps"] > 0
    )


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Reads the lines of `metrics.jsonl` in the order of their steps, only the last line of each step.

    Lines that are not objects with a step, such as a partial one after a kill, are left out.

    Raises:
      UserError: it is a pipe or a device.
    """
    path = workdir / METRICS
    check_regular(path)
    by_step: dict[int, dict[str, Any]] = {}
    # `replace`: a damaged byte spoils its own line only.
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        if (line := _logged_line(text)) is not None:
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def put_aside(workdir: Path) -> str:
    """Renames `metrics.jsonl` to a name that no restart writes to; returns that name."""
    number = next(n for n in itertools.count(1) if not (workdir / f"metrics.{n}.jsonl").exists())
    return (workdir / METRICS).rename(workdir / f"metrics.{number}.jsonl").name


def check_metrics(workdir: Path) -> tuple[int, list[str]]:
    """Returns the number of lines of `metrics.jsonl`, and their problems.

    Every line must be an object whose step is greater than that of the previous line; the last line may be incomplete,
    as after a kill. A changed digit is not noticed.

    Raises:
      UserError: there is no `metrics.jsonl`.
    """
    path = workdir / METRICS
    if not path.is_file():
        raise UserError(f"{path} is missing: report and curves need it; restore a copy")
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    problems, last = [], -1
    # What follows the last line break is empty or incomplete.
    for number, text in enumerate(texts[:-1], 1):
        line = _logged_line(text)
        if line is None:
            problems.append(f"{path}:{number} is not a JSON object with a step; restore a copy, or delete the line")
        elif line["step"] <= last:
            problems.append(f"{path}:{number} has step {line['step']}: expected more than {last}; restore a copy")
        else:
            last = line["step"]
    return len(texts) - 1, problems


def _logged_line(text: str) -> dict[str, Any] | None:
    """Parses a line of metrics; None if it is not an object with a step."""
    with contextlib.suppress(ValueError):
        line = from_json(text)
        if isinstance(line, dict) and is_number(line.get("step")) and type(line["step"]) is int:
            return line
    return None


def evaluations(metrics: Iterable[Mapping[str, Any]]) -> list[Evaluation]:
    """Returns the evaluations among lines of metrics."""
    found = []
    for line in metrics:
        whole: dict[str, float] = {}
        by_source: dict[str, dict[str, float]] = {}
        for key, value in line.items():
            if key.startswith(HELDOUT) and is_number(value):
                name, _, source = key.removeprefix(HELDOUT).partition("/")
                (by_source.setdefault(source, {}) if source else whole)[name] = value
        if whole:
            found.append(Evaluation(line["step"], whole, by_source))
    return found


def last_evaluation(metrics: Iterable[Mapping[str, Any]], until_step: int | None = None) -> Evaluation | None:
    """Returns the last of `evaluations`, not counting those after `until_step`; None if there is none."""
    made = [each for each in evaluations(metrics) if until_step is None or each.step <= until_step]
    return made[-1] if made else None


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Returns the shortest suffix of each path that no other path has."""
    all_parts = [Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for parts in all_parts:
        others = [other for other in all_parts if other != parts]
        unique = (n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
        names.append("/".join(parts[-next(unique, len(parts)) :]))
    return names


def differing_settings(runs: Sequence[RunLog]) -> list[tuple[str, list[Any]]]:
    """Returns (name, value in each run) of the settings that differ between runs; None where a run lacks it."""
    by_run = [flatten(run.settings) for run in runs]
    names = dict.fromkeys(name for settings in by_run for name in settings)
    values = {name: [settings.get(name) for settings in by_run] for name in names}
    return [(name, row) for name, row in values.items() if any(value != row[0] for value in row)]


def is_number(value: Any) -> TypeGuard[float]:
    """True if a value from JSON is a number that can be shown: finite, and at most 1e100 in magnitude."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
