"""Takes a run to Hugging Face: `python -m electra_jax.export --workdir=RUN --output=OUT`. PyTorch is not needed."""

import contextlib
import os
import shutil
from pathlib import Path

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.data import corpus
from electra_jax.data.tokenizer import SentencePiece
from electra_jax.loading import networks, run_checkpoint
from electra_jax.loading.huggingface import card, directory, hf_config
from electra_jax.loading.run_checkpoint import RunCheckpoint
from electra_jax.modeling.subnetwork import Network, extract
from electra_jax.objectives.segments import make_segments
from electra_jax.planning.flops.totals import count_flops
from electra_jax.runtime import run_log
from electra_jax.runtime.io import read_json
from electra_jax.runtime.metric_text import short_number

_KEPT = {"discriminator_head": networks.DISCRIMINATOR, "mlm_head": networks.MASKED_LM, None: networks.ENCODER}


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
    run = run_checkpoint.load(workdir, at)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed export left
    try:
        partial.mkdir(parents=True)
        written = _write(run, _made(run, workdir), partial)
        os.replace(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


def _write(run: RunCheckpoint, made: card.Made, output: Path) -> dict[str, str]:
    config, params = run.objective.model.config, run.state.params
    encoder, generator = (extract(config, params, network) for network in ("encoder", "generator"))
    assert encoder is not None
    directories: list[tuple[str, Network, str | None]] = [
        (_KEPT[head], encoder, head) for head in (*encoder.config.heads, None) if head in _KEPT
    ]
    if generator is not None:
        directories.append((networks.GENERATOR, generator, "mlm_head"))
    mask = run.tokenizer.name_of(run.tokenizer.special.mask)
    for name, network, head in directories:
        text = card.write(made, name, network.config.encoder.kind, head, mask)
        directory.write(output / name, network, head, run.tokenizer, text, made.scores)
    return {name: hf_config.CLASSES[network.config.encoder.kind][head] for name, network, head in directories}


def _made(run: RunCheckpoint, workdir: Path) -> card.Made:
    """What the run's files say of how it was made."""
    config, step, totals = run.config, int(run.state.step), run.progress["totals"]
    segments = make_segments(run.objective.stages, train_config.phases(config.data, config.steps))
    flops = count_flops(run.objective, segments, config.batch_size, step)
    path = workdir / "environment.json"
    environment = read_json(path) if path.exists() else {}
    packages = environment.get("packages", {})
    lengths = " then ".join(str(length) for length, _ in train_config.phases(config.data, config.steps))
    pieces = "SentencePiece" if isinstance(run.tokenizer, SentencePiece) else "pieces of the tokenizers library"
    facts = [
        ("text", _text(run, workdir)),
        ("vocabulary", f"{len(run.tokenizer):,} {pieces}"),
        ("steps", f"{step:,} of {config.steps:,}, each {config.batch_size} sequences of {lengths} tokens"),
        ("tokens seen", short_number(totals["tokens"])),
        ("training FLOPs", f"{flops['model']:.4g} (3 x forward, look-ups free)"),
        ("training FLOPs by the ELECTRA paper's accounting", f"{flops['paper']:.4g}"),
        ("devices", f"{len(environment.get('devices', []))} x {next(iter(environment.get('devices', [])), 'unknown')}"),
        ("device time", f"{totals['device_seconds'] / 3600:.4g} hours"),
        ("precision", config.model.dtype),
        ("code", f"electra_jax {environment.get('commit') or ''}, jax {packages.get('jax', 'unknown')}"),
    ]
    began = {"encoder": config.init_from, "generator": config.generator_from}
    facts[1:1] = [(f"{network} began from", f"`{place}`") for network, place in began.items() if place]
    system = run.objective.system
    reads_masks = system.generator is None
    described = (config.objective.name, system.summary, system.paper, system.scores, reads_masks)
    return card.Made(*described, facts, _heldout(workdir, step), train_config.to_dict(config))


def _text(run: RunCheckpoint, workdir: Path) -> str:
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
            return f"{sources}: {documents:,} documents, {short_number(tokens)} tokens, held-out ones aside"
    return name


def _heldout(workdir: Path, step: int) -> dict[str, float]:
    """The last held-out numbers of the run up to `step`."""
    evaluation = run_log.last_evaluation(run_log.read_metrics(workdir), until_step=step)
    return evaluation.metrics if evaluation else {}
