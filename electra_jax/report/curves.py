"""Scores of tasks against the FLOPs of pre-training, as `electra_jax.curves` found them."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.downstream import curves
from electra_jax.downstream.curves import Spread
from electra_jax.loading import networks
from electra_jax.runtime.run_log import Run


class Place(NamedTuple):
    """The scores of one run at one step, over its seeds."""

    flops: float
    score: Spread
    seeds: int


class Curve(NamedTuple):
    """How one run does at one task.

    Attributes:
      run: what the scores call it.
      owner: its number among those that the page is about, None where it is none of them.
      places: by FLOPs, ascending.
    """

    run: str
    owner: int | None
    places: list[Place]


class Task(NamedTuple):
    """A task, or the average of all, how it is scored, and a curve for each run."""

    name: str
    metric: str
    curves: list[Curve]


def read(folder: Path, runs: Sequence[Run] = ()) -> list[Task]:
    """The tasks in `folder`, the average first; `runs` are those that the page is about.

    Raises:
      UserError: there are no scores, or of one of `runs` only by its name.
    """
    rows = curves.read(folder)
    weights: dict[str, dict[int, str]] = {}
    for row in rows:
        weights.setdefault(row["run"], {})[row["step"]] = row["weights"]
    owners = {name: _owner(name, of, runs, folder) for name, of in weights.items()}
    flops = {(row["run"], row["step"]): row["flops"] for row in rows}
    metrics = {row["task"]: row["metric"] for row in rows}
    return [
        Task(
            task,
            metrics.get(task, "score"),
            [
                Curve(
                    run,
                    owners[run],
                    sorted(
                        Place(flops[run, step], curves.spread(list(seeds.values())), len(seeds))
                        for step, seeds in steps.items()
                    ),
                )
                for run, steps in by_run.items()
            ],
        )
        for task, by_run in curves.by_task(rows).items()
    ]


def _owner(name: str, weights: Mapping[int, str], runs: Sequence[Run], folder: Path) -> int | None:
    """Which of `runs` scores are of: by its name, and where its checkpoints are still there by what they have learned.

    Args:
      name: what the scores call it.
      weights: the digest of what was scored, by step.
      runs: those that the page is about.
      folder: where the scores are.

    Returns:
      Its number; None where it is none of them, or could be several.

    Raises:
      UserError: only its name is one of theirs.
    """
    # As one writes it on the command line, its folder, or as the page calls it.
    called = [i for i, run in enumerate(runs) if name in (str(run.workdir), run.workdir.name, run.name)]
    same = {i: _has_learned(runs[i], weights) for i in called}
    certain = [i for i in called if same[i]]
    possible = [i for i in called if same[i] is None]
    if called and not certain and not possible:
        raise UserError(
            f"{folder} has scores of another run that was called {name}, not of {runs[called[0]].workdir}: its weights "
            "are others; give the --curves that were made of it"
        )
    if certain:
        return certain[0]
    return possible[0] if len(possible) == 1 else None


def _has_learned(run: Run, weights: Mapping[int, str]) -> bool | None:
    """Whether the checkpoints of `run` are these; None where it has none of these steps any more."""
    own = {}
    for step in weights:
        with contextlib.suppress(UserError):
            own[step] = networks.find_source(run.workdir, step).digest
    return all(own[step] == weights[step] for step in own) if own else None


def span(tasks: Sequence[Task]) -> tuple[float, float]:
    """The fewest and the most FLOPs of any place that a logarithm can show."""
    found = [place.flops for task in tasks for curve in task.curves for place in curve.places if place.flops > 0]
    return (min(found), max(found)) if found else (math.nan, math.nan)
