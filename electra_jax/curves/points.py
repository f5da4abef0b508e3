"""The points of curves: for each checkpoint of each run, each task's scores, seed by seed."""

import collections
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax import writers
from electra_jax.checkpoint import Checkpoints
from electra_jax.errors import UserError
from electra_jax.files import read_json, sha256

CURVES, HELDOUT = "curves.jsonl", "heldout.jsonl"
_COUNTED = {"flops": "total_flops", "flops_paper": "total_flops_paper", "tokens": "total_tokens"}


Scores = Mapping[str, Mapping[int, Mapping[int, float]]]  # run -> step -> seed -> score


class Run(NamedTuple):
    """A run whose checkpoints are measured.

    Attributes:
      name: the shortest end of its path that no other has.
      folder: its work directory.
      objective: its system.
      steps: of the checkpoints.
      counted: by step, `flops`, `flops_paper` and `tokens` until then.
      heldout: what was logged at evaluations, with what is in `counted`.
      digest: of its settings.
    """

    name: str
    folder: Path
    objective: str
    steps: tuple[int, ...]
    counted: dict[int, dict[str, float]]
    heldout: list[dict[str, Any]]
    digest: str


class Spread(NamedTuple):
    """Numbers of several seeds."""

    median: float
    lowest: float
    highest: float


def read_run(folder: Path, name: str, points: int = 0) -> Run:
    """A run.

    Args:
      folder: its work directory.
      name: what it is to be called.
      points: how many checkpoints, evenly spaced and the last among them; 0: all.

    Raises:
      UserError: there is no run, or it has no checkpoint.
    """
    path = folder / "config.json"
    settings = read_json(path) if path.is_file() else {}
    if "objective" not in settings:
        raise UserError(f"{folder} is no work directory of a run; give one that electra_jax.train made")
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    kept = checkpoints.steps()
    checkpoints.close()
    lines = {line["step"]: line for line in writers.logged(folder)}
    steps = [step for step in kept if step in lines]
    if not steps:
        raise UserError(f"{folder} has no checkpoint that {writers.METRICS} speaks of; let its run go on to the first")
    if points and points < len(steps):
        wanted = [(i + 1) * steps[-1] / points for i in range(points)]
        steps = sorted({min((abs(step - near), step) for step in steps)[1] for near in wanted})
    counted = {step: {name: line[key] for name, key in _COUNTED.items()} for step, line in lines.items()}
    heldout = [
        {"step": step, **counted[step], **{key: value for key, value in line.items() if key.startswith("heldout_")}}
        for step, line in lines.items()
        if any(key.startswith("heldout_") for key in line)
    ]
    return Run(name, folder, settings["objective"]["name"], tuple(steps), counted, heldout, sha256(path)[:12])


def names(folders: Sequence[Path]) -> list[str]:
    """For each folder, the shortest end of its path that no other has.

    Raises:
      UserError: one is given twice.
    """
    whole = [folder.absolute().parts for folder in folders]
    for parts, count in collections.Counter(whole).items():
        if count > 1:
            raise UserError(f"{Path(*parts)} is given twice; give each run once")
    return [
        "/".join(next(p[-n:] for n in range(1, len(p) + 1) if sum(other[-n:] == p[-n:] for other in whole) == 1))
        for p in whole
    ]


def rows_of(run: Run, step: int, task: str, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of `curves.jsonl` about one fine-tuning, one a seed."""
    for seed in result["seeds"]:
        yield {
            "run": run.name,
            "objective": run.objective,
            "step": step,
            **run.counted[step],
            "task": task,
            "metric": result["metric"],
            "seed": seed["seed"],
            "score": seed["scores"][result["metric"]],
        }


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def by_task(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, dict[int, float]]]]:
    """task -> run -> step -> seed -> score; beside the tasks `average`, of those that a seed has all of."""
    found: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for row in rows:
        steps = found.setdefault(row["task"], {}).setdefault(row["run"], {})
        steps.setdefault(row["step"], {})[row["seed"]] = row["score"]
    if len(found) < 2:
        return found
    average: dict[str, dict[int, dict[int, float]]] = {}
    for run, steps in next(iter(found.values())).items():
        for step, seeds in steps.items():
            for seed in seeds:
                scores = [by_run.get(run, {}).get(step, {}).get(seed) for by_run in found.values()]
                whole = [score for score in scores if score is not None]
                if len(whole) == len(scores):
                    average.setdefault(run, {}).setdefault(step, {})[seed] = statistics.mean(whole)
    return {"average": average, **found}
