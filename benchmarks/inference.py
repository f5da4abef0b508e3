"""How fast `electra_jax.load(DIR).encode` is beside sentence-transformers with the same export, on the same texts.

    electra-jax export --workdir=runs/mine --output=exported --sentence_transformers
    python benchmarks/inference.py --model=exported/encoder --texts=FILE [--count=600] [--rounds=5]

The texts are the first lines of FILE. Both libraries encode each of the first ten texts alone, and all texts in one
call, by turns in one process on the CPU; a round is of both. Before the rounds each has done all of it once, in which
ours compiles. It prints a line of JSON: milliseconds for one text, texts a second, medians over the rounds and the
median ratio of sentence-transformers' time to ours, the seconds of the first calls, and the largest difference of the
vectors.

Needs `'.[parity]'`.
"""

import json
import statistics
import sys
from typing import Any

import extras
import jax
import numpy as np
from serving import ALONE, read_texts, seconds_of

import electra_jax
from electra_jax.config import cli, errors
from electra_jax.config.settings import at_least, check_value

with extras.needed("pip install '.[parity]'"):
    import sentence_transformers


def compare(model_dir: str, texts: list[str], rounds: int) -> dict[str, Any]:
    jax.config.update("jax_platforms", "cpu")
    here = electra_jax.load(model_dir).encode
    there = sentence_transformers.SentenceTransformer(model_dir, device="cpu").encode
    first = [seconds_of(encode, texts) for encode in (here, there)]
    difference = np.abs(here(texts) - there(texts)).max()
    times = np.array([[seconds_of(encode, texts) for encode in (here, there)] for _ in range(rounds)])
    alone, together = times[:, :, 0], times[:, :, 1]  # [rounds, ours and theirs]
    return {
        "texts": len(texts),
        "one_text_ms": [round(1e3 * statistics.median(column), 2) for column in alone.T],
        "one_text_ratio": round(statistics.median(alone[:, 1] / alone[:, 0]), 2),
        "texts_per_second": [round(len(texts) / statistics.median(column), 1) for column in together.T],
        "ratio": round(statistics.median(together[:, 1] / together[:, 0]), 2),
        "first_seconds": [round(ALONE * one + every, 1) for one, every in first],
        "largest_difference": float(difference),
    }


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", {"model": "", "texts": "", "count": 600, "rounds": 5})
    cli.require(chosen, ("model", "texts"))
    check_value("--rounds", chosen["rounds"], at_least(1))
    texts = read_texts(chosen["texts"], chosen["count"])
    print(json.dumps(compare(chosen["model"], texts, chosen["rounds"])))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
