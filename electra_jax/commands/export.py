"""`electra-jax export`: writes a run as Hugging Face directories."""

from pathlib import Path
from typing import Any

from electra_jax.config import cli
from electra_jax.loading.export import export
from electra_jax.runtime.console import PlainConsole

USAGE = """\
usage: electra-jax export --workdir=RUN --output=OUT [--step=N]

Writes directories for `from_pretrained` of transformers, each with weights, tokenizer and a model card:

  OUT/discriminator  the encoder with its discriminator head: ElectraForPreTraining, or for a ModernBERT
                     ModernBertForTokenClassification with the labels original and replaced
  OUT/masked_lm      the encoder with its MLM head: ElectraForMaskedLM, ModernBertForMaskedLM
  OUT/generator      the generator, of the same classes as masked_lm
  OUT/encoder        the encoder without a head: ElectraModel, ModernBertModel

  --workdir=RUN      the work directory of a run
  --output=OUT       a directory that does not exist yet, or is empty
  --step=N           the step of the checkpoint (default: the last)"""


def main(argv: list[str]) -> int:
    defaults: dict[str, Any] = {"workdir": "", "output": "", "step": 0}
    given = cli.read(argv, USAGE, defaults)
    if given is None:
        return 0
    options = cli.choose(given, defaults)
    cli.require(options, ("workdir", "output"), "try --workdir=runs/tiny --output=exported, or --help")
    classes = export(options["workdir"], options["output"], options["step"] if "step" in given else None)
    console = PlainConsole()
    for name, class_name in classes.items():
        console.print(f"{Path(options['output'], name)}: {class_name}", markup=False, highlight=False)
    return 0
