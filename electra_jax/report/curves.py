"""Scores of tasks against the FLOPs of pre-training, as `electra_jax.curves` found them."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax import pretrained
from electra_jax.curves import points
from electra_jax.curves.points import Spread
from electra_jax.errors import UserError
from electra_jax.runs import Run


class Place(NamedTuple):
    """The scores of one run at one step, over its seeds."""

    flops: float
    score: Spread
    seeds: int


class Curve(NamedTuple):
    """How one run does at one task; places by FLOPs, ascending."""

    run: str
    places: list[Place]


class Task(NamedTuple):
    """A task, or the average of all, how it is scored, and a curve for each run."""

    name: str
    metric: str
    curves: list[Curve]


def read(folder: Path, runs: Sequence[Run] = ()) -> list[Task]:
    """The tasks in `folder`, the average first.

    Raises:
      UserError: there are no scores, or of one of `runs` only by its name.
    """
    rows = points.read(folder)
    for run in runs:
        _check_its_own(run, folder, rows)
    flops = {(row["run"], row["step"]): row["flops"] for row in rows}
    metrics = {row["task"]: row["metric"] for row in rows}
    return [
        Task(
            task,
            metrics.get(task, "score"),
            [
                Curve(
                    run,
                    sorted(
                        Place(flops[run, step], points.spread(list(seeds.values())), len(seeds))
                        for step, seeds in steps.items()
                    ),
                )
                for run, steps in by_run.items()
            ],
        )
        for task, by_run in points.by_task(rows).items()
    ]


def known_as(run: Run) -> tuple[str, ...]:
    """What scores may call a run: its folder, as one writes it on the command line, or what the page calls it."""
    return run.workdir.name, str(run.workdir), run.name


def _check_its_own(run: Run, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError where other weights were scored than those that `run` still has of the same step."""
    for name, step, weights in {(row["run"], row["step"], row["weights"]) for row in rows}:
        if name not in known_as(run):
            continue
        own = weights
        with contextlib.suppress(UserError):  # its checkpoint of that step is gone
            own = pretrained.find(run.workdir, step).digest
        if own != weights:
            raise UserError(
                f"{folder} has scores of another run that was called {name}, not of {run.workdir}: its weights at step "
                f"{step} are others; give the --curves that were made of it"
            )


def span(tasks: Sequence[Task]) -> tuple[float, float]:
    """The fewest and the most FLOPs of any place that a logarithm can show."""
    found = [place.flops for task in tasks for curve in task.curves for place in curve.places if place.flops > 0]
    return (min(found), max(found)) if found else (math.nan, math.nan)
