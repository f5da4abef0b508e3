"""Curves of task scores against pre-training FLOPs: fine-tuning of the checkpoints of several runs, and tables."""

import contextlib
import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import run as finetuning
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.loading import networks, run_checkpoint
from electra_jax.runtime.io import from_json, write_whole
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.run_log import HELDOUT, METRICS, RunLog, is_number

CURVES_FILE, HELDOUT_FILE, TABLE_FILE = "curves.jsonl", "heldout.jsonl", "curves.md"
AVERAGE = "average"
_COMPUTE = {"flops": "total_flops", "flops_paper": "total_flops_paper", "tokens": "total_tokens"}
_VALID: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("run", "objective", "weights", "task", "metric"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("step", "seed"), lambda value: isinstance(value, int)),
    **dict.fromkeys(("score", "flops", "flops_paper"), is_number),
}

Scores = Mapping[str, Mapping[int, Mapping[int, float]]]  # run -> step -> seed -> score


class ScoreRow(TypedDict):
    """A line of `curves.jsonl`: the score of one seed of a fine-tuning; `weights` is the digest of the checkpoint."""

    run: str
    objective: str
    step: int
    weights: str
    flops: float
    flops_paper: float
    tokens: float
    task: str
    metric: str
    seed: int
    score: float


class Spread(NamedTuple):
    """Median, lowest and highest score of several seeds."""

    median: float
    lowest: float
    highest: float


class MeasuredRun(NamedTuple):
    """A run and the steps of its checkpoints to fine-tune."""

    log: RunLog
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.log.name

    def compute(self, step: int) -> dict[str, float]:
        """Returns the cumulative `flops`, `flops_paper` and `tokens` of the first `step` steps."""
        return _compute(next(line for line in self.log.metrics if line["step"] == step))

    def heldout(self) -> list[dict[str, float]]:
        """Returns the held-out metrics of each evaluation, with its step and the cumulative compute."""
        lines = {line["step"]: line for line in self.log.metrics if _has_compute(line)}
        return [
            {
                "step": made.step,
                **_compute(lines[made.step]),
                **{f"{HELDOUT}{name}": value for name, value in made.metrics.items()},
            }
            for made in self.log.evaluations()
            if made.step in lines
        ]


def select_checkpoints(log: RunLog, points: int = 0) -> MeasuredRun:
    """Selects the checkpoints of a run to fine-tune.

    Args:
      log: the run.
      points: number of checkpoints: the last, and those nearest to half of its step, a quarter, and so on; 0: all.

    Raises:
      UserError: the run has no checkpoint of a logged step.
    """
    # Reads only: the run may still be training.
    saved = run_checkpoint.saved_steps(log.workdir)
    logged = {line["step"] for line in log.metrics if _has_compute(line)}
    # A checkpoint's compute is known from its line in the log, which may lag behind the checkpoints.
    steps = [step for step in saved if step in logged]
    if not steps:
        raise UserError(f"{log.workdir} has no checkpoint of a step in {METRICS}; wait until its run has saved one")
    if points and points < len(steps):
        # Powers of two are evenly spaced on the plot's logarithmic axis.
        targets = [steps[-1] / 2**i for i in range(points)]
        # Two targets may have the same nearest checkpoint: then there are fewer points.
        steps = sorted({min((abs(step - target), step) for step in steps)[1] for target in targets})
    return MeasuredRun(log, tuple(steps))


def _has_compute(line: Mapping[str, Any]) -> bool:
    return all(is_number(line.get(metric)) for metric in _COMPUTE.values())


def _compute(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[metric] for name, metric in _COMPUTE.items()}


def measure(
    runs: Sequence[MeasuredRun],
    configs: Mapping[str, FinetuneConfig],
    data_dirs: Mapping[str, str],
    output: Path,
    strict: bool,
    progress: Progress,
) -> list[ScoreRow]:
    """Fine-tunes every selected checkpoint on every task. Seeds that an earlier call has finished are not repeated.

    Args:
      runs: the runs with their checkpoints.
      configs: the config of each task.
      data_dirs: the `data_dir` of each task.
      output: a folder; the work directories of the fine-tunings are in its `points/`.
      strict: whether an invalid row of a task is an error.
      progress: receives the progress.
    """
    rows: list[ScoreRow] = []
    progress.start("fine-tuning", len(configs) * sum(len(run.steps) for run in runs))
    done = 0
    for run in runs:
        for step in run.steps:
            source = networks.find_source(run.log.workdir, step)
            source = source._replace(load=functools.cache(source.load))  # once for all tasks
            for task, config in configs.items():
                folder = output / "points" / source.digest / task  # not by name: a renamed run keeps its points
                part = _PartProgress(progress, f"{run.name} at {step}", done)
                # Curves show scores on development sets, so answers to test sets would not be used.
                result = finetuning.finetune_source(
                    config, source, data_dirs[task], folder, strict=strict, tests=False, progress=part
                )
                rows += _make_rows(run, step, source.digest, task, result)
                done += 1
                progress.update(done)
    return rows


class _PartProgress(Progress):
    """Progress of one fine-tuning, reported as a part of the progress of all."""

    def __init__(self, whole: Progress, name: str, done: int):
        self._whole, self._name, self._done = whole, name, done
        self._stage, self._total = "", 1.0

    def say(self, text: str) -> None:
        self._whole.say(f"{self._name}: {text}")

    def start(self, stage: str, total: float = 1.0, completed: float = 0.0) -> None:
        self._stage, self._total = stage, total
        self.update(completed)

    def update(self, completed: float, numbers: str = "") -> None:
        numbers = " · ".join(filter(None, (f"{self._name} {self._stage}".strip(), numbers)))
        # One fine-tuning is one unit of the whole; `completed` counts units of its own stage.
        self._whole.update(self._done + completed / (self._total or 1), numbers)


def _make_rows(run: MeasuredRun, step: int, weights: str, task: str, result: Mapping[str, Any]) -> Iterator[ScoreRow]:
    """Yields a row for each seed of one fine-tuning."""
    compute = run.compute(step)
    for seed in result["seeds"]:
        yield {
            "run": run.name,
            "objective": run.log.objective,
            "step": step,
            "weights": weights,
            "flops": compute["flops"],
            "flops_paper": compute["flops_paper"],
            "tokens": compute["tokens"],
            "task": task,
            "metric": result["metric"],
            "seed": seed["seed"],
            "score": seed["scores"][result["metric"]],
        }


def write_tables(output: Path, runs: Sequence[MeasuredRun], rows: Sequence[ScoreRow], accounting: str) -> None:
    """Writes `curves.jsonl`, `heldout.jsonl` and the table `curves.md`.

    Args:
      output: the folder.
      runs: the runs that were measured.
      rows: their scores.
      accounting: the FLOPs that the table shows, `flops` or `flops_paper`.
    """
    # First, because `check_output` accepts the other files only beside a valid curves.jsonl.
    write_whole(output / CURVES_FILE, "".join(json.dumps(row) + "\n" for row in rows))
    heldout = [{"run": run.name, "objective": run.log.objective, **line} for run in runs for line in run.heldout()]
    write_whole(output / HELDOUT_FILE, "".join(json.dumps(row) + "\n" for row in heldout))
    write_whole(output / TABLE_FILE, format_table(rows, runs, accounting))


def format_table(rows: Sequence[ScoreRow], runs: Sequence[MeasuredRun], accounting: str) -> str:
    """Returns a Markdown table with a line per checkpoint: each score's median over seeds, its lowest and highest."""
    tasks, metrics = group_by_task(rows), metrics_by_task(rows)
    headings = [task if task == AVERAGE else f"{task} ({metrics[task]})" for task in tasks]
    lines = [f"| run | step | FLOPs | {' | '.join(headings)} |", "|---|---|---|" + "---|" * len(tasks)]
    for run in runs:
        for step in run.steps:
            cells = []
            for by_run in tasks.values():
                scores = list(by_run.get(run.name, {}).get(step, {}).values())
                cells.append("{:.1f} ({:.1f} to {:.1f})".format(*spread(scores)) if scores else "")
            flops = short_number(run.compute(step)[accounting])
            lines.append(f"| {run.name} | {step} | {flops} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(scores: Sequence[float]) -> Spread:
    return Spread(statistics.median(scores), min(scores), max(scores))


def metrics_by_task(rows: Iterable[ScoreRow]) -> dict[str, str]:
    """Returns the name of each task's metric."""
    return {row["task"]: row["metric"] for row in rows}


def group_by_task(rows: Iterable[ScoreRow]) -> dict[str, dict[str, dict[int, dict[int, float]]]]:
    """Groups scores by task -> run -> step -> seed.

    If there are several tasks, the first entry is `average`, for the seeds that have a score for every task.
    """
    tasks: dict[str, dict[str, dict[int, dict[int, float]]]] = {}
    for row in rows:
        steps = tasks.setdefault(row["task"], {}).setdefault(row["run"], {})
        steps.setdefault(row["step"], {})[row["seed"]] = row["score"]
    if len(tasks) < 2:
        return tasks
    average: dict[str, dict[int, dict[int, float]]] = {}
    # The first task suffices: a seed without a score for it has no average.
    for run, steps in next(iter(tasks.values())).items():
        for step, seeds in steps.items():
            for seed in seeds:
                scores = [by_run.get(run, {}).get(step, {}).get(seed) for by_run in tasks.values()]
                known = [score for score in scores if score is not None]
                if len(known) == len(scores):
                    average.setdefault(run, {}).setdefault(step, {})[seed] = statistics.mean(known)
    return {AVERAGE: average, **tasks}


def check_output(folder: Path, files: Iterable[str]) -> None:
    """Checks that `curves` may write to a folder.

    Args:
      folder: the folder.
      files: names of the files that it writes there besides the tables.

    Raises:
      UserError: one of its files exists, but no valid `curves.jsonl` that shows that `curves` has written it.
    """
    # Plots and tables do not show who wrote them; a valid curves.jsonl beside them does.
    with contextlib.suppress(UserError):
        read_scores(folder)
        return
    for name in (CURVES_FILE, HELDOUT_FILE, TABLE_FILE, *files):
        if (folder / name).exists():
            raise UserError(
                f"{folder} has a {name} that `electra-jax curves` did not write; use another --output, or move it away"
            )


def read_scores(folder: Path) -> list[ScoreRow]:
    """Reads `curves.jsonl` in a folder.

    Raises:
      UserError: the file does not exist, has no line, or has a line that `write_tables` does not write.
    """
    path = folder / CURVES_FILE
    if not path.is_file():
        raise UserError(f"{path} does not exist: expected the output folder of `electra-jax curves`")
    rows: list[ScoreRow] = []
    # Bytes that are not UTF-8 are replaced, so that a broken line is reported by its number.
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = from_json(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(is_valid(row.get(name)) for name, is_valid in _VALID.items()):
            raise UserError(f"{path}:{number} is not a line of `electra-jax curves`; run that command again")
        rows.append(ScoreRow(**row))  # type: ignore[typeddict-item] # checked above
    if not rows:
        raise UserError(f"{path} has no scores; run `electra-jax curves` again")
    return rows
