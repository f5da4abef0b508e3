"""`electra-jax train`: pre-trains an encoder."""

import textwrap

from rich.console import Console

from electra_jax.config import config_file
from electra_jax.objectives import registry
from electra_jax.runtime import distributed, workdir
from electra_jax.runtime.progress import ConsoleProgress
from electra_jax.train import train

USAGE = f"""\
usage: python -m electra_jax.train --config=FILE[:ARG] [--workdir=DIR] [--init_from=DIR] [--generator_from=DIR]
                                   [--config.NAME=VALUE ...] [--debug]

  --config=configs/tiny.py           which run; configs/ has tiny, small, base, large
  --config=configs/base.py:runlocal  the same run shrunk to some seconds on a CPU
  --config=configs/base.py:objective=NAME
                                     another system, listed below (these go together: runlocal,objective=mlm)
  --config=configs/base.py:generator=unigram (or uniform)
                                     fakes from a distribution in the place of a network
  --workdir=DIR                      where the run lives (default runs/NAME), a folder or gs://BUCKET/FOLDER; started
                                     again, it goes on from there
  --init_from=DIR                    weights to begin from: a run, an export, or a Hugging Face directory; the
                                     encoder's, and the generator's where it has one
  --generator_from=DIR               the same for the generator
{distributed.USAGE}
  --config.optim.learning_rate=1e-3  any setting of the config, by its name
  --debug                            errors keep their traceback

systems:
{textwrap.indent(registry.describe(), "  ")}"""


def main(argv: list[str]) -> int:
    arguments = config_file.parse(argv, USAGE, distributed.OPTIONS, shorthands=("init_from", "generator_from"))
    if arguments is not None:
        with distributed.initialize(arguments.options):
            live = ConsoleProgress(None if distributed.is_first() else Console(quiet=True))
            train(arguments.config, workdir.resolve(arguments.workdir), live)
    return 0
