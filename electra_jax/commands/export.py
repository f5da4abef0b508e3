"""`electra-jax export`: writes a run as Hugging Face directories."""

from pathlib import Path
from typing import Any

from rich.console import Console

from electra_jax.config import cli
from electra_jax.loading.export import export

USAGE = """\
usage: python -m electra_jax.export --workdir=RUN --output=OUT [--step=N]

Writes directories that `from_pretrained` of transformers loads, each with weights, tokenizer and a model card:

  OUT/discriminator  the kept network with its head: ElectraForPreTraining, or of a ModernBERT
                     ModernBertForTokenClassification with the labels original and replaced
  OUT/masked_lm      the same of a system that predicts tokens: ElectraForMaskedLM, ModernBertForMaskedLM
  OUT/generator      the generator, as the latter
  OUT/encoder        the kept network without a head: ElectraModel, ModernBertModel

  --workdir=RUN      the work directory of a run
  --output=OUT       a directory that is not there yet, or empty
  --step=N           which checkpoint (default: the last)"""


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"workdir": "", "output": "", "step": 0}
    given = cli.read(argv, USAGE, options)
    if given is None:
        return 0
    chosen = cli.choose(given, options)
    cli.require(chosen, ("workdir", "output"), "try --workdir=runs/tiny --output=exported")
    output = Path(chosen["output"])
    written = export(Path(chosen["workdir"]), output, chosen["step"] if "step" in given else None)
    console = Console(soft_wrap=True)
    for name, kind in written.items():
        console.print(f"{output / name}: {kind}", markup=False, highlight=False)
    return 0
