"""The settings of a downstream task, `config.task`."""

import dataclasses

from electra_jax.config.settings import Check, above, from_up_to_below, one_of, setting
from electra_jax.downstream.tasks import glue

_SQUAD = ("query", "stride", "max_answer", "beam", "f1")
_SETTINGS: dict[str, tuple[str, ...]] = {  # the settings of each task besides its name
    **dict.fromkeys(glue.TASKS, ()),
    "squad1": _SQUAD,
    "squad2": (*_SQUAD, "threshold"),
    "table": ("kind", "text", "pair", "label", "labels", "separator", "class_threshold", "class_weights", "index"),
    "tags": ("words", "tags"),
}
NAMES = tuple(_SETTINGS)


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Config of a downstream task. A config file has only the settings that its task uses."""

    name: str = setting("cola", "Task; set by the config file and its argument.", one_of(*NAMES))
    # query, stride, max_answer, beam: google-research/electra, configure_finetuning.py.
    query: int = setting(64, "SQuAD: maximum question length, in tokens; longer questions are truncated.", above(0))
    stride: int = setting(128, "SQuAD: stride between windows of the context, in tokens.", above(0))
    max_answer: int = setting(30, "SQuAD: maximum answer length, in tokens.", above(0))
    beam: int = setting(
        20, "SQuAD, head=paper: beam size: number of start positions, and of end positions per start.", above(0)
    )
    threshold: float = setting(0.0, "SQuAD 2.0: logit above which a question is left unanswered.")
    f1: str = setting(
        "auto",
        "SQuAD: what F1 counts; auto: characters if most letters of the true answers are of a script without spaces; "
        "cmrc: as CMRC 2018's script does.",
        one_of("auto", "words", "characters", "cmrc"),
    )
    kind: str = setting(
        "classification",
        "Table: type of task: one class per text, any number of classes, or a number.",
        one_of("classification", "multilabel", "regression"),
    )
    text: str = setting("text", "Table: column of the text.")
    pair: str = setting("", "Table: column of the second text; empty for single texts.")
    label: str = setting("label", "Table: column of the class, classes or number.")
    labels: str = setting("", "Table: the classes, separated by commas; empty for those of the training set.")
    # Not empty, because str.split refuses an empty separator.
    separator: str = setting(
        ",", "Table, kind=multilabel: separates the classes in a text; lists need none.", Check(bool, "a text")
    )
    class_threshold: float = setting(
        0.5,
        "Table, kind=multilabel: classes of at least this probability are predicted; 0: that of the best micro F1 on "
        "half of the development set, and scores are those of the other half.",
        from_up_to_below(0, 1),
    )
    class_weights: str = setting(
        "none",
        "Table, kind=classification: weights of the classes in the loss: none, balanced (inverse to their numbers of "
        "training examples), or a number for each class, separated by commas.",
        Check(bool, "none, balanced or numbers"),
    )
    index: str = setting("index", "Table: column with the names of rows in predictions; without it, rows are numbered.")
    words: int = setting(0, "Tags: column of the words, from 0; negative numbers count from the last column.")
    tags: int = setting(-1, "Tags: column of the tags, from 0; negative numbers count from the last column.")


def unused_settings(name: str) -> set[str]:
    """Returns the dotted names of the settings of `task` that a task does not use."""
    names = {field.name for field in dataclasses.fields(TaskConfig)} - {"name", *_SETTINGS[name]}
    return {f"task.{each}" for each in names}
