import dataclasses

import jax
import numpy as np
import pytest
from tiny_models import network

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.downstream.finetuning import multi_seed, recipe
from electra_jax.downstream.tasks.task import Rows
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream

PAPER = recipe.recipe(recipe.make({"name": "cola"}))
OPTIM = dataclasses.replace(PAPER.optim, learning_rate=3e-3, layer_decay=1.0)
RECIPE = dataclasses.replace(PAPER, epochs=2, batch_size=4, optim=OPTIM)


def rows(count=11, targets=None):
    """Rows of 6 to 30 tokens; the target is whether the second token is an even one."""
    rng = np.random.default_rng(0)
    ids = [[2, *rng.integers(5, 60, 4 + 24 * (i % 3 == 0)).tolist(), 3] for i in range(count)]
    target = np.array([row[1] % 2 for row in ids], np.int32)
    return Rows(ids, [len(row) for row in ids], np.arange(count), targets or {"target": target})


def model(given, kind="classification", outputs=2):
    return Downstream(given.config, kind, outputs, 5)


@pytest.fixture(scope="module")
def given():
    return network("modernbert", head=None)


@pytest.fixture(scope="module")
def extract(given):
    """Seed 1: its parameters, its losses, and how often a step was compiled."""
    before = multi_seed.train_step._cache_size()
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    return params, losses, multi_seed.train_step._cache_size() - before


@pytest.mark.slow
def test_a_seed_comes_to_the_same_alone_and_beside_others(given, alone):
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [0, 1])
    assert losses.shape == (2, 6)
    np.testing.assert_allclose(losses[1], alone[1][0], rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[0], atol=1e-4), params, alone[0])
    assert not np.allclose(losses[0], losses[1])


def test_each_length_is_compiled_for_once(given, alone):
    assert alone[2] == len({length for length, _ in RECIPE.plan(rows(), [1])}) == 2
    before = multi_seed.train_step._cache_size()
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    assert multi_seed.train_step._cache_size() == before
    assert np.array_equal(losses, alone[1])
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(alone[0]), strict=True))


def test_what_is_learned_is_the_task(given):
    longer = dataclasses.replace(RECIPE, epochs=60)
    params, losses = multi_seed.train(model(given), given, longer, rows(), tokenizer.OWN, [1])
    (found,) = multi_seed.outputs(model(given), params, rows(), tokenizer.OWN, longer)
    right = np.argmax(found["scores"], axis=-1) == rows().targets["target"]
    assert np.median(losses[0, -30:]) < 0.3 < losses[0, 0]
    assert right.sum() >= 10  # of 11


@pytest.mark.parametrize(("kind", "outputs"), [pytest.param("tagging", 3, marks=pytest.mark.slow), ("answering", 2)])
def test_what_is_said_of_a_row_depends_on_the_row_alone(given, kind, outputs):
    targets = {"allowed": [[1] * len(ids) for ids in rows().input_ids]}
    some = rows(targets=targets)
    whole = model(given, kind, outputs)
    start = np.zeros((1,), np.int32)
    ids = np.zeros((1, 8), np.int32)
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    params = jax.tree.map(lambda x: x[None], whole.init(keys, Batch(ids, ids, ids), ids, start, True)["params"])
    found = [
        multi_seed.outputs(whole, params, some, tokenizer.OWN, dataclasses.replace(RECIPE, batch_size=size))[0]
        for size in (4, 16)
    ]
    for other in found[1:]:
        assert list(other) == list(found[0])
        for name in other:
            assert len(other[name]) == len(some.input_ids)
            for a, b in zip(found[0][name], other[name], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
    if kind == "tagging":
        assert [said.shape for said in found[0]["scores"]] == [(len(ids), 3) for ids in some.input_ids]
    if kind == "answering":
        assert found[0]["end_index"].shape == (11, 5, 5)
        assert found[0]["impossible"].shape == (11,)


@pytest.mark.slow
def test_answers_begin_and_end_where_they_may(given):
    some = rows(targets={"allowed": [[1, 0, 0, 1, 1, 1, *[0] * (len(ids) - 6)] for ids in rows().input_ids]})
    whole = model(given, "answering", 1)
    states, _ = multi_seed.train(
        whole,
        given,
        RECIPE,
        some._replace(targets={**some.targets, "start": np.full(11, 3), "end": np.full(11, 4)}),
        tokenizer.OWN,
        [0],
    )
    (found,) = multi_seed.outputs(whole, states, some, tokenizer.OWN, RECIPE)
    assert set(found) == {"start_score", "start_index", "end_score", "end_index"}
    assert set(found["start_index"][:, :4].ravel()) <= {0, 3, 4, 5}
    assert set(found["end_index"][:, :, :4].ravel()) <= {0, 3, 4, 5}
    # Log-probabilities of all that may be sum to one.
    np.testing.assert_allclose(np.exp(found["start_score"][:, :4]).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found["end_score"][:, :, :4]).sum(axis=2), 1, rtol=1e-5)


def test_a_loss_that_is_no_number_is_said(given):
    broken = given._replace(params=jax.tree.map(lambda x: x * np.float32(np.nan), given.params))
    with pytest.raises(UserError, match="the loss is no number from step 0 on"):
        multi_seed.train(model(given), broken, RECIPE, rows(), tokenizer.OWN, [1])
