"""Tasks on a user's own table. Classes, or mean and standard deviation of numbers, come from the training set."""

import csv
import math
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_effects
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.labels import in_order
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.sentences import BALANCED, Columns, Sentences
from electra_jax.downstream.tasks.task import BadRows

# Settings without effect, for each kind of task.
_UNUSED = {
    "classification": ("separator", "class_threshold"),
    "multilabel": ("class_weights",),
    "regression": ("labels", "separator", "class_threshold", "class_weights"),
}


def make_task(config: TaskConfig, data_dir: str) -> Sentences:
    """Makes the task of the table in a folder.

    Args:
      config: `kind`, the columns, and the settings of the kind.
      data_dir: the folder, or `tfds:NAME/CONFIG`.

    Raises:
      UserError: the table cannot be read, its training set has no usable classes or numbers, or a setting is invalid
        or has no effect.
    """
    if not config.text:
        raise UserError("config.task.text is empty: expected the name of the column with the text")
    why = f"with config.task.kind={config.kind}"
    check_effects(config, [(name, False, why) for name in _UNUSED[config.kind]], "config.task.")
    # A task without classes yet, which can read the columns.
    task = restore_task(config)
    if config.kind == "regression":
        return restore_task(config, scale=_read_scale(task, data_dir))
    labels = _parse_labels(config.labels) or _read_classes(task, data_dir)
    # A single class alone cannot be learned, except as one that a text has or lacks.
    least = 1 if config.kind == "multilabel" else 2
    if len(labels) < least or len({*labels}) < len(labels):
        raise UserError(
            f"config.task.labels={config.labels} is invalid: expected {least} or more different classes, separated by "
            "commas; put one that contains a comma in quotation marks"
        )
    joined = next((label for label in labels if config.separator in label), None)
    # Predictions are written joined by the separator, even if the files had lists.
    if config.kind == "multilabel" and joined is not None:
        raise UserError(
            f"the class {joined!r} contains config.task.separator={config.separator}, which separates classes in "
            "predictions: expected another separator; use --config.task.separator='|'"
        )
    return restore_task(config, labels)


def _parse_labels(text: str) -> tuple[str, ...]:
    """Splits `config.task.labels` at commas; as in a row of .csv, those in quotation marks belong to a class."""
    try:
        (row,) = csv.reader([" ".join(text.split())], skipinitialspace=True, strict=True)
    except csv.Error as error:
        raise UserError(
            f"config.task.labels={text} is invalid ({error}): expected classes separated by commas; double a quotation "
            "mark that belongs to a class"
        ) from error
    return tuple(filter(None, map(str.strip, row)))


def restore_task(
    config: TaskConfig, labels: tuple[str, ...] = (), scale: tuple[float, float] = (0.0, 1.0)
) -> Sentences:
    """Makes the task of a table from its known classes, or the known mean and standard deviation of its numbers."""
    texts = tuple(filter(None, (config.text, config.pair)))
    columns = Columns(texts, config.label, config.index, named=config.index != TaskConfig.index)
    common: dict[str, Any] = {"name": "table", "columns": columns, "labels": labels, "test": {"test": "test"}}
    if config.kind == "multilabel":
        return MultiLabel(**common, separator=config.separator, threshold=config.class_threshold)
    weights = _parse_weights(config.class_weights, labels)
    metrics: tuple[str, ...] = ("spearman", "pearson")
    # F1 of class 1, as GLUE has it for MRPC and QQP, needs two classes; with more, F1 is averaged.
    if labels:
        metrics = ("accuracy", "f1", "matthews") if len(labels) == 2 else ("accuracy", "macro_f1")
        if weights != "none":  # the best seed is one that finds the rare classes
            metrics = (metrics[1], metrics[0], *metrics[2:])
    return Sentences(**common, metrics=metrics, scale=scale, class_weights=weights)


def _parse_weights(text: str, labels: tuple[str, ...]) -> tuple[float, ...] | str:
    # Without labels yet, the number of weights cannot be checked; `make_task` calls again with them.
    if text in ("none", BALANCED) or not labels:
        return text
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    if len(weights) != len(labels) or not all(0 < weight < math.inf for weight in weights):
        raise UserError(
            f"config.task.class_weights={text} is invalid: expected none, balanced, or {len(labels)} positive numbers, "
            f"for {', '.join(labels)}"
        )
    return weights


def _read_scale(task: Sentences, data_dir: str) -> tuple[float, float]:
    """Returns mean and standard deviation of the numbers of the training set."""
    # Bad rows are reported when the examples are read.
    examples = task.read(data_dir, "train", BadRows(strict=False))
    # float64: float32 has 24 bits, too few for large numbers that differ little.
    numbers = np.array([example.target for example in examples], np.float64)
    largest = max(1.0, float(np.abs(numbers).max()))
    # Scaled before the standard deviation, whose squares would overflow for large numbers.
    mean, spread = float(numbers.mean()), float(np.std(numbers / largest)) * largest
    if not spread:
        raise UserError(
            f"{data_dir}: every {task.columns.label} in train is {numbers[0]:g}: expected different numbers"
        )
    if not np.isfinite([mean, spread]).all():
        raise UserError(f"{data_dir}: the numbers in column {task.columns.label} of train are too large; scale them")
    return mean, spread


def _read_classes(task: Sentences, data_dir: str) -> tuple[str, ...]:
    """Returns the classes of the training set, in index order."""
    column, bad_rows = task.columns.label, BadRows(strict=False)
    classes: set[str] = set()
    rows = named = lists = 0
    for record, _ in task.records(data_dir, "train", bad_rows):
        value = record.values[column]
        names = task.names_in(value) or ()  # a missing label is not a class; it is reported when examples are read
        classes.update(names)
        rows, named, lists = rows + 1, named + len(names), lists + isinstance(value, list)
    if not rows:
        raise UserError(f"{data_dir} has no row to use in train{bad_rows.in_brackets()}: expected examples")
    if task.kind != "multilabel" and lists > rows / 2:
        raise UserError(
            f"{data_dir}: column {column} has lists of classes in {lists} of the {rows} rows of train: expected one "
            "class for each text; for any number of classes use --config.task.kind=multilabel"
        )
    least = 1 if task.kind == "multilabel" and named < rows else 2  # one class is enough if some texts lack it
    # More classes than half of the rows: names, texts or numbers, so probably another column was meant.
    if len(classes) < least or len(classes) > max(2, max(rows, named) / 2):
        raise UserError(
            f"{data_dir}: column {column} has {len(classes)} different values in the {rows} rows of "
            f"train{bad_rows.in_brackets()}: expected classes; set config.task.label to another column, or "
            "config.task.kind=regression for numbers"
        )
    return in_order(classes, f"{data_dir}: column {column} of train")
