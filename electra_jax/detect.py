"""Sentences coloured by how replaced the discriminator thinks each word is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.text import Text

from electra_jax.data.records import Split
from electra_jax.data.tokenizer import Special, Tokenizer
from electra_jax.modeling.electra import Batch
from electra_jax.objectives.system import Objective

Array = jax.Array
_SHADES = ((0.5, "bold white on red3"), (0.3, "black on orange1"), (0.15, "black on light_goldenrod1"))
_SENTENCE_TOKENS = (12, 40)  # a sentence that fits a line or two


def make_corrupt_and_detect(objective: Objective) -> Callable[..., tuple[Array, Array, Array]]:
    """The function `(params, step, batch, key) -> (corrupted ids, labels, probabilities)`, each [B, L]; not yet jitted.

    The generator fills masked positions as in training; the probabilities are the encoder's.
    """
    find = objective.system.detect
    assert find is not None, "only a system that detects can show what it detects"

    def detect(params: Any, step: Array, batch: Batch, key: Array) -> tuple[Array, Array, Array]:
        found = find(objective, params, objective.draw(key, batch, step))
        return found.input_ids, found.labels, jax.nn.sigmoid(found.scores)

    return detect


def sentences(split: Split, count: int, length: int, seed: int, special: Special) -> Batch:
    """A batch of `count` lines of `split` that read as sentences, or of all where there are fewer: [count, length]."""
    shortest, longest = _SENTENCE_TOKENS
    sizes = np.diff(split.lines)
    fitting = np.flatnonzero((sizes >= shortest) & (sizes <= min(longest, length - 2)))
    chosen = np.random.default_rng(seed).permutation(fitting)[:count]
    ids = np.full((len(chosen), length), special.pad, np.int32)
    used = np.zeros_like(ids)
    for row, line in enumerate(chosen):
        tokens = split.tokens.take(split.lines[[line]], sizes[[line]])
        ids[row, : len(tokens) + 2] = [special.cls, *tokens, special.sep]
        used[row, : len(tokens) + 2] = 1
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "sequence_ids": used}


def render(words: Sequence[tuple[str, float, bool]], colours: bool) -> Text:
    """A sentence as text to print.

    Args:
      words: (word, probability of being replaced, whether it was replaced).
      colours: shades by probability and underlines what was replaced; otherwise a suspected word is followed by its
        probability and one that was replaced stands between stars.
    """
    text = Text()
    for word, probability, replaced in words:
        shade = next((style for bound, style in _SHADES if probability >= bound), "")
        if colours:
            text.append(word, style=f"{shade} underline" if replaced else shade)
        else:
            text.append(f"*{word}*" if replaced else word)
            text.append(f"[{probability:.0%}]" if shade else "")
        text.append(" ")
    text.rstrip()
    return text


def show(console: Console, tokenizer: Tokenizer, corrupted: np.ndarray, labels: np.ndarray, found: np.ndarray) -> None:
    """Prints the rows of what `make_corrupt_and_detect` returns. A word is as suspect as its most suspect piece."""
    colours = console.color_system is not None and console.is_terminal and not console.no_color
    legend = "underlined: replaced by the generator · shaded: suspected by the discriminator (over 15%, 30%, 50%)"
    if not colours:
        legend = "*starred*: replaced by the generator · [n%]: suspected by the discriminator with that probability"
    console.print(legend, style="dim", markup=False, highlight=False)
    for ids, changed, probability in zip(corrupted, labels, found, strict=True):
        words = tokenizer.words(ids.tolist())
        rated = [(word, float(probability[at].max()), bool(changed[at].any())) for word, at in words if word]
        line = Text("• ")
        line.append_text(render(rated, colours))
        console.print(line, highlight=False)
