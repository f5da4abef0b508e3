"""Metrics, in percent, computed by scikit-learn and SciPy."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError


def require() -> None:
    """Raises UserError if a library is missing."""
    _library("sklearn.metrics")
    _library("scipy.stats")


def matthews(truth: Sequence[int], predicted: Sequence[int]) -> float:
    if len({*truth, *predicted}) < 2:
        return 0.0  # as in scikit-learn, which also warns
    return 100 * float(_metrics().matthews_corrcoef(truth, predicted))


def accuracy(truth: Sequence[int], predicted: Sequence[int]) -> float:
    return 100 * float(_metrics().accuracy_score(truth, predicted))


def f1(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Computes the F1 of class 1."""
    return 100 * float(_metrics().f1_score(truth, predicted, zero_division=0))


def macro_f1(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Computes the mean F1 over the classes that occur."""
    return 100 * float(_metrics().f1_score(truth, predicted, average="macro", zero_division=0))


def multilabel_f1(truth_NC: np.ndarray, predicted_NC: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Computes `micro_f1`, `macro_f1` and each class's `f1_NAME`, 0 for a class without a true or predicted text.

    Args:
      truth_NC: multi-hot true classes of N texts.
      predicted_NC: multi-hot predicted classes.
      labels: the names of the C classes.
    """

    # [N, 1] -> [N, 2]
    if len(labels) == 1:  # scikit-learn would take one column for two classes; a class that never occurs adds nothing
        truth_NC, predicted_NC = (np.pad(each, ((0, 0), (0, 1))) for each in (truth_NC, predicted_NC))

    def of(average: str | None) -> Any:
        return 100 * _metrics().f1_score(truth_NC, predicted_NC, average=average, zero_division=0)

    # The class that was added to a single one has no name, and is left out.
    by_class = {f"f1_{label}": float(value) for label, value in zip(labels, of(None), strict=False)}
    return {"micro_f1": float(of("micro")), "macro_f1": float(np.mean([*by_class.values()])), **by_class}


def pearson(truth: Sequence[float], predicted: Sequence[float]) -> float:
    return _correlation("pearsonr", truth, predicted)


def spearman(truth: Sequence[float], predicted: Sequence[float]) -> float:
    return _correlation("spearmanr", truth, predicted)


def _correlation(name: str, truth: Sequence[float], predicted: Sequence[float]) -> float:
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.0  # the correlation with a constant is undefined; SciPy returns NaN
    value = float(getattr(_library("scipy.stats"), name)(truth, predicted).statistic)
    return 0.0 if math.isnan(value) else 100 * value


def _metrics() -> Any:
    return _library("sklearn.metrics")


def _library(name: str) -> Any:
    """Imports a library on first use, because pre-training needs neither of them."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"scores need {name.partition('.')[0]}; run pip install 'electra_jax[downstream]'") from error


BY_NAME: dict[str, Callable[[Any, Any], float]] = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "pearson": pearson,
    "spearman": spearman,
}
