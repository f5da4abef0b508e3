"""Classification and regression of single texts and text pairs: GLUE's tasks and users' own tables."""

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
from electra_jax.downstream.tasks.labels import label_text
from electra_jax.downstream.tasks.task import BadRows, Rows, Task, frame, truncate
from electra_jax.runtime.io import write_whole

BALANCED = "balanced"  # class weights as in scikit-learn: all classes have the same total weight
_BREAKS = re.compile(r"[\t\r\n]")


class Example(NamedTuple):
    """A row of a table.

    Attributes:
      name: the row's name, for the leaderboard.
      texts: one or two texts.
      target: index of the class, the number to predict, or for `MultiLabel` the indices of the classes; None in a test
        set.
    """

    name: str
    texts: tuple[str, ...]
    target: float | tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class Columns:
    """Column names of a table.

    Attributes:
      texts: the columns of the texts, one or two.
      label: the column of the class or number.
      name: the column of the row's name; without it, rows are numbered from 0.
      order: all columns, for a table without a header line.
      named: whether the column of the row's name must be there.
    """

    texts: tuple[str, ...]
    label: str
    name: str = "index"
    order: tuple[str, ...] = ()
    named: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences(Task):
    """Classification, or regression if `labels` is empty.

    Attributes:
      name: the task's name.
      columns: the columns of its files.
      labels: the classes, in index order.
      metrics: names in `scores.BY_NAME`, the main one first.
      scale: (offset, factor) for regression: the model learns (number - offset) / factor.
      swapped: whether training adds each pair in swapped order.
      tfds: the columns in TensorFlow Datasets, if they differ.
      tfds_labels: the names of the classes there, in the order of `labels`, if they differ.
      test_columns: the columns of the test set, if they differ from those of the other splits.
      bounds: range for regression that written answers are clipped to.
      class_weights: weights of the classes in the loss: one number per class, `none` or `balanced`.
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
    class_weights: tuple[float, ...] | str = "none"

    @property
    def kind(self) -> str:
        return "classification" if self.labels else "regression"

    @property
    def outputs(self) -> int:
        return max(1, len(self.labels))

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    @property
    def expected(self) -> str:
        """Valid labels in words, for messages."""
        return " or ".join(self.labels) or "a number"

    def read(self, data_dir: str, split: str, bad_rows: BadRows) -> list[Example]:
        examples: list[Example] = []
        before = len(bad_rows.problems)
        for record, columns in self.records(data_dir, split, bad_rows):
            # Rows that are left out count too, so that a number finds its row in the file.
            number = len(examples) + len(bad_rows.problems) - before
            example = self._make_example(record, columns, number, split in self.test, bad_rows)
            if example is not None:
                examples.append(example)
        if not examples:
            of_table = "config.task.label and config.task.kind to what the table has"
            raise UserError(
                f"{data_dir} has no example to use in {split}{bad_rows.in_brackets()}: expected rows of the task; set "
                f"{of_table if self.name == 'table' else '--data_dir to the folder with its files'}"
            )
        if data_dir.startswith(files.TFDS) and self.tfds:
            examples.sort(key=lambda example: int(example.name))  # into the order of GLUE's files
        return examples

    def records(self, data_dir: str, split: str, bad_rows: BadRows) -> Iterator[tuple[Record, Columns]]:
        """Returns an iterator over the rows of a split, each with the names of its columns."""
        # Test sets have no labels, so the column of the labels is not required.
        testing = split in self.test
        if data_dir.startswith(files.TFDS):
            columns = self.tfds or self.columns
            required = columns.texts if testing else (*columns.texts, columns.label)
            records = files.read_tfds_records(data_dir, split, required, optional=(columns.name,))
        else:
            columns = (testing and self.test_columns) or self.columns
            required = columns.texts if testing else (*columns.texts, columns.label)
            if columns.named:
                required = (*required, columns.name)
            path = files.find_split(Path(data_dir), split, self.suffixes)
            # GLUE's own files are .tsv; in others, a header names the columns.
            order = columns.order if path.suffix == ".tsv" else ()
            records = files.read_records(path, required, bad_rows, order or None, optional=(columns.name,))
        return ((record, columns) for record in records)

    def _make_example(
        self, record: Record, columns: Columns, number: int, testing: bool, bad_rows: BadRows
    ) -> Example | None:
        values = record.values
        texts = tuple(values[column] for column in columns.texts)
        wrong = [column for column, text in zip(columns.texts, texts, strict=True) if not isinstance(text, str)]
        if wrong:
            bad_rows.add(record.place, f"{wrong[0]} is {values[wrong[0]]!r}, expected a text")
            return None
        target = None
        if not testing:
            target = self.parse_target(values[columns.label])
            if target is None:
                label = _quoted(values[columns.label])
                bad_rows.add(record.place, f"{columns.label} is {label}, expected {self.expected}")
                return None
        # GLUE numbers the rows of its test files from 0.
        return Example(str(values.get(columns.name, number)), texts, target)

    def names_in(self, value: Any) -> tuple[str, ...] | None:
        """Returns the classes in a cell, here a single one; None if the cell has no class."""
        name = label_text(value)
        return (name,) if name else None

    def parse_target(self, value: Any) -> float | tuple[int, ...] | None:
        """Parses a cell into a target, as in `Example`; None if it is invalid."""
        if self.labels:
            # config.task.labels may spell a class as JSON does: 1.0. A missing label has no spelling.
            for text in (label_text(value), str(value)) if label_text(value) else ():
                # TFDS names the classes that GLUE's files have as 0 and 1.
                names = self.tfds_labels if text in self.tfds_labels else self.labels
                if text in names:
                    return names.index(text)
            return None
        # float() reads True as 1, and "1_000" as 1000.
        if isinstance(value, bool) or "_" in str(value):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        # float() accepts "nan" and "inf", which no loss can learn.
        return number if math.isfinite(number) else None

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        encoded = [tokenizer.encode([example.texts[i] for example in examples]) for i in range(len(self.columns.texts))]
        pairs = list(zip(*encoded, strict=True))
        # [CLS], and [SEP] after each text.
        room = max_length - 1 - len(encoded)
        cut, empty = sum(sum(map(len, texts)) > room for texts in pairs), sum(not any(texts) for texts in pairs)
        if train and self.swapped:  # after all pairs, so that row n + i belongs to example i of n
            pairs += [texts[::-1] for texts in pairs]
        ids, second = [], []
        for first, *other in pairs:
            if other:
                row, begin = frame(*truncate(first, other[0], room), tokenizer.special)
            else:
                row, begin = frame(first[:room], None, tokenizer.special)
            ids.append(row)
            second.append(begin)
        # Swapped rows follow all others, in the same order.
        example = np.arange(len(pairs)) % len(examples)
        # All or none have targets: this is a test set, or texts to predict.
        if examples[0].target is None:
            return Rows(ids, second, example, {}, cut=cut, empty=empty)
        targets = self.targets(examples)[example]
        weights = self._weights(targets) if train else None
        return Rows(ids, second, example, {"target": targets}, cut=cut, weights=weights, empty=empty)

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the targets of the loss, [N, ...]."""
        numbers = np.array([example.target for example in examples])
        return numbers.astype(np.int32) if self.labels else (numbers - self.scale[0]) / self.scale[1]

    def _weights(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns [N], the weight of each row in the loss; None: 1."""
        if self.class_weights == "none":
            return None
        counts = np.bincount(targets, minlength=len(self.labels))
        # scikit-learn's N / (C counts); a class of `config.task.labels` may have no row, hence the 1.
        balanced = len(targets) / len(self.labels) / np.maximum(counts, 1)
        by_class: np.ndarray = balanced if self.class_weights == BALANCED else np.array(self.class_weights)
        return np.take(by_class, targets)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Example]) -> list[Any]:
        del rows, examples  # each example has one row
        scores_BC = outputs["scores"]
        if self.labels:
            return [int(number) for number in np.argmax(scores_BC, axis=-1)]
        offset, factor = self.scale
        # float64: in float32 a large offset would round small differences between answers away.
        return [float(number) for number in scores_BC[:, 0].astype(np.float64) * factor + offset]

    def score(self, examples: Sequence[Example], answers: Sequence[Any]) -> dict[str, float]:
        truth = [example.target for example in examples]
        return {name: scores.BY_NAME[name](truth, answers) for name in self.metrics}

    def answer_text(self, answer: Any) -> str:
        """Formats an answer for a leaderboard's file."""
        if self.labels:
            return self.labels[int(answer)]
        # GLUE's numbers have three decimals; the numbers of a user's table may have any magnitude.
        digits = ".3f" if math.isfinite(self.bounds[1]) else ".6g"
        return format(np.clip(answer, *self.bounds), digits)

    def write(self, path: Path, examples: Sequence[Example], answers: Sequence[Any]) -> None:
        texts = map(self.answer_text, answers)
        rows = zip((example.name for example in examples), texts, strict=True)
        lines = ["\t".join(map(cell, row)) for row in rows]
        write_whole(path.with_name(f"{path.name}.tsv"), "\n".join(["index\tprediction", *lines]) + "\n")


def cell(text: str) -> str:
    """Returns `text` as a field of a .tsv file: tabs and line breaks, which would split the row, become spaces."""
    return _BREAKS.sub(" ", text)


def _quoted(label: Any) -> str:
    return f"the list {label}" if isinstance(label, list) else repr(str(label))
