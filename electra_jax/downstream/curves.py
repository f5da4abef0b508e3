"""The points of curves: for each checkpoint of each run, each task's scores, seed by seed."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.runtime import metric_writers
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.io import from_json
from electra_jax.runtime.run_log import Run, is_number

CURVES, HELDOUT = "curves.jsonl", "heldout.jsonl"
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("run", "objective", "weights", "task", "metric"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("step", "seed"), lambda value: isinstance(value, int)),
    **dict.fromkeys(("score", "flops", "flops_paper"), is_number),
}
_COUNTED = {"flops": "total_flops", "flops_paper": "total_flops_paper", "tokens": "total_tokens"}


Scores = Mapping[str, Mapping[int, Mapping[int, float]]]  # run -> step -> seed -> score


class Measured(NamedTuple):
    """A run whose checkpoints are measured.

    Attributes:
      run: what was logged of it.
      steps: of the checkpoints.
    """

    run: Run
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.run.name

    def counted(self, step: int) -> dict[str, float]:
        """`flops`, `flops_paper` and `tokens` of the first `step` steps."""
        return _counted(next(line for line in self.run.logged if line["step"] == step))

    def heldout(self) -> list[dict[str, Any]]:
        """The held-out numbers that were logged, each with what is counted until then."""
        return [
            {"step": line["step"], **_counted(line), **numbers}
            for line in self.run.logged
            if (numbers := {key: line[key] for key in line if key.startswith("heldout_")}) and _is_counted(line)
        ]


class Spread(NamedTuple):
    """Numbers of several seeds."""

    median: float
    lowest: float
    highest: float


def measured(run: Run, points: int = 0) -> Measured:
    """A run with its checkpoints.

    Args:
      run: of `runs.read`.
      points: how many checkpoints: the last, and those nearest to a half of its steps, a quarter, ...; 0: all.

    Raises:
      UserError: it has no checkpoint.
    """
    checkpoints = Checkpoints(run.workdir / "checkpoints", read_only=True)
    logged = {line["step"] for line in run.logged if _is_counted(line)}
    steps = [step for step in checkpoints.steps() if step in logged]
    checkpoints.close()
    if not steps:
        raise UserError(
            f"{run.workdir} has no checkpoint that {metric_writers.METRICS} speaks of; let it go on to the first"
        )
    if points and points < len(steps):
        wanted = [steps[-1] / 2**i for i in range(points)]
        steps = sorted({min((abs(step - near), step) for step in steps)[1] for near in wanted})
    return Measured(run, tuple(steps))


def _is_counted(line: Mapping[str, Any]) -> bool:
    return all(is_number(line.get(key)) for key in _COUNTED.values())


def _counted(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[key] for name, key in _COUNTED.items()}


def rows_of(of: Measured, step: int, weights: str, task: str, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of `curves.jsonl` about one fine-tuning, one a seed; `weights` are the digest of what it began with."""
    for seed in result["seeds"]:
        yield {
            "run": of.name,
            "objective": of.run.system,
            "step": step,
            "weights": weights,
            **of.counted(step),
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


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of `curves.jsonl` in a folder.

    Raises:
      UserError: there is none, or one that this package did not write.
    """
    path = folder / CURVES
    if not path.is_file():
        raise UserError(f"{path} is not there; give a folder that electra_jax.curves wrote")
    rows = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = from_json(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(holds(row.get(name)) for name, holds in _FIELDS.items()):
            raise UserError(f"{path}:{number}: no line of electra_jax.curves; let it write the file again")
        rows.append(row)
    if not rows:
        raise UserError(f"{path} has no scores; let electra_jax.curves write it again")
    return rows
