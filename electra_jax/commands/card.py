"""`electra-jax card`: prints the model card of a run."""

from typing import Any

from electra_jax import models
from electra_jax.config import cli
from electra_jax.runtime.console import PlainConsole

USAGE = """\
usage: electra-jax card --workdir=RUN [--name=DIRECTORY] [--step=N] [--average=N] [--scores='DIR;DIR']

Prints the model card that electra-jax export would write: how the network was trained (text, tokens, FLOPs, hours, and
energy where the device measures it), scores, how to use it and what it is not for. For an export that exists, replace
its README.md after fine-tuning: electra-jax card ... > OUT/encoder/README.md

  --workdir=RUN      the work directory of a run
  --name=DIRECTORY   the directory of the export: encoder (default), discriminator, masked_lm or generator
  --step=N           the step of the checkpoint (default: the last)
  --average=N        the mean of the weights of the last N checkpoints up to that one
  --scores='DIR;DIR' fine-tunings of this run, whose scores the card gets"""


def main(argv: list[str]) -> int:
    defaults: dict[str, Any] = {"workdir": "", "name": "encoder", "step": 0, "average": 1, "scores": ""}
    given = cli.read(argv, USAGE, defaults)
    options = cli.choose(given, defaults)
    cli.require(options, ("workdir",), "try --workdir=runs/tiny, or --help")
    # By `given`: 0 is a step too, and without the option it is that of the last checkpoint.
    step = options["step"] if "step" in given else None
    scores = [folder for folder in options["scores"].split(";") if folder]
    PlainConsole().print(models.card(options["workdir"], options["name"], step, scores, options["average"]).rstrip())
    return 0
