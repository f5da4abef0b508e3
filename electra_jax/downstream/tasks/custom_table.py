"""Anyone's table: its classes, or the scale of its numbers, are those of its training set."""

import dataclasses
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks.sentences import Columns, Sentences, label_text
from electra_jax.downstream.tasks.task import BadRows


def in_place(settings: Any, place: str) -> Sentences:
    """The task of the table in a folder.

    Args:
      settings: `kind`, and which columns have what.
      place: the folder, or `tfds:NAME/CONFIG`.

    Raises:
      UserError: it cannot be read, or there is nothing to learn in it.
    """
    texts = tuple(filter(None, (settings.text, settings.pair)))
    if not texts:
        raise UserError("config.task.text is empty; give the column with the text")
    task = Sentences(
        name="table",
        columns=Columns(texts, settings.label, settings.index),
        metrics=("spearman", "pearson"),
        test={"test": "test"},
    )
    if settings.kind == "regression":
        if settings.labels:
            raise UserError(f"config.task.labels={settings.labels} is of no use with config.task.kind=regression")
        numbers = np.array([example.target for example in task.read(place, "train", BadRows(strict=False))])
        largest = max(1.0, float(np.abs(numbers).max()))
        mean, spread = float(numbers.mean()), float(np.std(numbers / largest)) * largest
        if not spread or not np.isfinite([mean, spread]).all():
            said = f"every {settings.label} in train is {numbers[0]:g}" if not spread else "its numbers are too large"
            raise UserError(f"{place}: {said}; there is nothing to learn")
        return dataclasses.replace(task, scale=(mean, spread))
    labels = tuple(filter(None, (label.strip() for label in settings.labels.split(",")))) or _classes(task, place)
    if len(labels) < 2 or len({*labels}) < len(labels):
        raise UserError(f"config.task.labels={settings.labels}: give two classes or more, each once, commas between")
    metrics = ("accuracy", "f1", "matthews") if len(labels) == 2 else ("accuracy", "macro_f1")
    return dataclasses.replace(task, labels=labels, metrics=metrics)


def _classes(task: Sentences, place: str) -> tuple[str, ...]:
    column, rows, found, faults = task.columns.label, 0, set(), BadRows(strict=False)
    for record, _ in task.records(place, "train", faults):
        found.add(label_text(record.values[column]))
        rows += 1
    found.discard("")  # what is missing is no class, and is said when the rows are read
    if len(found) < 2 or len(found) > max(2, rows / 2):
        raise UserError(
            f"{place}: column {column} has {len(found)} different values in the {rows} rows of train{faults.aside()}, "
            "which are no classes; give another column as config.task.label, or config.task.kind=regression for numbers"
        )
    return tuple(sorted(found))
