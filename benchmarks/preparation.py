"""Compares the speed of preparation with that of the tokenizer library alone, on the same lines and cores.

    python benchmarks/preparation.py --input=text.txt.xz [--vocabulary=FILE] [--model_type=unigram] [--rounds=3]

The library's encoding is a lower bound of any preparation: it gets cleaned lines in memory and its ids are discarded.
Preparation is measured as a whole command: start, read, decompress, clean, find duplicates, encode, write, checksums,
report. The two alternate; the ratio is that of the medians. Peak memory is that of the process with its workers.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from electra_jax.config import cli, errors
from electra_jax.data import readers, shards, sources, tokenizer
from electra_jax.data.config import CorpusConfig


def lines_of(text: str) -> list[str]:
    """The cleaned lines of a `data.input`."""
    units = sources.units(sources.parse(text), 2**24)
    documents = itertools.chain.from_iterable(readers.read_documents(unit, CorpusConfig()) for unit in units)
    return [line for document in documents for line in shards.clean(document, {})]


def encode(vocabulary: tokenizer.Tokenizer, lines: list[str], threads: int) -> float:
    """Seconds to encode the lines, 10,000 per call."""
    start = time.perf_counter()
    for begin in range(0, len(lines), 10_000):
        vocabulary.encode(lines[begin : begin + 10_000], threads)
    return time.perf_counter() - start


def prepare(text: str, vocabulary: Path, workers: int) -> tuple[float, float]:
    """(seconds, peak memory in megabytes) of the command."""
    output = Path(tempfile.mkdtemp()) / "out"
    command = [sys.executable, "-m", "electra_jax", "prepare", f"--input={text}", f"--output={output}"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, f"--vocabulary={vocabulary}", f"--workers={workers}"], stdout=subprocess.DEVNULL
    )
    peak = 0.0
    done = threading.Event()

    def measure_memory() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, _memory(process.pid))

    watcher = threading.Thread(target=measure_memory)
    watcher.start()
    status = process.wait()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    shutil.rmtree(output.parent)
    if status:
        raise errors.UserError("electra-jax prepare failed; see its message above")
    return seconds, peak


def _memory(pid: int) -> float:
    """Megabytes of a process and its children; pages that they share count once."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_full_info().pss for member in family) / 1e6
    except psutil.Error:
        return 0.0


def main(argv: list[str]) -> int:
    options = {"input": "", "vocabulary": "", "model_type": "unigram", "vocab_size": 30522, "rounds": 3, "floor": True}
    chosen = cli.parse(argv, __doc__ or "", options)
    if chosen is None:
        return 0
    lines = lines_of(chosen["input"])
    size = sum(len(line.encode()) for line in lines) / 1e6
    folder = Path(tempfile.mkdtemp())
    if chosen["vocabulary"]:
        vocabulary, path = tokenizer.load(Path(chosen["vocabulary"])), Path(chosen["vocabulary"])
    else:
        config = CorpusConfig(model_type=chosen["model_type"], vocab_size=chosen["vocab_size"])
        vocabulary = tokenizer.train(lines[:: 1 + int(size // 20)], config)  # about 20 MB
        tokenizer.save(vocabulary, folder)
        path = folder / vocabulary.file
    cores = os.cpu_count() or 1
    if not chosen["floor"]:
        lines = []
    floor, ours, memory = [], [], []
    for _ in range(chosen["rounds"]):
        if lines:
            floor.append(size / encode(vocabulary, lines, cores))
        seconds, peak = prepare(chosen["input"], path, cores)
        ours.append(size / seconds)
        memory.append(peak)
    print(
        json.dumps(
            {
                "text_mb": round(size, 1),
                "cores": cores,
                "library_mb_per_second": [round(x, 2) for x in floor],
                "ours_mb_per_second": [round(x, 2) for x in ours],
                "ratio_of_medians": round(statistics.median(ours) / statistics.median(floor), 3) if floor else None,
                "peak_memory_mb": round(max(memory)),
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
