"""Questions about a text, answered by a part of it or, in SQuAD 2.0, by nothing.

Windows, targets and the choice of answers follow google-research/electra (finetune/qa/) and, where that does,
google-research/bert (run_squad.py); answers are cut out of the text by the characters that the pieces stand for.
"""

import dataclasses
import gzip
import itertools
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks import squad_metrics as measures
from electra_jax.downstream.tasks.task import BadRows, Rows, Task, frame
from electra_jax.runtime.io import from_json, write_whole

_VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
_LENGTH_WEIGHT = 0.01  # run_squad.py: of a window's length, where two have as much context around a token


class Example(NamedTuple):
    """A question.

    Attributes:
      id: of it, in what the leaderboard takes.
      question: its text.
      context: the text that is asked about.
      answers: (text, where it begins in the context); none where there is none, or in a test set.
      impossible: whether it has no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool


class Window(NamedTuple):
    """Which pieces of its context a row has.

    Attributes:
      at: where in the row they begin.
      first: number of the first.
      length: how many they are.
      spans: of all pieces of the context, the characters [begin, end) of it.
    """

    at: int
    first: int
    length: int
    spans: list[tuple[int, int]]


class Answer(NamedTuple):
    """What is said.

    Attributes:
      text: empty: that there is no answer.
      no_answer: the logit of there being none; 0 in SQuAD 1.1.
      best: the answer if there is one.
    """

    text: str
    no_answer: float
    best: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answering(Task):
    """SQuAD, and what is written as it.

    Attributes:
      name: `squad1`, where each question has an answer, or `squad2`, where some have none.
      query: tokens that a question is cut to.
      stride: tokens from one window to the next.
      max_answer: tokens of an answer.
      threshold: logit above which a question is said to have no answer.
    """

    name: str
    query: int = 64
    stride: int = 128
    max_answer: int = 30
    threshold: float = 0.0
    dev: tuple[str, ...] = ("dev",)
    test: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"test": "test"})

    @property
    def kind(self) -> str:
        return "answering"

    @property
    def may_be_none(self) -> bool:
        """Whether questions may have no answer."""
        return self.name == "squad2"

    @property
    def outputs(self) -> int:
        return 2 if self.may_be_none else 1

    @property
    def main(self) -> str:
        return "f1"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(f"{v}.json{c}" for v in ("", f"-v{_VERSIONS[self.name]}") for c in ("", ".gz", ".xz"))

    def read(self, place: str, split: str, faults: BadRows) -> list[Example]:
        if place.startswith(files.TFDS):
            source, questions = f"{place}:{split}", _questions_of_tfds(place, split, self.may_be_none)
        else:
            path = files.find(Path(place), split, self.suffixes)
            source, questions = str(path), _questions(path)
        found: dict[str, Example] = {}
        for number, (context, question) in enumerate(questions, 1):
            id_ = str(question.get("id", f"number {number}"))
            where = f"{source}: question {id_}"
            example = self._example(id_, context, question, split in self.test)
            if isinstance(example, str):
                faults(where, example)
            elif id_ in found:
                faults(where, "another one before it has the same id")
            else:
                found[id_] = example
        if not found:
            raise UserError(f"{source} has no question to use; give the folder with SQuAD's files")
        return [*found.values()]

    def _example(self, id_: str, context: str, question: Mapping[str, Any], testing: bool) -> Example | str:
        """The example, or what is wrong."""
        text = question.get("question")
        if not isinstance(text, str):
            return f"question is {text!r}, expected a text"
        if half := files.half_character(id_, text, context):
            return half
        if testing:
            return Example(id_, text, context, (), False)
        impossible = question.get("is_impossible") is True
        if impossible and self.may_be_none:
            return Example(id_, text, context, (), True)  # its plausible_answers are wrong ones
        found = []
        answers = question.get("answers") or []
        if not isinstance(answers, list):
            return f"answers is {answers!r}, expected a list"
        for answer in answers:
            said, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
            if not isinstance(said, str) or not said or not isinstance(start, int) or start < 0:
                return f"answer {answer!r}, expected text and answer_start"
            there = context[start : start + len(said)]
            if there != said:
                return f"answer_start {start} has {there!r}, expected {said!r}"
            found.append((said, start))
        if not found:
            other = "is_impossible" if self.may_be_none else "SQuAD 2.0 (configs/squad.py:version=2.0)"
            return f"no answer, expected one, or {other}"
        return Example(id_, text, context, tuple(found), False)

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """CLS question SEP window SEP, windows one `stride` after another, until all of the context is in one.

        Targets: `allowed`, for each token whether an answer may begin or end there; to train, also `start` and `end`,
        0 (CLS) where the first answer is not wholly in the window, and `impossible`.

        Raises:
          UserError: there is no room for the context.
        """
        if max_length <= self.query + 3:
            raise UserError(
                f"config.max_length={max_length} has no room for a text beside config.task.query={self.query} tokens "
                "of the question and 3; lengthen the one or lessen the other"
            )
        contexts: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        queries = tokenizer.encode([example.question for example in examples])
        rows = Rows([], [], np.empty(0), {}, [])
        owners, allowed, bounds = [], [], []
        for number, (example, query) in enumerate(zip(examples, queries, strict=True)):
            if example.context not in contexts:
                contexts[example.context] = tokenizer.spans(example.context)
            pieces, spans = contexts[example.context]
            query = query[: self.query]
            at = len(query) + 2
            answer = _pieces_of(example, spans) if train else None
            for first, length in windows(len(pieces), max_length - 3 - len(query), self.stride):
                row, second = frame(query, pieces[first : first + length], tokenizer.special)
                may = np.zeros(len(row), np.int8)
                may[0] = may[at : at + length] = 1
                start = end = 0
                if answer and first <= answer[0] and answer[1] < first + length:
                    start, end = answer[0] - first + at, answer[1] - first + at
                rows.input_ids.append(row)
                rows.second.append(second)
                rows.extra.append(Window(at, first, length, spans))
                owners.append(number)
                allowed.append(may)
                bounds.append((start, end))
        example_of = np.array(owners, np.int64)
        targets: dict[str, Any] = {"allowed": allowed}
        if train:
            targets["start"], targets["end"] = np.array(bounds, np.int32).T
            targets["impossible"] = np.array([examples[i].impossible for i in owners], np.int32)
        return rows._replace(example=example_of, targets=targets)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Example]) -> list[Answer]:
        """The answer of each example, over its rows.

        Args:
          outputs: of N rows `start_score` [N, K], log-probabilities of the K best starts, and `start_index`;
            `end_score` [N, K, K], log-probabilities of the K best ends after each start, and `end_index`; where there
            may be no answer, `impossible` [N], logits.
          rows: that they are of.
          examples: that the rows are of.
        """
        chosen, value = self._best_in_rows(outputs, rows)
        texts, best = [""] * len(examples), np.full(len(examples), -np.inf)
        for row, number in enumerate(rows.example):
            if value[row] > best[number]:
                best[number] = value[row]
                window = rows.extra[row]
                begin, end = (window.spans[window.first + at - window.at] for at in chosen[row])
                texts[number] = examples[number].context[begin[0] : end[1]].strip()
        if not self.may_be_none:
            return [Answer(text, 0.0, text) for text in texts]
        none = np.full(len(examples), np.inf)
        np.minimum.at(none, rows.example, outputs["impossible"])
        return [Answer("" if n > self.threshold else text, float(n), text) for text, n in zip(texts, none, strict=True)]

    def _best_in_rows(self, outputs: Mapping[str, Any], rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """([N, 2] where the best answer of each row begins and ends, [N] its log-probability; -inf if it has none)."""
        start, end = outputs["start_index"], outputs["end_index"]
        total = outputs["start_score"][:, :, None] + outputs["end_score"]
        owned = _owned(rows)
        stop = np.array([window.at + window.length for window in rows.extra])
        width = owned.shape[1]
        begins = np.take_along_axis(owned, np.minimum(start, width - 1), axis=1) & (start < width)
        length = end - start[:, :, None] + 1
        good = begins[:, :, None] & (length > 0) & (length <= self.max_answer) & (end < stop[:, None, None])
        value = np.where(good, total, -np.inf).reshape(len(total), -1)
        best, each = value.argmax(axis=1), np.arange(len(total))
        found = np.stack([start[each, best // end.shape[2]], end.reshape(len(end), -1)[each, best]], axis=1)
        return found, value[each, best]

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, float]:
        """Exact match and F1 of words; in SQuAD 2.0 also of each kind, and at the thresholds best for these examples.

        Thresholds are logits, as `threshold` is.
        """
        true = [[text for text, _ in example.answers] for example in examples]
        none = self.may_be_none
        found = [measures.measure(t, answer.text, none) for t, answer in zip(true, answers, strict=True)]
        scores = measures.mean(found)._asdict()
        if not none:
            return scores
        for name, wanted in (("has_ans", True), ("no_ans", False)):
            part = [each for each, t in zip(found, true, strict=True) if bool(t) == wanted]
            if part:
                scores |= {f"{name}_{key}": value for key, value in measures.mean(part)._asdict().items()}
        best = [measures.measure(t, answer.best, none) for t, answer in zip(true, answers, strict=True)]
        for key in measures.Measure._fields:
            scores[f"best_{key}"], scores[f"best_{key}_thresh"] = measures.best_threshold(
                [answer.no_answer for answer in answers],
                [getattr(each, key) for each in best],
                [bool(t) for t in true],
                [answer.best for answer in answers],
            )
        return scores

    def write(self, path: Path, examples: Sequence[Example], answers: Sequence[Answer]) -> None:
        """The answers by id; of SQuAD 2.0 beside them NAME.na_prob.json, the probabilities that there is none."""
        texts = {example.id: answer.text for example, answer in zip(examples, answers, strict=True)}
        write_whole(path.with_name(f"{path.name}.json"), json.dumps(texts, ensure_ascii=False) + "\n")
        if self.may_be_none:
            logits = np.array([answer.no_answer for answer in answers], np.float64)
            probabilities = np.exp(-np.logaddexp(0.0, -logits)).tolist()
            whole = dict(zip(texts, probabilities, strict=True))
            write_whole(path.with_name(f"{path.name}.na_prob.json"), json.dumps(whole) + "\n")


def _questions(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(context, question) of a file, packed or not."""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig") as file:
            found = from_json(file.read())
    except (ValueError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is no JSON ({error}); get the file again") from error
    try:
        for article in found["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    if not isinstance(paragraph["context"], str) or not isinstance(question, dict):
                        raise TypeError
                    yield paragraph["context"], question
    except (KeyError, TypeError) as error:
        layout = "data > paragraphs > context, qas > id, question, answers"
        raise UserError(f"{path} is not laid out as SQuAD ({layout}); give one of its files") from error


def _questions_of_tfds(place: str, split: str, may_be_none: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """(context, question) of `tfds:squad/v1.1` or `v2.0`, the question as the files have it."""
    wanted = ("id", "question", "context", "answers", *(("is_impossible",) if may_be_none else ()))
    for _, values in files.read_tfds(place, split, wanted):
        texts, starts = (values["answers"][name] for name in ("text", "answer_start"))
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        yield values["context"], {**values, "answers": answers}


def windows(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """(first, length) of the windows that `tokens` are read through, `room` at once; an empty one of no tokens."""
    for first in itertools.count(0, min(stride, room)):
        length = min(tokens - first, room)
        yield first, length
        if first + length == tokens:
            return


def _pieces_of(example: Example, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """(first, last) piece of the first answer; None where there is none, or normalization leaves nothing of it."""
    if not example.answers:
        return None
    text, start = example.answers[0]
    stop = start + len(text)
    inside = [i for i, (begin, end) in enumerate(spans) if begin < stop and end > start]
    return (inside[0], inside[-1]) if inside else None


def _owned(rows: Rows) -> np.ndarray:
    """[rows, tokens] bool: where a row has a token of its context with more around it than the example's others have.

    As run_squad.py, _check_is_max_context: with as many tokens on the side that has fewer; the first of equal ones.
    """
    owned = np.zeros((len(rows.input_ids), int(rows.lengths().max())), bool)
    by_example: dict[int, list[int]] = {}
    for row, number in enumerate(rows.example.tolist()):
        by_example.setdefault(number, []).append(row)
    for numbers in by_example.values():
        around = np.full((len(numbers), len(rows.extra[numbers[0]].spans)), -1.0)
        for i, row in enumerate(numbers):
            _, first, length, _ = rows.extra[row]
            place = np.arange(length)
            around[i, first : first + length] = np.minimum(place, place[::-1]) + _LENGTH_WEIGHT * length
        owner = around.argmax(axis=0)
        for i, row in enumerate(numbers):
            at, first, length, _ = rows.extra[row]
            owned[row, at : at + length] = owner[first : first + length] == i
    return owned
