"""Networks that exist: of a run, of what `export` wrote, or in a Hugging Face directory."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading import run_checkpoint
from electra_jax.loading.huggingface import directory, tokenizer_files
from electra_jax.modeling.subnetwork import Network, extract
from electra_jax.runtime.io import sha256
from electra_jax.runtime.run_log import METRICS

_DIGITS = 16  # of a digest
DISCRIMINATOR, MASKED_LM, ENCODER, GENERATOR = "discriminator", "masked_lm", "encoder", "generator"  # in an export


class Pretrained(NamedTuple):
    """What a place holds.

    Attributes:
      encoder: the network that is kept, with the heads that are there.
      generator: None where there is none.
      tokenizer: None where there is none.
      notes: what a person should know of it, a sentence each.
    """

    encoder: Network
    generator: Network | None
    tokenizer: Tokenizer | None
    notes: tuple[str, ...] = ()


def load(place: Path, at: int | None = None) -> Pretrained:
    """The networks of a work directory of a run, an export's directory, or a Hugging Face directory.

    Args:
      place: the directory.
      at: of a run, the step of the checkpoint; None: the last.

    Raises:
      UserError: there are none, or they cannot be read.
    """
    if is_run(place):
        run = run_checkpoint.load(place, at)
        config, params = run.objective.model.config, run.state.params
        encoder = extract(config, params, "encoder")
        assert encoder is not None
        notes = directory.said_of(run.objective.system.scores)
        return Pretrained(encoder, extract(config, params, "generator"), run.tokenizer, tuple(notes))
    if (place / directory.CONFIG).is_file():
        found = directory.read(place)
        return Pretrained(found.network, None, found.tokenizer, found.notes)
    first = directory.read(_directory(place))
    second = directory.read(place / GENERATOR) if (place / GENERATOR).is_dir() else None
    if second is None:
        return Pretrained(first.network, None, first.tokenizer, first.notes)
    return Pretrained(first.network, second.network, first.tokenizer, first.notes + second.notes)


class Source(NamedTuple):
    """A network that can be loaded.

    Attributes:
      name: where it is, for people.
      digest: of what it has learned: other weights have another.
      load: reads it.
    """

    name: str
    digest: str
    load: Callable[[], Pretrained]


def find(place: Path, at: int | None = None) -> Source:
    """What `load` would read, not read yet; of a run the checkpoint that is the last now.

    Raises:
      UserError: there is none.
    """
    if is_run(place):
        step, progress = run_checkpoint.progress(place, at)
        # The time that its steps took is no other checkpoint's, whatever its settings and wherever it lies.
        digest = hashlib.sha256(json.dumps(progress, sort_keys=True).encode()).hexdigest()
        return Source(f"{place} at step {step}", digest[:_DIGITS], functools.partial(load, place, step))
    if at is not None:
        raise UserError(f"{place} is no run and has no checkpoint of step {at}; leave the step out")
    weights = _directory(place) / directory.WEIGHTS
    digest = sha256(weights)[:_DIGITS] if weights.is_file() else ""
    return Source(str(place), digest, functools.partial(load, place))


def _directory(place: Path) -> Path:
    """Where the kept network is, in a Hugging Face directory or an export's."""
    found = place if (place / directory.CONFIG).is_file() else kept_in(place)
    if found is None:
        raise UserError(
            f"{place} holds no model; give a run's work directory, what electra_jax.export wrote, or a Hugging Face "
            f"directory with {directory.CONFIG} and {directory.WEIGHTS}"
        )
    return found


def vocabulary_of(place: Path) -> Path | None:
    """The file with the vocabulary of a place that `load` reads, None where there is none."""
    return tokenizer.file_in(place) if is_run(place) else tokenizer_files.find(kept_in(place) or place)


def is_run(place: Path) -> bool:
    left = ("checkpoints", METRICS)  # of a run, whatever else was removed
    return any((place / name).exists() for name in left) and not (place / directory.WEIGHTS).exists()


def kept_in(place: Path) -> Path | None:
    """Where in an export's directory the kept network is with its head; None where it is no such directory."""
    names = (DISCRIMINATOR, MASKED_LM, ENCODER)
    return next((place / name for name in names if (place / name / directory.CONFIG).is_file()), None)
