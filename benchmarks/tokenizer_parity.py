"""Counts the lines of a text whose ids from `AutoTokenizer` differ from those of the vocabulary that was exported.

    python benchmarks/tokenizer_parity.py --text=FILE [--vocab_size=30522] [--sample_mb=20]

FILE is plain text or .xz. A SentencePiece unigram, a BPE and a WordPiece vocabulary are trained on its first megabytes,
written as `export` writes them, and compared on every line and on every pair of adjacent lines, special tokens and
segments included. Needs transformers (`'.[parity]'`), but not PyTorch.
"""

import itertools
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers
from ml_collections import ConfigDict
from transformers import AutoTokenizer

from electra_jax.config import cli, errors
from electra_jax.data import tokenizer
from electra_jax.loading.huggingface import tokenizer_files

_AT_ONCE = 10_000  # lines


def vocabularies(sample: Sequence[str], size: int) -> Iterator[tuple[str, tokenizer.Tokenizer]]:
    for kind in tokenizer.MODEL_TYPES:
        settings = {"model_type": kind, "vocab_size": size}
        yield kind, tokenizer.train(sample, ConfigDict(settings))
    pieces = tokenizers.BertWordPieceTokenizer()
    pieces.train_from_iterator(sample, vocab_size=size, show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        pieces.save_model(folder)
        yield "WordPiece", tokenizer.load(Path(folder) / "vocab.txt")


def compare(ours: tokenizer.Tokenizer, lines: Sequence[str]) -> dict[str, int | float]:
    """How many lines, and how many pairs of adjacent lines, get different ids from `AutoTokenizer`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer_files.files(ours, 10**9, True).items():
            (Path(folder) / name).write_bytes(content)
        (Path(folder) / "config.json").write_text('{"model_type": "electra"}')
        theirs = AutoTokenizer.from_pretrained(folder)
    cls, sep = ours.special.cls, ours.special.sep
    differing = pairs = 0
    seconds = {"here": 0.0, "there": 0.0}
    last: list[tuple[str, list[int]]] = []
    for begin in range(0, len(lines), _AT_ONCE):
        some = lines[begin : begin + _AT_ONCE]
        started = time.perf_counter()
        ids = ours.encode(some, threads=2)
        seconds["here"] += time.perf_counter() - started
        started = time.perf_counter()
        found = theirs(some)["input_ids"]
        seconds["there"] += time.perf_counter() - started
        differing += sum([cls, *line, sep] != other for line, other in zip(ids, found, strict=True))

        both = [*last, *zip(some, ids, strict=True)]
        paired = theirs(
            *(list(part) for part in zip(*((a, b) for (a, _), (b, _) in itertools.pairwise(both)), strict=True))
        )
        for (_, a), (_, b), other, types in zip(
            both, both[1:], paired["input_ids"], paired["token_type_ids"], strict=False
        ):
            expected = [cls, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)
            pairs += expected != (other, types)
        last = both[-1:]
    rounded = {f"seconds_{where}": round(value, 1) for where, value in seconds.items()}
    return {"lines": len(lines), "lines_differing": differing, "pairs_differing": pairs, **rounded}


def main(argv: list[str]) -> int:
    options = {"text": "", "vocab_size": 30522, "sample_mb": 20}
    chosen = cli.parse(argv, __doc__ or "", options)
    if chosen is None:
        return 0
    path = Path(chosen["text"])
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    sizes = itertools.accumulate(len(line) for line in lines)
    sample = [line for line, size in zip(lines, sizes, strict=True) if line and size < chosen["sample_mb"] * 1e6]
    for kind, ours in vocabularies(sample, chosen["vocab_size"]):
        print(json.dumps({"kind": kind, "pieces": len(ours), **compare(ours, lines)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
