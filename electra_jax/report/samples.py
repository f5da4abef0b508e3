"""Sentences with fakes in them, and what the encoder of a run says of each word: what training ends with."""

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
from electra_jax.runtime.run_log import Run


class Word(NamedTuple):
    """A word, as suspect as its most suspect piece.

    Attributes:
      text: as it stands there.
      probability: that it was replaced, as the encoder says.
      original: what stood there before, None where nothing was replaced.
    """

    text: str
    probability: float
    original: str | None


class Samples(NamedTuple):
    """What a run says of some sentences.

    Attributes:
      step: of the checkpoint that was asked; None where none was.
      sentences: words, marked.
      note: why there are none, or what the shade means where that is not the probability of a fake.
    """

    step: int | None
    sentences: list[list[Word]]
    note: str


def of(run: Run, count: int) -> Samples:
    """`count` held-out sentences with fakes, as the last checkpoint of `run` sees them; none where that cannot be."""
    row = registry.SYSTEMS.get(run.system)
    if row is None:
        return Samples(None, [], f"{run.system} is no system that is known here.")
    if row.detect is None:
        return Samples(None, [], f"{run.system} predicts tokens and tells no fakes, so there is nothing to show.")
    try:
        return _ask(run.workdir, count)
    except UserError as error:
        return Samples(None, [], f"Nothing can be shown: {explain(error)}.")


def _ask(workdir: Path, count: int) -> Samples:
    learned = run_checkpoint.load(workdir)
    config, vocabulary, state = learned.config, learned.tokenizer, learned.state
    text = _text(workdir, config.data.input, str(learned.progress.get("corpus")))
    starts = vocabulary.word_starts
    objective = registry.make(
        config.objective, config.model, config.steps, len(vocabulary), text.unigram, vocabulary.special, starts
    )
    texts = detection.sentences(text.heldout, count, config.data.seq_length, config.seed, vocabulary.special)
    if not len(texts.input_ids):
        raise UserError("no held-out line has the length of a sentence")
    key = rng.stream_key(config.seed, rng.Stream.SAMPLES)  # as at the end of training
    found = jax.device_get(jax.jit(detection.make_corrupt_and_detect(objective))(state.params, state.step, texts, key))
    rows = zip(texts.input_ids, *found, strict=True)
    return Samples(int(state.step), [marked(vocabulary, *row) for row in rows], objective.system.scores)


def marked(
    vocabulary: Tokenizer, before: np.ndarray, ids: np.ndarray, replaced: np.ndarray, probability: np.ndarray
) -> list[Word]:
    """The words of one row: ids before and after, which were replaced, and what the encoder says, each [L]."""
    return [
        Word(word, float(probability[at].max()), vocabulary.decode(before[at].tolist()) if replaced[at].any() else None)
        for word, at in vocabulary.words(ids.tolist())
        if word
    ]


def _text(workdir: Path, given: str, key: str) -> corpus.Corpus:
    """The text that the run was trained on; it is not prepared again for a page."""
    for folder in (workdir / "data" / key, Path(given)):
        if corpus.is_prepared(folder) and corpus.read_manifest(folder)["key"] == key:
            return corpus.load(folder)
    raise UserError(f"the text of this run is not there any more ({given})")
