"""Scores, in percent, by scikit-learn and SciPy."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from electra_jax.config.errors import UserError


def require() -> None:
    """Raises UserError where a library is missing: before the work, not after it."""
    _library("sklearn.metrics")
    _library("scipy.stats")


def matthews(truth: Sequence[int], found: Sequence[int]) -> float:
    if len({*truth, *found}) < 2:
        return 0.0  # as scikit-learn, which warns
    return 100 * float(_metrics().matthews_corrcoef(truth, found))


def accuracy(truth: Sequence[int], found: Sequence[int]) -> float:
    return 100 * float(_metrics().accuracy_score(truth, found))


def f1(truth: Sequence[int], found: Sequence[int]) -> float:
    """Of class 1."""
    return 100 * float(_metrics().f1_score(truth, found, zero_division=0))


def macro_f1(truth: Sequence[int], found: Sequence[int]) -> float:
    """The mean over the classes that occur."""
    return 100 * float(_metrics().f1_score(truth, found, average="macro", zero_division=0))


def pearson(truth: Sequence[float], found: Sequence[float]) -> float:
    return _correlation("pearsonr", truth, found)


def spearman(truth: Sequence[float], found: Sequence[float]) -> float:
    return _correlation("spearmanr", truth, found)


def _correlation(name: str, truth: Sequence[float], found: Sequence[float]) -> float:
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(found) == 0:
        return 0.0  # what does not vary goes along with nothing; there the libraries give NaN
    value = float(getattr(_library("scipy.stats"), name)(truth, found).statistic)
    return 0.0 if math.isnan(value) else 100 * value


def _metrics() -> Any:
    return _library("sklearn.metrics")


def _library(name: str) -> Any:
    """Imported where a score is wanted: pre-training needs neither."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"scores need {name.partition('.')[0]}; pip install 'electra_jax[downstream]' has all that they need"
        ) from error


BY_NAME: dict[str, Callable[[Any, Any], float]] = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "pearson": pearson,
    "spearman": spearman,
}
