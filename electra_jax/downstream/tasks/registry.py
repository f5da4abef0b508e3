"""The tasks by name, made of a config's settings."""

from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import custom_table, glue, tagging
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.task import Task

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
        return custom_table.in_place(settings, place)
    if settings.name == "tags":
        return tagging.in_place(place, settings.words, settings.tags)
    if settings.name in ("squad1", "squad2"):
        return Answering(**{name: settings[name] for name in settings if name != "beam"})
    raise UserError(f"there is no task {settings.name!r}; there are {', '.join(NAMES)}")
