import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import roc_auc_score

from electra_jax import metrics

roc = jax.jit(metrics.roc)


def auc(scores, labels, weights=None) -> float:
    scores, labels = np.asarray(scores, np.float32), np.asarray(labels, np.float32)
    weights = np.ones_like(scores) if weights is None else np.asarray(weights, np.float32)
    return roc(scores, labels, weights).number()


def test_mean_is_weighted():
    mean = metrics.mean(jnp.asarray([1.0, 5.0, 100.0]), jnp.asarray([3.0, 1.0, 0.0]))
    assert (float(mean.sum), float(mean.count)) == (8, 4)
    assert float(mean.value) == mean.number() == 2


def test_mean_of_nothing():
    mean = metrics.mean(jnp.asarray([7.0]), jnp.asarray([0.0]))
    assert float(mean.value) == 0  # a loss stays finite
    assert math.isnan(mean.number())  # a log says so


def test_total_and_scalar():
    assert metrics.total(jnp.asarray([[1.0, 2.0], [3.0, 4.0]])).number() == 10
    scalar = metrics.scalar(jnp.asarray(3.0))
    assert (float(scalar.sum), float(scalar.count)) == (3, 1)


def test_add_sums_what_is_counted():
    first = {"loss": metrics.Mean(6.0, 2.0), "tokens": metrics.Total(5.0)}
    second = {"loss": metrics.Mean(2.0, 6.0), "tokens": metrics.Total(7.0)}
    assert metrics.add(None, first) is first
    assert metrics.numbers(metrics.add(first, second)) == {"loss": 1.0, "tokens": 12.0}


def test_auc_is_the_share_of_pairs_in_order_ties_counted_half():
    assert auc([0, 1, 2, 3], [0, 0, 1, 1]) == 1
    assert auc([0, 1, 2, 3], [1, 1, 0, 0]) == 0
    assert auc([0, 1, 2, 3], [0, 1, 0, 1]) == 0.75
    assert auc([5, 5, 5, 5], [0, 1, 0, 1]) == 0.5
    assert auc([1, 1, 2, 0], [0, 1, 1, 0]) == 0.875


def test_auc_of_one_class_is_no_number():
    assert math.isnan(auc([1, 2], [1, 1]))


def test_auc_leaves_out_what_has_no_weight():
    assert auc([0, 1, 9, -9], [0, 1, 0, 1], weights=[1, 1, 0, 0]) == 1


def test_scores_are_counted_by_label_in_1024_bins_of_a_32nd():
    scores = jnp.asarray([[-16.0, -99.0, -16 + 1 / 32], [0.0, 16.0, 99.0]])
    labels = jnp.asarray([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    weights = jnp.asarray([[1.0, 1.0, 1.0], [1.0, 1.0, 0.5]])
    histogram = np.asarray(roc(scores, labels, weights).histogram)
    assert histogram.shape == (2, 1024)
    expected = np.zeros((2, 1024))
    expected[0, [0, 1023]] = [2, 0.5]
    expected[1, [1, 512, 1023]] = [1, 1, 1]
    np.testing.assert_array_equal(histogram, expected)


@settings(max_examples=30)
@given(
    arrays.arrays(np.int32, 20, elements=st.integers(-5, 5) | st.integers(-512, 511)),
    arrays.arrays(np.int32, 20, elements=st.integers(0, 1)).filter(lambda labels: 0 < labels.sum() < 20),
)
def test_auc_is_scikit_learns_ties_included(scores, labels):
    assert auc(scores / 32, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_of_any_scores_is_near_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 5000)
    scores = rng.normal(labels, 2)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)


def measure_rows(rows=slice(None)):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(5, 10)).astype(np.float32), rng.integers(0, 2, (5, 10)).astype(np.float32)
    weights = (rng.random((5, 10)) < 0.8).astype(np.float32)
    return {
        "mean": metrics.Weighted(scores[rows], weights[rows]),
        "roc": metrics.Scored(scores[rows], labels[rows], weights[rows]),
        "total": metrics.total(weights[rows]),
        "step": metrics.scalar(jnp.float32(2)),
    }


def test_sums_over_batches_are_the_whole():
    first, second, whole = (metrics.over_batch(measure_rows(slice(*rows))) for rows in ((0, 3), (3, 5), (0, 5)))
    together = metrics.add(metrics.add(None, first), second)
    assert metrics.numbers(together) == pytest.approx(metrics.numbers(whole), rel=1e-6)


def test_sums_over_groups_are_those_of_their_rows():
    groups = np.array([2, 0, -1, 0, 2], np.int32)
    found = metrics.over_groups(measure_rows(), groups, 3)
    assert set(found) == {"mean", "roc"}  # what is known of the whole only is left out
    for group in range(3):
        own = metrics.numbers(jax.tree.map(lambda x, group=group: x[group], found))
        expected = metrics.numbers(metrics.over_batch(measure_rows(groups == group)))
        assert own == pytest.approx({name: expected[name] for name in own}, rel=1e-6, nan_ok=True)
    assert math.isnan(own["mean"]) == math.isnan(own["roc"]) is False
    assert not np.any(found["roc"].histogram[1])


def test_sums_over_a_batch():
    measured = measure_rows()
    found = metrics.over_batch(measured)
    assert float(found["mean"].sum) == float(measured["mean"].sum)
    assert found["mean"].number() == metrics.mean(*measured["mean"]).number()
    assert found["roc"].number() == metrics.roc(*measured["roc"]).number()
    assert (found["total"], found["step"]) == (measured["total"], measured["step"])


def test_no_gradient_flows_through_the_auc():
    def histogram(scores):
        return metrics.roc(scores, scores, scores).histogram.sum()

    assert not np.any(jax.grad(histogram)(jnp.ones(3)))


def test_a_window_gathers_steps_until_it_is_closed():
    window = metrics.MetricAccumulator()
    window.add({"loss": metrics.Mean(jnp.asarray(6.0), jnp.asarray(2.0))})
    window.add({"loss": metrics.Mean(jnp.asarray(2.0), jnp.asarray(6.0))})
    assert window.close() == {"loss": 1.0}
    window.add({"loss": metrics.Mean(jnp.asarray(7.0), jnp.asarray(1.0))})
    assert window.close() == {"loss": 7.0}
    for tokens in (2.0**24, 1.0):  # float32 would lose the second
        window.add({"tokens": metrics.Total(jnp.asarray(tokens))})
    assert window.close() == {"tokens": 2**24 + 1}
