"""A user's own table. Its classes, or the mean and spread of its numbers, are read from its training set."""

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.labels import in_order, label_text
from electra_jax.downstream.tasks.sentences import Columns, Sentences
from electra_jax.downstream.tasks.task import BadRows


def make_task(config: TaskConfig, data_dir: str) -> Sentences:
    """The task of the table in a folder.

    Args:
      config: `kind`, the columns, and `labels`.
      data_dir: the folder, or `tfds:NAME/CONFIG`.

    Raises:
      UserError: the table cannot be read, or its training set has nothing to learn.
    """
    if not config.text:
        raise UserError("config.task.text is empty: expected the name of the column with the text")
    task = restore_task(config)
    if config.kind == "regression":
        if config.labels:
            raise UserError(
                f"config.task.labels={config.labels} has no effect with config.task.kind=regression; leave it out"
            )
        return restore_task(config, scale=_read_scale(task, data_dir))
    labels = tuple(filter(None, (label.strip() for label in config.labels.split(","))))
    labels = labels or _read_classes(task, data_dir)
    if len(labels) < 2 or len({*labels}) < len(labels):
        raise UserError(
            f"config.task.labels={config.labels} is invalid: expected two or more different classes, separated by "
            "commas"
        )
    return restore_task(config, labels)


def restore_task(
    config: TaskConfig, labels: tuple[str, ...] = (), scale: tuple[float, float] = (0.0, 1.0)
) -> Sentences:
    """The task of a table whose classes, or the mean and spread of whose numbers, are known."""
    metrics: tuple[str, ...] = ("spearman", "pearson")
    if labels:
        metrics = ("accuracy", "f1", "matthews") if len(labels) == 2 else ("accuracy", "macro_f1")
    return Sentences(
        name="table",
        columns=Columns(tuple(filter(None, (config.text, config.pair))), config.label, config.index),
        labels=labels,
        metrics=metrics,
        scale=scale,
        test={"test": "test"},
    )


def _read_scale(task: Sentences, data_dir: str) -> tuple[float, float]:
    """Mean and standard deviation of the numbers of the training set."""
    examples = task.read(data_dir, "train", BadRows(strict=False))
    numbers = np.array([example.target for example in examples], np.float64)
    largest = max(1.0, float(np.abs(numbers).max()))
    mean, spread = float(numbers.mean()), float(np.std(numbers / largest)) * largest
    if not spread:
        raise UserError(
            f"{data_dir}: every {task.columns.label} in train is {numbers[0]:g}: expected different numbers"
        )
    if not np.isfinite([mean, spread]).all():
        raise UserError(f"{data_dir}: the numbers in column {task.columns.label} of train are too large; scale them")
    return mean, spread


def _read_classes(task: Sentences, data_dir: str) -> tuple[str, ...]:
    """The classes of the training set, in order."""
    column, rows, classes, lists, bad_rows = task.columns.label, 0, set(), 0, BadRows(strict=False)
    for record, _ in task.records(data_dir, "train", bad_rows):
        classes.add(label_text(record.values[column]))
        lists += isinstance(record.values[column], list)
        rows += 1
    classes.discard("")  # a missing label is no class; reading the examples reports it
    if lists > rows / 2:
        raise UserError(
            f"{data_dir}: column {column} has lists of classes in {lists} of the {rows} rows of train: expected one class "
            "for each text; lists are not supported yet"
        )
    if len(classes) < 2 or len(classes) > max(2, rows / 2):
        raise UserError(
            f"{data_dir}: column {column} has {len(classes)} different values in the {rows} rows of "
            f"train{bad_rows.in_brackets()}: expected classes; set config.task.label to another column, or "
            "config.task.kind=regression for numbers"
        )
    return in_order(classes, f"{data_dir}: column {column} of train")
