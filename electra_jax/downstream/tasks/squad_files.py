"""Readers of SQuAD's files and of its TensorFlow Datasets. A question that cannot be used is a bad row."""

import gzip
import lzma
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.runtime.io import from_json

_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
_LAYOUT = "data > paragraphs > context, qas > id, question, answers"


class Example(NamedTuple):
    """A question.

    Attributes:
      id: the question's id, which the leaderboard expects.
      question: the question.
      context: the text that contains the answer.
      answers: (text, start in the context) of each answer; empty if there is none, and in a test set.
      impossible: whether the question has no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool


def read_file(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (context, question) for each question of a file, which may be compressed.

    Raises:
      UserError: the file is not JSON, or not laid out as SQuAD's.
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig") as file:
            content = from_json(file.read())
    # A download that was cut raises any of these, by the kind of compression; UnicodeDecodeError is a ValueError.
    except (ValueError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not valid JSON ({error}); download the file again") from error
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    if not isinstance(paragraph["context"], str) or not isinstance(question, dict):
                        # Caught below, as a wrong layout.
                        raise TypeError
                    yield paragraph["context"], question
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} does not have SQuAD's layout: expected {_LAYOUT}") from error


def read_tfds(name: str, split: str, may_be_impossible: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (context, question) for each question of `tfds:squad/v1.1` or `v2.0`, in the layout of SQuAD's files."""
    columns = ("id", "question", "context", "answers", *(("is_impossible",) if may_be_impossible else ()))
    for _, values in files.read_tfds_records(name, split, columns):
        texts, starts = (values["answers"][key] for key in ("text", "answer_start"))
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        yield values["context"], {**values, "answers": answers}


def parse_examples(
    questions: Iterator[tuple[str, dict[str, Any]]],
    source: str,
    bad_rows: BadRows,
    may_be_impossible: bool,
    with_answers: bool = True,
) -> list[Example]:
    """Parses the questions of a file into examples.

    Args:
      questions: (context, question) pairs from `read_file` or `read_tfds`.
      source: the file's name, for messages.
      bad_rows: receives the questions that cannot be used.
      may_be_impossible: whether a question may have no answer, as in SQuAD 2.0.
      with_answers: whether to read answers; a test set has none.

    Raises:
      UserError: the file has no usable question.
    """
    examples: dict[str, Example] = {}
    for number, (context, question) in enumerate(questions, 1):
        id_ = str(question.get("id", f"number {number}"))
        place = f"{source}: question {id_}"
        example = _parse_example(id_, context, question, may_be_impossible, with_answers)
        if isinstance(example, str):
            bad_rows.add(place, example)
        # Answers are written by id: a second one would overwrite the first.
        elif id_ in examples:
            bad_rows.add(place, "an earlier question has the same id")
        else:
            examples[id_] = example
    if not examples:
        raise UserError(
            f"{source} has no question to use{bad_rows.in_brackets()}; set --data_dir to the folder with SQuAD's files"
        )
    return [*examples.values()]


def _parse_example(
    id_: str, context: str, question: Mapping[str, Any], may_be_impossible: bool, with_answers: bool
) -> Example | str:
    """Returns the example, or a description of what is wrong with it."""
    text = question.get("question")
    if not isinstance(text, str):
        return f"question is {text!r}, expected a text"
    if surrogate := files.describe_surrogate(id_, text, context):
        return surrogate
    if not with_answers:
        return Example(id_, text, context, (), False)
    if may_be_impossible and question.get("is_impossible") is True:
        return Example(id_, text, context, (), True)  # its plausible_answers are wrong ones
    answers = _parse_answers(question.get("answers") or [], context)
    if isinstance(answers, str):
        return answers
    if not answers:
        other = "is_impossible" if may_be_impossible else "SQuAD 2.0 (--config=squad:version=2.0)"
        return f"no answer, expected one, or {other}"
    return Example(id_, text, context, tuple(answers), False)


def _parse_answers(answers: Any, context: str) -> list[tuple[str, int]] | str:
    """Returns (text, start) of each answer, or a description of what is wrong with them."""
    if not isinstance(answers, list):
        return f"answers is {answers!r}, expected a list"
    parsed = []
    for answer in answers:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or not text or not isinstance(start, int) or start < 0:
            return f"answer {answer!r}, expected text and answer_start"
        # A start that was counted in bytes or UTF-16 units would train on wrong words in silence.
        if (actual := context[start : start + len(text)]) != text:
            return f"answer_start {start} has {actual!r}, expected {text!r}"
        parsed.append((text, start))
    return parsed
