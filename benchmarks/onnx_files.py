"""What the ONNX files of a fine-tuned model lose and take: score on the dev set, size, speed on this machine.

    electra-jax export --model=FINETUNED --output=exported --onnx
    python benchmarks/onnx_files.py --model=exported --data_dir=DIR [--rounds=3] [--card]

For tasks of one class or one number per text or pair. DIR is the folder with the task's files. onnxruntime computes
single examples, with its default threads, and the first 256 in batches of 16 of similar lengths. The files take turns;
times are medians over the rounds, after a pass over the dev set. It prints a line of JSON for each file. `differs` is
the fraction of the dev set with another class than by the float32 file; for numbers it is the mean difference in
standard deviations. With --card the model card gets size, score and difference of each file, in place of what an
earlier call wrote.

Needs `'.[onnx]'`.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import extras
import numpy as np

from electra_jax.config import cli, errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value
from electra_jax.data.tokenizer import Special
from electra_jax.downstream.finetuning import kept
from electra_jax.downstream.tasks.sentences import Sentences
from electra_jax.downstream.tasks.task import BadRows, Rows
from electra_jax.loading.huggingface import directory, onnx_file
from electra_jax.runtime.io import write_whole

with extras.needed("pip install '.[onnx]'"):
    import onnxruntime

_FILES = (onnx_file.FILE, onnx_file.FLOAT16, onnx_file.INT8)
_SECTION = "## ONNX files"
_DIFFERS = {
    "classification": "the fraction of examples with another class than by `model.onnx`",
    "regression": "the mean difference from the numbers of `model.onnx`, in standard deviations",
}
_SPEEDS = ("one_ms", "per_second")  # of this machine
_ALONE, _TOGETHER, _BATCH = 32, 256, 16  # examples


def logits(
    session: onnxruntime.InferenceSession, rows: Rows, chosen: np.ndarray, size: int, special: Special
) -> Iterator[np.ndarray]:
    """The logits of the chosen rows, in batches of `size`."""
    names = [each.name for each in session.get_inputs()]
    for begin in range(0, len(chosen), size):
        numbers = chosen[begin : begin + size]
        batch = rows.make_batch(numbers, len(numbers), int(rows.lengths()[numbers].max()), special).inputs
        given = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.sequence_ids,
            "token_type_ids": batch.token_type_ids,
        }
        yield session.run(["logits"], {name: given[name].astype(np.int64) for name in names})[0]


def with_onnx_section(card: str, reports: list[dict[str, Any]], kind: str) -> str:
    """Replaces or appends the section about ONNX files of a model card, for a task of this kind."""
    names = [name for name in reports[0] if name not in _SPEEDS]
    rows = [names, ["---"] * len(names), *([report[name] for name in names] for report in reports)]
    table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    before, _, section = card.partition(f"\n{_SECTION}\n")
    after = section.partition("\n## ")
    text = f"{before.rstrip()}\n\n{_SECTION}\n\nOn the development set; `differs` is {_DIFFERS[kind]}.\n\n{table}\n"
    return text + "".join(after[1:])


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", {"model": "", "data_dir": "", "rounds": 3, "card": False})
    cli.require(chosen, ("model", "data_dir"))
    check_value("--rounds", chosen["rounds"], at_least(1))
    folder = Path(chosen["model"])
    model = kept.read(folder)
    if not all((folder / file).is_file() for file in _FILES):
        raise UserError(f"{folder} lacks ONNX files: expected {', '.join(map(str, _FILES))}; export it with --onnx")
    card = folder / directory.CARD
    if chosen["card"] and not card.is_file():
        raise UserError(f"{card} is missing: expected a model card for --card; leave --card out")
    task, special = model.task, model.tokenizer.special
    if not isinstance(task, Sentences) or task.kind not in ("classification", "regression"):
        raise UserError(f"{folder} is a model for {task.name}: expected a task of one class or one number")
    examples = task.read(chosen["data_dir"], task.dev[0], BadRows())
    rows = task.encode(examples, model.tokenizer, model.config.max_length, train=False)
    in_order = np.argsort(rows.lengths(), kind="stable")
    sessions = {file: onnxruntime.InferenceSession(folder / file) for file in _FILES}
    outputs = {  # before the times, for which this warms up
        file: np.concatenate(list(logits(session, rows, in_order, _BATCH, special)))[np.argsort(in_order)]
        for file, session in sessions.items()
    }
    seconds: dict[Path, list[tuple[float, float]]] = {file: [] for file in _FILES}
    alone, together = np.arange(min(_ALONE, len(examples))), in_order[in_order < _TOGETHER]
    for _ in range(chosen["rounds"]):
        for file, session in sessions.items():
            begin = time.perf_counter()
            list(logits(session, rows, alone, 1, special))
            between = time.perf_counter()
            list(logits(session, rows, together, _BATCH, special))
            seconds[file].append(((between - begin) / len(alone), (time.perf_counter() - between) / len(together)))
    expected, reports = outputs[onnx_file.FILE], []
    for file, found in outputs.items():
        if task.labels:
            differs = float(np.mean(found.argmax(1) != expected.argmax(1)))
            scored = found
        else:
            differs = float(np.abs(found - expected).mean() / expected.std())
            scored = (found - task.scale[0]) / task.scale[1]  # the file has the scale in its last layer
        scores = task.score(examples, task.answer({"scores": scored}, rows, examples))
        one, many = (statistics.median(column) for column in zip(*seconds[file], strict=True))
        report = {
            "file": file.name,
            "megabytes": round((folder / file).stat().st_size / 1e6, 1),
            **{name: round(score, 2) for name, score in scores.items()},
            "differs": round(differs, 4),
            "one_ms": round(1e3 * one, 2),
            "per_second": round(1 / many, 1),
        }
        print(json.dumps(report))
        reports.append(report)
    if chosen["card"]:
        write_whole(card, with_onnx_section(card.read_text(encoding="utf-8"), reports, task.kind))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
