"""Loads anything trained, to use on texts."""

import os
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.downstream import finetuned_model
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.finetuning import kept
from electra_jax.loading import model
from electra_jax.loading.model import Model


def load(path: str | os.PathLike[str], step: int | None = None, batch_size: int = 16) -> Model:
    """Loads a trained model to use on texts.

    Args:
      path: a run's work directory, a directory that `electra_jax.export` wrote, a Hugging Face directory of an ELECTRA
        or ModernBERT model, or the work directory of a fine-tuning, of which the best seed's model is loaded.
      step: for a run, the step of the checkpoint; None: the last.
      batch_size: rows that are computed at once. Batches are padded to this size: raise it on an accelerator, use 1 for
        single texts on a CPU.

    Raises:
      UserError: the directory has no model or no tokenizer, a file in it cannot be read, or `batch_size` is invalid.

    Example:
      >>> model = electra_jax.load("runs/tiny")  # doctest: +SKIP
      >>> model.encode(["a line", "another"]).shape  # this encoder has width 32
      (2, 32)
    """
    folder = finetuned_model.find(Path(path))
    if folder is None:
        return model.load(path, step, batch_size)
    if step is not None:
        raise UserError(f"{path} is not a run, so it has no checkpoint of step {step}; leave the step out")
    return FinetunedModel(str(path), kept.read(folder), batch_size)
