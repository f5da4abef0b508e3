"""Loads, exports and uploads trained models, pre-trained or fine-tuned."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, check_value, one_of
from electra_jax.downstream import finetuned_model
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import hf_export, kept, results
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.loading import export as run_export
from electra_jax.loading import hub, model, networks, run_checkpoint
from electra_jax.loading.huggingface import directory, onnx_file
from electra_jax.loading.huggingface.card import TaskScore
from electra_jax.loading.model import Model
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.train_config import TrainConfig

_WORDS = Check(lambda words: words == 0 or 1e6 <= words < 1e12, "0, or a number of words from 1e6 to 1e12")
_DEFAULTS = (None, 1, "float32")  # step, average and dtype of `export`


def load(path: str | os.PathLike[str], step: int | None = None, batch_size: int = 16) -> Model:
    """Loads a trained model to use on texts.

    Args:
      path: a run's work directory, a directory that `electra_jax.export` wrote, a Hugging Face directory of an ELECTRA,
        BERT, ModernBERT or DeBERTaV3 model, the work directory of a fine-tuning (the best seed's model is loaded), or
        `hf:USER/NAME[@REVISION]` on the Hugging Face Hub.
      step: for a run, the step of the checkpoint; None: the last.
      batch_size: the number of rows per forward pass; raise it on an accelerator.

    Raises:
      UserError: the directory has no model or no tokenizer, a file in it cannot be read, or `batch_size` is invalid.

    Example:
      >>> model = electra_jax.load("runs/tiny")  # doctest: +SKIP
      >>> model.encode(["a line", "another"]).shape  # this encoder has width 32
      (2, 32)
    """
    folder = finetuned_model.find(hub.local(Path(path)))
    if folder is None:
        return model.load(path, step, batch_size)
    networks.check_no_step(path, step)
    return FinetunedModel(str(path), kept.read(folder), batch_size)


def export(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    step: int | None = None,
    sentence_transformers: bool = False,
    onnx: bool = False,
    as_bert: bool = False,
    dtype: str = "float32",
    scores: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    average: int = 1,
    layers: int = 0,
) -> dict[str, str]:
    """Writes a run or a fine-tuned model as directories that `from_pretrained` of transformers reads.

    A Hugging Face directory that another trainer wrote, such as sentence-transformers', is copied, and ONNX files are
    added. Either all directories are written or none.

    Args:
      path: the work directory of a run, or of a fine-tuning (the best seed's model is exported), or a Hugging
        Face directory of an ELECTRA, BERT, ModernBERT or DeBERTaV3, with `onnx` and no other option.
      output: a directory that does not exist yet or is empty. For a run, it receives `discriminator` or `masked_lm`
        (the encoder with its head), `generator` if there is one, and `encoder` (without a head), each with weights,
        tokenizer and model card. For a fine-tuned model, these files are written into `output` itself.
      step: for a run, the step of the checkpoint; None: the last.
      sentence_transformers: for a run, whether `encoder` is also a sentence-transformers model, which embeds a text as
        the mean of its hidden states, as `Model.encode` does.
      onnx: whether each directory also gets ONNX files, in float32, float16 and int8; needs PyTorch and transformers.
      as_bert: for a run, whether to write its encoder as a BERT: `masked_lm` if it has an MLM head, and `encoder`. A
        fine-tuned model with `config.head=bert` is always written so.
      dtype: storage dtype of the weights: `float32`, or `float16` for half the size. Both are loaded as float32.
      scores: for a run, the work directories of fine-tunings of this checkpoint, to put their scores into the model
        cards.
      average: for a run, the number of checkpoints up to `step` whose parameters are averaged.
      layers: for a run, the number of layers of `encoder`, the first ones; 0: all.

    Returns:
      The transformers class of each directory, by the directory's name; `.` is `output` itself.

    Raises:
      UserError: there is no such model or checkpoint, `output` is not empty, or transformers has no equivalent of the
        networks, the head or the tokenizer, a fine-tuning in `scores` is of another model, or a package is missing.

    Example:
      >>> electra_jax.export("runs/tiny", "exported")  # doctest: +SKIP
      {'discriminator': 'ElectraForPreTraining', 'encoder': 'ElectraModel', 'generator': 'ElectraForMaskedLM'}
    """
    check_value("dtype", dtype, one_of(*directory.DTYPES))
    path = hub.local(Path(path))
    folder = finetuned_model.find(path)
    if folder is None and directory.is_directory(path):
        if not onnx or scores or layers or as_bert or sentence_transformers or (step, average, dtype) != _DEFAULTS:
            raise UserError(f"{path} is a Hugging Face directory: expected onnx and no other option, to add ONNX files")
        return {".": onnx_file.copy_with_onnx(path, Path(output).resolve())}
    if folder is None:
        more = (_read_scores(scores, path, step, average), average, layers)
        return run_export.export(path, output, step, sentence_transformers, onnx, as_bert, dtype, *more)
    networks.check_no_step(path, step)
    if sentence_transformers:
        raise UserError(
            f"{path} is fine-tuned for a task, not for sentence vectors; export the run that it started from"
        )
    if average != 1:
        raise UserError(f"{path} is fine-tuned and has no checkpoints to average; leave average out")
    if layers:
        raise UserError(f"{path} is fine-tuned with all its layers; fine-tune an encoder that was exported with fewer")
    if as_bert:
        raise UserError(f"{path} is fine-tuned; the head decides its class: fine-tune with config.head=bert")
    if scores:
        raise UserError(f"{path} is fine-tuned, and its model card has its own scores; leave scores out")
    return {".": hf_export.export(kept.read(folder), Path(output).resolve(), onnx, dtype)}


def card(
    workdir: str | os.PathLike[str],
    name: str = networks.ENCODER,
    step: int | None = None,
    scores: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    average: int = 1,
) -> str:
    """Returns a model card of a run, in Markdown: the one that `export` would write into the directory `name`.

    Args:
      workdir: the work directory of a run.
      name: a directory of an export: `encoder`, `discriminator`, `masked_lm` or `generator`.
      step, scores, average: as in `export`.

    Raises:
      UserError: there is no such run or checkpoint, its export has no such directory, or a fine-tuning in `scores` is
        of another model.
    """
    path = hub.local(Path(workdir))
    cards = run_export.cards(path, step, _read_scores(scores, path, step, average), average)
    check_value("name", name, one_of(*cards))
    return cards[name]


def _read_scores(
    finetuned: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], run: Path, step: int | None, average: int
) -> list[TaskScore]:
    given = [finetuned] if isinstance(finetuned, str | os.PathLike) else finetuned
    if given and average != 1:
        raise UserError("scores are those of one checkpoint; leave scores or average out")
    return [_read_score(Path(each), run, step) for each in given]


def _read_score(finetuned: Path, run: Path, step: int | None) -> TaskScore:
    """Reads the score of a fine-tuning of a run's checkpoint."""
    if not (finetuned / results.SCORES).is_file():
        raise UserError(f"{finetuned} has no {results.SCORES}: expected the work directory of a finished fine-tuning")
    summary, identity = (read_json(finetuned / name) for name in (results.SCORES, results.CONFIG))
    source = networks.find_source(run, step)
    if identity.get("weights") != source.digest:
        raise UserError(
            f"{finetuned} was fine-tuned from other weights than {source.name} has; fine-tune it with --init_from={run}"
        )
    metric = summary["metric"]
    median, lowest, highest = (summary[name][metric] for name in ("median", "lowest", "highest"))
    recipe = f"rate {identity['optim']['learning_rate']:g}, {identity['epochs']} epochs"
    if identity["pooling"] != FinetuneConfig.pooling:  # tasks without pooling have the default
        recipe += f", pooling {identity['pooling']}"
    if identity["examples"]:
        recipe += f", {identity['examples']:,} examples"
    return TaskScore(summary["task"], metric, median, lowest, highest, len(summary["seeds"]), recipe)


def push(
    path: str | os.PathLike[str],
    repo: str,
    step: int | None = None,
    every_checkpoint: bool = False,
    private: bool = False,
    onnx: bool = False,
    words: float = 0,
) -> list[str]:
    """Uploads a run or a fine-tuned model to the Hugging Face Hub.

    The repository's main branch receives what `export` writes. For a run, this is the encoder with its head, so that
    `from_pretrained` loads it by the repository's name, and the generator in the folder `generator`. An encoder with
    two heads has its discriminator in the folder `discriminator`.

    Args:
      path: the work directory of a run, or of a fine-tuning (the best seed's model is uploaded).
      repo: USER/NAME on the Hub; created if it does not exist.
      step: for a run, the step of the checkpoint; None: the last.
      every_checkpoint: for a run, whether each checkpoint is also uploaded, as a branch `step-N`; so is step 0, unless
        the run was initialized from another model.
      private: whether the repository is to be private; an existing public one is refused.
      onnx: whether the main branch also gets ONNX files, as in `export`.
      words: the number of words that the whole run reads. Branches are then named `chck_1M` and so on, after the
        millions of words read so far, as BabyLM's evaluation expects, with none below a million. 0: `step-N`.

    Returns:
      The URL of each commit.

    Raises:
      UserError: there is no such model or checkpoint, transformers has no equivalent of it, or the Hub refuses it.
    """
    check_value("words", words, _WORDS)
    source, folder = Path(path), finetuned_model.find(Path(path))
    if folder is not None and every_checkpoint:
        raise UserError(f"{path} is fine-tuned and has no checkpoints; leave every_checkpoint out")
    if folder is None and directory.is_directory(source):
        raise UserError(f"{path} is a Hugging Face directory, not a run; upload it with: hf upload {repo} {path}")
    # A revision of None is the main branch.
    uploads: list[tuple[int | None, str | None]] = [(step, None)]
    if every_checkpoint:
        config, saved = run_checkpoint.read_config(source), run_checkpoint.saved_steps(source)
        # If the run was initialized from another model, its step 0 is that model.
        drawn = [] if config.starts_from or words else [0]
        branches = {each: f"step-{each}" for each in (*drawn, *saved)}
        if words:
            whole = _tokens_read(config, config.steps)
            millions = {each: round(_tokens_read(config, each) / whole * words / 1e6) for each in saved}
            branches = {each: f"chck_{million}M" for each, million in millions.items() if million}
        # Checkpoints may round to the same number of words: the last of them gets the branch.
        last = {branch: each for each, branch in branches.items()}
        uploads += [(each, branch) for branch, each in last.items()]
    elif words:
        raise UserError(f"words={words:g} has no effect without every_checkpoint; give both or neither")
    addresses = []
    for each, revision in uploads:
        # One export at a time, so that the disk need not hold those of all checkpoints.
        with tempfile.TemporaryDirectory() as temporary:
            exported = Path(temporary) / "model"
            export(path, exported, each, onnx=onnx and revision is None)
            root = exported if folder is not None else _as_repository(exported)
            _name_repository(root, repo)
            message = (
                f"step {each}" if each is not None else "last checkpoint" if folder is None else "fine-tuned model"
            )
            addresses.append(hub.upload(root, repo, message, revision, private))
    return addresses


def _tokens_read(config: TrainConfig, step: int) -> int:
    return sum(phase.steps * phase.batch_size * phase.length for phase in train_config.phases_until(config, step))


def _as_repository(exported: Path) -> Path:
    """Lays out the export of a run as a repository: the encoder with its head, the other networks in folders of it."""
    root = networks.encoder_directory_in_export(exported)
    assert root is not None
    # If the encoder has two heads, the MLM head is at the root: most tools can use it.
    if (exported / networks.MASKED_LM).is_dir():
        root = exported / networks.MASKED_LM
    for name in (networks.DISCRIMINATOR, networks.GENERATOR):
        if (exported / name).is_dir() and exported / name != root:
            os.replace(exported / name, root / name)
    return root


def _name_repository(root: Path, repo: str) -> None:
    """Replaces the folders' names in the code of the model cards by the repository's name."""
    card = root / directory.CARD
    text = card.read_text(encoding="utf-8")
    # The card of a run's model names its folder, the card of a fine-tuned model the resolved path.
    for path in (root.name, str(root), str(root.resolve())):
        text = text.replace(repr(path), repr(repo))
    write_whole(card, text)
    for card in root.glob(f"*/{directory.CARD}"):
        name = card.parent.name
        text = card.read_text(encoding="utf-8").replace(repr(name), "path")
        download = f'from huggingface_hub import snapshot_download\n\npath = snapshot_download("{repo}") + "/{name}"\n'
        write_whole(card, text.replace("```python\n", f"```python\n{download}", 1))
