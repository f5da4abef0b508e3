"""Exports a run as Hugging Face directories. PyTorch is needed for ONNX files only."""

import contextlib
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.data import converted, corpus
from electra_jax.data.tokenizer import SentencePiece
from electra_jax.flops.totals import count_flops
from electra_jax.loading import networks
from electra_jax.loading.huggingface import bert, card, directory, hf_config, onnx_file, sentence_files, tokenizer_files
from electra_jax.loading.run_checkpoint import RunCheckpoint, corpus_folder, load_run_checkpoint
from electra_jax.modeling.subnetwork import Network, extract
from electra_jax.objectives.segments import make_segments
from electra_jax.runtime import run_log
from electra_jax.runtime.io import check_output, new_folder, read_json, write_whole
from electra_jax.runtime.metric_text import short_number

_PROVEN_LINES = 5000  # of held-out text
_DIRECTORIES: dict[str | None, str] = {
    "discriminator_head": networks.DISCRIMINATOR,
    "mlm_head": networks.MASKED_LM,
    None: networks.ENCODER,
}


def export(
    workdir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    step: int | None = None,
    sentence_transformers: bool = False,
    onnx: bool = False,
    as_bert: bool = False,
    dtype: str = "float32",
    downstream: Sequence[card.TaskScore] = (),
    average: int = 1,
    layers: int = 0,
) -> dict[str, str]:
    """Exports a run. Arguments, return value and errors are those of `electra_jax.export`, except that `downstream`
    takes scores instead of the folders of fine-tunings."""
    workdir, output = Path(workdir), Path(output).resolve()
    if output.is_relative_to((workdir / "checkpoints").resolve()):
        raise UserError(f"{output} is inside the run's checkpoints; use another --output")
    # What can be refused at once is refused before the checkpoint is read.
    check_output(output)
    if onnx:
        onnx_file.check_installed()
    run = load_run_checkpoint(workdir, step, average)
    # On lines of the run's own text; `directory.write` checks lines that are made from the vocabulary.
    tokenizer_files.check(run.tokenizer, converted.convert(run.tokenizer), _heldout_lines(run, workdir))
    directories = _directories(run, as_bert)
    description = _describe(run, workdir)._replace(downstream=downstream)
    with new_folder(output) as partial:
        partial.mkdir(parents=True)
        for name, (network, head) in directories.items():
            about = description
            if name == networks.ENCODER and layers:
                fact = ("layers", f"the first {layers} of {network.config.encoder.layers}")
                # Scores were measured with all layers.
                about = about._replace(facts=[*about.facts, fact], downstream=(), heldout={})
                network = network.first_layers(layers)
            text = _card(about, run, name, network, head)
            directory.write(partial / name, network, head, run.tokenizer, text, about.scores, dtype=dtype)
            if onnx:
                onnx_file.write(partial / name)
        if sentence_transformers:
            width = run.shape.encoder.width
            for name, content in sentence_files.files(width, run.shape.trained_length).items():
                path = partial / networks.ENCODER / name
                path.parent.mkdir(exist_ok=True)
                write_whole(path, content)
    return {name: hf_config.class_name(network.config.encoder, head) for name, (network, head) in directories.items()}


def cards(
    workdir: Path, step: int | None = None, downstream: Sequence[card.TaskScore] = (), average: int = 1
) -> dict[str, str]:
    """Returns the model cards that `export` would write, by the directory's name."""
    run = load_run_checkpoint(workdir, step, average)
    about = _describe(run, workdir)._replace(downstream=downstream)
    return {name: _card(about, run, name, *network) for name, network in _directories(run).items()}


def _directories(run: RunCheckpoint, as_bert: bool = False) -> dict[str, tuple[Network, str | None]]:
    """Returns the networks of an export and their heads (None for none), by the directory's name."""
    encoder, generator = (extract(run.shape, run.params, network) for network in ("encoder", "generator"))
    assert encoder is not None
    # `copy_gate` is left out: transformers has no class for it.
    heads = [head for head in (*encoder.config.heads, None) if head in _DIRECTORIES]
    if as_bert:
        encoder, generator = bert.with_names(encoder), None
        heads = [head for head in heads if head != "discriminator_head"]
    found: dict[str, tuple[Network, str | None]] = {_DIRECTORIES[head]: (encoder, head) for head in heads}
    return found if generator is None else {**found, networks.GENERATOR: (generator, "mlm_head")}


def _card(about: card.RunDescription, run: RunCheckpoint, name: str, network: Network, head: str | None) -> str:
    if name == networks.GENERATOR:
        # Fine-tunings start from the encoder, so their scores say nothing about the generator.
        about = about._replace(downstream=())
    mask = run.tokenizer.name_of(run.tokenizer.special.mask)
    return card.write_card(about, name, network.config.encoder, head, mask)


def _describe(run: RunCheckpoint, workdir: Path) -> card.RunDescription:
    """Collects from the run's files how the network was trained."""
    config, step, totals = run.config, run.step, run.metadata["totals"]
    joules = totals.get("joules", math.nan)
    flops = count_flops(make_segments(run.objective, train_config.phases(config)), step, config.optim.name)
    done = train_config.phases_until(config, step or 1)
    path = workdir / "environment.json"
    environment = read_json(path) if path.exists() else {}
    packages = environment.get("packages", {})
    shapes = [f"{phase.batch_size} sequences of {phase.length} tokens" for phase in done]
    # Neighboring phases may have the same shape and differ in other settings.
    shapes = [shape for shape, _ in itertools.groupby(shapes)]
    pieces = "SentencePiece" if isinstance(run.tokenizer, SentencePiece) else "pieces (tokenizers library)"
    facts = [
        ("text", _describe_text(run, workdir)),
        ("vocabulary", f"{len(run.tokenizer):,} {pieces}"),
        ("steps", f"{step:,} of {config.steps:,}, each {' then '.join(shapes)}"),
        ("tokens seen", short_number(totals["tokens"])),
        ("training FLOPs", f"{flops['model']:.4g} (3 x forward, look-ups free)"),
        ("training FLOPs by the ELECTRA paper's accounting", f"{flops['paper']:.4g}"),
        ("devices", f"{len(environment.get('devices', []))} x {next(iter(environment.get('devices', [])), 'unknown')}"),
        ("device time", f"{totals['device_seconds'] / 3600:.4g} hours"),
        *([("energy of the devices", f"{joules / 3.6e6:.3g} kWh")] if math.isfinite(joules) else []),
        ("precision", config.model.dtype),
        ("code", f"electra_jax {environment.get('commit') or ''}, jax {packages.get('jax', 'unknown')}"),
    ]
    # Inserted before the facts at 1 below, which move the later ones.
    if len(run.averaged) > 1:
        facts.insert(3, ("weights", f"the mean of the checkpoints of steps {', '.join(map(str, run.averaged))}"))
    initial = {"encoder": config.init_from, "generator": config.generator_from}
    facts[1:1] = [(f"{network} initialized from", f"`{path}`") for network, path in initial.items() if path]
    system = run.objective.system
    return card.RunDescription(
        system=config.objective.name,
        summary=system.summary,
        paper=system.paper,
        scores=system.scores,
        reads_masks=run.objective.encoder_reads_masks,
        trained_length=run.shape.trained_length,
        facts=facts,
        heldout=_heldout(workdir, step) if len(run.averaged) < 2 else {},  # a mean of weights was not evaluated
        settings=train_config.to_dict(config),
    )


def _describe_text(run: RunCheckpoint, workdir: Path) -> str:
    """Returns the name of the training text and, if the corpus still exists, its size."""
    name = f"`{run.config.data.input}`"
    with contextlib.suppress(UserError):  # deleted, or prepared by another version
        manifest = corpus.read_manifest(corpus_folder(workdir, run))
        documents, tokens = (
            sum(shard[unit]["train"] for shard in manifest["shards"]) for unit in ("documents", "tokens")
        )
        sources = ", ".join(f"`{source['name']}`" for source in manifest["sources"])
        return f"{sources}: {documents:,} documents, {short_number(tokens)} tokens, without the held-out ones"
    return name


def _heldout_lines(run: RunCheckpoint, workdir: Path) -> list[str]:
    """Returns held-out lines to check tokenizer.json with; none if the corpus no longer exists."""
    with contextlib.suppress(UserError):
        return corpus.heldout_lines(corpus_folder(workdir, run), run.tokenizer, _PROVEN_LINES)
    return []


def _heldout(workdir: Path, step: int) -> dict[str, float]:
    """Returns the metrics of the last held-out evaluation up to `step`."""
    evaluation = run_log.last_evaluation(run_log.read_metrics(workdir), until_step=step)
    return evaluation.metrics if evaluation else {}
