"""`electra-jax curves`: fine-tunes every checkpoint of runs, and plots task scores against pre-training FLOPs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value, nearest, one_of
from electra_jax.downstream import curves
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.tasks import files, glue
from electra_jax.report import curve_plots
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.progress import LINE_EVERY, ConsoleProgress
from electra_jax.runtime.run_log import read_run_logs

USAGE = """\
usage: electra-jax curves --runs DIR [DIR ...] --tasks cola,sst2,... --data_dir=FOLDER --output=DIR [--points=N]
                          [--size=large] [--accounting=paper] [--by=objective] [--paper=false]
                          [--strict=false] [--config.NAME=VALUE ...]

Fine-tunes every checkpoint of every run on every task, with several seeds, and plots score against pre-training FLOPs.
Finished fine-tunings are kept in the output folder. The same command resumes there, also with more runs, tasks or
seeds.

  --runs A B ...         work directories of runs
  --tasks cola,sst2,...  tasks of GLUE
  --data_dir=FOLDER      folder with a folder for each task, named as in GLUE: CoLA, SST-2, ...; or tfds:glue
  --output=DIR           folder for curves.jsonl, curves.md and heldout.jsonl; scores, average and heldout as .png and
                         .svg; the fine-tunings in points/
  --points=N             checkpoints of each run: the last, and those nearest to half of its steps, a quarter, ...
                         (default: all)
  --size=large           recipe for large encoders (default base, which also fits small ones)
  --accounting=paper     count FLOPs as the paper does (default model: what the hardware computes)
  --strict=false         leave out and count invalid rows instead of stopping at the first
  --by=objective         join the runs of each objective by one line (default run: a line for each run)
  --paper=false          leave out the plot of the average next to the paper's scores
  --config.seeds=10      override any setting of fine-tuning, for every task"""

_OPTIONS: Mapping[str, Any] = {
    "runs": (),
    "tasks": (),
    "data_dir": "",
    "output": "",
    "points": 0,
    "size": "base",
    "accounting": "model",
    "by": "run",
    "paper": True,
    "strict": True,
}
_ACCOUNTINGS = {"model": "flops", "paper": "flops_paper"}


def main(argv: list[str]) -> int:
    given = cli.read(argv, USAGE, _OPTIONS)
    # Before `choose`, which does not know settings.
    overrides = {name: given.pop(name) for name in list(given) if name.startswith("config.")}
    options = cli.choose(given, _OPTIONS)
    example = "try --runs runs/tiny --tasks cola,sst2 --data_dir=glue --output=curves, or --help"
    cli.require(options, ("runs", "tasks", "data_dir", "output"), example)
    check_value("--accounting", options["accounting"], one_of(*_ACCOUNTINGS))
    check_value("--by", options["by"], one_of("run", "objective"))
    check_value("--points", options["points"], at_least(0))
    configs = make_configs(options["tasks"], options["size"], overrides)
    data_dirs = {task: glue.task_dir(options["data_dir"], task) for task in configs}
    # Fails before the first fine-tuning if a file is missing.
    for task, data_dir in data_dirs.items():
        files.split_digests(data_dir, ("train", *glue.TASKS[task].dev), glue.TASKS[task].suffixes)
    output, accounting = Path(options["output"]), _ACCOUNTINGS[options["accounting"]]
    curves.check_output(output, curve_plots.FILES)
    logs = read_run_logs([Path(workdir) for workdir in options["runs"]])
    runs = [curves.select_checkpoints(log, options["points"]) for log in logs]
    output.mkdir(parents=True, exist_ok=True)
    console = PlainConsole()
    with ConsoleProgress(console, LINE_EVERY) as progress:
        rows = curves.measure(runs, configs, data_dirs, output, options["strict"], progress)
    curves.write_tables(output, runs, rows, accounting)
    curve_plots.plot_all(output, runs, rows, accounting, options["paper"], options["by"])
    console.print((output / curves.TABLE_FILE).read_text(encoding="utf-8"))
    names = ", ".join(sorted(path.name for path in output.iterdir() if path.is_file()))
    console.print(f"Files: {output}/points/, {names}")
    return 0


def make_configs(tasks: tuple[str, ...], size: str, overrides: Mapping[str, str]) -> dict[str, FinetuneConfig]:
    """Returns the config of each task, with `--config.NAME=VALUE` applied to all of them.

    Raises:
      UserError: a task or a setting is unknown, or a value is invalid.
    """
    configs = {}
    # A task that is named twice is measured once.
    for task in dict.fromkeys(tasks):
        if task not in glue.TASKS:
            raise UserError(f"--tasks={task} is unknown{nearest(task, list(glue.TASKS), '')}")
        # The heads are the paper's, whose points are in the plot.
        config = recipe.make(task, f"size={size},head=paper")
        for name, value in overrides.items():
            config_file.override(config, name.removeprefix("config."), value)
        configs[task] = recipe.resolve(config)
        # A row and its recipe belong to `task`, whatever an override says.
        if config.task.name != task:
            raise UserError(f"--config.task.name={config.task.name} is not allowed; name tasks with --tasks")
    return configs
