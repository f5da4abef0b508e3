"""Loads trained networks from a run, an export or a Hugging Face directory."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.loading import hub
from electra_jax.loading.huggingface import directory, tokenizer_files
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.run_checkpoint import load_run_checkpoint, read_metadata
from electra_jax.modeling.config import ElectraConfig
from electra_jax.modeling.subnetwork import Network, extract, flatten_params
from electra_jax.runtime.run_log import METRICS

DISCRIMINATOR, MASKED_LM, ENCODER, GENERATOR = "discriminator", "masked_lm", "encoder", "generator"  # in an export
_DIGITS = 16  # digests are truncated to these
_SHARED = ("embeddings", "encoder")  # parameters that all heads read


def load_networks(path: Path, step: int | None = None, average: int = 1) -> Pretrained:
    """Loads the networks of a run, of an export, or of a Hugging Face directory.

    Args:
      path: the directory, or `hf:USER/NAME[@REVISION]`.
      step: for a run, the step of the checkpoint; None: the last.
      average: for a run, the number of checkpoints up to `step` whose parameters are averaged.

    Raises:
      UserError: the directory has no model, its files cannot be read, or `step` is given and `path` is not a run.
    """
    path = hub.local(path)
    if is_run(path):
        run = load_run_checkpoint(path, step, average)
        config, params = run.shape, run.params
        encoder, generator = (extract(config, params, name) for name in ("encoder", "generator"))
        assert encoder is not None
        scores = run.objective.system.scores
        return Pretrained(encoder, generator, run.tokenizer, tuple(directory.score_notes(scores)), scores)
    check_no_step(path, step)
    first_path = _encoder_directory(path)
    first = directory.read(first_path)
    # An encoder with two heads is exported as two directories: transformers has no class with both.
    for other in (path / DISCRIMINATOR, path / MASKED_LM):
        if other != first_path and (other / directory.CONFIG).is_file():
            first = _with_heads(first, directory.read(other), other)
    generator_path = path / GENERATOR
    if not (generator_path / directory.CONFIG).is_file():
        return first
    second = directory.read(generator_path)
    return first._replace(generator=second.encoder, notes=first.notes + second.notes)


def _with_heads(first: Pretrained, other: Pretrained, path: Path) -> Pretrained:
    """Adds the heads of `other`, which must have the same encoder."""
    network, more = first.encoder, other.encoder
    shapes = [_shape(each.config) for each in (network, more)]
    ours, theirs = (flatten_params({part: each.params[part] for part in _SHARED}) for each in (network, more))
    # Equal in every bit, as one export writes them.
    if shapes[0] != shapes[1] or not all(np.array_equal(value, theirs[name]) for name, value in ours.items()):
        raise UserError(
            f"{path} has another encoder than the directory beside it; export both again, or load one of them"
        )
    heads = {head: more.params[head] for head in more.config.heads if head not in network.config.heads}
    known = more if "discriminator_head" in heads else network  # the form of this head shows beside it only
    config = dataclasses.replace(known.config, heads=(*network.config.heads, *heads))
    return first._replace(
        encoder=Network(config, {**network.params, **heads}),
        # Both say the same about the encoder that they share.
        notes=tuple(dict.fromkeys((*first.notes, *other.notes))),
        scores=first.scores or other.scores,
    )


def _shape(config: ElectraConfig) -> tuple[ElectraConfig, dict[str, Any]]:
    """Returns what a config says of the encoder, whatever its heads are."""
    encoder = config.encoder
    own = encoder.architecture.shape_settings(encoder, encoder.layers)
    return dataclasses.replace(config, encoder=dataclasses.replace(encoder, own=None), heads=()), own


class Source(NamedTuple):
    """A source of networks, which are identified now and loaded on demand.

    Attributes:
      name: the directory, and for a run the step, for messages.
      digest: identifies the weights; different weights have different digests.
      load: loads the networks.
    """

    name: str
    digest: str
    load: Callable[[], Pretrained]


def find_source(path: Path, step: int | None = None) -> Source:
    """Finds what `load_networks` would load, without loading it.

    With `step` None, a run's last checkpoint is resolved now: `Source.load` ignores checkpoints that are saved later.

    Raises:
      UserError: the directory has no model.
    """
    name, path = str(path), hub.local(path)
    if is_run(path):
        step, metadata = read_metadata(path, step)
        # The metadata has the measured time of the steps, so no two checkpoints have the same digest.
        digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()
        return Source(f"{name} at step {step}", digest[:_DIGITS], functools.partial(load_networks, path, step))
    check_no_step(path, step)
    digest = directory.digest(_encoder_directory(path))[:_DIGITS]
    return Source(name, digest, functools.partial(load_networks, path))


def check_no_step(path: str | os.PathLike[str], step: int | None) -> None:
    """Raises UserError if a step is given for a path that is not a run."""
    if step is not None:
        raise UserError(f"{path} is not a run, so it has no checkpoint of step {step}; leave the step out")


def _encoder_directory(path: Path) -> Path:
    """Returns the Hugging Face directory of the encoder: `path` itself, or one inside an export. Raises UserError if
    there is none."""
    if (path / directory.CONFIG).is_file():
        return path
    inside = encoder_directory_in_export(path)
    if inside is None:
        raise UserError(
            f"{path} has no model: expected a run's work directory, an export, or a Hugging Face directory with "
            f"{directory.CONFIG} and {directory.WEIGHTS}; check the path"
        )
    return inside


def find_vocabulary(path: Path) -> Path | None:
    """Returns the vocabulary file of a directory that `load_networks` reads; None if it has none."""
    path = hub.local(path)
    return (
        tokenizer.find_file(path) if is_run(path) else tokenizer_files.find(encoder_directory_in_export(path) or path)
    )


def is_run(path: Path) -> bool:
    """Returns True if `path` is the work directory of a run that still has checkpoints or metrics."""
    return any((path / name).exists() for name in ("checkpoints", METRICS)) and not (path / directory.WEIGHTS).exists()


def encoder_directory_in_export(path: Path) -> Path | None:
    """Returns the directory of the encoder in an export, with a head if one was exported; None if `path` is not an
    export."""
    names = (DISCRIMINATOR, MASKED_LM, ENCODER)
    return next((path / name for name in names if (path / name / directory.CONFIG).is_file()), None)
