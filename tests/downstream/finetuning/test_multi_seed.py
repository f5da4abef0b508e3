import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from tiny_models import network, random_like, same

from electra_jax.data import tokenizer
from electra_jax.downstream.finetuning import multi_seed, recipe
from electra_jax.downstream.tasks.task import Rows
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream

PAPER = recipe.resolve(recipe.make("cola"))
OPTIM = dataclasses.replace(PAPER.optim, learning_rate=3e-3, layer_decay=1.0, clip_norm=20.0)
RECIPE = dataclasses.replace(PAPER, epochs=2, batch_size=4, optim=OPTIM)


def rows(count=11, targets=None, longer=4):
    """Rows of 6 tokens, every third one longer; the target is whether the second token is an even one."""
    rng = np.random.default_rng(0)
    ids = [[2, *rng.integers(5, 60, 4 + longer * (i % 3 == 0)).tolist(), 3] for i in range(count)]
    target = np.array([row[1] % 2 for row in ids], np.int32)
    return Rows(ids, [len(row) for row in ids], np.arange(count), targets or {"target": target})


def model(given, kind="classification", outputs=2):
    return Downstream(given.config, kind, outputs, 5)


@pytest.fixture(scope="module")
def given():
    return network(head=None, layers=1)


class Alone(NamedTuple):
    """Seed 1: its parameters, its losses, how often a step was compiled, and Adam's first moments after one step."""

    params: Any
    losses: np.ndarray
    compiled: int
    moments: Any


@pytest.fixture(scope="module")
def alone(given):
    before, moments, step = multi_seed.train_step._cache_size(), [], multi_seed.train_step

    def recorded(*args, **options):
        state, losses = step(*args, **options)
        moments.extend(jax.device_get(each.mu) for each in state.opt_state if isinstance(each, optax.ScaleByAdamState))
        return state, losses

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multi_seed, "train_step", recorded)
        params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    return Alone(params, losses, step._cache_size() - before, moments[0])


@pytest.mark.slow
def test_a_seed_gives_the_same_result_alone_and_with_others(given, alone):
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [0, 1])
    assert losses.shape == (2, 6)
    np.testing.assert_allclose(losses[1], alone.losses[0], rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[0], atol=1e-4), params, alone.params)
    assert not np.allclose(losses[0], losses[1])


def test_each_padded_length_is_compiled_for_once(given, alone):
    assert len(set(rows().lengths())) == 2
    assert alone.compiled == len({length for length, _ in multi_seed.plan_steps(RECIPE, rows(), [1])}) == 1
    before = multi_seed.train_step._cache_size()
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    assert multi_seed.train_step._cache_size() == before
    assert np.array_equal(losses, alone.losses)
    assert same(params, alone.params)


def test_by_default_the_gradient_of_the_sum_is_clipped(alone):
    """After a step the first moments are a tenth of the clipped gradient. Its norm: 35 of the sum, 9 of the mean."""
    norm = np.sqrt(sum(np.sum(np.square(moment)) for moment in jax.tree.leaves(alone.moments)))
    assert norm == pytest.approx(0.1 * 20, rel=1e-4)


def test_training_learns_the_task(given):
    longer = dataclasses.replace(RECIPE, epochs=60)
    params, losses = multi_seed.train(model(given), given, longer, rows(), tokenizer.OWN, [1])
    (found,) = multi_seed.predict(model(given), params, rows(), tokenizer.OWN, longer)
    right = np.argmax(found["scores"], axis=-1) == rows().targets["target"]
    assert np.median(losses[0, -30:]) < 0.3 < losses[0, 0]
    assert right.sum() >= 10  # of 11


@pytest.mark.parametrize(("kind", "outputs"), [pytest.param("tagging", 3, marks=pytest.mark.slow), ("answering", 2)])
def test_predictions_for_a_row_depend_on_that_row_only(given, kind, outputs):
    """And its outputs stand where it does: the other rows are moved, and two are left out."""
    some = rows(targets={"allowed": [[1] * (30 - 24 * (i % 3 > 0)) for i in range(11)]}, longer=24)
    moved = [10, 2, 8, 0, 6, 4, 3, 9, 1]
    others = Rows(
        *([each[i] for i in moved] for each in (some.input_ids, some.second)),
        np.arange(len(moved)),
        {"allowed": [some.targets["allowed"][i] for i in moved]},
    )
    whole = model(given, kind, outputs)
    ids = np.zeros((1, 8), np.int32)
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    shapes = jax.eval_shape(lambda: whole.init(keys, Batch(ids, ids, ids), ids, ids[:, 0], True)["params"])
    params = jax.tree.map(lambda x: x[None], random_like(shapes))
    found, other = (multi_seed.predict(whole, params, each, tokenizer.OWN, RECIPE)[0] for each in (some, others))
    assert list(other) == list(found)
    for name in other:
        assert (len(found[name]), len(other[name])) == (11, 9)
        for i, outputs_of_row in zip(moved, other[name], strict=True):
            np.testing.assert_allclose(found[name][i], outputs_of_row, atol=1e-5)
    if kind == "tagging":
        assert [said.shape for said in found["scores"]] == [(len(ids), 3) for ids in some.input_ids]
    if kind == "answering":
        assert found["end_index"].shape == (11, 5, 5)
        assert found["impossible"].shape == (11,)


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
    (found,) = multi_seed.predict(whole, states, some, tokenizer.OWN, RECIPE)
    assert set(found) == {"start_score", "start_index", "end_score", "end_index"}
    assert set(found["start_index"][:, :4].ravel()) <= {0, 3, 4, 5}
    assert set(found["end_index"][:, :, :4].ravel()) <= {0, 3, 4, 5}
    # Log-probabilities of all that may be sum to one.
    np.testing.assert_allclose(np.exp(found["start_score"][:, :4]).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found["end_score"][:, :, :4]).sum(axis=2), 1, rtol=1e-5)
