"""How fast `electra_jax.load(DIR).encode` is beside sentence-transformers with the same export, on the same texts.

    electra-jax export --workdir=runs/mine --output=exported --sentence_transformers
    python benchmarks/inference.py --model=exported/encoder --texts=FILE [--count=600] [--rounds=5]

The texts are the first lines of FILE. Both libraries encode each of the first ten texts alone, and all texts in one
call, by turns in one process; a round is of both. Before the rounds each has done all of it once, in which ours
compiles. It prints a line of JSON: milliseconds for one text, texts a second, medians over the rounds and the median
ratio of sentence-transformers' time to ours, the seconds of the first calls, and the largest difference of the vectors.

Needs `'.[parity]'`.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentence_transformers

import electra_jax
from electra_jax.config import cli, errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value

_ALONE = 10  # texts

Encode = Callable[..., Any]


def seconds_of(encode: Encode, texts: Sequence[str]) -> tuple[float, float]:
    """(seconds of a text alone, seconds of all texts in one call)."""
    begin = time.perf_counter()
    for text in texts[:_ALONE]:
        encode(text)
    between = time.perf_counter()
    encode(list(texts))
    return (between - begin) / _ALONE, time.perf_counter() - between


def compare(model_dir: str, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    here = electra_jax.load(model_dir).encode
    there = sentence_transformers.SentenceTransformer(model_dir, device="cpu").encode
    first = [seconds_of(encode, texts) for encode in (here, there)]
    difference = np.abs(here(list(texts)) - there(list(texts))).max()
    times = np.array([[seconds_of(encode, texts) for encode in (here, there)] for _ in range(rounds)])
    alone, together = times[:, :, 0], times[:, :, 1]  # [rounds, ours and theirs]
    return {
        "texts": len(texts),
        "one_text_ms": [round(1e3 * statistics.median(column), 2) for column in alone.T],
        "one_text_ratio": round(statistics.median(alone[:, 1] / alone[:, 0]), 2),
        "texts_per_second": [round(len(texts) / statistics.median(column), 1) for column in together.T],
        "ratio": round(statistics.median(together[:, 1] / together[:, 0]), 2),
        "first_seconds": [round(_ALONE * one + every, 1) for one, every in first],
        "largest_difference": float(difference),
    }


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", {"model": "", "texts": "", "count": 600, "rounds": 5})
    cli.require(chosen, ("model", "texts"))
    check_value("--count", chosen["count"], at_least(_ALONE))
    check_value("--rounds", chosen["rounds"], at_least(1))
    with open(chosen["texts"], encoding="utf-8") as file:
        lines = (line.strip() for line in file)
        texts = list(itertools.islice(filter(None, lines), chosen["count"]))
    if len(texts) < _ALONE:
        raise UserError(f"--texts={chosen['texts']} has {len(texts)} lines: expected {_ALONE} or more")
    print(json.dumps(compare(chosen["model"], texts, chosen["rounds"])))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
