"""Registry of the tasks by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from electra_jax.config.settings import check_value, one_of
from electra_jax.downstream.tasks import custom_table, glue, tagging
from electra_jax.downstream.tasks.config import NAMES, TaskConfig
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.sentences import Sentences
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.tagging import Tagging
from electra_jax.downstream.tasks.task import Task


def make_task(config: TaskConfig, data_dir: str) -> Task:
    """Makes the task of a config. The labels of `table` and `tags` are read from their training sets.

    Args:
      config: the task's settings.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.

    Raises:
      UserError: there is no such task, or its files cannot be read.
    """
    check_value("config.task.name", config.name, one_of(*NAMES))
    if config.name == "table":
        return custom_table.make_task(config, data_dir)
    if config.name == "tags":
        return tagging.make_task(data_dir, config.words, config.tags)
    return restore_task(config, {})


def learned(task: Task) -> dict[str, Any]:
    """Returns what `restore_task` needs of what a task has from its data: labels, a scale of numbers, a threshold."""
    if isinstance(task, MultiLabel):
        return {"labels": list(task.labels), "threshold": task.threshold}
    if isinstance(task, Sentences):
        return {"labels": list(task.labels), "scale": list(task.scale)}
    return {"labels": list(task.labels)} if isinstance(task, Tagging) else {}


def restore_task(config: TaskConfig, known: Mapping[str, Any]) -> Task:
    """Makes the task of a config without its files; `known` is the result of `learned`."""
    # JSON made lists of the tuples.
    labels, scale = tuple(known.get("labels", ())), tuple(known.get("scale", (0.0, 1.0)))
    # Nothing is learned from GLUE's files: their classes and scales are fixed.
    if config.name in glue.TASKS:
        return glue.TASKS[config.name]
    if config.name == "table":
        # A chosen threshold replaces the config's 0, which would ask for another fit.
        threshold = known.get("threshold", config.class_threshold)
        return custom_table.restore_task(replace(config, class_threshold=threshold), labels, (scale[0], scale[1]))
    if config.name == "tags":
        return Tagging(labels=labels, words=config.words, tags=config.tags)
    return Answering(name=config.name, config=config)
