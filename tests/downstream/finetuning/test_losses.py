import math

import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.downstream.finetuning import losses
from electra_jax.downstream.tasks.task import TaskBatch
from electra_jax.modeling.batch import Batch

ONES = jnp.ones(2)


def rows(weights, **targets):
    return TaskBatch(Batch(None, None, None), weights, targets)


def test_classification_counts_rows_by_weight():
    scores = jnp.array([[0.0, math.log(3.0)], [5.0, -5.0]])
    batch = rows(jnp.array([1.0, 0.0]), target=jnp.array([1, -1]))
    assert losses.classification({"scores": scores}, batch) == pytest.approx(-math.log(3 / 4))


def test_regression():
    batch = rows(ONES, target=jnp.array([1.0, 0.5]))
    assert losses.regression({"scores": jnp.array([[0.0], [1.0]])}, batch) == pytest.approx((1 + 0.25) / 2)


def test_tagging_counts_the_tokens_that_have_a_target():
    scores = jnp.array([[[0.0, math.log(3.0)], [9.0, 0.0], [0.0, 0.0]], [[7.0, 0.0]] * 3])
    batch = rows(jnp.array([1.0, 0.0]), target=jnp.array([[1, -1, 0], [-1, -1, -1]]))
    expected = (-math.log(3 / 4) + math.log(2)) / 2
    assert losses.tagging({"scores": scores}, batch) == pytest.approx(expected)


def test_answering():
    log = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    outputs = {"start_logp": log, "end_logp": log}
    batch = rows(ONES, start=jnp.array([0, 1]), end=jnp.array([1, 1]))
    spans = (-(math.log(0.5) + math.log(0.25)) / 2 - math.log(0.8)) / 2
    assert losses.answering(outputs, batch) == pytest.approx(spans)
    outputs["impossible"], batch.targets["impossible"] = jnp.zeros(2), jnp.array([1, 0])
    assert losses.answering(outputs, batch) == pytest.approx(spans + 0.5 * math.log(2))


def test_nothing_that_counts_is_no_division_by_nothing():
    batch = rows(jnp.zeros(2), target=np.array([-1, -1]))
    assert losses.classification({"scores": jnp.zeros((2, 3))}, batch) == 0
