"""Takes a run to Hugging Face: `python -m electra_jax.export --workdir=RUN --output=OUT`. PyTorch is not needed."""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from electra_jax import arguments, errors, pretrained, trained, writers
from electra_jax import config as config_lib
from electra_jax.data import corpus
from electra_jax.data.tokenizer import SentencePiece
from electra_jax.errors import UserError
from electra_jax.files import read_json
from electra_jax.flops.totals import first_steps
from electra_jax.huggingface import card, configs, folder
from electra_jax.live import short
from electra_jax.modeling.alone import Network, alone
from electra_jax.trained import Trained

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

_KEPT = {"discriminator_head": pretrained.DISCRIMINATOR, "mlm_head": pretrained.MASKED_LM, None: pretrained.ENCODER}


def export(workdir: Path, output: Path, at: int | None = None) -> dict[str, str]:
    """Writes `output`, whole or not at all.

    Args:
      workdir: of a run.
      output: where to; not there yet, or empty.
      at: the step of a checkpoint; None for the last.

    Returns:
      The class of each directory in `output`, by its name.

    Raises:
      UserError: there is no such run or checkpoint, `output` is in use, or the networks cannot be written.
    """
    output = output.resolve()
    if output.is_relative_to((workdir / "checkpoints").resolve()):
        raise UserError(f"{output} is among the checkpoints of the run; give another --output")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is there and not empty; give another --output, or empty it")
    run = trained.load(workdir, at)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed export left
    try:
        partial.mkdir(parents=True)
        written = _write(run, _made(run, workdir), partial)
        os.replace(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


def _write(run: Trained, made: card.Made, output: Path) -> dict[str, str]:
    config, params = run.objective.model.config, run.state.params
    encoder, generator = (alone(config, params, network) for network in ("encoder", "generator"))
    assert encoder is not None
    directories: list[tuple[str, Network, str | None]] = [
        (_KEPT[head], encoder, head) for head in (*encoder.config.heads, None) if head in _KEPT
    ]
    if generator is not None:
        directories.append((pretrained.GENERATOR, generator, "mlm_head"))
    mask = run.tokenizer.name_of(run.tokenizer.special.mask)
    for name, network, head in directories:
        text = card.write(made, name, network.config.encoder.kind, head, mask)
        folder.write(output / name, network, head, run.tokenizer, text, made.scores)
    return {name: configs.CLASSES[network.config.encoder.kind][head] for name, network, head in directories}


def _made(run: Trained, workdir: Path) -> card.Made:
    """What the run's files say of how it was made."""
    config, step, totals = run.config, int(run.state.step), run.progress["totals"]
    flops = first_steps(run.objective, config.batch_size, config_lib.phases(config), step)
    path = workdir / "environment.json"
    environment = read_json(path) if path.exists() else {}
    packages = environment.get("packages", {})
    lengths = " then ".join(str(length) for length, _ in config_lib.phases(config))
    pieces = "SentencePiece" if isinstance(run.tokenizer, SentencePiece) else "pieces of the tokenizers library"
    facts = [
        ("text", _text(run, workdir)),
        ("vocabulary", f"{len(run.tokenizer):,} {pieces}"),
        ("steps", f"{step:,} of {config.steps:,}, each {config.batch_size} sequences of {lengths} tokens"),
        ("tokens seen", short(totals["tokens"])),
        ("training FLOPs", f"{flops['model']:.4g} (3 x forward, look-ups free)"),
        ("training FLOPs by the ELECTRA paper's accounting", f"{flops['paper']:.4g}"),
        ("devices", f"{len(environment.get('devices', []))} x {next(iter(environment.get('devices', [])), 'unknown')}"),
        ("device time", f"{totals['device_seconds'] / 3600:.4g} hours"),
        ("precision", config.model.dtype),
        ("code", f"electra_jax {environment.get('commit') or ''}, jax {packages.get('jax', 'unknown')}"),
    ]
    began = {"encoder": config.get("init_from"), "generator": config.get("generator_from")}
    facts[1:1] = [(f"{network} began from", f"`{place}`") for network, place in began.items() if place]
    system = run.objective.system
    reads_masks = system.generator is None
    described = (config.objective.name, system.summary, system.paper, system.scores, reads_masks)
    return card.Made(*described, facts, _heldout(workdir, step), config.to_dict())


def _text(run: Trained, workdir: Path) -> str:
    """The name and, where the prepared text is still there, the size of what was trained on."""
    name = f"`{run.config.data.input}`"
    key = run.progress.get("corpus")
    for place in (Path(run.config.data.input), workdir / "data" / str(key)):
        with contextlib.suppress(UserError):  # it is gone, or of another version
            manifest = corpus.read_manifest(place)
            if manifest["key"] != key:
                continue
            documents, tokens = (
                sum(shard[what]["train"] for shard in manifest["shards"]) for what in ("documents", "tokens")
            )
            sources = ", ".join(f"`{source['name']}`" for source in manifest["sources"])
            return f"{sources}: {documents:,} documents, {short(tokens)} tokens, held-out ones aside"
    return name


def _heldout(workdir: Path, step: int) -> dict[str, float]:
    """The last held-out numbers of the run up to `step`."""
    found: dict[str, float] = {}
    for line in writers.logged(workdir):
        measured = {
            name.removeprefix("heldout_"): value
            for name, value in line.items()
            if name.startswith("heldout_") and value is not None
        }
        if measured and line["step"] <= step:
            found = measured
    return found


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"workdir": "", "output": "", "step": 0}
    given = arguments.read(argv, USAGE, options)
    if given is None:
        return 0
    chosen = arguments.choose(given, options)
    arguments.require(chosen, ("workdir", "output"), "try --workdir=runs/tiny --output=exported")
    output = Path(chosen["output"])
    written = export(Path(chosen["workdir"]), output, chosen["step"] if "step" in given else None)
    console = Console(soft_wrap=True)
    for name, kind in written.items():
        console.print(f"{output / name}: {kind}", markup=False, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
