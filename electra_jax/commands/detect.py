"""`electra-jax detect`: marks the words that seem to be replaced."""

import io
import sys
from pathlib import Path

from rich.console import Console

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.loading import networks
from electra_jax.loading.detection import detect, show

USAGE = """\
usage: python -m electra_jax.detect --model=DIR "a text" ["another" ...]

Marks the words of each text (without any: of each line of the standard input) that seem to be replaced.

  --model=DIR  a run's work directory, what electra_jax.export wrote, or any Hugging Face directory of an ELECTRA
               discriminator"""


def main(argv: list[str]) -> int:
    texts: list[str] = []
    chosen = cli.parse(argv, USAGE, {"model": ""}, texts)
    if chosen is None:
        return 0
    cli.require(chosen, ("model",), "give a run or a Hugging Face directory: --model=runs/tiny")
    place = chosen["model"]
    found = networks.load(Path(place))
    if "discriminator_head" not in found.encoder.config.heads:
        raise UserError(f"{place} has no discriminator, which alone can tell; give a directory with one")
    if found.tokenizer is None:
        raise UserError(f"{place} has no tokenizer; put its tokenizer.json beside its weights")
    console = Console(soft_wrap=True)
    for note in found.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    if not texts:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        texts = sys.stdin.read().splitlines()
    readable = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    show(console, found.tokenizer, detect(found.encoder, found.tokenizer, readable))
    return 0
