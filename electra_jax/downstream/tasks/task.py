"""What a downstream task is, whatever its kind: read, encode, answer, score, write."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special, Tokenizer

IGNORED = -1  # a target that has no loss: padding, and the pieces of a word after its first


class BadRows:
    """Rows that cannot be used: refused at the first, or left out and counted."""

    def __init__(self, strict: bool = True, way_out: str = "mend it, or leave such rows out with --strict=false"):
        self._strict, self._way_out = strict, way_out
        self.places: list[str] = []

    def __call__(self, place: str, what: str) -> None:
        """At `place`, a file and a line, there is `what`.

        Raises:
          UserError: such rows are not to be left out.
        """
        if self._strict:
            raise UserError(f"{place}: {what}; {self._way_out}")
        self.places.append(f"{place}: {what}")

    def summary(self) -> str:
        """A line about what was left out; empty where nothing was."""
        return f"{len(self.places)} rows left out, the first {self.places[0]}" if self.places else ""

    def aside(self) -> str:
        """The same in brackets, to stand within another sentence."""
        return f" ({self.summary()})" if self.places else ""


class Rows(NamedTuple):
    """Encoded examples. A long one may have several rows.

    Attributes:
      input_ids: of each row, framed by CLS and SEP.
      second: of each row, where its second segment begins; its length where there is none.
      example: [rows], the number of the example that it is of.
      targets: by name, a number for each row, or for each token of each row.
      extra: what the task wants to know of each row when it answers.
    """

    input_ids: list[list[int]]
    second: list[int]
    example: np.ndarray
    targets: dict[str, Any]
    extra: Any = None

    def lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.input_ids], np.int64)

    def batch(
        self, chosen: Sequence[int] | np.ndarray, size: int, length: int, special: Special
    ) -> dict[str, np.ndarray]:
        """The chosen rows, padded to `length`, and to `size` rows with the first of them again.

        Returns:
          `input_ids`, `token_type_ids` and `sequence_ids` [size, length] as in pre-training, `weights` [size], 0 for
          what is filled up, and the targets, `IGNORED` where there is none.
        """
        ids = np.full((size, length), special.pad, np.int32)
        types, used = np.zeros_like(ids), np.zeros_like(ids)
        targets = {
            name: np.full((size, length) if isinstance(values, list) else (size,), IGNORED, _type(values))
            for name, values in self.targets.items()
        }
        # Not with empty rows: an encoder may have fewer positions than `length`.
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
        return {"input_ids": ids, "token_type_ids": types, "sequence_ids": used, "weights": weights, **targets}


def _type(values: Any) -> Any:
    return np.int32 if isinstance(values, list) or values.dtype.kind in "iu" else np.float32


class Task(abc.ABC):
    """A task.

    Attributes:
      name: what it is called.
      dev: names of the splits that are evaluated.
      test: of those whose answers are written for a leaderboard, each with the name of its file there.
    """

    name: str
    dev: tuple[str, ...]
    test: Mapping[str, str]

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """`classification`, `regression`, `tagging` or `answering`: which head and loss it has."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """Numbers that the head gives; 1 for regression, and for answering 2 where it also says that there is none."""

    @property
    @abc.abstractmethod
    def main(self) -> str:
        """The score that stands for all."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the files that it reads."""
        return (".tsv", ".csv", ".jsonl")

    @abc.abstractmethod
    def read(self, place: str, split: str, faults: BadRows) -> list[Any]:
        """The examples of a split.

        Args:
          place: the folder with the task's files, or `tfds:NAME/CONFIG`.
          split: `train`, or one of `dev` and `test`.
          faults: told of rows that cannot be used.

        Raises:
          UserError: there is no such split.
        """

    @abc.abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int, train: bool) -> Rows:
        """Rows of at most `max_length` tokens; to train on, as many as the task's recipe makes of each example."""

    @abc.abstractmethod
    def answer(self, outputs: Mapping[str, np.ndarray], rows: Rows, examples: Sequence[Any]) -> list[Any]:
        """What the model answers, for each example; `outputs` by name, for each row."""

    @abc.abstractmethod
    def score(self, examples: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """Scores in percent, `main` among them."""

    @abc.abstractmethod
    def write(self, path: Path, examples: Sequence[Any], answers: Sequence[Any]) -> None:
        """Writes answers as the leaderboard takes them; the file's suffix is added to `path`."""

    def combine(self, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The scores of all evaluated splits as one table; those of the first under their own names."""
        first, *others = scores
        return dict(scores[first]) | {f"{name}_{split}": v for split in others for name, v in scores[split].items()}


def truncate(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cuts a pair to `room` tokens, one after another off the end of the longer, the second where they are equal.

    google-research/bert, run_classifier.py, _truncate_seq_pair.
    """
    excess = max(0, len(first) + len(second) - room)
    ahead = min(excess, abs(len(first) - len(second)))
    a, b = (ahead, 0) if len(first) > len(second) else (0, ahead)
    rest = excess - ahead
    a, b = a + rest // 2, b + (rest + 1) // 2
    return first[: len(first) - a], second[: len(second) - b]


def frame(first: list[int], second: list[int] | None, special: Special) -> tuple[list[int], int]:
    """(CLS A SEP [B SEP], where B begins)."""
    begin = [special.cls, *first, special.sep]
    return (begin, len(begin)) if second is None else ([*begin, *second, special.sep], len(begin))
