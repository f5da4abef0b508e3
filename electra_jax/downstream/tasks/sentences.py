"""Sentences and pairs of them: a class each, or a number. The tasks of GLUE, and anyone's tables."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.tasks import files, scores
from electra_jax.downstream.tasks.files import Record
from electra_jax.downstream.tasks.task import BadRows, Rows, Task, frame, truncate
from electra_jax.runtime.io import write_whole

_BREAKS = re.compile(r"[\t\r\n]")  # which a table of lines cannot have in a field


class Example(NamedTuple):
    """A row of a table.

    Attributes:
      name: of the row, for the leaderboard.
      texts: one or two.
      target: the number of its class, or a number; None in a test set.
    """

    name: str
    texts: tuple[str, ...]
    target: float | None


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where a table has what.

    Attributes:
      texts: names of one column or of two.
      label: the class's, or the number's.
      name: the row's; rows are counted from 0 where there is no such column.
      order: of all columns, where the table does not begin with their names.
    """

    texts: tuple[str, ...]
    label: str
    name: str = "index"
    order: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences(Task):
    """Classification, or with `labels` empty regression.

    Attributes:
      name: of the task.
      columns: of its files.
      labels: the classes, in the order of their numbers.
      metrics: names of `scores.BY_NAME`, the main one first.
      scale: of regression, (offset, factor): what is learned is (number - offset) / factor.
      swapped: whether pairs are also trained on the other way round.
      tfds: columns in TensorFlow Datasets, where they are others.
      tfds_labels: names of the classes there, in the order of `labels`, where they are others.
      test_columns: of the test set, where they are others than of the others.
      bounds: what answers are clipped to where they are written, of regression.
    """

    name: str
    columns: Columns
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    scale: tuple[float, float] = (0.0, 1.0)
    swapped: bool = False
    dev: tuple[str, ...] = ("dev",)
    test: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tfds: Columns | None = None
    tfds_labels: tuple[str, ...] = ()
    test_columns: Columns | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def kind(self) -> str:
        return "classification" if self.labels else "regression"

    @property
    def outputs(self) -> int:
        return max(1, len(self.labels))

    @property
    def main(self) -> str:
        return self.metrics[0]

    def read(self, place: str, split: str, faults: BadRows) -> list[Example]:
        found: list[Example] = []
        for number, (record, columns) in enumerate(self.records(place, split, faults)):
            example = self._example(record, columns, number, split in self.test, faults)
            if example is not None:
                found.append(example)
        if not found:
            what = f"no example to use in {split}{faults.aside()}"
            raise UserError(f"{place} has {what}; give the folder with the task's files")
        if place.startswith(files.TFDS) and self.tfds:
            found.sort(key=lambda example: int(example.name))  # as GLUE's files have them
        return found

    def records(self, place: str, split: str, faults: BadRows) -> Iterator[tuple[Record, Columns]]:
        """The rows of a split, and what their columns are."""
        testing = split in self.test
        if place.startswith(files.TFDS):
            columns = self.tfds or self.columns
            wanted = columns.texts if testing else (*columns.texts, columns.label)
            records = files.read_tfds(place, split, wanted, also=(columns.name,))
        else:
            columns = (testing and self.test_columns) or self.columns
            wanted = columns.texts if testing else (*columns.texts, columns.label)
            path = files.find(Path(place), split, self.suffixes)
            records = files.read(path, wanted, faults, columns.order or None, also=(columns.name,))
        return ((record, columns) for record in records)

    def _example(self, record: Record, columns: Columns, number: int, testing: bool, faults: BadRows) -> Example | None:
        values = record.values
        texts = tuple(values[column] for column in columns.texts)
        wrong = [column for column, text in zip(columns.texts, texts, strict=True) if not isinstance(text, str)]
        if wrong:
            faults(record.place, f"{wrong[0]} is {values[wrong[0]]!r}, expected a text")
            return None
        target = None
        if not testing:
            target = self._target(values[columns.label])
            if target is None:
                wanted = " or ".join(self.labels) or "a number"
                faults(record.place, f"{columns.label} is {str(values[columns.label])!r}, expected {wanted}")
                return None
        return Example(str(values.get(columns.name, number)), texts, target)

    def _target(self, value: Any) -> float | None:
        if self.labels:
            for text in (label_text(value), str(value)):  # a class that was given may be as JSON has it, 1.0
                names = self.tfds_labels if text in self.tfds_labels else self.labels
                if text in names:
                    return names.index(text)
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        encoded = [tokenizer.encode([example.texts[i] for example in examples]) for i in range(len(self.columns.texts))]
        pairs = list(zip(*encoded, strict=True))
        if train and self.swapped:
            pairs += [texts[::-1] for texts in pairs]
        ids, second = [], []
        for first, *other in pairs:
            if other:
                cut = truncate(first, other[0], max_length - 3)
                row, begin = frame(*cut, tokenizer.special)
            else:
                row, begin = frame(first[: max_length - 2], None, tokenizer.special)
            ids.append(row)
            second.append(begin)
        example = np.arange(len(pairs)) % len(examples)
        if examples[0].target is None:
            return Rows(ids, second, example, {})
        numbers = np.array([example.target for example in examples])[example]
        target = numbers.astype(np.int32) if self.labels else (numbers - self.scale[0]) / self.scale[1]
        return Rows(ids, second, example, {"target": target})

    def answer(self, outputs: Mapping[str, np.ndarray], rows: Rows, examples: Sequence[Example]) -> list[float]:
        del rows, examples  # one row each
        scores = outputs["scores"]
        if self.labels:
            return np.argmax(scores, axis=-1).tolist()
        offset, factor = self.scale
        return (scores[:, 0].astype(np.float64) * factor + offset).tolist()

    def score(self, examples: Sequence[Example], answers: Sequence[float]) -> dict[str, float]:
        truth = [example.target for example in examples]
        return {name: scores.BY_NAME[name](truth, answers) for name in self.metrics}

    def write(self, path: Path, examples: Sequence[Example], answers: Sequence[float]) -> None:
        # GLUE's numbers have three digits; anyone else's may be of any size.
        digits = ".3f" if math.isfinite(self.bounds[1]) else ".6g"
        said = [self.labels[int(x)] if self.labels else format(np.clip(x, *self.bounds), digits) for x in answers]
        rows = zip((example.name for example in examples), said, strict=True)
        lines = ["\t".join(_BREAKS.sub(" ", part) for part in row) for row in rows]
        write_whole(path.with_name(f"{path.name}.tsv"), "\n".join(["index\tprediction", *lines]) + "\n")


def label_text(value: Any) -> str:
    """A class as text: what JSON has for true is true, and 1.0 is 1; empty where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else str(value) if math.isfinite(value) else ""
    return str(value) if isinstance(value, str | int) else ""
