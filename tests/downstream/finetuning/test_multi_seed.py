import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_models import network

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.downstream.finetuning import multi_seed, recipe
from electra_jax.downstream.tasks.task import Rows
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream

PAPER = recipe.resolve(recipe.make("cola"))
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
def alone(given):
    """Seed 1: its parameters, its losses, and how often a step was compiled."""
    before = multi_seed.train_step._cache_size()
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    return params, losses, multi_seed.train_step._cache_size() - before


@pytest.mark.slow
def test_a_seed_gives_the_same_result_alone_and_with_others(given, alone):
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [0, 1])
    assert losses.shape == (2, 6)
    np.testing.assert_allclose(losses[1], alone[1][0], rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[0], atol=1e-4), params, alone[0])
    assert not np.allclose(losses[0], losses[1])


def test_each_length_is_compiled_for_once(given, alone):
    assert alone[2] == len({length for length, _ in multi_seed.plan_steps(RECIPE, rows(), [1])}) == 2
    before = multi_seed.train_step._cache_size()
    params, losses = multi_seed.train(model(given), given, RECIPE, rows(), tokenizer.OWN, [1])
    assert multi_seed.train_step._cache_size() == before
    assert np.array_equal(losses, alone[1])
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(alone[0]), strict=True))


def test_by_default_the_gradient_of_the_sum_is_clipped():
    """After a step the first moments are a tenth of the clipped gradient. Its norm: 42 of the sum, 11 of the mean."""
    given, optim = network(head=None, layers=1), dataclasses.replace(OPTIM, clip_norm=20.0)
    whole, key = model(given), np.zeros(1, np.uint32)
    part = rows().make_batch([1, 2, 4, 5], 4, 16, tokenizer.OWN)
    batch = jax.tree.map(lambda x: np.asarray(x)[None], part)
    pretrained = {name: given.params[name] for name in ("embeddings", "encoder")}
    state = multi_seed.init_states(key, pretrained, model=whole, optim=optim)
    state, _ = multi_seed.train_step(state, key, batch, jnp.float32(9), model=whole, optim=optim)
    (moments,) = (each.mu for each in state.opt_state if isinstance(each, optax.ScaleByAdamState))
    norm = np.sqrt(sum(np.sum(np.square(moment)) for moment in jax.tree.leaves(jax.device_get(moments))))
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
    targets = {"allowed": [[1] * len(ids) for ids in rows().input_ids]}
    some = rows(targets=targets)
    whole = model(given, kind, outputs)
    ids = np.zeros((1, 8), np.int32)
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    init = jax.jit(lambda: whole.init(keys, Batch(ids, ids, ids), ids, ids[:, 0], True)["params"])
    params = jax.tree.map(lambda x: np.asarray(x)[None], init())
    found = [
        multi_seed.predict(whole, params, some, tokenizer.OWN, dataclasses.replace(RECIPE, batch_size=size))[0]
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
    (found,) = multi_seed.predict(whole, states, some, tokenizer.OWN, RECIPE)
    assert set(found) == {"start_score", "start_index", "end_score", "end_index"}
    assert set(found["start_index"][:, :4].ravel()) <= {0, 3, 4, 5}
    assert set(found["end_index"][:, :, :4].ravel()) <= {0, 3, 4, 5}
    # Log-probabilities of all that may be sum to one.
    np.testing.assert_allclose(np.exp(found["start_score"][:, :4]).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found["end_score"][:, :, :4]).sum(axis=2), 1, rtol=1e-5)


def test_a_loss_that_is_not_finite_is_an_error(given):
    broken = given._replace(params=jax.tree.map(lambda x: x * np.float32(np.nan), given.params))
    with pytest.raises(UserError, match="the loss is not finite from step 0 on"):
        multi_seed.train(model(given), broken, RECIPE, rows(), tokenizer.OWN, [1])
