"""Draws compute-efficiency curves: `python -m electra_jax.curves --runs A B --tasks cola --data_dir=glue --output=OUT`.

Every kept checkpoint of every run is fine-tuned on every task. What is done is kept, so that the same command goes on.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from electra_jax.commands.finetune import Bar
from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value, nearest, one_of
from electra_jax.downstream import curves
from electra_jax.downstream.curves import Measured
from electra_jax.downstream.finetuning import recipe, run
from electra_jax.downstream.tasks import files, glue
from electra_jax.loading import networks
from electra_jax.report import plots
from electra_jax.runtime import run_log
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.progress import short

USAGE = """\
usage: python -m electra_jax.curves --runs A B ... --tasks cola,sst2,... --data_dir=FOLDER --output=OUT [--points=N]
                                    [--size=base] [--accounting=model] [--paper=false] [--strict=false]
                                    [--config.NAME=VALUE ...]

Fine-tunes every kept checkpoint of every run on every task, with several seeds, and draws score against FLOPs. What is
done is kept in OUT and not done again: the same command goes on, and one that names further runs, tasks or seeds beside
those of before adds them.

  --runs A B ...         work directories of runs
  --tasks cola,sst2,...  of GLUE
  --data_dir=FOLDER      has a folder for each task, by its name in GLUE: CoLA, SST-2, ...; or tfds:glue
  --output=OUT           a folder: curves.jsonl, curves.md, heldout.jsonl; scores, average and heldout as .png and
                         .svg; points/
  --points=N             of each run so many checkpoints: the last, and those nearest to a half of its steps, a
                         quarter, ... (default: all)
  --size=large           recipe of large encoders (default base, which is also small's)
  --accounting=paper     FLOPs as the paper counts them (default model: what the machine must do)
  --strict=false         rows that cannot be used are left out and counted
  --paper=false          no picture of the average beside the paper's own points
  --config.seeds=10      any setting of fine-tuning, for every task; --config.epochs=3"""

_OPTIONS = {
    "runs": (),
    "tasks": (),
    "data_dir": "",
    "output": "",
    "points": 0,
    "size": "base",
    "accounting": "model",
    "paper": True,
    "strict": True,
}
_ACCOUNTINGS = {"model": "flops", "paper": "flops_paper"}


def main(argv: list[str]) -> int:
    given = cli.read(argv, USAGE, _OPTIONS)
    if given is None:
        return 0
    overrides = {name: given.pop(name) for name in list(given) if name.startswith("config.")}
    chosen = cli.choose(given, _OPTIONS)
    cli.require(chosen, ("runs", "tasks", "data_dir", "output"))
    check_value("--accounting", chosen["accounting"], one_of(*_ACCOUNTINGS))
    check_value("--points", chosen["points"], at_least(0))
    unknown = [task for task in chosen["tasks"] if task not in glue.TASKS]
    if unknown:
        raise UserError(f"--tasks={unknown[0]} is unknown{nearest(unknown[0], list(glue.TASKS), '')}")
    configs = {}
    for task in dict.fromkeys(chosen["tasks"]):
        config = configs[task] = recipe.make({"name": task}, f"size={chosen['size']}")
        for name, value in overrides.items():
            config_file.override(config, name.removeprefix("config."), value)
        recipe.check(config)
        if config.task.name != task:
            raise UserError(f"--config.task.name={config.task.name} cannot be; name tasks with --tasks")
    data_dirs = {task: glue.place(chosen["data_dir"], task) for task in configs}
    for task, place in data_dirs.items():  # before the first is fine-tuned
        files.digests(place, ("train", *glue.TASKS[task].dev), glue.TASKS[task].suffixes)
    plots.require()
    runs = [curves.measured(each, chosen["points"]) for each in run_log.read([Path(each) for each in chosen["runs"]])]
    output = Path(chosen["output"])
    output.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True)
    rows = measure(console, runs, configs, data_dirs, output, chosen["strict"])
    write(output, runs, rows, _ACCOUNTINGS[chosen["accounting"]], chosen["paper"])
    console.print((output / "curves.md").read_text(encoding="utf-8"), markup=False, highlight=False)
    drawn = ", ".join(sorted(path.name for path in output.iterdir() if path.is_file()))
    console.print(f"Files: {output}/points/, {drawn}", markup=False, highlight=False)
    return 0


def measure(
    console: Console,
    runs: Sequence[Measured],
    configs: Mapping[str, Any],
    data_dirs: Mapping[str, str],
    output: Path,
    strict: bool,
) -> list[dict[str, Any]]:
    """Fine-tunes what is not done yet; the lines of `curves.jsonl`."""
    rows: list[dict[str, Any]] = []
    with Bar(console, len(configs) * sum(len(each.steps) for each in runs)) as watch:
        for of in runs:
            for step in of.steps:
                watch.name = f"{of.name} at {step}"
                found = networks.find_source(of.run.workdir, step)
                source = found._replace(load=functools.cache(found.load))
                for task, config in configs.items():
                    folder = output / "points" / source.digest / task  # known by its weights, whatever it is called
                    result = run.finetune(config, source, data_dirs[task], folder, strict, tests=False, watch=watch)
                    rows += curves.rows_of(of, step, source.digest, task, result)
    return rows


def write(
    output: Path, runs: Sequence[Measured], rows: Sequence[dict[str, Any]], accounting: str, with_paper: bool
) -> None:
    """The tables and the pictures."""
    write_whole(output / curves.CURVES, "".join(json.dumps(row) + "\n" for row in rows))
    heldout = [{"run": of.name, "objective": of.run.system, **line} for of in runs for line in of.heldout()]
    write_whole(output / curves.HELDOUT, "".join(json.dumps(row) + "\n" for row in heldout))
    tasks, metrics = curves.by_task(rows), {row["task"]: row["metric"] for row in rows}
    write_whole(output / "curves.md", markdown(tasks, metrics, runs, accounting))
    for name in ("scores", "average", "heldout"):
        for suffix in ("png", "svg"):
            (output / f"{name}.{suffix}").unlink(missing_ok=True)  # of another call, if it is not drawn now
    plots.scores(output / "scores", tasks, metrics, runs, accounting)
    if with_paper and "average" in tasks:
        plots.beside_the_paper(output / "average", tasks, runs, accounting)
    plots.heldout(output / "heldout", runs, accounting)


def markdown(tasks: Mapping[str, Any], metrics: Mapping[str, str], runs: Sequence[Measured], accounting: str) -> str:
    """A table: a line for each checkpoint, the median over seeds and the lowest and the highest of each score."""
    headings = [task if task == "average" else f"{task} ({metrics[task]})" for task in tasks]
    lines = [f"| run | step | FLOPs | {' | '.join(headings)} |", "|---|---|---|" + "---|" * len(tasks)]
    for of in runs:
        for step in of.steps:
            cells = []
            for by_run in tasks.values():
                values = list(by_run.get(of.name, {}).get(step, {}).values())
                cell = curves.spread(values) if values else None
                cells.append(f"{cell.median:.1f} ({cell.lowest:.1f} to {cell.highest:.1f})" if cell else "")
            lines.append(f"| {of.name} | {step} | {short(of.counted(step)[accounting])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
