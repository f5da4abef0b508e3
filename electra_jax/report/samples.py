"""Sample sentences of the page: held-out text with replaced tokens, and the encoder's probability for each word."""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp

from electra_jax import train_config
from electra_jax.config.errors import UserError, explain
from electra_jax.data import corpus
from electra_jax.loading import run_checkpoint
from electra_jax.loading.samples import SampledWord, sample_fakes
from electra_jax.objectives import registry
from electra_jax.objectives.segments import make_segments, segment_at
from electra_jax.runtime.run_log import RunLog


class Samples(NamedTuple):
    """Sample sentences of a run.

    Attributes:
      step: the step of the checkpoint; None if there are no samples.
      sentences: the words of each sentence.
      note: why there are no samples, or the meaning of the shade if it is not the probability of being replaced.
    """

    step: int | None
    sentences: list[list[SampledWord]]
    note: str


def make_samples(run: RunLog, count: int) -> Samples:
    """Corrupts `count` held-out sentences and detects the replaced words with the last checkpoint of `run`.

    If that is not possible, there are no sentences and the note says why.
    """
    spec = registry.SYSTEMS.get(run.objective)
    # A log of another version may name an objective that this one lacks.
    if spec is None:
        return Samples(None, [], f"The objective {run.objective} is unknown to this version of electra_jax.")
    if spec.detect is None:
        return Samples(None, [], f"{run.objective} predicts tokens and does not detect replaced ones: no samples.")
    try:
        return _sample(run.workdir, count)
    # The page is made all the same: a run may have lost its checkpoints or its text.
    except UserError as error:
        return Samples(None, [], f"No samples: {explain(error)}.")


def _sample(workdir: Path, count: int) -> Samples:
    checkpoint = run_checkpoint.load_run_checkpoint(workdir)
    config, tokenizer, step = checkpoint.config, checkpoint.tokenizer, checkpoint.step
    text = corpus.load(run_checkpoint.corpus_folder(workdir, checkpoint))
    # Made again with the text: the checkpoint's objective has no token frequencies and clusters to draw fakes from.
    whole = registry.make_for_text(config.objective, config.model, config.steps, text)
    # As the last step corrupted its text: a phase may change the masking.
    objective = segment_at(make_segments(whole, train_config.phases(config)), step - 1).objective
    length, seed = config.data.seq_length, config.seed
    at = jnp.int32(step)
    sentences = sample_fakes(objective, checkpoint.params, at, text.heldout, tokenizer, length, seed, count)
    if not sentences:
        raise UserError("no held-out line is as long as a sentence")
    return Samples(step, sentences, objective.system.scores)
