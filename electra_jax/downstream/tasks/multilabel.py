"""Multi-label classification: zero or more classes for each text or pair of texts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from electra_jax.downstream.tasks import scores
from electra_jax.downstream.tasks.labels import label_text
from electra_jax.downstream.tasks.sentences import Example, Sentences
from electra_jax.downstream.tasks.task import Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(Sentences):
    """Multi-label classification with an independent probability per class. A target is a tuple of class indices.

    Attributes:
      separator: separator of the classes in a text; lists need none.
      threshold: classes of at least this probability are predicted; 0: not chosen yet.
    """

    metrics: tuple[str, ...] = ("micro_f1",)
    separator: str = ","
    threshold: float = 0.5
    kind = "multilabel"

    @property
    def expected(self) -> str:
        return f"a list of classes among {', '.join(self.labels)}"

    def names_in(self, value: Any) -> tuple[str, ...] | None:
        """Returns the classes in a cell: () for an empty list or text, None if the cell is not a list of classes."""
        if isinstance(value, str):
            # An empty cell is a text without a class, not the class "".
            parts: list[Any] = value.split(self.separator) if value.strip() else []
        else:
            parts = value if isinstance(value, list) else [value]
        names = tuple(label_text(part).strip() for part in parts)
        return names if all(names) else None

    def parse_target(self, value: Any) -> tuple[int, ...] | None:
        names = self.names_in(value)
        if names is None or not {*names} <= {*self.labels}:
            return None
        # A cell may repeat a class.
        return tuple(sorted({self.labels.index(name) for name in names}))

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns multi-hot targets, [N, C] float32."""
        return self._indicators([example.target for example in examples]).astype(np.float32)

    def probabilities(self, outputs: Mapping[str, Any]) -> np.ndarray:
        """Computes probabilities, [N, C] float64, from the head's `scores`, which are logits."""
        logits_NC = np.asarray(outputs["scores"], np.float64)
        # The sigmoid; unlike 1 / (1 + exp(-x)), it does not overflow for large negative logits.
        result: np.ndarray = np.exp(-np.logaddexp(0.0, -logits_NC))
        return result

    @property
    def needs_fit(self) -> bool:
        return not self.threshold

    def fit(self, outputs: Mapping[str, Any], examples: Sequence[Example]) -> "MultiLabel":
        """Returns the task with the threshold of the best micro F1, halfway between two probabilities."""
        truth = self._indicators([example.target for example in examples]).ravel()
        p = self.probabilities(outputs).ravel()
        order = np.argsort(-p, kind="stable")
        # Thresholds lie halfway between neighbors. The lowest one, which predicts all, lies above the added 0.
        truth, p = truth[order], np.append(p[order], 0.0)
        count = np.arange(1, len(truth) + 1)
        # F1 if the `count` most probable decisions are positive: 2 hits / (predicted + true).
        f1 = 2 * np.cumsum(truth) / (count + max(truth.sum(), 1))
        f1[p[:-1] == p[1:]] = -1  # a threshold cannot tell equal probabilities apart
        best = int(np.argmax(f1))
        # Without a true class there is nothing to choose by.
        return dataclasses.replace(self, threshold=float((p[best] + p[best + 1]) / 2) if truth.any() else 0.5)

    def answer(self, outputs: Mapping[str, Any], rows: Rows, examples: Sequence[Example]) -> list[Any]:
        """Returns the indices of the predicted classes of each example."""
        del rows, examples  # each example has one row
        return [tuple(np.flatnonzero(row).tolist()) for row in self.probabilities(outputs) >= self.threshold]

    def score(self, examples: Sequence[Example], answers: Sequence[Any]) -> dict[str, float]:
        """Computes micro and macro F1, and the F1 of each class."""
        truth_NC = self._indicators([example.target for example in examples])
        return scores.multilabel_f1(truth_NC, self._indicators(answers), self.labels)

    def answer_text(self, answer: Any) -> str:
        return self.separator.join(self.labels[number] for number in answer)

    def _indicators(self, sets: Sequence[Any]) -> np.ndarray:
        """Returns the sets as multi-hot vectors, [N, C] int."""
        result_NC = np.zeros((len(sets), len(self.labels)), np.int64)
        for row, numbers in enumerate(sets):
            result_NC[row, list(numbers)] = 1
        return result_NC
