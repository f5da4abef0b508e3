"""Measures the loader: tokens per second from a prepared corpus.

    python benchmarks/loader.py --input=DIR [--rounds=5] [--batch_size=256]

One process on one core with one thread of Grain, as in training. Tokens are positions in batches. The numbers are
medians over rounds of a hundred batches; `plan_seconds` is the time to plan all examples, once at the start of a run.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, check_value
from electra_jax.data import batches, corpus

_BATCHES = 100


def main(argv: list[str]) -> int:
    options = {"input": "", "rounds": 5, "batch_size": 256}
    chosen = cli.parse(argv, __doc__ or "", options)
    cli.require(chosen, ("input",))
    for name in ("rounds", "batch_size"):
        check_value(f"--{name}", chosen[name], above(0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    text = corpus.load(Path(chosen["input"]))
    for mode, make_examples in batches.MODES.items():
        for length in (128, 512):
            begin = time.perf_counter()
            examples = make_examples(text.train, length, 0, text.tokenizer.special)
            plan = time.perf_counter() - begin
            iterator = batches.training_batches(
                [batches.BatchPhase(examples, chosen["batch_size"], 10**9, text.weights)], 0
            )
            for _ in range(20):  # skips the batches that were made ahead
                next(iterator)
            speeds = []
            for _ in range(chosen["rounds"]):
                begin = time.perf_counter()
                for _ in range(_BATCHES):
                    next(iterator)
                speeds.append(_BATCHES * chosen["batch_size"] * length / (time.perf_counter() - begin))
            measured = {
                "mode": mode,
                "length": length,
                "examples": len(examples),
                "plan_seconds": round(plan, 3),
                "million_tokens_per_second": round(statistics.median(speeds) / 1e6, 2),
            }
            print(json.dumps(measured), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
