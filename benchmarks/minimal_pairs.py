"""Makes minimal pairs from the held-out text of a prepared corpus of English, to be scored without fine-tuning.

    python benchmarks/minimal_pairs.py --input=PREPARED --output=FOLDER [--pairs=600] [--seed=0]
    electra-jax score --model=runs/tiny --input=FOLDER

Samples sentences of 8 to 25 words, in which one word is changed, or two words that follow each other are exchanged:
  agreement.tsv   is and are, was and were, has and have, does and do
  determiner.tsv  a and an, this and these
  order.tsv       two words in lower case
A few changed sentences are right too. A model that knows nothing scores 50.
"""

import itertools
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from electra_jax.config import cli, errors, settings
from electra_jax.data import corpus
from electra_jax.runtime.io import write_whole

_OPTIONS = {"input": "", "output": "", "pairs": 600, "seed": 0}
_FEWEST, _MOST = 8, 25
_LINES = 50_000
_END = re.compile(r"(?<=[a-z]{2}[.!?])\s+")  # held-out lines may be in lower case, as the vocabulary is
_SWAPS = {
    "agreement": (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")),
    "determiner": (("a", "an"), ("this", "these")),
}
_KINDS = (*_SWAPS, "order")
_WORD = re.compile(r"[a-z]{2,}")


def sentences(prepared: Path) -> list[str]:
    """The distinct held-out sentences of a usable length."""
    text = corpus.load(prepared)
    lines = corpus.heldout_lines(prepared, text.tokenizer, _LINES)
    found = (sentence.strip() for line in lines for sentence in _END.split(line))
    return list(dict.fromkeys(each for each in found if _FEWEST <= len(each.split()) <= _MOST))


def changed(words: list[str], kind: str, random_: random.Random) -> list[str] | None:
    """The words with one of them changed, or two exchanged; None where there is no place for it, or several."""
    if kind == "order":
        places = [
            i
            for i, pair in enumerate(itertools.pairwise(words))
            if all(map(_WORD.fullmatch, pair)) and pair[0] != pair[1]
        ]
        if not places:
            return None
        i = random_.choice(places)
        return [*words[:i], words[i + 1], words[i], *words[i + 2 :]]
    other = {a: b for pair in _SWAPS[kind] for a, b in (pair, pair[::-1])}
    places = [i for i, word in enumerate(words) if word in other]
    if len(places) != 1:
        return None
    return [*words[: places[0]], other[words[places[0]]], *words[places[0] + 1 :]]


def pairs(sentences: list[str], kind: str, random_: random.Random) -> Iterator[tuple[str, str]]:
    """Good and bad sentences of a kind, each good one once, in random order."""
    for sentence in random_.sample(sentences, len(sentences)):
        words = sentence.split()
        bad = changed(words, kind, random_)
        if bad is not None:
            yield " ".join(words), " ".join(bad)


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("input", "output"))
    settings.check_value("--pairs", chosen["pairs"], settings.above(0))
    if not corpus.is_prepared(Path(chosen["input"])):
        raise errors.UserError(f"--input={chosen['input']} is no prepared corpus; make one with electra-jax prepare")
    found, output = sentences(Path(chosen["input"])), Path(chosen["output"])
    output.mkdir(parents=True, exist_ok=True)
    for kind in _KINDS:
        made = [*zip(range(chosen["pairs"]), pairs(found, kind, random.Random(chosen["seed"])), strict=False)]
        if len(made) < chosen["pairs"]:
            raise errors.UserError(
                f"{chosen['input']} gives {len(made)} pairs of {kind}: expected {chosen['pairs']}; lower --pairs, or "
                "prepare more text"
            )
        rows = "".join(f"{good}\t{bad}\n" for _, (good, bad) in made)
        write_whole(output / f"{kind}.tsv", "sentence_good\tsentence_bad\n" + rows)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
