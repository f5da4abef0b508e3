"""What a work directory says of its run, as plain numbers and text."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from electra_jax.config.errors import UserError
from electra_jax.config.settings import flatten
from electra_jax.runtime import metric_writers
from electra_jax.runtime.io import read_json

_NEEDED = {"objective": dict, "model": dict, "data": dict, "steps": int}  # of a config, for it to be a run's
_KEPT = {"python": str, "packages": dict, "devices": list, "processes": int, "commit": str}  # of its environment


class Run(NamedTuple):
    """A run.

    Attributes:
      name: the shortest end of its path that no other run on the page has.
      workdir: where it lives.
      settings: its config.
      logged: an object a logged step.
      environment: versions, devices and commit; empty where they were not kept.
    """

    name: str
    workdir: Path
    settings: dict[str, Any]
    logged: list[dict[str, Any]]
    environment: dict[str, Any]

    @property
    def system(self) -> str:
        return str(self.settings["objective"]["name"])

    @property
    def last(self) -> dict[str, Any]:
        """What was logged last."""
        return self.logged[-1]

    def heldout(self) -> dict[str, Any]:
        """The last evaluation: its step, and its numbers without `heldout_`; empty where there was none yet."""
        for line in reversed(self.logged):
            found = {name.removeprefix("heldout_"): line[name] for name in line if name.startswith("heldout_")}
            if any(map(is_number, found.values())):
                return {"step": line["step"], **found}
        return {}

    def points(self, x: str, y: str) -> list[tuple[float, float]]:
        """What was logged as `y` against what was logged as `x`, where both are numbers."""
        return [(line[x], line[y]) for line in self.logged if is_number(line.get(x)) and is_number(line.get(y))]


def read(workdirs: Sequence[Path]) -> list[Run]:
    """The runs in `workdirs`.

    Raises:
      UserError: one is no run, has logged nothing yet, or is given twice.
    """
    seen: dict[Path, Path] = {}
    for workdir in workdirs:
        other = seen.setdefault(workdir.resolve(), workdir)
        if other is not workdir:
            raise UserError(f"--runs names {workdir} twice; name each run once")
    return [_read(workdir, name) for workdir, name in zip(workdirs, names(workdirs), strict=True)]


def settings_of(workdir: Path) -> dict[str, Any]:
    """The config of the run in `workdir`.

    Raises:
      UserError: there is no run.
    """
    path = workdir / "config.json"
    if not path.exists():
        raise UserError(f"{workdir} is no work directory of a run: it has no config.json; give one, as runs/tiny")
    found = read_json(path)
    if not all(isinstance(found.get(part), kind) for part, kind in _NEEDED.items()) or not isinstance(
        found["objective"].get("name"), str
    ):
        raise UserError(f"{path} is not that of a run; give a run's work directory")
    return found


def _read(workdir: Path, name: str) -> Run:
    if not workdir.is_dir():
        raise UserError(f"{workdir} is not there; give a run's work directory, as --runs runs/tiny")
    settings = settings_of(workdir)
    logged = metric_writers.logged(workdir)
    if not logged:
        raise UserError(f"{workdir} has no metrics yet; let its run go on to the first logged step")
    kept = workdir / "environment.json"
    environment = read_json(kept) if kept.exists() else {}
    known = {key: environment[key] for key, kind in _KEPT.items() if isinstance(environment.get(key), kind)}
    return Run(name, workdir, settings, logged, known)


def names(paths: Sequence[Path]) -> list[str]:
    """For each path its shortest end that is no other's."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    found = []
    for own in parts:
        others = [other for other in parts if other != own]
        shortest = (n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others))
        found.append("/".join(own[-next(shortest, len(own)) :]))
    return found


def differences(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """(setting, its value in each run, None where a run has no such setting) for those that are not the same in all."""
    flat = [flatten(run.settings) for run in runs]
    settings = dict.fromkeys(name for one in flat for name in one)
    values = {name: [one.get(name) for one in flat] for name in settings}
    return [(name, found) for name, found in values.items() if any(value != found[0] for value in found)]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is finite, and no larger than a float can be, which an integer in JSON may."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
