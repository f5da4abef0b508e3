"""Scores of tasks against the FLOPs of pre-training, as `electra_jax.curves` found them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.curves import points
from electra_jax.curves.points import Spread


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


def read(folder: Path) -> list[Task]:
    """The tasks in `folder`, the average first.

    Raises:
      UserError: there are no scores.
    """
    rows = points.read(folder)
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


def span(tasks: Sequence[Task]) -> tuple[float, float]:
    """The fewest and the most FLOPs of any place that a logarithm can show."""
    found = [place.flops for task in tasks for curve in task.curves for place in curve.places if place.flops > 0]
    return (min(found), max(found)) if found else (math.nan, math.nan)
