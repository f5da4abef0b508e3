"""`electra-jax train`: pre-trains an encoder."""

import signal
import tempfile
import textwrap
from pathlib import Path

from electra_jax import train_config
from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.config.interrupts import exit_status
from electra_jax.loading.samples import mark_words
from electra_jax.metric_log import start_trackers
from electra_jax.objectives import registry
from electra_jax.runtime import distributed, goodput, trackers
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.marked_text import print_marked
from electra_jax.runtime.metric_text import format_duration, format_heldout, short_number
from electra_jax.runtime.metric_writers import finite_numbers
from electra_jax.runtime.progress import ConsoleProgress, Progress
from electra_jax.runtime.rewind import Rewind
from electra_jax.runtime.run_log import read_run_logs
from electra_jax.runtime.workdir import AnyPath, WorkDir, resolve
from electra_jax.train import TrainResult, train
from electra_jax.train_config import TrainConfig

_USAGE = f"""\
usage: electra-jax train --config=NAME[:ARG] [--workdir=DIR] [--init_from=DIR] [--generator_from=DIR]
                         [--tracker=NAME,...] [--rewind_to=STEP --skip_batches=M] [--config.NAME=VALUE ...]
                         [--help-config] [--debug]

  --config=tiny                      which run: tiny, small, base, large, modern, budget, babylm, deberta_v3, or
                                     the path of a config file
  --config=base:runlocal             the same run shrunk to less than a minute on a CPU
  --config=base:objective=NAME       another objective, listed below; arguments combine: base:runlocal,objective=mlm
  --config=base:generator=unigram    fakes drawn from a fixed distribution, not by a network; also generator=uniform or
                                     clusters, of tokens that have the same neighbors
  --workdir=DIR                      the run's work directory (default runs/NAME): a folder or gs://BUCKET/FOLDER; an
                                     existing run in it is resumed
  --init_from=DIR                    start from the weights of a run, an export or a Hugging Face directory: those of
                                     its encoder, and of its generator where it has one
  --generator_from=DIR               the same for the generator
  --tracker=wandb                    where metrics go besides metrics.jsonl: tensorboard (default), wandb, mlflow or
                                     trackio, several separated by commas, or none
  --rewind_to=STEP                   go back to the checkpoint of this step, and delete those after it; the same command
                                     again resumes
  --skip_batches=M                   with --rewind_to: leave out the M batches that follow that step
{distributed.USAGE}
  --config.optim.learning_rate=1e-3  override any setting of the config by its name
  --help-config                      list all settings with defaults and valid values
  --debug                            show the traceback of an error

objectives:
"""


# Texts, because step 0 differs from no step.
OPTIONS = {**distributed.OPTIONS, "rewind_to": "", "skip_batches": ""}


def main(argv: list[str]) -> int:
    shorthands = ("init_from", "generator_from", "tracker")
    # Only if it is shown, because it imports all objectives.
    objectives = textwrap.indent(registry.describe(), "  ") if {"-h", "--help"} & {*argv} else ""
    arguments = config_file.parse(argv, _USAGE + objectives, OPTIONS, shorthands, config_class=TrainConfig)
    assert arguments.config is not None  # `config` is not among the options
    rewind = make_rewind(arguments.options["rewind_to"], arguments.options["skip_batches"])
    # From the start of the process, so that its imports count as set-up.
    clock = goodput.Clock(goodput.process_started())
    # Before JAX is asked for a device or a process.
    distributed.initialize(arguments.options)
    console = PlainConsole(quiet=not distributed.is_main_process())
    config, workdir = train_config.resolve(arguments.config), resolve(arguments.workdir)
    with compile_cache(config.compile_cache):
        result = train(config, workdir, ConsoleProgress(console), rewind, clock)
    if result.finished and distributed.is_main_process():
        attach_results(config, workdir, result, ConsoleProgress(console))
    show(console, config, workdir, result)
    # A scheduler takes 0 for a finished job: a Kubernetes Job that was stopped by a preemption would not start again.
    return 0 if result.finished else exit_status(signal.SIGTERM)


def attach_results(config: TrainConfig, workdir: AnyPath, result: TrainResult, progress: Progress) -> None:
    """Attaches the final table and the page of `electra-jax report` to the run in all trackers except TensorBoard."""
    if set(trackers.chosen(config.tracker)) <= {trackers.TENSORBOARD}:
        return
    home = WorkDir(workdir)
    with tempfile.TemporaryDirectory() as folder:
        table, page = Path(folder) / "final.csv", Path(folder) / "report.html"
        table.write_text(final_table(result), encoding="utf-8")
        files = [table]
        try:
            # Here, because matplotlib is an extra, and takes a second to import.
            from electra_jax.report.page import make_page

            html = make_page(read_run_logs([home.folder]), [], [])
            page.write_text(html, encoding="utf-8", errors="replace")
            files.append(page)
        except UserError as error:
            progress.say(f"the trackers get no report page: {error}")
        started = start_trackers(config, home, progress)
        started.attach(files)
        started.close()


def final_table(result: TrainResult) -> str:
    """Formats the final results of a run as CSV: held-out metrics with their baselines, and its cost."""
    rows = {"step": result.step, **{f"heldout_{name}": value for name, value in result.heldout.items()}}
    rows |= {f"total_{name}": value for name, value in finite_numbers(result.totals).items()}
    return "".join(f"{name},{value}\n" for name, value in {"metric": "value", **rows}.items())


def make_rewind(step: str, skip_batches: str) -> Rewind | None:
    """Returns the rewind that the options request; an empty string is an option that was not given.

    Raises:
      UserError: an option is not an integer, or `skip_batches` is given without `step`.
    """
    if not step:
        if skip_batches:
            raise UserError(f"--skip_batches={skip_batches} has no effect without --rewind_to; give both or neither")
        return None
    return Rewind(cli.convert("--rewind_to", step, 0), cli.convert("--skip_batches", skip_batches or "0", 0))


def show(console: PlainConsole, config: TrainConfig, workdir: AnyPath, result: TrainResult) -> None:
    """Prints the results of a run, or that it was interrupted."""
    if not result.finished:
        console.print(f"interrupted and saved at step {result.step}; the same command resumes it")
        return
    # By the clock, because earlier starts may have had another number of devices than this one.
    spent = format_duration(result.totals["seconds_step"] + result.totals["seconds_data"])
    console.print("")
    console.print(
        f"Done: {config.steps} step{'' if config.steps == 1 else 's'}, {short_number(result.totals['tokens'])} tokens, "
        f"{short_number(result.totals['flops'])}FLOP, {spent} of training"
    )
    console.print(f"Goodput: {goodput.describe(result.totals)}")
    losses = registry.SYSTEMS[config.objective.name].losses
    console.print(f"Held out: {format_heldout(result.heldout, losses)}")
    console.print(
        f"Files: {workdir}/metrics.jsonl, tensorboard/, checkpoints/{config.steps}, config.json, environment.json"
    )
    console.print("")
    if result.samples:
        print_marked(console, map(mark_words, result.samples), show_replaced=True)
