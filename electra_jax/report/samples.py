"""Held-out sentences with replaced tokens, and the probability that the encoder of a run gives each word."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from electra_jax.config.errors import UserError, explain
from electra_jax.data import corpus
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.loading import detection, run_checkpoint
from electra_jax.objectives import registry
from electra_jax.runtime import rng
from electra_jax.runtime.run_log import RunLog


class Word(NamedTuple):
    """A word of a sample.

    Attributes:
      text: the word in the corrupted sentence.
      probability: the highest probability of being replaced among its tokens.
      original: the word before; None where nothing was replaced.
    """

    text: str
    probability: float
    original: str | None


class Samples(NamedTuple):
    """Sample sentences of a run.

    Attributes:
      step: the step of the checkpoint; None if there are no samples.
      sentences: the words of each sentence.
      note: why there are no samples, or what the shade means if it is not the probability of being replaced.
    """

    step: int | None
    sentences: list[list[Word]]
    note: str


def make_samples(run: RunLog, count: int) -> Samples:
    """Corrupts `count` held-out sentences and lets the last checkpoint of `run` detect it.

    Where that is not possible, there are no sentences and the note says why.
    """
    spec = registry.SYSTEMS.get(run.objective)
    if spec is None:
        return Samples(None, [], f"The objective {run.objective} is unknown to this version of electra_jax.")
    if spec.detect is None:
        return Samples(None, [], f"{run.objective} predicts tokens and does not detect replaced ones: no samples.")
    try:
        return _detect(run.workdir, count)
    except UserError as error:
        return Samples(None, [], f"No samples: {explain(error)}.")


def _detect(workdir: Path, count: int) -> Samples:
    checkpoint = run_checkpoint.load(workdir)
    config, tokenizer, state = checkpoint.config, checkpoint.tokenizer, checkpoint.state
    text = _load_corpus(workdir, config.data.input, str(checkpoint.progress.get("corpus")))
    objective = registry.make(
        config.objective,
        config.model,
        config.steps,
        len(tokenizer),
        text.unigram,
        tokenizer.special,
        tokenizer.word_starts,
    )
    batch = detection.sentences(text.heldout, count, config.data.seq_length, config.seed, tokenizer.special)
    if not len(batch.input_ids):
        raise UserError("no held-out line has the length of a sentence")
    key = rng.stream_key(config.seed, rng.Stream.SAMPLES)  # the samples that training prints at its end
    corrupt_and_detect = jax.jit(detection.make_corrupt_and_detect(objective))
    detected = jax.device_get(corrupt_and_detect(state.params, state.step, batch, key))
    rows = zip(batch.input_ids, *detected, strict=True)
    return Samples(int(state.step), [make_words(tokenizer, *row) for row in rows], objective.system.scores)


def make_words(
    tokenizer: Tokenizer, original_L: np.ndarray, ids_L: np.ndarray, replaced_L: np.ndarray, probability_L: np.ndarray
) -> list[Word]:
    """The words of one row: token ids before and after corruption, which were replaced, and the probability of it."""
    words = []
    for text, at in tokenizer.words(ids_L.tolist()):
        if text:
            original = tokenizer.decode(original_L[at].tolist()) if replaced_L[at].any() else None
            words.append(Word(text, float(probability_L[at].max()), original))
    return words


def _load_corpus(workdir: Path, data_input: str, key: str) -> corpus.Corpus:
    """The text that the run was trained on; a report does not prepare it again."""
    for folder in (workdir / "data" / key, Path(data_input)):
        if corpus.is_prepared(folder) and corpus.read_manifest(folder)["key"] == key:
            return corpus.load(folder)
    raise UserError(f"the prepared text of this run ({data_input}) no longer exists")
