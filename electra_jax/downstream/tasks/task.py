"""What every downstream task does: read examples, encode them, turn outputs into answers, score and write answers."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special, Tokenizer
from electra_jax.modeling.batch import Batch

IGNORED = -1  # target without a loss: padding, and the pieces of a word after its first


class BadRows:
    """Rows that cannot be used: the first one is an error, or all are left out and counted.

    Attributes:
      problems: a line for each row that was left out: its place and what is wrong.
    """

    def __init__(self, strict: bool = True, advice: str = "fix it, or leave such rows out with --strict=false"):
        """With `strict` the first bad row is an error, which ends with `advice`."""
        self._strict, self._advice = strict, advice
        self.problems: list[str] = []

    def add(self, place: str, problem: str) -> None:
        """Counts the row at `place`, a file and a line.

        Raises:
          UserError: bad rows are not to be left out.
        """
        if self._strict:
            raise UserError(f"{place}: {problem}; {self._advice}")
        self.problems.append(f"{place}: {problem}")

    def summary(self) -> str:
        """One line about the rows that were left out; empty if there are none."""
        return f"{len(self.problems)} rows left out, the first {self.problems[0]}" if self.problems else ""

    def in_brackets(self) -> str:
        """The summary in brackets, for use within a sentence."""
        return f" ({self.summary()})" if self.problems else ""


class TaskBatch(NamedTuple):
    """Rows of a task, padded to one length.

    Attributes:
      inputs: what the encoder reads, [B, L] each.
      weights: [B], 1 for rows and 0 for repeated rows that fill the batch up.
      targets: by name, [B], [B, C] or [B, L], `IGNORED` at padding. For answering also `allowed`, [B, L], 1 where an
        answer may begin or end.
    """

    inputs: Batch
    weights: Any
    targets: dict[str, Any]


class Rows(NamedTuple):
    """Encoded examples. A long example may have several rows.

    Attributes:
      input_ids: tokens of each row, framed by CLS and SEP.
      second: where the second segment of each row begins; the row's length where it has none.
      example: [rows], the number of each row's example.
      targets: by name, an array with a number or a vector for each row, or a list with numbers for each row's tokens.
      extra: what the task needs to know about each row in order to answer.
      cut: how many examples lost tokens, because a text, a question or a word is longer than a row has room for.
      weights: [rows], the weight of each row in the loss; None: 1.
    """

    input_ids: list[list[int]]
    second: list[int]
    example: np.ndarray
    targets: dict[str, Any]
    extra: Any = None
    cut: int = 0
    weights: np.ndarray | None = None

    def lengths(self) -> np.ndarray:
        """[rows], tokens of each row."""
        return np.array([len(ids) for ids in self.input_ids], np.int64)

    def make_batch(self, chosen: Sequence[int] | np.ndarray, size: int, length: int, special: Special) -> TaskBatch:
        """The chosen rows, padded to `length` tokens; the first one is repeated until there are `size` rows."""
        ids = np.full((size, length), special.pad, np.int32)
        types, used = np.zeros_like(ids), np.zeros_like(ids)
        targets = {
            name: np.full(
                (size, length) if isinstance(values, list) else (size, *values.shape[1:]),
                IGNORED,
                _target_dtype(values),
            )
            for name, values in self.targets.items()
        }
        # Empty rows would not do: an encoder may have fewer positions than `length`.
        for row, number in enumerate([*chosen, *[chosen[0]] * (size - len(chosen))]):
            tokens = self.input_ids[number]
            ids[row, : len(tokens)], used[row, : len(tokens)] = tokens, 1
            types[row, self.second[number] : len(tokens)] = 1
            for name, values in self.targets.items():
                if isinstance(values, list):
                    targets[name][row, : len(tokens)] = values[number]
                else:
                    targets[name][row] = values[number]
        weights = (np.arange(size) < len(chosen)).astype(np.float32)
        if self.weights is not None:
            weights[: len(chosen)] = self.weights[chosen]
        return TaskBatch(Batch(ids, types, used), weights, targets)


def _target_dtype(values: list[Any] | np.ndarray) -> type[np.int32] | type[np.float32]:
    return np.int32 if isinstance(values, list) or values.dtype.kind in "iu" else np.float32


class Task(abc.ABC):
    """A downstream task.

    Attributes:
      name: the task's name.
      dev: names of the splits that are evaluated.
      test: names of the splits whose answers are written for a leaderboard, each with the name of its file there.
    """

    name: str
    dev: tuple[str, ...]
    test: Mapping[str, str]

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """`classification`, `multilabel`, `regression`, `tagging` or `answering`; decides head and loss."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Numbers that the head gives. Regression: 1. Answering: 1, or 2 if a question may have no answer."""

    @property
    @abc.abstractmethod
    def main_metric(self) -> str:
        """Name of the main score, which curves and tables show."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that the task reads."""
        return (".tsv", ".csv", ".jsonl")

    @abc.abstractmethod
    def read(self, data_dir: str, split: str, bad_rows: BadRows) -> list[Any]:
        """The examples of a split.

        Args:
          data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
          split: `train`, or a name in `dev` or `test`.
          bad_rows: receives the rows that cannot be used.

        Raises:
          UserError: the split does not exist, or has no example to use.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Rows of at most `max_length` tokens; for training, as many as the task's recipe makes of each example."""

    @abc.abstractmethod
    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Any]) -> list[Any]:
        """The model's answer to each example, from its outputs by name for each row."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """Scores in percent, `main_metric` among them."""

    @abc.abstractmethod
    def write(self, path: Path, examples: Sequence[Any], answers: Sequence[Any]) -> None:
        """Writes answers in the leaderboard's format; adds the file's suffix to `path`."""

    def combine(self, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The scores of all evaluated splits in one table; those of the first split keep their names."""
        first, *others = scores
        return dict(scores[first]) | {f"{name}_{split}": v for split in others for name, v in scores[split].items()}


def truncate(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cuts a pair to `room` tokens in all, token by token off the end of the longer one, or of the second if equal.

    Source: google-research/bert, run_classifier.py, _truncate_seq_pair.
    """
    excess = max(0, len(first) + len(second) - room)
    ahead = min(excess, abs(len(first) - len(second)))
    a, b = (ahead, 0) if len(first) > len(second) else (0, ahead)
    rest = excess - ahead
    a, b = a + rest // 2, b + (rest + 1) // 2
    return first[: len(first) - a], second[: len(second) - b]


def frame(first: list[int], second: list[int] | None, special: Special) -> tuple[list[int], int]:
    """CLS first SEP [second SEP], and where the second segment begins."""
    begin = [special.cls, *first, special.sep]
    return (begin, len(begin)) if second is None else ([*begin, *second, special.sep], len(begin))
