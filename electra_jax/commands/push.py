"""`electra-jax push`: uploads a model to the Hugging Face Hub."""

from typing import Any

from electra_jax import models
from electra_jax.config import cli
from electra_jax.runtime.console import PlainConsole

USAGE = """\
usage: electra-jax push --workdir=RUN --repo=USER/NAME [--step=N] [--every_checkpoint [--words=N]] [--private] [--onnx]
       electra-jax push --model=FINETUNED --repo=USER/NAME [--private] [--onnx]

Uploads what electra-jax export writes to the Hugging Face Hub, as a repository of models. Of a run, the encoder with
its head becomes the repository, so that from_pretrained("USER/NAME") loads it, and the generator its folder
`generator`. Of an encoder with two heads the repository has the MLM head, and its folder `discriminator` the other.

  --workdir=RUN       the work directory of a run
  --model=FINETUNED   what electra-jax finetune wrote: its work directory, or one of the models in it
  --repo=USER/NAME    the repository; it is made if it does not exist
  --step=N            the step of the checkpoint (default: the last)
  --every_checkpoint  upload each checkpoint to a branch step-N too, and step 0 unless the run began with another model
  --words=N           the number of words that the whole run reads: branches are then named chck_1M and so on, after
                      the millions of words read so far, as BabyLM's evaluation does
  --private           make the repository private; one that exists and is public is refused
  --onnx              upload ONNX files too, for transformers.js and others; needs pip install 'electra_jax[onnx]'

It needs a token that may write: `hf auth login`, or HF_TOKEN. What was uploaded is used as hf:USER/NAME, or
hf:USER/NAME@step-N, wherever a model's folder is given."""


def main(argv: list[str]) -> int:
    defaults: dict[str, Any] = {
        "workdir": "",
        "model": "",
        "repo": "",
        "step": 0,
        "every_checkpoint": False,
        "words": 0.0,
        "private": False,
        "onnx": False,
    }
    given = cli.read(argv, USAGE, defaults)
    options = cli.choose(given, defaults)
    source = cli.choose_one(options, "workdir", "model")
    cli.require(options, (source, "repo"), "try --workdir=runs/tiny --repo=USER/NAME, or --help")
    # By `given`: 0 is a step too, and without the option it is that of the last checkpoint.
    step = options["step"] if "step" in given else None
    console = PlainConsole()
    chosen = {name: options[name] for name in ("every_checkpoint", "private", "onnx", "words")}
    for address in models.push(options[source], options["repo"], step, **chosen):
        console.print(address)
    return 0
