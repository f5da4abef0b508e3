"""The tasks by name."""

from electra_jax.config.settings import check_value, one_of
from electra_jax.downstream.tasks import custom_table, glue, tagging
from electra_jax.downstream.tasks.config import NAMES, TaskConfig
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.task import Task


def make_task(config: TaskConfig, data_dir: str) -> Task:
    """The task that a config describes. The labels of `table` and `tags` are read from their training sets.

    Args:
      config: the task's settings.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.

    Raises:
      UserError: there is no such task, or its files cannot be read.
    """
    check_value("config.task.name", config.name, one_of(*NAMES))
    if config.name in glue.TASKS:
        return glue.TASKS[config.name]
    if config.name == "table":
        return custom_table.make_task(config, data_dir)
    if config.name == "tags":
        return tagging.make_task(data_dir, config.words, config.tags)
    return Answering(
        name=config.name,
        query=config.query,
        stride=config.stride,
        max_answer=config.max_answer,
        threshold=config.threshold,
    )
