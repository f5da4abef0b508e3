"""Marks the words that seem to be replaced.

A word is coloured by how replaced the discriminator thinks it is. Training ends with the same view.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.text import Text

from electra_jax.data.records import Split
from electra_jax.data.tokenizer import Special, Tokenizer
from electra_jax.modeling import electra as networks
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.subnetwork import Network
from electra_jax.objectives.spec import Objective

Array = jax.Array
Row = tuple[np.ndarray, np.ndarray | None, np.ndarray]  # ids, which were replaced if that is known, probabilities
_SHADES = ((0.5, "bold white on red3"), (0.3, "black on orange1"), (0.15, "black on light_goldenrod1"))
_SENTENCE_TOKENS = (12, 40)  # a sentence that fits a line or two
_WINDOW = 512  # positions, at most; a longer text is read in several
_MULTIPLE = 32  # of the length that is compiled for
_AT_ONCE = 32  # rows


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


def detect(network: Network, tokenizer: Tokenizer, texts: Iterable[str]) -> list[Row]:
    """A row for each text, more for one that is longer than the network reads at once.

    Args:
      network: with a discriminator head.
      tokenizer: of the network.
      texts: as they are.
    """
    special, window = tokenizer.special, min(network.config.max_length, _WINDOW) - 2
    ids = tokenizer.encode([" ".join(text.split()) for text in texts])
    rows = [row[begin : begin + window] for row in ids for begin in range(0, len(row), window)]
    if not rows:
        return []
    longest = max(map(len, rows)) + 2
    length = min(_MULTIPLE * -(-longest // _MULTIPLE), window + 2)

    @jax.jit
    def score(params: Any, batch: Batch) -> Array:
        states_BLD = networks.encode(network.model, params, batch)
        return jax.nn.sigmoid(networks.discriminator_logits(network.model, params, states_BLD))

    result: list[Row] = []
    for begin in range(0, len(rows), _AT_ONCE):
        some: list[list[int]] = rows[begin : begin + _AT_ONCE]
        fill: list[list[int]] = [[]] * (min(len(rows), _AT_ONCE) - len(some))  # one shape, one compilation
        batch = framed([*some, *fill], length, special)
        probabilities = np.asarray(score(network.params, batch))
        scored = zip(batch.input_ids, probabilities, strict=True)
        result += [(row, None, found) for row, found in list(scored)[: len(some)]]
    return result


def sentences(split: Split, count: int, length: int, seed: int, special: Special) -> Batch:
    """A batch of `count` lines of `split` that read as sentences, or of all where there are fewer: [count, length]."""
    shortest, longest = _SENTENCE_TOKENS
    sizes = np.diff(split.lines)
    fitting = np.flatnonzero((sizes >= shortest) & (sizes <= min(longest, length - 2)))
    chosen = np.random.default_rng(seed).permutation(fitting)[:count]
    return framed([split.tokens.take(split.lines[[line]], sizes[[line]]) for line in chosen], length, special)


def framed(rows: Sequence[Sequence[int] | np.ndarray], length: int, special: Special) -> Batch:
    """A batch of single segments, each between CLS and SEP, padded to `length`."""
    ids = np.full((len(rows), length), special.pad, np.int32)
    used = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens) + 2] = [special.cls, *tokens, special.sep]
        used[row, : len(tokens) + 2] = 1
    return Batch(ids, np.zeros_like(ids), used)


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


def show(console: Console, tokenizer: Tokenizer, rows: Iterable[Row]) -> None:
    """Prints rows. A word is as suspect as its most suspect piece."""
    rows = list(rows)
    colours = console.color_system is not None and console.is_terminal and not console.no_color
    bounds = "over 15%, 30%, 50%"
    suspected = f"shaded: suspected by the discriminator ({bounds})"
    replaced = "underlined: replaced by the generator"
    if not colours:
        suspected = "[n%]: suspected by the discriminator with that probability"
        replaced = "*starred*: replaced by the generator"
    known = any(changed is not None for _, changed, _ in rows)
    legend = f"{replaced} · {suspected}" if known else suspected
    console.print(legend, style="dim", markup=False, highlight=False)
    for ids, changed, probability in rows:
        words = tokenizer.words(ids.tolist())
        rated = [
            (word, float(probability[at].max()), changed is not None and bool(changed[at].any()))
            for word, at in words
            if word
        ]
        line = Text("• ")
        line.append_text(render(rated, colours))
        console.print(line, highlight=False)
