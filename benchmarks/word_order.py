"""Makes a classification task from any text: are the words of a sentence in their original order?

    python benchmarks/word_order.py --input='text/*.txt.xz' --output=FOLDER [--train=2000] [--dev=1000] [--seed=0]
    electra-jax finetune --config=configs/table.py --config.task.text=sentence --init_from=runs/tiny \
        --data_dir=FOLDER

Pre-training shows early on this task: a network that knows nothing about word order is right half of the time. The
script draws sentences of 6 to 20 words from the whole text and shuffles the words of every second one. It removes
capitals and the mark at the end, which would give the order away. FOLDER gets train.tsv and dev.tsv, which have no
sentence in common.
"""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, check_value
from electra_jax.data import readers, sources
from electra_jax.runtime.io import write_whole

_OPTIONS = {"input": "", "output": "", "train": 2000, "dev": 1000, "seed": 0}
_FEWEST, _MOST = 6, 20  # words
_END = re.compile(r"(?<=[a-z][.!?])\s+(?=[A-Z])")


def sentences(pattern: str) -> Iterator[list[str]]:
    """The words of each usable sentence."""
    for unit in sources.units(sources.parse(pattern), 1 << 30):
        for document in readers.read(unit, "text", "blank_line"):
            for line in document.text.decode("utf-8", "replace").splitlines():
                for sentence in _END.split(line):
                    words = sentence.casefold().rstrip(".!?").split()
                    if _FEWEST <= len(words) <= _MOST and len({*words}) > 1:
                        yield words


def draw(candidates: Iterator[list[str]], count: int, random_: random.Random) -> list[list[str]]:
    """`count` different sentences, all equally likely (reservoir sampling).

    Raises:
      UserError: there are fewer.
    """
    kept: list[list[str]] = []
    seen: set[str] = set()
    for words in candidates:
        if (text := " ".join(words)) in seen:
            continue
        seen.add(text)
        if len(kept) < count:
            kept.append(words)
        elif (place := random_.randrange(len(seen))) < count:
            kept[place] = words
    if len(kept) < count:
        raise errors.UserError(
            f"the text has {len(kept)} usable sentences: expected {count}; add text, or lower --train and --dev"
        )
    random_.shuffle(kept)
    return kept


def shuffle(words: list[str], random_: random.Random) -> list[str]:
    """The words in a different order."""
    while (other := random_.sample(words, len(words))) == words:
        pass
    return other


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    if chosen is None:
        return 0
    cli.require(chosen, ("input", "output"))
    for name in ("train", "dev"):
        check_value(f"--{name}", chosen[name], above(0))
    random_ = random.Random(chosen["seed"])
    rows = []
    for number, words in enumerate(draw(sentences(chosen["input"]), chosen["train"] + chosen["dev"], random_)):
        sentence = shuffle(words, random_) if number % 2 else words
        rows.append(f"{' '.join(sentence)}\t{'shuffled' if number % 2 else 'written'}\n")
    output = Path(chosen["output"])
    output.mkdir(parents=True, exist_ok=True)
    for split, part in (("train", rows[: chosen["train"]]), ("dev", rows[chosen["train"] :])):
        write_whole(output / f"{split}.tsv", "sentence\tlabel\n" + "".join(part))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
