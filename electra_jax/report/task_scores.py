"""Reads task scores against pre-training FLOPs from the output of `electra-jax curves`."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.downstream import curves
from electra_jax.downstream.curves import Spread
from electra_jax.loading import networks
from electra_jax.runtime.run_log import RunLog


class ScorePoint(NamedTuple):
    """The scores of one run at one step.

    Attributes:
      flops: pre-training FLOPs up to the step.
      score: median, lowest and highest score over seeds.
      seeds: number of seeds.
    """

    flops: float
    score: Spread
    seeds: int


class ScoreCurve(NamedTuple):
    """The scores of one run on one task.

    Attributes:
      run: its name in the scores.
      page_index: its index among the runs of the page; None if it is not one of them.
      points: points in ascending order of FLOPs.
    """

    run: str
    page_index: int | None
    points: list[ScorePoint]


class TaskScores(NamedTuple):
    """A task, or the average of all tasks, with its metric and a curve for each run."""

    name: str
    metric: str
    curves: list[ScoreCurve]


def read_task_scores(folder: Path, runs: Sequence[RunLog] = ()) -> list[TaskScores]:
    """Reads the scores in `folder`.

    Args:
      folder: the output folder of `electra-jax curves`.
      runs: the runs of the page.

    Returns:
      The tasks; if there are several, their average comes first.

    Raises:
      UserError: there are no scores, or scores with the name of one of `runs` belong to another run.
    """
    rows = curves.read_scores(folder)
    digests: dict[str, dict[int, str]] = {}
    for row in rows:
        digests.setdefault(row["run"], {})[row["step"]] = row["weights"]
    indices = {name: _find_run(name, by_step, runs, folder) for name, by_step in digests.items()}
    flops = {(row["run"], row["step"]): row["flops"] for row in rows}
    metrics = {row["task"]: row["metric"] for row in rows}

    def make_curve(run: str, by_step: Mapping[int, Mapping[int, float]]) -> ScoreCurve:
        points = [
            ScorePoint(flops[run, step], curves.spread(list(by_seed.values())), len(by_seed))
            for step, by_seed in by_step.items()
        ]
        return ScoreCurve(run, indices[run], sorted(points))

    # The average has no metric of its own, since those of the tasks differ.
    return [
        TaskScores(task, metrics.get(task, "score"), [make_curve(run, by_step) for run, by_step in by_run.items()])
        for task, by_run in curves.group_by_task(rows).items()
    ]


def _find_run(name: str, digests: Mapping[int, str], runs: Sequence[RunLog], folder: Path) -> int | None:
    """Finds the run of the page that scores belong to: one with the same name and, if it can be checked, weights.

    Args:
      name: the run's name in the scores.
      digests: the digest of the weights that were scored, by step.
      runs: the runs of the page.
      folder: the folder with the scores.

    Returns:
      The run's index; None if no run matches, or several may.

    Raises:
      UserError: all runs of that name have different weights.
    """
    # The name may be the path given to --runs, the name of its folder, or its name on the page.
    candidates = [i for i, run in enumerate(runs) if name in (str(run.workdir), run.workdir.name, run.name)]
    # None where no scored checkpoint is left to compare.
    matches = {i: _has_weights(runs[i], digests) for i in candidates}
    certain = [i for i in candidates if matches[i]]
    possible = [i for i in candidates if matches[i] is None]
    if candidates and not certain and not possible:
        raise UserError(
            f"{folder} has scores of another run named {name}: their weights are not those of "
            f"{runs[candidates[0]].workdir}; give the --curves folder of this run"
        )
    if certain:
        return certain[0]
    # By its name alone, if no other run may be meant.
    return possible[0] if len(possible) == 1 else None


def _has_weights(run: RunLog, digests: Mapping[int, str]) -> bool | None:
    """Returns True if the checkpoints of `run` have these digests; None if none of these checkpoints is left."""
    own = {}
    for step in digests:
        # The run may have deleted the checkpoint since.
        with contextlib.suppress(UserError):
            own[step] = networks.find_source(run.workdir, step).digest
    return all(own[step] == digests[step] for step in own) if own else None
