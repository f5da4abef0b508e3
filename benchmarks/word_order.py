"""Makes a task from any text on which pre-training shows early: were the words of a sentence shuffled?

    python benchmarks/word_order.py --input='text/*.txt.xz' --output=FOLDER [--train=2000] [--dev=1000] [--seed=0]
    electra-jax finetune --config=table --config.task.text=sentence --init_from=runs/tiny --data_dir=FOLDER

Samples sentences of 6 to 20 words from the whole text and shuffles the words of every second one. Capitals and final
punctuation, which would give the order away, are removed. FOLDER gets train.tsv and dev.tsv, which have no sentence in
common. A network that knows nothing of word order has an accuracy of about one half.
"""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from electra_jax.config import cli, errors, settings
from electra_jax.data import readers, sources
from electra_jax.data.config import CorpusConfig
from electra_jax.runtime.io import write_whole

_OPTIONS = {"input": "", "output": "", "train": 2000, "dev": 1000, "seed": 0}
_FEWEST, _MOST = 6, 20
_END = re.compile(r"(?<=[a-z][.!?])\s+(?=[A-Z])")


def sentences(pattern: str) -> Iterator[list[str]]:
    """The words of each sentence of a usable length."""
    for unit in sources.units(sources.parse(pattern), 1 << 30):
        for document in readers.read_documents(unit, CorpusConfig()):
            for line in document.text.decode("utf-8", "replace").splitlines():
                for sentence in _END.split(line):
                    words = sentence.casefold().rstrip(".!?").split()
                    if _FEWEST <= len(words) <= _MOST and len({*words}) > 1:
                        yield words


def sample(sentences: Iterator[list[str]], count: int, random_: random.Random) -> list[list[str]]:
    """A uniform sample of `count` distinct sentences (reservoir sampling).

    Raises:
      UserError: there are fewer sentences.
    """
    kept: list[list[str]] = []
    seen: set[str] = set()
    for words in sentences:
        if (text := " ".join(words)) in seen:
            continue
        seen.add(text)
        if len(kept) < count:
            kept.append(words)
        elif (place := random_.randrange(len(seen))) < count:
            kept[place] = words
    if len(kept) < count:
        raise errors.UserError(
            f"the text has {len(kept)} usable sentences: expected {count}; give more text, or lower --train and --dev"
        )
    random_.shuffle(kept)
    return kept


def shuffled(words: list[str], random_: random.Random) -> list[str]:
    """The words in a different random order."""
    while (other := random_.sample(words, len(words))) == words:
        pass
    return other


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("input", "output"))
    for name in ("train", "dev"):
        settings.check_value(f"--{name}", chosen[name], settings.above(0))
    random_ = random.Random(chosen["seed"])
    rows = []
    for number, words in enumerate(sample(sentences(chosen["input"]), chosen["train"] + chosen["dev"], random_)):
        ordered = shuffled(words, random_) if number % 2 else words
        rows.append(f"{' '.join(ordered)}\t{'shuffled' if number % 2 else 'written'}\n")
    output = Path(chosen["output"])
    output.mkdir(parents=True, exist_ok=True)
    for split, part in (("train", rows[: chosen["train"]]), ("dev", rows[chosen["train"] :])):
        write_whole(output / f"{split}.tsv", "sentence\tlabel\n" + "".join(part))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
