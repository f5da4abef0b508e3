"""Scores, in percent, by scikit-learn and SciPy."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError


def require() -> None:
    """Raises UserError if a library is missing. Called before the training, so that it does not fail after it."""
    _library("sklearn.metrics")
    _library("scipy.stats")


def matthews(truth: Sequence[int], predicted: Sequence[int]) -> float:
    if len({*truth, *predicted}) < 2:
        return 0.0  # scikit-learn's result too, but it warns
    return 100 * float(_metrics().matthews_corrcoef(truth, predicted))


def accuracy(truth: Sequence[int], predicted: Sequence[int]) -> float:
    return 100 * float(_metrics().accuracy_score(truth, predicted))


def f1(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """F1 of class 1."""
    return 100 * float(_metrics().f1_score(truth, predicted, zero_division=0))


def macro_f1(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Mean F1 over the classes that occur."""
    return 100 * float(_metrics().f1_score(truth, predicted, average="macro", zero_division=0))


def multilabel_f1(truth_NC: np.ndarray, predicted_NC: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """`micro_f1`, `macro_f1` and, for each of C classes, `f1_NAME`; 0 for a class without a true or predicted text.

    Args:
      truth_NC: 1 where a text has a class, else 0.
      predicted_NC: the same of predictions.
      labels: the names of the classes.
    """

    def of(average: str | None) -> Any:
        return 100 * _metrics().f1_score(truth_NC, predicted_NC, average=average, zero_division=0)

    by_class = {f"f1_{label}": float(value) for label, value in zip(labels, of(None), strict=True)}
    return {"micro_f1": float(of("micro")), "macro_f1": float(of("macro")), **by_class}


def pearson(truth: Sequence[float], predicted: Sequence[float]) -> float:
    return _correlation("pearsonr", truth, predicted)


def spearman(truth: Sequence[float], predicted: Sequence[float]) -> float:
    return _correlation("spearmanr", truth, predicted)


def _correlation(name: str, truth: Sequence[float], predicted: Sequence[float]) -> float:
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.0  # a constant has no correlation; SciPy gives NaN
    value = float(getattr(_library("scipy.stats"), name)(truth, predicted).statistic)
    return 0.0 if math.isnan(value) else 100 * value


def _metrics() -> Any:
    return _library("sklearn.metrics")


def _library(name: str) -> Any:
    """Imported on first use: pre-training needs neither library."""
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
