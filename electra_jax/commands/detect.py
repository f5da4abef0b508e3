"""`electra-jax detect`: marks the words of texts that seem to be replaced."""

import io
import sys

from electra_jax.config import cli
from electra_jax.data import formats
from electra_jax.loading.model import load
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.marked_text import Mark, print_marked

USAGE = """\
usage: electra-jax detect --model=DIR ["a text" "another" ...]

Marks the words of each text that seem to be replaced. Without texts, it reads standard input, one text per line.

  --model=DIR  a run's work directory, a directory that electra-jax export wrote, or a Hugging Face directory of an
               ELECTRA discriminator"""


def main(argv: list[str]) -> int:
    texts: list[str] = []
    options = cli.parse(argv, USAGE, {"model": ""}, texts)
    cli.require(options, ("model",), "try --model=runs/tiny, or --help")
    model = load(options["model"])
    if not texts:
        if isinstance(sys.stdin, io.TextIOWrapper):
            # The input need not be UTF-8.
            sys.stdin.reconfigure(errors="replace")
            formats.check_text(sys.stdin.buffer.peek(), "standard input")
        texts = [line.rstrip("\r\n") for line in sys.stdin]  # `splitlines` would split at form feeds too
    # Bytes of an argument that are not UTF-8 are surrogates, which tokenizers cannot encode.
    texts = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    detected = model.detect(texts)
    console = PlainConsole()
    for note in model.notes:
        console.print(note, style="dim")
    marks = [[Mark(word.begin, word.end, word.probability) for word in words] for words in detected]
    print_marked(console, zip(texts, marks, strict=True))
    return 0
