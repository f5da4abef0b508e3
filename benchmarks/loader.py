"""Tokens a second that the loader gives, of a prepared text.

    python benchmarks/loader.py --input=DIR [--rounds=5] [--batch_size=256]

One process on one core, and one thread of Grain's, as in training. Tokens are positions of the batches. The numbers are
medians over rounds of a hundred batches; `plan` is the time to lay out all examples, once, at the start of a run.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

from electra_jax.config import cli, errors
from electra_jax.data import corpus, examples, loader

_BATCHES = 100


def main(argv: list[str]) -> int:
    options = {"input": "", "rounds": 5, "batch_size": 256}
    chosen = cli.parse(argv, __doc__ or "", options)
    if chosen is None:
        return 0
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    text = corpus.load(Path(chosen["input"]))
    for mode in examples.MODES:
        for length in (128, 512):
            begin = time.perf_counter()
            made = examples.MODES[mode](text.train, length, 0, text.tokenizer.special)
            plan = time.perf_counter() - begin
            batches = loader.training_batches([(made, 10**9)], chosen["batch_size"], 0, text.weights)
            for _ in range(20):  # what was made ahead
                next(batches)
            speeds = []
            for _ in range(chosen["rounds"]):
                begin = time.perf_counter()
                for _ in range(_BATCHES):
                    next(batches)
                speeds.append(_BATCHES * chosen["batch_size"] * length / (time.perf_counter() - begin))
            found = {
                "mode": mode,
                "length": length,
                "examples": len(made),
                "plan_seconds": round(plan, 3),
                "million_tokens_per_second": round(statistics.median(speeds) / 1e6, 2),
            }
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
