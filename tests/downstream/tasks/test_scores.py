import math

import pytest

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks import scores


def test_by_their_definitions():
    truth, found = [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]  # 2 true positives, 1 false, 1 true negative, 1 missed
    assert scores.accuracy(truth, found) == pytest.approx(100 * 3 / 5)
    assert scores.f1(truth, found) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 1))
    assert scores.matthews(truth, found) == pytest.approx(100 * (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert scores.macro_f1(truth, found) == pytest.approx(100 * (2 / 3 + 1 / 2) / 2)
    assert scores.pearson([0, 1, 2], [0, 1, 5]) == pytest.approx(100 * 5 / math.sqrt(2 * 14))
    assert scores.spearman([0, 1, 2], [0, 1, 5]) == pytest.approx(100)


def test_what_does_not_vary_scores_nothing():
    assert scores.matthews([1, 0, 1], [1, 1, 1]) == 0
    assert scores.f1([1, 0, 1], [0, 0, 0]) == 0
    assert scores.pearson([1, 2, 3], [2, 2, 2]) == 0
    assert scores.spearman([1], [2]) == 0


def test_a_library_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.metrics", None)
    with pytest.raises(UserError, match=r"scores need sklearn; run pip install 'electra_jax\[downstream\]'"):
        scores.accuracy([1], [1])
