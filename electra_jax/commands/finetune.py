"""Fine-tunes an encoder: `python -m electra_jax.finetune --config=configs/glue.py:task=cola --init_from=DIR ...`."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, check_value
from electra_jax.downstream.finetuning import recipe, run
from electra_jax.downstream.tasks.task import Task
from electra_jax.loading import networks
from electra_jax.runtime.progress import bar

USAGE = """\
usage: python -m electra_jax.finetune --config=FILE[:ARG] --init_from=DIR --data_dir=FOLDER [--workdir=DIR] [--step=N]
                                      [--strict=false] [--config.NAME=VALUE ...] [--debug]

  --config=configs/glue.py:task=cola     cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli of GLUE
  --config=configs/squad.py:version=2.0  SQuAD 2.0, or 1.1
  --config=configs/table.py              a table of yours: a class or a number for each text or pair of texts
  --config=configs/tags.py               a tag for each word
                                         (each with ,size=large for a large encoder's learning rates; each with
                                         ,runlocal shrunk to 64 examples and 2 seeds)
  --init_from=DIR                        a run, an export, or a Hugging Face directory of an ELECTRA or ModernBERT
  --step=N                               of a run: the checkpoint of this step (default: the last)
  --data_dir=FOLDER                      with the task's files, train.tsv and dev.tsv, and test.tsv (of MNLI also
                                         diagnostic.tsv) if they are to be answered; or of GLUE, SQuAD and tables
                                         tfds:NAME/CONFIG
  --workdir=DIR                          where scores and answers go (default runs/NAME); started again, it goes on
  --strict=false                         rows that cannot be used are left out and counted
  --config.optim.learning_rate=3e-4      any setting of the config, by its name
  --debug                                errors keep their traceback"""

_LAST = -1  # of a run's checkpoints
_OPTIONS = {"init_from": "", "step": _LAST, "data_dir": "", "strict": True}
_LINE_EVERY = 30  # seconds between two lines where there is no terminal


class Bar(run.Watch):
    """A progress bar on a terminal, a line now and then elsewhere. Use it as a context.

    Attributes:
      name: of what is fine-tuned, where there are several.
    """

    def __init__(self, console: Console, of: int = 1):
        """For `of` fine-tunings."""
        self.name = ""
        self._console, self._of, self._done = console, of, 0
        self._progress = bar(console, "{task.description}")
        self._bar: Any = None
        self._said = time.monotonic()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(f"{self.name}: {text}" if self.name else text, markup=False, highlight=False)

    def begin(self, task: Task, config: ConfigDict, data: run.Data) -> None:
        dev = " + ".join(f"{len(examples):,}" for examples, _ in data.dev.values())
        self.say(f"{task.name}: {len(data.train.input_ids):,} rows to train on, {dev} examples to evaluate on")
        if self._bar is None:
            self._progress.start()
            self._bar = self._progress.add_task("", total=self._of, numbers="")
        self._progress.update(self._bar, description=f"{self.name} {task.name}".strip(), completed=self._done)

    def training(self, seeds: Sequence[int], done: int, of: int) -> Callable[[int, int], None]:
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"

        def told(step: int, steps: int) -> None:
            share = (done + len(seeds) * step / steps) / of
            numbers = f"{which}, step {step}/{steps}"
            self._progress.update(self._bar, completed=self._done + share, numbers=numbers)
            if not self._console.is_terminal and time.monotonic() - self._said > _LINE_EVERY:
                self._said = time.monotonic()
                self.say(f"{which}, step {step}/{steps}")

        return told

    def scored(self, task: Task, seed: int, scores: Mapping[str, float]) -> None:
        said = ", ".join(f"{name} {value:.1f}" for name, value in scores.items())
        self.say(f"{task.name}, seed {seed}: {said}")

    def end(self) -> None:
        self._done += 1


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Prints the scores of a summary."""
    count = len(result["seeds"])
    table = Table(title=f"{result['task']}, {count} seed{'s' if count > 1 else ''}", title_justify="left")
    for heading in ("score", "median", "lowest", "highest", "std"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name in result["median"]:
        values = [result[column][name] for column in ("median", "lowest", "highest", "std")]
        table.add_row(name, *("" if value is None else f"{value:.1f}" for value in values))
    console.print(table)


def main(argv: list[str]) -> int:
    given = config_file.parse(argv, USAGE, _OPTIONS, kind="task")
    if given is None:
        return 0
    chosen = given.options
    cli.require(chosen, ("init_from", "data_dir"))
    check_value("--step", chosen["step"], Check(lambda step: step >= _LAST, "0 or more"))
    if "://" in given.workdir:
        raise UserError(f"{given.workdir} cannot be: a fine-tuning lives in a folder; give one")
    recipe.check(given.config)
    workdir = Path(given.workdir)
    console = Console(soft_wrap=True)
    source = networks.find_source(Path(chosen["init_from"]), None if chosen["step"] == _LAST else chosen["step"])
    with Bar(console) as watch:
        result = run.finetune(given.config, source, chosen["data_dir"], workdir, chosen["strict"], watch=watch)
    show(console, result)
    console.print(f"Files: {given.workdir}/{run.SCORES}, seeds/, answers/", markup=False, highlight=False)
    return 0
