"""Preparation of a text against the tokenizer library's own encoding of the same lines, on the same cores.

    python benchmarks/preparation.py --input=text.txt.xz [--vocabulary=FILE] [--model_type=unigram] [--rounds=3]

The library's encoding is the floor that any preparation has: here it finds its lines in memory, cleaned, and its ids
are thrown away. Ours is the whole command as a process of its own: start, read, decompress, clean, find duplicates,
encode, write, checksums, report. The two take turns; the numbers are medians. Peak memory is that of the process and
its workers together.
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
from ml_collections import ConfigDict

from electra_jax.config import cli, errors
from electra_jax.data import cleaning, readers, sources, tokenizer


def lines_of(text: str) -> list[str]:
    """The cleaned lines."""
    units = sources.units(sources.parse(text), 2**24)
    documents = itertools.chain.from_iterable(readers.read(unit, "text", "blank_line") for unit in units)
    return [line for document in documents for line in cleaning.lines(document.text, document.place, {})]


def encode(vocabulary: tokenizer.Tokenizer, lines: list[str], threads: int) -> float:
    """Seconds, 10,000 lines a call."""
    start = time.perf_counter()
    for begin in range(0, len(lines), 10_000):
        vocabulary.encode(lines[begin : begin + 10_000], threads)
    return time.perf_counter() - start


def prepare(text: str, vocabulary: Path, workers: int) -> tuple[float, float]:
    """(seconds, peak megabytes) of the command."""
    output = Path(tempfile.mkdtemp()) / "out"
    command = [sys.executable, "-m", "electra_jax", "prepare", f"--input={text}", f"--output={output}"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, f"--vocabulary={vocabulary}", f"--workers={workers}"], stdout=subprocess.DEVNULL
    )
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, _memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    shutil.rmtree(output.parent)
    if status:
        raise errors.UserError("the preparation failed")
    return seconds, peak


def _memory(pid: int) -> float:
    """Megabytes that a process and its children have for themselves, shared pages counted once among them."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(each.memory_full_info().pss for each in family) / 1e6
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
        settings = {"model_type": chosen["model_type"], "vocab_size": chosen["vocab_size"]}
        every = 1 + int(size // 20)
        vocabulary = tokenizer.train(lines[::every], ConfigDict(settings))
        tokenizer.keep(vocabulary, folder)
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
