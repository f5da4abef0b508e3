"""Compares the speed of preparation with that of the tokenizer library alone, on the same lines and cores.

    python benchmarks/preparation.py --input='text/*.xz' [--vocabulary=FILE] [--model_type=unigram] [--rounds=3]
                                     [--vocab_size=30522] [--workers=1,2]

The library's encoding is a lower bound of any preparation: it gets cleaned lines in memory and its ids are discarded.
Preparation is measured as a whole command: start, read, decompress, clean, find duplicates, encode, write, checksums,
report. The two alternate, for each number of workers in turn; ratios are those of medians, and all numbers but those of
`by_workers` are of the last number in --workers, by default the cores. Peak memory is that of the process with its
workers. On a machine that others use too, the ratio of the processors' time is the better one.

Then the processor time of each stage is measured on one core, and from it follows, without any measurement, how fast
machines with more cores would be: `forecast` says how. The ratios there leave out the start, which a large text hides.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extras

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, check_value
from electra_jax.data import local_runner, readers, reading_ahead, shards, sources, tokenizer, vocabulary_training
from electra_jax.data.config import CorpusConfig
from electra_jax.data.duplicates import SeenDocuments

with extras.needed("pip install '.[benchmarks]'"):
    import psutil

_OPTIONS: dict[str, Any] = {
    "input": "",
    "vocabulary": "",
    "model_type": "unigram",
    "vocab_size": 30522,
    "rounds": 3,
    "workers": (),
}


def lines_of(text: str) -> list[str]:
    """The cleaned lines of a `data.input`."""
    units = sources.units(sources.parse(text), 2**24)
    documents = itertools.chain.from_iterable(readers.read_documents(unit, CorpusConfig()) for unit in units)
    return [line for document in documents for line in shards.clean(document, {})]


def encode(vocabulary: tokenizer.Tokenizer, lines: list[str], threads: int) -> tuple[float, float]:
    """(seconds, those of all processors) to encode the lines, 10,000 per call."""
    start, processors = time.perf_counter(), time.process_time()
    for begin in range(0, len(lines), 10_000):
        vocabulary.encode(lines[begin : begin + 10_000], threads)
    return time.perf_counter() - start, time.process_time() - processors


def prepare(text: str, vocabulary: Path, workers: int) -> tuple[float, float, float]:
    """(seconds, those of all processors, peak memory in megabytes) of the command with its processes."""
    peak, done = 0.0, threading.Event()

    def measure_memory() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, _memory(process.pid))

    watcher = threading.Thread(target=measure_memory)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "electra_jax", "prepare", f"--input={text}", f"--output={folder}/out"]
        start, processors = time.perf_counter(), _processor_time_of_children()
        with subprocess.Popen(
            [*command, f"--vocabulary={vocabulary}", f"--workers={workers}"], stdout=subprocess.DEVNULL
        ) as process:
            watcher.start()
            try:
                status = process.wait()
            finally:  # an interrupt too: Python does not end before its threads
                done.set()
        seconds = time.perf_counter() - start
        watcher.join()
    if status:
        raise errors.UserError("electra-jax prepare failed; see its message above")
    return seconds, _processor_time_of_children() - processors, peak


def _processor_time_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _memory(pid: int) -> float:
    """Megabytes of a process and its children; pages that they share count once."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return float(sum(member.memory_full_info().pss for member in family)) / 1e6
    except psutil.Error:
        return 0.0


def stage_times(text: str, vocabulary: tokenizer.Tokenizer, chunks: int = 3) -> dict[str, float]:
    """Processor seconds of each stage for a megabyte of text, on one core, of the first chunks of each of a few units.

    The stages: `read` a chunk (decompress, divide, hash), `leave` it in a file, `decide` about duplicates, `take` it
    from the file, `write` its shard; `encode` is the part of `write` that the library's encoding of the lines takes.
    """
    config, seen = CorpusConfig(), SeenDocuments(0)
    seconds = dict.fromkeys(("read", "leave", "decide", "take", "write", "encode"), 0.0)
    size = 0

    def measure(stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = call(*arguments)
        seconds[stage] += time.process_time() - start
        return result

    def decide(path: Path) -> Any:
        return seen.find_duplicates(reading_ahead.read_fingerprints(path))

    units = list(sources.units(sources.parse(text), config.shard_bytes))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, unit in enumerate(units[:: 1 + len(units) // 3]):
            reader = shards.read_chunks(number, unit, config, config.shard_bytes)
            for _ in range(chunks):
                if (chunk := measure("read", next, reader, None)) is None:
                    break
                size += sum(len(document.text) for document in chunk.documents)
                path = measure("leave", reading_ahead.leave, folder, chunk, 0.0)
                found = measure("decide", decide, path)
                chunk = measure("take", reading_ahead.take, path).without(found)
                measure("write", shards.write_shard, folder, chunk, vocabulary, config.heldout_fraction)
                lines = [line for document in chunk.documents for line in shards.clean(document, {})]
                measure("encode", encode, vocabulary, lines, 1)
    return {stage: each / size * 1e6 for stage, each in seconds.items()}


def forecast(stages: dict[str, float], cores: int) -> float:
    """The share of the library's speed, on all cores, that a preparation of many files reaches according to its stages.

    The cores do all work of all stages; the readers, as many as `LocalRunner` starts, must keep up, and so must the one
    process that decides about duplicates. The slowest of these three is the speed.
    """
    work = sum(stages[stage] for stage in ("read", "leave", "decide", "take", "write"))
    speeds = (
        cores / work,
        local_runner.count_readers(cores, CorpusConfig()) / (stages["read"] + stages["leave"]),
        1 / stages["decide"],
    )
    return min(speeds) * stages["encode"] / cores


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("input",))
    cores = len(os.sched_getaffinity(0))
    numbers = [cli.convert("--workers", text, 1) for text in chosen["workers"]] or [cores]
    for name, value in (("rounds", chosen["rounds"]), *(("workers", number) for number in numbers)):
        check_value(f"--{name}", value, above(0))
    lines = lines_of(chosen["input"])
    size = sum(len(line.encode()) for line in lines) / 1e6
    measured: dict[int, list[tuple[float, ...]]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory() as folder:
        if chosen["vocabulary"]:
            vocabulary, path = tokenizer.load(Path(chosen["vocabulary"])), Path(chosen["vocabulary"])
        else:
            config = CorpusConfig(model_type=chosen["model_type"], vocab_size=chosen["vocab_size"])
            vocabulary = vocabulary_training.train(lines[:: 1 + int(size // 20)], config)  # about 20 MB
            tokenizer.save(vocabulary, Path(folder))
            path = Path(folder) / vocabulary.file
        for _ in range(chosen["rounds"]):
            for number in numbers:
                both = *encode(vocabulary, lines, number), *prepare(chosen["input"], path, number)
                measured[number].append(both)
    print(json.dumps(report(measured, size, cores, stage_times(chosen["input"], vocabulary)), indent=1))
    return 0


def report(
    measured: dict[int, list[tuple[float, ...]]], size: float, cores: int, stages: dict[str, float]
) -> dict[str, Any]:
    """The numbers that are printed.

    Args:
      measured: by the number of workers what each round measured: the two numbers of `encode`, the three of `prepare`.
      size: megabytes of text.
      cores: what this process may use.
      stages: from `stage_times`.
    """
    by_workers = {}
    for number, rounds in measured.items():
        library, library_time, ours, our_time, memory = zip(*rounds, strict=True)
        speeds = [[size / seconds for seconds in each] for each in (library, ours)]
        medians = [statistics.median(each) for each in speeds]
        by_workers[number] = {
            "library": medians[0],
            "ours": medians[1],
            "ratio": round(medians[1] / medians[0], 3),
        }
    # Those of the last number of workers.
    return {
        "text_mb": round(size, 1),
        "cores": cores,
        "library_mb_per_second": [round(x, 2) for x in speeds[0]],
        "ours_mb_per_second": [round(x, 2) for x in speeds[1]],
        "ratio_of_medians": by_workers[number]["ratio"],
        "ratio_of_processor_time": round(statistics.median(library_time) / statistics.median(our_time), 3),
        "peak_memory_mb": round(max(memory)),
        "by_workers": by_workers,
        "milliseconds_per_mb": {stage: round(1000 * each, 2) for stage, each in stages.items()},
        "forecast_ratio_by_cores": {n: round(forecast(stages, n), 3) for n in (1, 2, 4, 8, 16, 64)},
    }


if __name__ == "__main__":
    sys.exit(errors.run(main))
