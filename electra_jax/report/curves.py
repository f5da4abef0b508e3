"""Scores of tasks against the FLOPs of pre-training, from `curves.jsonl`."""

import contextlib
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.errors import UserError
from electra_jax.runs import is_number

CURVES = "curves.jsonl"
_FIELDS = ("run", "step", "task", "metric", "score", "flops")


class Place(NamedTuple):
    """The scores of one run at one step, over its seeds: the median, the lowest and the highest."""

    flops: float
    median: float
    low: float
    high: float
    seeds: int


class Curve(NamedTuple):
    """How one run does at one task; places by FLOPs, ascending."""

    run: str
    places: list[Place]


class Task(NamedTuple):
    """A task, how it is scored, and a curve for each run."""

    name: str
    metric: str
    curves: list[Curve]


def read(folder: Path) -> list[Task]:
    """The tasks in `folder`, in the order of the file.

    Raises:
      UserError: the file is not there, has no scores, or a line lacks something.
    """
    path = folder / CURVES
    if not path.is_file():
        raise UserError(f"{path} is not there; give the folder that has {CURVES}, or leave --curves out")
    scores: dict[tuple[str, str], dict[str, dict[float, list[tuple[float, float]]]]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
            one = _checked(json.loads(text), f"{path}, line {number},")
            if is_number(one["score"]) and is_number(one["flops"]):
                of_run = scores.setdefault((one["task"], one["metric"]), {}).setdefault(one["run"], {})
                of_run.setdefault(one["step"], []).append((one["flops"], one["score"]))
    if not scores:
        raise UserError(f"{path} has no scores yet; wait for the first, or leave --curves out")
    return [
        Task(task, metric, [Curve(run, _places(list(steps.values()))) for run, steps in of_task.items()])
        for (task, metric), of_task in scores.items()
    ]


def _checked(one: Any, place: str) -> dict[str, Any]:
    for field in _FIELDS:
        if not isinstance(one, dict) or field not in one:
            raise UserError(f"{place} has no {field!r}; write {CURVES} again")
    return {**one, **{field: str(one[field]) for field in ("run", "task", "metric")}}


def _places(steps: Sequence[Sequence[tuple[float, float]]]) -> list[Place]:
    found = []
    for seeds in steps:
        scores = [score for _, score in seeds]
        found.append(Place(seeds[0][0], statistics.median(scores), min(scores), max(scores), len(scores)))
    return sorted(found)


def span(tasks: Sequence[Task]) -> tuple[float, float]:
    """The fewest and the most FLOPs of any place that a logarithm can show."""
    found = [place.flops for task in tasks for curve in task.curves for place in curve.places if place.flops > 0]
    return (min(found), max(found)) if found else (math.nan, math.nan)
