"""What a pre-trained encoder can do as it is: fill masks, and prefer right sentences to wrong ones."""

import csv
import random
from pathlib import Path

import minimal_pairs
import numpy as np

import electra_jax
from electra_jax.config.errors import UserError
from electra_jax.loading.model import SCORES

_FILLED = 2000  # sentences, in each of which a word is filled


def measure(model: electra_jax.Model, text: Path, pairs: Path) -> dict[str, float]:
    """Returns percentages: `fill`, and the accuracy on each kind of minimal pairs by each way to score it.

    Args:
      model: the networks of a run.
      text: its prepared corpus.
      pairs: the folder that benchmarks/minimal_pairs.py wrote.
    """
    found = {"fill": _fill(model, minimal_pairs.sentences(text))}
    for path in sorted(pairs.glob("*.tsv")):
        with path.open(encoding="utf-8", newline="") as file:
            good, bad = zip(*csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), strict=True)
        for way in SCORES:
            try:
                higher = model.score(good[1:], by=way) > model.score(bad[1:], by=way)
            except UserError:  # the model has no such head
                continue
            found[f"{path.stem} by {way}"] = round(100 * float(np.mean(higher)), 2)
    return found


def _fill(model: electra_jax.Model, sentences: list[str]) -> float:
    """The accuracy at a masked word of a held-out sentence, for words of one piece."""
    random_, texts, words = random.Random(0), list[str](), list[str]()
    for sentence in random_.sample(sentences, len(sentences)):
        if len(texts) == _FILLED:
            break
        written = sentence.split()
        usable = [i for i, word in enumerate(written) if word.isalpha() and word.islower()]
        usable = [i for i in usable if len(model.tokenizer.encode([written[i]])[0]) == 1]
        if usable:
            place = random_.choice(usable)
            words.append(written[place])
            texts.append(" ".join([*written[:place], "[MASK]", *written[place + 1 :]]))
    right = [first[0].token == word for (first,), word in zip(model.fill(texts, top=1), words, strict=True)]
    return round(100 * float(np.mean(right)), 2)
