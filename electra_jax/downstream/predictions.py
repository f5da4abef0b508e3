"""Predictions of fine-tuned models: labels, numbers, answers or tags."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_jax.downstream.tasks import squad, squad_files
from electra_jax.downstream.tasks.conll import Sentence
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.sentences import Example, Sentences, cell
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.tagging import Tagging
from electra_jax.downstream.tasks.task import Rows, Task

_WORD = re.compile(r"\S+")


class Label(NamedTuple):
    """Predicted class of a text or pair of texts.

    Attributes:
      label: the most likely class.
      probability: its probability.
      probabilities: the probability of each class.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


class Labels(NamedTuple):
    """Predicted classes of a text or pair of texts in a multi-label task.

    Attributes:
      labels: the classes whose probability is at least the task's threshold, in index order.
      probabilities: the probability of each class, independent of the others.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]


class Answer(NamedTuple):
    """Predicted answer to a question.

    Attributes:
      text: the answer; empty if there is none.
      begin, end: its characters [begin, end) of the context; (0, 0) if there is no answer.
      probability: the probability of the best span, whether or not it is given as the answer.
      no_answer: logit of the question having no answer, with transformers' head relative to the best answer; 0 if every
        question of the task has an answer.
    """

    text: str
    begin: int
    end: int
    probability: float
    no_answer: float


class TaggedWord(NamedTuple):
    """A word and its predicted tag.

    Attributes:
      text: the word.
      begin, end: its characters [begin, end) of the text.
      tag: the most likely tag.
      probability: its probability.
    """

    text: str
    begin: int
    end: int
    tag: str
    probability: float


Prediction = Label | Labels | float | Answer | list[TaggedWord]


def texts_of(task: Task) -> tuple[str, ...]:
    """Returns the names of the texts that a task reads, one or two."""
    if isinstance(task, Sentences):
        return task.columns.texts
    return ("question", "context") if isinstance(task, Answering) else ("text",)


def make_examples(task: Task, texts: Sequence[tuple[str, ...]]) -> list[Any]:
    """Makes a task's examples, without targets; each item of `texts` has the texts that `texts_of` names."""
    if isinstance(task, Sentences):
        return [Example(str(number), each, None) for number, each in enumerate(texts)]
    if isinstance(task, Answering):
        return [
            squad_files.Example(str(i), question, context, (), False) for i, (question, context) in enumerate(texts)
        ]
    # Splits at the same characters as `_WORD`, with which `_words` finds the words' places.
    return [Sentence(tuple(text.split()), None) for (text,) in texts]


def make_predictions(
    task: Task, texts: Sequence[tuple[str, ...]], outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Any]
) -> list[Any]:
    """Returns a `Prediction` for each example.

    Args:
      task: the task.
      texts: as in `make_examples`.
      outputs: maps the names of the model's outputs to their values for each row.
      rows: the encoded examples.
      examples: from `make_examples`.
    """
    answers = task.answer(outputs, rows, examples)
    if isinstance(task, Answering):
        return [_span(answer) for answer in answers]
    if isinstance(task, Tagging):
        words = task.word_scores(outputs, rows, len(examples))
        probabilities = [[float(_softmax(scores_C).max()) for scores_C in each] for each in words]
        return [list(_words(text, *each)) for (text,), *each in zip(texts, answers, probabilities, strict=True)]
    assert isinstance(task, Sentences)
    if isinstance(task, MultiLabel):
        return [
            Labels(tuple(task.labels[i] for i in chosen), dict(zip(task.labels, each.tolist(), strict=True)))
            for chosen, each in zip(answers, task.probabilities(outputs), strict=True)
        ]
    # Regression: `Sentences.answer` has scaled the numbers back.
    if not task.labels:
        return answers
    return [
        Label(task.labels[answer], float(each[answer]), dict(zip(task.labels, map(float, each), strict=True)))
        for answer, each in zip(answers, _softmax(outputs["scores"]), strict=True)
    ]


def _span(answer: squad.Answer) -> Answer:
    # An unanswered question keeps the probability of its best span, but not the span's place.
    place = (answer.begin, answer.end) if answer.text else (0, 0)
    return Answer(answer.text, *place, float(np.exp(answer.log_probability)), answer.no_answer)


def _words(text: str, tags: Sequence[str], probabilities: Sequence[float]) -> Iterator[TaggedWord]:
    for word, tag, probability in zip(_WORD.finditer(text), tags, probabilities, strict=True):
        yield TaggedWord(word[0], *word.span(), tag, probability)


def _softmax(scores: np.ndarray) -> np.ndarray:
    # Shifted by the maximum, so that `exp` cannot overflow.
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    result: np.ndarray = shifted / shifted.sum(axis=-1, keepdims=True)
    return result


def to_json(prediction: Prediction) -> dict[str, Any]:
    """Converts a prediction to a dict of JSON types."""
    if isinstance(prediction, float):
        return {"prediction": prediction}
    if isinstance(prediction, list):
        return {"words": [word._asdict() for word in prediction]}
    return prediction._asdict()


_HEADINGS: dict[str, tuple[str, ...]] = {
    "classification": ("prediction", "probability"),
    "regression": ("prediction",),
    "answering": ("prediction", "begin", "end", "probability", "no_answer"),
}
_CELLS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "classification": lambda label: (label.label, label.probability),
    "regression": lambda number: (number,),
    # The fields of `Answer` have the order of `_HEADINGS`.
    "answering": tuple,
}


def headings(task: Task) -> tuple[str, ...]:
    """Returns the column headings of a prediction in a table; none for tags."""
    if isinstance(task, MultiLabel):
        return ("prediction", *map(_cell, task.labels))
    return _HEADINGS.get(task.kind, ())


def to_cells(task: Task, prediction: Prediction) -> tuple[str, ...]:
    """Formats a prediction as the table cells that `headings` names."""
    if isinstance(task, MultiLabel):
        assert isinstance(prediction, Labels)
        return (_cell(task.separator.join(prediction.labels)), *map(_cell, prediction.probabilities.values()))
    return tuple(map(_cell, _CELLS[task.kind](prediction)))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else cell(str(value))
