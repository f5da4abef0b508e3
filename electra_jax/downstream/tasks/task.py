"""Interface of downstream tasks: read and encode examples, decode model outputs into answers, score and write them."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special, Tokenizer
from electra_jax.modeling.batch import Batch

IGNORED = -1  # target that is excluded from the loss: padding, and all pieces of a word but its first


class BadRows:
    """Collector of unusable rows: raises at the first one, or skips and counts all of them.

    Attributes:
      problems: one line per skipped row: its place and the problem.
    """

    def __init__(self, strict: bool = True, advice: str = "fix it, or leave such rows out with --strict=false"):
        """Creates a collector without rows.

        Args:
          strict: whether the first bad row is an error.
          advice: the end of the error message.
        """
        self._strict, self._advice = strict, advice
        self.problems: list[str] = []

    def add(self, place: str, problem: str) -> None:
        """Records a bad row at `place`, a file and a line.

        Raises:
          UserError: `strict` is set.
        """
        if self._strict:
            raise UserError(f"{place}: {problem}; {self._advice}")
        self.problems.append(f"{place}: {problem}")

    def summary(self) -> str:
        """Returns one line about the skipped rows; empty if there are none."""
        return f"{len(self.problems)} rows left out, the first {self.problems[0]}" if self.problems else ""

    def in_brackets(self) -> str:
        """Returns the summary in parentheses, after a space, for use within a sentence; empty if there is none."""
        return f" ({self.summary()})" if self.problems else ""


class TaskBatch(NamedTuple):
    """A batch of a task's rows, padded to one length.

    Attributes:
      inputs: inputs of the encoder, [B, L] each.
      weights: [B], the weight of each row in the loss; 0 for the repeated rows that fill up the batch.
      targets: maps target names to [B], [B, C] or [B, L], `IGNORED` at padding. Answering also has `allowed`, [B, L],
        1 where an answer may begin or end.
    """

    inputs: Batch
    weights: Any
    targets: dict[str, Any]


class Rows(NamedTuple):
    """Encoded examples. A long example may have several rows.

    Attributes:
      input_ids: token ids of each row, framed by CLS and SEP.
      second: index at which each row's second segment begins; the row's length if it has none.
      example: [rows], the index of each row's example.
      targets: maps target names to an array with a number or vector per row, or to a list of per-token numbers by row.
      extra: per-row information that the task needs to decode answers.
      cut: number of truncated examples: a text or a word exceeds the room in a row, or a question its maximum length.
      weights: [rows], the weight of each row in the loss; None: 1.
      empty: number of examples without any token of text.
    """

    input_ids: list[list[int]]
    second: list[int]
    example: np.ndarray
    targets: dict[str, Any]
    extra: Any = None
    cut: int = 0
    weights: np.ndarray | None = None
    empty: int = 0

    def lengths(self) -> np.ndarray:
        """Returns [rows], the number of tokens in each row."""
        return np.array([len(ids) for ids in self.input_ids], np.int64)

    def make_batch(self, chosen: Sequence[int] | np.ndarray, size: int, length: int, special: Special) -> TaskBatch:
        """Pads the chosen rows to `length` tokens. The first one is repeated, at weight 0, to make `size` rows."""
        ids = np.full((size, length), special.pad, np.int32)
        types, used = np.zeros_like(ids), np.zeros_like(ids)
        targets = {
            name: np.full(
                # Lists have a number for each token, arrays a number or a vector for each row.
                (size, length) if isinstance(values, list) else (size, *values.shape[1:]),
                IGNORED,
                _target_dtype(values),
            )
            for name, values in self.targets.items()
        }
        # Repeated rows, not empty ones: an empty row has `length` positions of padding, an encoder may have fewer.
        for row, number in enumerate([*chosen, *[chosen[0]] * (size - len(chosen))]):
            tokens = self.input_ids[number]
            ids[row, : len(tokens)], used[row, : len(tokens)] = tokens, 1
            # BERT's segment ids; padding keeps 0.
            types[row, self.second[number] : len(tokens)] = 1
            for name, values in self.targets.items():
                if isinstance(values, list):
                    targets[name][row, : len(tokens)] = values[number]
                else:
                    targets[name][row] = values[number]
        # The repeated rows fill up the batch, but count for nothing.
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
      test: maps the names of the splits that are answered for a leaderboard to the names of their files there.
    """

    name: str
    dev: tuple[str, ...]
    test: Mapping[str, str]

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """Kind of head and loss: `classification`, `multilabel`, `regression`, `tagging` or `answering`."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Number of the head's outputs. Regression: 1. Answering: 1, or 2 if a question may have no answer."""

    @property
    @abc.abstractmethod
    def main_metric(self) -> str:
        """Name of the main score, the one shown in curves and tables."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that the task reads."""
        return (".tsv", ".csv", ".jsonl")

    @abc.abstractmethod
    def read(self, data_dir: str, split: str, bad_rows: BadRows) -> list[Any]:
        """Reads the examples of a split.

        Args:
          data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
          split: `train`, or a name in `dev` or `test`.
          bad_rows: receives the rows that cannot be used.

        Raises:
          UserError: the split does not exist, or has no usable example.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Encodes examples as rows of at most `max_length` tokens. `train` adds the task's augmented rows, if any."""

    @property
    def needs_fit(self) -> bool:
        """True if a setting is to be chosen on half of the development set; scores are then those of the other half."""
        return False

    def fit(self, outputs: Mapping[str, Any], examples: Sequence[Any]) -> "Task":
        """Returns the task with the setting that is best for these outputs of a model."""
        return self

    @abc.abstractmethod
    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Any]) -> list[Any]:
        """Decodes the model's outputs, which map names to values for each row, into one answer per example."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """Computes scores in percent, `main_metric` among them."""

    @abc.abstractmethod
    def write(self, path: Path, examples: Sequence[Any], answers: Sequence[Any]) -> None:
        """Writes answers in the leaderboard's format, to `path` with the format's suffix added."""

    def combine(self, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Merges the scores of all evaluated splits. Names of all splits but the first get the suffix `_SPLIT`."""
        first, *others = scores
        return dict(scores[first]) | {f"{name}_{split}": v for split in others for name, v in scores[split].items()}


def truncate(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Truncates a pair to `room` tokens in total, token by token from the longer text, or from the second if equal.

    Source: google-research/bert, run_classifier.py, _truncate_seq_pair.
    """
    # The reference's loop in closed form: `ahead` tokens until both are equal, then by turns from the second on.
    excess = max(0, len(first) + len(second) - room)
    ahead = min(excess, abs(len(first) - len(second)))
    a, b = (ahead, 0) if len(first) > len(second) else (0, ahead)
    rest = excess - ahead
    a, b = a + rest // 2, b + (rest + 1) // 2
    return first[: len(first) - a], second[: len(second) - b]


def frame(first: list[int], second: list[int] | None, special: Special) -> tuple[list[int], int]:
    """Returns the ids CLS first SEP [second SEP], and the index at which the second segment begins."""
    begin = [special.cls, *first, special.sep]
    return (begin, len(begin)) if second is None else ([*begin, *second, special.sep], len(begin))
