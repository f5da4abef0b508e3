"""Sample sentences for the end of training: held-out text with fakes, and the encoder's probability for each word."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from electra_jax.data.batches import pad_rows
from electra_jax.data.records import Split
from electra_jax.data.tokenizer import Special, Tokenizer
from electra_jax.modeling.batch import Batch
from electra_jax.objectives.spec import Objective
from electra_jax.runtime import rng
from electra_jax.runtime.marked_text import Mark

Array = jax.Array
_TOKENS = (12, 40)  # shortest and longest sentence, which then fits a line or two


class SampledWord(NamedTuple):
    """A word of a sentence with fakes.

    Attributes:
      text: the word that the encoder read.
      probability: the encoder's probability that it was replaced; the maximum over the word's pieces.
      original: the word before replacement; None if it was not replaced.
    """

    text: str
    probability: float
    original: str | None


def sample_fakes(
    objective: Objective,
    params: Any,
    step: Array,
    heldout: Split,
    tokenizer: Tokenizer,
    length: int,
    seed: int,
    count: int = 5,
    out_shardings: Any = None,
) -> list[list[SampledWord]]:
    """Corrupts held-out sentences as in training and detects the replaced words with the encoder.

    Args:
      objective: one whose `system.detect` is not None.
      params: its parameters.
      step: the training step, int32, for schedules of the corruption.
      heldout: held-out text.
      tokenizer: the run's tokenizer.
      length: sequence length.
      seed: seed for the choice of sentences and for the fakes.
      count: number of sentences; fewer if the text has fewer lines of a sentence's length.
      out_shardings: as in `jax.jit`.
    """
    # From the seed alone: with several processes all must pass the same arrays to `detect`.
    sentences = sample_sentences(heldout, count, length, seed, tokenizer.special)
    if not len(sentences.input_ids):
        return []
    key = rng.stream_key(seed, rng.Stream.SAMPLES)
    # With several processes, `device_get` reads only what each process holds in full: the caller replicates it.
    detect = jax.jit(lambda *inputs: corrupt_and_detect(objective, *inputs), out_shardings=out_shardings)
    corrupted, labels, probabilities = jax.device_get(detect(params, step, sentences, key))
    rows = zip(np.asarray(sentences.input_ids), corrupted, labels, probabilities, strict=True)
    return [_words(tokenizer, *row) for row in rows]


def corrupt_and_detect(
    objective: Objective, params: Any, step: Array, batch: Batch, key: Array
) -> tuple[Array, Array, Array]:
    """Returns (ids with fakes, labels of replaced tokens, the encoder's probabilities), each [B, L]. Can be jitted."""
    detect = objective.system.detect
    assert detect is not None, "this objective has no discriminator"
    detection = detect(objective, params, objective.draw(key, batch, step))
    return detection.input_ids, detection.labels, jax.nn.sigmoid(detection.scores)


def sample_sentences(split: Split, count: int, length: int, seed: int, special: Special) -> Batch:
    """Draws up to `count` random lines of `split` that are as long as a sentence, as a batch [n, length]."""
    shortest, longest = _TOKENS
    sizes = np.diff(split.lines)
    # Room for [CLS] and [SEP], which `pad_rows` adds.
    fitting = np.flatnonzero((sizes >= shortest) & (sizes <= min(longest, length - 2)))
    # `choice` without replacement would refuse to draw more lines than there are.
    chosen = np.random.default_rng(seed).permutation(fitting)[:count]
    return pad_rows([split.tokens.take(split.lines[[line]], sizes[[line]]) for line in chosen], length, special)


def mark_words(words: Sequence[SampledWord]) -> tuple[str, list[Mark]]:
    """Returns the sentence as text, and its marks, for `print_marked`."""
    marks, position = [], 0
    for word in words:
        end = position + len(word.text)
        marks.append(Mark(position, end, word.probability, word.original is not None))
        # One space joins the words.
        position = end + 1
    return " ".join(word.text for word in words), marks


def _words(
    tokenizer: Tokenizer, original: np.ndarray, corrupted: np.ndarray, labels: np.ndarray, probabilities: np.ndarray
) -> list[SampledWord]:
    """Groups the pieces of one row into words; all arrays are [L]."""
    # A fake may be a special token, which `words` takes for the end of a word: it is shown as an unknown token.
    is_special = np.isin(corrupted, tokenizer.special) & (labels > 0)
    shown = np.where(is_special, tokenizer.special.unk, corrupted).tolist()
    return [
        SampledWord(
            word,
            float(probabilities[pieces].max()),
            tokenizer.decode(original[pieces].tolist()) if labels[pieces].any() else None,
        )
        for word, pieces in tokenizer.words(shown)
        if word
    ]
