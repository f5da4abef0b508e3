"""`electra-jax predict`: predicts the rows of a file with a fine-tuned model."""

import contextlib
import io
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from electra_jax import models
from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, check_value
from electra_jax.downstream import predictions
from electra_jax.downstream.finetuned_model import FinetunedModel
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.task import BadRows, Task
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.progress import LINE_EVERY, ConsoleProgress, Progress

USAGE = """\
usage: electra-jax predict --model=DIR --input=FILE [--output=FILE] [--text=COLUMN] [--pair=COLUMN] [--batch_size=16]

Predicts a label or several, a number, an answer or tags for every row of a file, in its order, however long it is.

  --model=DIR      what electra-jax finetune wrote: its work directory, or one of the models in it
  --input=FILE     .tsv, .csv or .jsonl with named columns; or .txt, a text in each line, two separated by a tab where
                   the model reads pairs, a question and its context; or -, standard input, which is read as .txt
  --output=FILE    .jsonl, or but for tags .tsv (default -: JSON lines on standard output)
  --text=COLUMN    the column of the text (default: as in the training set; question)
  --pair=COLUMN    the column of the second text (default: likewise; context)
  --batch_size=16  rows that are computed at once

Each output has the line of its row. A row that cannot be used is reported on standard error and has no output."""

_STANDARD = "-"
# Batches that are read at a time, so that rows of similar length share a batch.
_CHUNK = 64
_OPTIONS = {"model": "", "input": "", "output": _STANDARD, "text": "", "pair": "", "batch_size": 16}


class Row(NamedTuple):
    """The texts of a row, and its line number in the file."""

    line: int
    texts: tuple[str, ...]


class ReportedRows(BadRows):
    """Collector of unusable rows: reports each one immediately and skips it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(strict=False)
        self._progress, self.count = progress, 0

    def add(self, place: str, problem: str) -> None:
        self._progress.say(f"{place}: {problem}")
        self.count += 1


def main(argv: list[str]) -> int:
    options = cli.parse(argv, USAGE, _OPTIONS)
    cli.require(options, ("model", "input"), "try --model=runs/mrpc --input=pairs.tsv, or --help")
    check_value("--batch_size", options["batch_size"], above(0))
    source, output = options["input"], options["output"]
    if source != _STANDARD and Path(source).suffix not in (".tsv", ".csv", ".jsonl", ".txt"):
        raise UserError(f"--input={source} is invalid: expected a .tsv, .csv, .jsonl or .txt file, or -")
    if output != _STANDARD and Path(output).suffix not in (".jsonl", ".tsv"):
        raise UserError(f"--output={output} is invalid: expected a .jsonl or .tsv file, or -")
    if output != _STANDARD and not Path(output).parent.is_dir():
        raise UserError(f"--output={output} is in a folder that does not exist; make it, or use another")
    model = models.load(options["model"], batch_size=options["batch_size"])
    if not isinstance(model, FinetunedModel):
        raise UserError(f"--model={options['model']} was not fine-tuned; use what electra-jax finetune wrote")
    # Not strict: a model of single texts has one column.
    columns = tuple(
        options[name] or own for name, own in zip(("text", "pair"), predictions.texts_of(model.task), strict=False)
    )
    for name in ("text", "pair")[len(columns) :]:
        if options[name]:
            raise UserError(f"--{name}={options[name]} has no effect: this model reads single texts; leave it out")
    # Standard output may have the predictions.
    with ConsoleProgress(PlainConsole(stderr=True), LINE_EVERY) as progress:
        bad = ReportedRows(progress)
        if source != _STANDARD:
            with Path(source).open("rb") as file:
                # Lines are an upper bound of the rows: a heading and line breaks in quotes count.
                progress.start("rows", sum(1 for _ in file))
        with _writer(model.task, output) as write:
            done = 0
            for rows in _chunks(_read(source, columns, bad), _CHUNK * options["batch_size"]):
                found = model.predict([row.texts[0] if len(row.texts) == 1 else row.texts for row in rows])
                for row, prediction in zip(rows, found, strict=True):
                    write(row.line, prediction)
                done += len(rows)
                progress.update(done + bad.count)
            if bad.count and not done:
                raise UserError(f"{source} has no row to use: expected rows with {' and '.join(columns)}; mend them")
        if bad.count:
            progress.say(f"{bad.count} rows could not be used and have no output")
        if model.empty:
            progress.say(f"rows without text, which were predicted like others: {model.empty}")
        if model.cut:
            progress.say(f"rows that were cut, as this model reads {model.max_length} tokens: {model.cut}")
    return 0


def _read(source: str, columns: Sequence[str], bad: BadRows) -> Iterator[Row]:
    path = Path(source)
    if source != _STANDARD and path.suffix != ".txt":
        for record in files.read_records(path, columns, bad):
            texts = tuple(record.values[column] for column in columns)
            wrong = next((name for name, text in zip(columns, texts, strict=True) if not isinstance(text, str)), None)
            if wrong is None:
                # A place is FILE:LINE, and FILE may contain colons.
                yield Row(int(record.place.rpartition(":")[2]), texts)
            else:
                bad.add(record.place, f"{wrong} is {record.values[wrong]!r}, expected a text")
        return
    lines = files.decode_lines(sys.stdin.buffer, "standard input", bad) if source == _STANDARD else None
    for line, text in lines or files.read_lines(path, bad):
        # A single text may contain tabs.
        texts = tuple(text.split("\t")) if len(columns) > 1 else (text,)
        if len(texts) == len(columns):
            yield Row(line, texts)
        else:
            name = "standard input" if source == _STANDARD else source
            bad.add(f"{name}:{line}", f"{len(texts)} texts, expected {' and '.join(columns)} separated by a tab")


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


@contextlib.contextmanager
def _writer(task: Task, output: str) -> Iterator[Any]:
    """Context manager: yields a function that writes a line's prediction. On success, renames the file to `output`."""
    if output == _STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # JSON is UTF-8, whatever the locale is.
            sys.stdout.reconfigure(encoding="utf-8")
        yield _Lines(task, sys.stdout, False)
        return
    if output.endswith(".tsv") and not predictions.headings(task):
        raise UserError(f"--output={output} is invalid for tags: expected a .jsonl file")
    partial = Path(f"{output}.partial")
    with partial.open("w", encoding="utf-8") as file:
        yield _Lines(task, file, output.endswith(".tsv"))
    # Not reached after an error: `output` is complete or not written.
    os.replace(partial, output)


class _Lines:
    """Writer of predictions, as JSON lines or as tab-separated cells."""

    def __init__(self, task: Task, file: IO[str], cells: bool) -> None:
        self._task, self._file, self._cells = task, file, cells
        if cells:
            self._write("line", *predictions.headings(task))

    def _write(self, *cells: str) -> None:
        self._file.write("\t".join(cells) + "\n")

    def __call__(self, line: int, prediction: Any) -> None:
        if self._cells:
            self._write(str(line), *predictions.to_cells(self._task, prediction))
        else:
            self._file.write(json.dumps({"line": line, **predictions.to_json(prediction)}, ensure_ascii=False) + "\n")
