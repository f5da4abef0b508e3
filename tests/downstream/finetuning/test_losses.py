import math

import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.downstream.finetuning import losses
from electra_jax.downstream.tasks.task import TaskBatch
from electra_jax.metrics import Mean
from electra_jax.modeling.batch import Batch

ONES = jnp.ones(2)


def rows(weights, **targets):
    return TaskBatch(Batch(None, None, None), weights, targets)


def test_classification_counts_rows_by_weight():
    scores = jnp.array([[0.0, math.log(3.0)], [5.0, -5.0]])
    batch = rows(jnp.array([1.0, 0.0]), target=jnp.array([1, -1]))
    loss = losses.classification({"scores": scores}, batch)
    assert (loss.sum, loss.count) == (pytest.approx(-math.log(3 / 4)), 1)


def test_multilabel_is_the_mean_over_classes():
    scores = jnp.array([[0.0, math.log(3.0)], [5.0, -5.0]])
    batch = rows(jnp.array([1.0, 0.0]), target=jnp.array([[1.0, 0.0], [-1.0, -1.0]]))
    loss = losses.multilabel({"scores": scores}, batch)
    assert (loss.sum, loss.count) == (pytest.approx((math.log(2) + math.log(4)) / 2), 1)


def test_regression():
    batch = rows(ONES, target=jnp.array([1.0, 0.5]))
    loss = losses.regression({"scores": jnp.array([[0.0], [1.0]])}, batch)
    assert (loss.sum, loss.count) == (pytest.approx(1 + 0.25), 2)


def test_tagging_counts_the_tokens_that_have_a_target():
    scores = jnp.array([[[0.0, math.log(3.0)], [9.0, 0.0], [0.0, 0.0]], [[7.0, 0.0]] * 3])
    batch = rows(jnp.array([1.0, 0.0]), target=jnp.array([[1, -1, 0], [-1, -1, -1]]))
    loss = losses.tagging({"scores": scores}, batch)
    assert (loss.sum, loss.count) == (pytest.approx(-math.log(3 / 4) + math.log(2)), 2)


def test_answering():
    log = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    outputs = {"start_logp": log, "end_logp": log}
    batch = rows(ONES, start=jnp.array([0, 1]), end=jnp.array([1, 1]))
    spans = -(math.log(0.5) + math.log(0.25)) / 2 - math.log(0.8)
    loss = losses.answering(outputs, batch)
    assert (loss.sum, loss.count) == (pytest.approx(spans), 2)
    outputs["impossible"], batch.targets["impossible"] = jnp.zeros(2), jnp.array([1, 0])
    assert losses.answering(outputs, batch).sum == pytest.approx(spans + 2 * 0.5 * math.log(2))


def test_nothing_that_counts_is_no_division_by_nothing():
    batch = rows(jnp.zeros(2), target=np.array([-1, -1]))
    assert losses.classification({"scores": jnp.zeros((2, 3))}, batch).value == 0


def test_a_batch_is_reduced_to_its_sum_or_its_mean():
    loss = Mean(jnp.float32(6), jnp.float32(4))
    assert {name: float(reduce(loss)) for name, reduce in losses.REDUCTIONS.items()} == {"sum": 6, "mean": 1.5}
