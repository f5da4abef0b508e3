"""`electra-jax train`: pre-trains an encoder."""

import textwrap

import jax
from rich.console import Console

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.loading.samples import mark_words
from electra_jax.objectives import registry
from electra_jax.runtime import distributed
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.marked_text import print_marked
from electra_jax.runtime.metric_text import format_heldout, short_number
from electra_jax.runtime.progress import ConsoleProgress
from electra_jax.runtime.workdir import AnyPath, resolve
from electra_jax.train import TrainResult, train
from electra_jax.train_config import TrainConfig

USAGE = f"""\
usage: electra-jax train --config=NAME[:ARG] [--workdir=DIR] [--init_from=DIR] [--generator_from=DIR]
                         [--config.NAME=VALUE ...] [--help-config] [--debug]

  --config=tiny                      which run: tiny, small, base, large, or the path of a config file
  --config=base:runlocal             the same run shrunk to less than a minute on a CPU
  --config=base:objective=NAME       another objective, listed below; arguments combine: base:runlocal,objective=mlm
  --config=base:generator=unigram    fakes drawn from a fixed distribution (or generator=uniform), not by a network
  --workdir=DIR                      the run's work directory (default runs/NAME): a folder or gs://BUCKET/FOLDER; an
                                     existing run in it is resumed
  --init_from=DIR                    start from the weights of a run, an export or a Hugging Face directory: those of
                                     its encoder, and of its generator where it has one
  --generator_from=DIR               the same for the generator
{distributed.USAGE}
  --config.optim.learning_rate=1e-3  override any setting of the config by its name
  --help-config                      list all settings with defaults and valid values
  --debug                            show the traceback of an error

objectives:
{textwrap.indent(registry.describe(), "  ")}"""


def main(argv: list[str]) -> int:
    shorthands = ("init_from", "generator_from")
    arguments = config_file.parse(argv, USAGE, distributed.OPTIONS, shorthands, config_class=TrainConfig)
    if arguments is None or arguments.config is None:
        return 0
    with distributed.initialize(arguments.options):
        console = Console(soft_wrap=True, quiet=not distributed.is_main_process())
        config, workdir = train_config.resolve(arguments.config), resolve(arguments.workdir)
        with compile_cache(config.compile_cache):
            result = train(config, workdir, ConsoleProgress(console))
        show(console, config, workdir, result)
    return 0


def show(console: Console, config: TrainConfig, workdir: AnyPath, result: TrainResult) -> None:
    """Prints how a run ended."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    if not result.finished:
        say(f"interrupted and saved at step {result.step}; the same command resumes it")
        return
    hours = result.totals["device_seconds"] / jax.device_count() / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    say("")
    say(
        f"Done: {config.steps} steps, {short_number(result.totals['tokens'])} tokens, "
        f"{short_number(result.totals['flops'])}FLOP, {spent} of training"
    )
    say(f"Held out: {format_heldout(result.heldout)}")
    say(f"Files: {workdir}/metrics.jsonl, tensorboard/, checkpoints/{config.steps}, config.json, environment.json")
    say("")
    if result.samples:
        print_marked(console, map(mark_words, result.samples), show_replaced=True)
