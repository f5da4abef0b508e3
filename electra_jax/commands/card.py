"""`electra-jax card`: prints the model card of a run."""

from pathlib import Path
from typing import Any

from electra_jax import models
from electra_jax.config import cli
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.io import write_whole

USAGE = """\
usage: electra-jax card --workdir=RUN [--name=DIRECTORY] [--step=N] [--average=N] [--scores='DIR;DIR']
                        [--output=FILE]

Prints the model card that electra-jax export, without --layers and --as, would write: how the network was trained
(text, tokens, FLOPs, hours, and energy where the device measures it), scores, how to use it and what it is not for.

  --workdir=RUN      the work directory of a run
  --name=DIRECTORY   the directory of the export: encoder (default), discriminator, masked_lm or generator
  --step=N           the step of the checkpoint (default: the last)
  --average=N        the mean of the weights of the last N checkpoints up to that one
  --scores='DIR;DIR' fine-tunings of this run, whose scores the card gets
  --output=FILE      write the card to this file, such as README.md of an export, instead of printing it"""


def main(argv: list[str]) -> int:
    defaults: dict[str, Any] = {"workdir": "", "name": "encoder", "step": 0, "average": 1}
    defaults |= {"scores": "", "output": ""}
    given = cli.read(argv, USAGE, defaults)
    options = cli.choose(given, defaults)
    cli.require(options, ("workdir",), "try --workdir=runs/tiny, or --help")
    if options["output"]:
        cli.check_output_file(Path(options["output"]), "README.md")
    # By `given`: 0 is a step too, and without the option it is that of the last checkpoint.
    step = options["step"] if "step" in given else None
    scores = [folder for folder in options["scores"].split(";") if folder]
    card = models.card(options["workdir"], options["name"], step, scores, options["average"])
    if options["output"]:
        write_whole(Path(options["output"]), card)
    else:
        PlainConsole().print(card.rstrip())
    return 0
