"""The tasks by name, made of a config's settings."""

import dataclasses
from typing import Any

import numpy as np

from electra_jax.errors import UserError
from electra_jax.tasks import glue, tagging
from electra_jax.tasks.sentences import Columns, Sentences, label_text
from electra_jax.tasks.squad import Answering
from electra_jax.tasks.task import Faults, Task

NAMES = (*glue.TASKS, "squad1", "squad2", "table", "tags")


def make(settings: Any, place: str) -> Task:
    """The task that `config.task` describes; what its settings leave open is read from its training set.

    Args:
      settings: `name`, and of `table` and `tags` where its files have what.
      place: the folder with its files.

    Raises:
      UserError: the files cannot be read.
    """
    if settings.name in glue.TASKS:
        return glue.TASKS[settings.name]
    if settings.name == "table":
        return _table(settings, place)
    if settings.name == "tags":
        return tagging.in_place(place, settings.words, settings.tags)
    if settings.name in ("squad1", "squad2"):
        return Answering(**{name: settings[name] for name in settings if name != "beam"})
    raise UserError(f"there is no task {settings.name!r}; there are {', '.join(NAMES)}")


def _table(settings: Any, place: str) -> Sentences:
    """Anyone's table: its classes, or the scale of its numbers, are those of its training set."""
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
        numbers = np.array([example.target for example in task.read(place, "train", Faults(strict=False))])
        if settings.labels:
            raise UserError(f"config.task.labels={settings.labels} is of no use with config.task.kind=regression")
        mean, spread = float(numbers.mean()), float(np.std(numbers / max(1.0, np.abs(numbers).max())))
        spread *= max(1.0, float(np.abs(numbers).max()))
        if not spread or not np.isfinite([mean, spread]).all():
            said = f"every {settings.label} in train is {numbers[0]:g}" if not spread else "its numbers are too large"
            raise UserError(f"{place}: {said}; there is nothing to learn")
        return dataclasses.replace(task, scale=(mean, spread))
    labels = tuple(filter(None, (label.strip() for label in settings.labels.split(",")))) or _classes(task, place)
    if len(labels) < 2:
        raise UserError(f"config.task.labels={settings.labels} is one class; give two or more, with commas between")
    metrics = ("accuracy", "f1", "matthews") if len(labels) == 2 else ("accuracy", "macro_f1")
    return dataclasses.replace(task, labels=labels, metrics=metrics)


def _classes(task: Sentences, place: str) -> tuple[str, ...]:
    column, rows, found = task.columns.label, 0, set()
    for record, _ in task.records(place, "train", Faults(strict=False)):
        found.add(label_text(record.values[column]))
        rows += 1
    if len(found) < 2 or len(found) > max(2, rows / 2):
        raise UserError(
            f"{place}: column {column} has {len(found)} different values in the {rows} rows of train, which are no "
            "classes; give another column as config.task.label, or config.task.kind=regression for numbers"
        )
    return tuple(sorted(found))
