"""Compares settings of fine-tuning a small encoder: chosen on half of each development set, scored on the other half.

    python benchmarks/finetuning_recipe.py --init_from=runs/english --data_dir=glue --output=OUT
        [--results=benchmarks/results/finetuning_recipe.jsonl] [--seeds=3] [--hours=1000] [--workers=2]
    python benchmarks/finetuning_recipe.py --draw=FOLDER [--results=...]

Every setting of `SETTINGS` differs from the first in one thing, and is tried on each of five GLUE tasks with the same
seeds. A score is the median over the seeds. Settings are compared on the even examples of the development sets and
scored on the odd ones, and the other way round; the mean of both is a score that no choice has seen. OUT keeps each
fine-tuning as `electra-jax finetune` writes it. RESULTS gets a line of JSON for each setting and task, of one encoder
and the same seeds. To resume, run the same command again.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from electra_jax.runtime import host_memory

    host_memory.keep_freed()

import csv
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from job_queue import Job, Results, ResultsFile
from job_queue import run as run_jobs

from electra_jax.config import cli, config_file, errors
from electra_jax.config.settings import above, check_value
from electra_jax.downstream.finetuning import recipe, run
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.tasks import glue
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.loading import networks
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.progress import ConsoleProgress

TABLE = "recipe.md"
TASKS = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE"}
_EXAMPLES = {"sst2": 16_000}  # to train on: a quarter of them, so that no task takes half of the time
_COST = {"cola": 8.6, "sst2": 16.0, "mrpc": 14.7, "stsb": 14.0, "rte": 9.4}  # relative time of an epoch: rows x length
_BASE = {"optim.learning_rate": 1e-3, "optim.layer_decay": 0.8, "pooling": "mean", "epochs": 3, "dropout": 0.1}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "rate 5e-4": {"optim.learning_rate": 5e-4},
    "rate 2e-3": {"optim.learning_rate": 2e-3},
    "same rate in all layers": {"optim.layer_decay": 1.0},
    "6 epochs": {"epochs": 6},
    "no dropout": {"dropout": 0.0},
    "state of [CLS]": {"pooling": "cls"},
}
_OPTIONS: Mapping[str, Any] = {
    "init_from": "",
    "data_dir": "",
    "output": "",
    "results": "benchmarks/results/finetuning_recipe.jsonl",
    "seeds": 3,
    "hours": 1000.0,
    "workers": 2,
    "draw": "",
    "job": "",  # of a worker: the name of its job, and the file for the result
    "result": "",
}
Halves = tuple[float, float]  # scores on the even and on the odd examples


def jobs() -> list[Job]:
    """Returns the jobs: every setting on every task, setting by setting."""
    return [
        Job(f"{setting}/{task}", _COST[task] * {**_BASE, **changes}["epochs"], (), {})
        for setting, changes in SETTINGS.items()
        for task in TASKS
    ]


def finetuning_config(setting: str, task: str, seeds: int, cache: Path) -> FinetuneConfig:
    """Returns the paper's recipe for a task with the changes of a setting."""
    config = recipe.make(task, "size=small,head=paper")
    changes = {**_BASE, **SETTINGS[setting], "seeds": seeds, "examples": _EXAMPLES.get(task, 0), "compile_cache": cache}
    for name, value in changes.items():
        config_file.override(config, name, str(value))
    return recipe.resolve(config)


def work(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Does one job. Returns the score of each seed on the development set and on its halves."""
    setting, task = name.split("/")
    config = finetuning_config(setting, task, chosen["seeds"], Path(chosen["output"]) / "compiled")
    data_dir = glue.task_dir(chosen["data_dir"], task)
    folder = Path(chosen["output"]) / "runs" / name.replace(" ", "_")
    source = networks.find_source(Path(chosen["init_from"]))
    with ConsoleProgress(line_every=60.0) as progress:
        made = run.finetune_source(config, source, data_dir, folder, tests=False, progress=progress)
    sentences = glue.TASKS[task]
    examples = sentences.read(data_dir, "dev", BadRows())
    halves = {}
    for seed in made["seeds"]:
        with (folder / "answers" / f"seed-{seed['seed']}" / "dev.tsv").open(encoding="utf-8") as file:
            answers = [sentences.parse_target(row["prediction"]) for row in csv.DictReader(file, delimiter="\t")]
        assert len(answers) == len(examples)
        scores = [sentences.score(examples[half::2], answers[half::2])[made["metric"]] for half in (0, 1)]
        halves[seed["seed"]] = [round(score, 3) for score in scores]
    return {
        "encoder": source.digest,
        "metric": made["metric"],
        "scores": {seed["seed"]: round(seed["scores"][made["metric"]], 3) for seed in made["seeds"]},
        "halves": halves,
        "seconds": round(sum(seed["seconds"] for seed in made["seeds"])),
    }


def complete(done: Results) -> list[str]:
    """Returns the settings that have been tried on all tasks."""
    return [setting for setting in SETTINGS if all(f"{setting}/{task}" in done for task in TASKS)]


def halves_of(done: Results, setting: str, task: str) -> Halves:
    """Returns the medians over the seeds on both halves."""
    by_seed = done[f"{setting}/{task}"]["halves"].values()
    even, odd = (statistics.median(scores[half] for scores in by_seed) for half in (0, 1))
    return even, odd


def cross_chosen(scores: Mapping[str, Halves]) -> tuple[tuple[str, str], float]:
    """Chooses the best setting on each half. Returns both, and the mean of their scores on the other half."""
    first, second = (max(scores, key=lambda setting: scores[setting][half]) for half in (0, 1))
    return (first, second), (scores[first][1] + scores[second][0]) / 2


def report(done: Results) -> str:
    """Formats a table of the settings, and what choosing gains, per task and with one setting for all tasks."""
    settings = complete(done)
    if not settings:
        raise errors.UserError("no setting has been tried on all tasks; start the benchmark without --draw first")
    lines = [f"| | {' | '.join(TASKS.values())} | average |", "|---" * (len(TASKS) + 2) + "|"]
    for setting in settings:
        medians = [statistics.median(done[f"{setting}/{task}"]["scores"].values()) for task in TASKS]
        lines.append(f"| {setting} | {' | '.join(f'{score:.1f}' for score in [*medians, statistics.mean(medians)])} |")
    by_task = {task: {setting: halves_of(done, setting, task) for setting in settings} for task in TASKS}
    chosen = {task: cross_chosen(scores) for task, scores in by_task.items()}
    averages: dict[str, Halves] = {}
    for setting in settings:
        even, odd = (statistics.mean(by_task[task][setting][half] for task in TASKS) for half in (0, 1))
        averages[setting] = even, odd
    pair, for_all = cross_chosen(averages)
    lines += ["", "Chosen on one half, scored on the other:", ""]
    base = settings[0]
    for task, (names, score) in chosen.items():
        before = statistics.mean(by_task[task][base])
        lines.append(f"- {TASKS[task]}: {_either(names)}, {score:.1f} ({base}: {before:.1f})")
    own, before = statistics.mean(score for _, score in chosen.values()), statistics.mean(averages[base])
    lines.append(f"- average, each task with its own: {own:.1f}")
    lines.append(f"- average, all tasks with one: {_either(pair)}, {for_all:.1f} ({base}: {before:.1f})")
    return "\n".join(lines) + "\n"


def _either(names: tuple[str, str]) -> str:
    return " or ".join(dict.fromkeys(names))


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    results = ResultsFile(Path(chosen["results"]))
    if chosen["draw"]:
        text = report(results.read())
        Path(chosen["draw"]).mkdir(parents=True, exist_ok=True)
        write_whole(Path(chosen["draw"]) / TABLE, text)
        print(text, end="")
        return 0
    cli.require(chosen, ("init_from", "data_dir", "output"))
    if chosen["job"]:
        write_whole(Path(chosen["result"]), json.dumps(work(chosen["job"], chosen)))
        return 0
    for name in ("seeds", "hours", "workers"):
        check_value(f"--{name}", chosen[name], above(0))
    encoder = networks.find_source(Path(chosen["init_from"])).digest
    for name, result in results.read().items():
        if result.get("encoder", encoder) != encoder or len(result["scores"]) != chosen["seeds"]:
            raise errors.UserError(f"{results.path} has {name} of another encoder or seeds: give another --results")
    passed_on = [f"--{name}={chosen[name]}" for name in ("init_from", "data_dir", "output", "seeds")]

    def command(job: Job, result: Path) -> list[str]:
        return [sys.executable, __file__, *passed_on, f"--job={job.name}", f"--result={result}"]

    with ConsoleProgress(line_every=300.0) as progress:
        finished = run_jobs(
            lambda done: jobs(),
            command,
            results,
            Path(chosen["output"]),
            workers=chosen["workers"],
            hours=chosen["hours"],
            progress=progress,
        )
    if not finished:
        print("not all jobs are done; run the same command again")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
