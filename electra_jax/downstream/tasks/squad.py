"""Extractive question answering (SQuAD): the answer is a span of the context or, in SQuAD 2.0, there may be none.

Windows, targets and, for the paper's head, the choice of answers follow google-research/electra (finetune/qa/) and,
where that does, google-research/bert (run_squad.py). An answer's text is the slice of the context that its tokens
cover.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.normalization import trim
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.tasks import files, squad_files, squad_metrics
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.squad_files import Example
from electra_jax.downstream.tasks.task import BadRows, Rows, Task, frame
from electra_jax.runtime.io import write_whole

_VERSIONS = {"squad1": "1.1", "squad2": "2.0"}
_LENGTH_WEIGHT = 0.01  # run_squad.py, _check_is_max_context: breaks ties in favor of the longer window
_CERTAIN = 1e3  # upper bound of the no-answer logit


class Window(NamedTuple):
    """The window of the context covered by one row.

    Attributes:
      at: index in the row at which the window begins.
      first: index in the context of the window's first token.
      length: number of tokens in the window.
      spans: characters [begin, end) covered by each token of the whole context.
    """

    at: int
    first: int
    length: int
    spans: list[tuple[int, int]]


class Answer(NamedTuple):
    """A predicted answer.

    Attributes:
      text: the answer; empty if the question is left unanswered.
      no_answer: logit of the question having no answer; with transformers' head, the log-probability of no answer minus
        that of the best answer. 0 in SQuAD 1.1.
      best: the best answer, whether or not it is given.
      begin, end: the best answer's characters [begin, end) of the context; (0, 0) if it has none.
      log_probability: log-probability of the best answer, the highest over all windows.
    """

    text: str
    no_answer: float
    best: str
    begin: int = 0
    end: int = 0
    log_probability: float = -math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answering(Task):
    """SQuAD, and data in its format.

    Attributes:
      name: `squad1`, where every question has an answer, or `squad2`, where some have none.
      config: its settings.
    """

    name: str
    config: TaskConfig
    dev: tuple[str, ...] = ("dev",)
    test: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"test": "test"})
    kind = "answering"
    main_metric = "f1"

    @property
    def may_be_impossible(self) -> bool:
        """True if a question may have no answer."""
        return self.name == "squad2"

    @property
    def outputs(self) -> int:
        return 2 if self.may_be_impossible else 1

    @property
    def suffixes(self) -> tuple[str, ...]:
        # Both train.json and SQuAD's own train-v2.0.json.
        return tuple(f"{v}.json{c}" for v in ("", f"-v{_VERSIONS[self.name]}") for c in ("", ".gz", ".xz"))

    def read(self, data_dir: str, split: str, bad_rows: BadRows) -> list[Example]:
        if data_dir.startswith(files.TFDS):
            source = f"{data_dir}:{split}"
            questions = squad_files.read_tfds(data_dir, split, self.may_be_impossible)
        else:
            path = files.find_split(Path(data_dir), split, self.suffixes)
            source, questions = str(path), squad_files.read_file(path)
        return squad_files.parse_examples(
            questions, source, bad_rows, self.may_be_impossible, with_answers=split not in self.test
        )

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Encodes each question as rows of CLS question SEP window SEP.

        Windows of the context advance by `stride`, or by less in short rows, so that an answer of up to `max_answer`
        tokens is whole in one of them.

        Targets are `allowed`, 1 where an answer may begin or end; for training also `start` and `end`, 0 (CLS) if the
        first answer is not wholly in the window, and `impossible`.

        Raises:
          UserError: there is no room for the context.
        """
        # Checked with the longest possible question, so that the error does not depend on the data.
        if max_length <= self.config.query + 3:
            raise UserError(
                f"config.max_length={max_length} leaves no room for the context: expected more than config.task.query="
                f"{self.config.query} and 3 special tokens; raise the first or lower the second"
            )
        # Several questions share a paragraph: each context is tokenized once.
        contexts: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        queries = tokenizer.encode([example.question for example in examples])
        rows = Rows([], [], np.empty(0), {}, [])
        owners, allowed, bounds = [], [], []
        for number, (example, query) in enumerate(zip(examples, queries, strict=True)):
            if example.context not in contexts:
                contexts[example.context] = tokenizer.spans(example.context)
            tokens, spans = contexts[example.context]
            query = query[: self.config.query]
            # Training needs tokens; evaluation compares texts.
            answer = _answer_tokens(example, spans) if train else None
            # A short question leaves more room for the context.
            room = max_length - 3 - len(query)
            # In very short rows, windows share half of their tokens.
            most = max(room - self.config.max_answer, room // 2, 1)
            for first, length in windows(len(tokens), room, min(self.config.stride, most)):
                window = Window(len(query) + 2, first, length, spans)
                row, second = frame(query, tokens[first : first + length], tokenizer.special)
                rows.input_ids.append(row)
                rows.second.append(second)
                rows.extra.append(window)
                owners.append(number)
                allowed.append(_allowed(window, len(row)))
                bounds.append(_bounds(window, answer))
        targets: dict[str, Any] = {"allowed": allowed}
        if train:
            # [rows, 2] -> two arrays [rows]
            targets["start"], targets["end"] = np.array(bounds, np.int32).T
            # Per example, not per window: a window without the answer is not impossible (finetune/qa/qa_tasks.py).
            targets["impossible"] = np.array([examples[i].impossible for i in owners], np.int32)
        cut = sum(len(query) > self.config.query for query in queries)
        return rows._replace(example=np.array(owners, np.int64), targets=targets, cut=cut)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Example]) -> list[Answer]:
        """Returns the best answer to each example over all of its rows.

        Args:
          outputs: for N rows. The paper's head has `start_score` [N, S], log-probabilities of the S best starts, and
            `start_index`; `end_score` [N, S, S], log-probabilities of the S best ends given each start, and
            `end_index`; in SQuAD 2.0 also `impossible` [N], logits. Transformers' head has, for each row, `start` and
            `end`, log-probabilities [tokens].
          rows: the rows that the outputs belong to.
          examples: the examples that the rows belong to.
        """
        independent = "start" in outputs
        # [N, 2] tokens and [N] log-probabilities of each row's best answer
        bounds, value = (self._best_spans if independent else self._best_in_rows)(outputs, rows)
        places, best = [(0, 0)] * len(examples), np.full(len(examples), -np.inf)
        for row, number in enumerate(rows.example):
            if value[row] > best[number]:
                best[number] = value[row]
                window = rows.extra[row]
                first, last = (window.spans[window.first + at - window.at] for at in bounds[row])
                places[number] = trim(examples[number].context, first[0], last[1])
        texts = [example.context[begin:end] for example, (begin, end) in zip(examples, places, strict=True)]
        details = list(zip(texts, places, best.tolist(), strict=True))
        if not self.may_be_impossible:
            return [Answer(text, 0.0, text, *place, log_p) for text, place, log_p in details]
        # The lowest of the rows, as in run_squad.py: a window without the answer also says that there is none.
        logits = np.full(len(examples), np.inf)
        np.minimum.at(logits, rows.example, _at_cls(outputs) if independent else outputs["impossible"])
        if independent:
            logits = np.minimum(logits - best, _CERTAIN)  # a context without tokens has no answer to compare with
        return [
            Answer("" if logit > self.config.threshold else text, float(logit), text, *place, log_p)
            for (text, place, log_p), logit in zip(details, logits, strict=True)
        ]

    def _best_spans(self, outputs: Mapping[str, Any], rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Like `_best_in_rows`, for independent start and end distributions.

        An answer's probability is the product of the probabilities of its start and its end in its row, as in the
        question-answering pipeline of transformers 4.
        """
        bounds, values = np.zeros((len(rows.input_ids), 2), np.int64), np.full(len(rows.input_ids), -np.inf)
        for row, window in enumerate(rows.extra):
            inside = slice(window.at, window.at + window.length)
            # Without [CLS]: its span, no answer, is compared by the threshold and not by rank.
            start, end = (np.asarray(outputs[name][row][inside], np.float64) for name in ("start", "end"))
            if len(start):
                # [W], [W] -> [W, W], for a window of W tokens: every start with every end.
                total = start[:, None] + end[None, :]
                length = np.arange(len(end))[None, :] - np.arange(len(start))[:, None]
                total[(length < 0) | (length >= self.config.max_answer)] = -np.inf
                best = int(total.argmax())
                values[row] = total.flat[best]
                bounds[row] = np.add(divmod(best, len(end)), window.at)
        return bounds, values

    def _best_in_rows(self, outputs: Mapping[str, Any], rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Returns each row's best answer: first and last token [N, 2], and log-probability [N], -inf for no answer."""
        start, end = outputs["start_index"], outputs["end_index"]
        # [N, S, 1] + [N, S, S] -> [N, S, S]
        total = outputs["start_score"][:, :, None] + outputs["end_score"]
        owned = _owned(rows)
        stop = np.array([window.at + window.length for window in rows.extra])
        width = owned.shape[1]
        # Batches are padded beyond the longest row: a start in the padding has no entry in `owned`.
        begins = np.take_along_axis(owned, np.minimum(start, width - 1), axis=1) & (start < width)
        length = end - start[:, :, None] + 1
        good = begins[:, :, None] & (length > 0) & (length <= self.config.max_answer) & (end < stop[:, None, None])
        # [N, S, S] -> [N, S S]; `best // S` is the start, since ends are the last axis.
        value = np.where(good, total, -np.inf).reshape(len(total), -1)
        best, row = value.argmax(axis=1), np.arange(len(total))
        bounds = np.stack([start[row, best // end.shape[2]], end.reshape(len(end), -1)[row, best]], axis=1)
        return bounds, value[row, best]

    def f1_unit(self, examples: Sequence[Example]) -> squad_metrics.Unit:
        """Returns the unit of F1 for these examples; `auto`: characters if true answers are written without spaces."""
        if self.config.f1 == "auto":
            without = squad_metrics.has_no_spaces(text for example in examples for text, _ in example.answers)
            return squad_metrics.CHARACTERS if without else squad_metrics.WORDS
        return squad_metrics.UNITS[self.config.f1]

    def score(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, float]:
        """Computes exact match and F1.

        SQuAD 2.0 also has both for questions with and without an answer, and at the thresholds (logits) that are best
        for these examples.
        """
        truths = [[text for text, _ in example.answers] for example in examples]
        impossible, unit = self.may_be_impossible, self.f1_unit(examples)
        measures = [squad_metrics.measure(t, a.text, impossible, unit) for t, a in zip(truths, answers, strict=True)]
        scores = squad_metrics.mean(measures)._asdict()
        if not impossible:
            return scores
        for name, wanted in (("has_ans", True), ("no_ans", False)):
            part = [measure for measure, t in zip(measures, truths, strict=True) if bool(t) == wanted]
            if part:
                scores |= {f"{name}_{key}": value for key, value in squad_metrics.mean(part)._asdict().items()}
        # Scores as if every question were answered: the search below decides which are.
        best = [squad_metrics.measure(t, a.best, impossible, unit) for t, a in zip(truths, answers, strict=True)]
        for key in squad_metrics.Measure._fields:
            scores[f"best_{key}"], scores[f"best_{key}_thresh"] = squad_metrics.best_threshold(
                [answer.no_answer for answer in answers],
                [getattr(measure, key) for measure in best],
                [bool(t) for t in truths],
                [answer.best for answer in answers],
            )
        return scores

    def write(self, path: Path, examples: Sequence[Example], answers: Sequence[Answer]) -> None:
        """Writes answers by id; for SQuAD 2.0 also no-answer probabilities by id, to NAME.na_prob.json."""
        texts = {example.id: answer.text for example, answer in zip(examples, answers, strict=True)}
        write_whole(path.with_name(f"{path.name}.json"), json.dumps(texts, ensure_ascii=False) + "\n")
        if self.may_be_impossible:
            logits = np.array([answer.no_answer for answer in answers], np.float64)
            # The sigmoid of the logit, without overflow.
            probabilities = np.exp(-np.logaddexp(0.0, -logits)).tolist()
            by_id = dict(zip(texts, probabilities, strict=True))
            write_whole(path.with_name(f"{path.name}.na_prob.json"), json.dumps(by_id) + "\n")


def _at_cls(outputs: Mapping[str, Any]) -> np.ndarray:
    """Returns [N], each row's log-probability of no answer, i.e. of an answer that starts and ends at CLS."""
    return np.array(
        [start[0] + end[0] for start, end in zip(outputs["start"], outputs["end"], strict=True)], np.float64
    )


def windows(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yields (first, length) of each window of at most `room` over `tokens` tokens; one empty window for no tokens.

    `stride` is at most `room`, so that no token is skipped.
    """
    for first in itertools.count(0, stride):
        length = min(tokens - first, room)
        yield first, length
        if first + length == tokens:
            return


def _allowed(window: Window, length: int) -> np.ndarray:
    """Returns [length], 1 where an answer may begin or end: at CLS, and in the window."""
    # int8: SQuAD 2.0 has more than 100,000 rows of up to 512 tokens; batches convert them.
    allowed_L = np.zeros(length, np.int8)
    allowed_L[0] = allowed_L[window.at : window.at + window.length] = 1
    return allowed_L


def _bounds(window: Window, answer: tuple[int, int] | None) -> tuple[int, int]:
    """Returns the answer's first and last token in the row; (0, 0) if it is not wholly in the window."""
    if answer is None or answer[0] < window.first or answer[1] >= window.first + window.length:
        return 0, 0
    shift = window.at - window.first
    return answer[0] + shift, answer[1] + shift


def _answer_tokens(example: Example, spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Returns the (first, last) token of the first answer; None if there is none, or normalization removes it."""
    if not example.answers:
        return None
    # Training sets of SQuAD have one answer per question; only dev sets have several.
    text, start = example.answers[0]
    stop = start + len(text)
    # A token that the answer covers in part belongs to it.
    inside = [i for i, (begin, end) in enumerate(spans) if begin < stop and end > start]
    return (inside[0], inside[-1]) if inside else None


def _owned(rows: Rows) -> np.ndarray:
    """Returns [rows, tokens] bool, True where the example's other rows show the token with less context than this row.

    Follows run_squad.py, _check_is_max_context: the side with fewer tokens counts; the first of equal rows wins.
    """
    owned = np.zeros((len(rows.input_ids), int(rows.lengths().max())), bool)
    by_example: dict[int, list[int]] = {}
    for row, number in enumerate(rows.example.tolist()):
        by_example.setdefault(number, []).append(row)
    for numbers in by_example.values():
        # Below any window's score: a row that does not show a token cannot own it.
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
