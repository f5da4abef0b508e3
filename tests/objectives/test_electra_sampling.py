import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special

from electra_jax.data.tokenizer import OWN
from electra_jax.objectives import electra

SIZE = 256
LOWEST = np.finfo(np.float32).min
categorical = jax.jit(electra.sample, static_argnames="block")
invert = jax.jit(electra._invert)


@pytest.mark.parametrize("lowest", [LOWEST, -np.inf, -200.0], ids=["finfo.min", "-inf", "rounds to 0"])
@pytest.mark.parametrize("possible", [[127, 128], [0, 255], [255], [130, 131, 200]], ids=str)
def test_impossible_entries_and_blocks_are_never_drawn(lowest, possible):
    logits = np.full(SIZE, lowest, np.float32)
    logits[possible] = 0
    uniform = np.linspace(0, 1, 6000, endpoint=False, dtype=np.float32)
    found, counts = np.unique(categorical(uniform, logits[None]), return_counts=True)
    assert found.tolist() == possible
    assert np.ptp(counts) <= 2


def test_one_hot_rows_give_their_entry_whatever_the_scale():
    logits = np.where(np.eye(SIZE, dtype=bool), np.float32(-1e30), LOWEST)
    uniform = np.linspace(0, 1, SIZE, endpoint=False, dtype=np.float32).reshape(16, 16)
    drawn = categorical(uniform, jnp.asarray(logits).reshape(16, 16, SIZE))
    np.testing.assert_array_equal(drawn, np.arange(SIZE).reshape(16, 16))
    assert drawn.dtype == jnp.int32


def test_a_draw_is_the_inverse_of_the_cumulative_distribution():
    """Of the shares 1/8, 0, 1/2, 1/4, 1/8 in two blocks of four; a share begins at its first number."""
    shares = np.asarray([0.125, 0, 0.5, 0.25, 0.125, 0, 0, 0], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(shares) + np.float32(7)
    uniform = np.asarray([0, 0.124, 0.126, 0.4, 0.624, 0.626, 0.874, 0.876, 0.999], np.float32)
    drawn = categorical(uniform, np.tile(logits, (9, 1)), block=4)
    np.testing.assert_array_equal(drawn, [0, 0, 2, 2, 2, 3, 3, 4, 4])


@pytest.mark.parametrize("block", [4, 16, 128])
def test_evenly_spaced_numbers_draw_every_entry_as_often_as_it_should_be(block):
    """No chance is left in it: each share is hit by its number of the points, at most one off for rounding."""
    logits = np.random.default_rng(0).normal(3, 1.5, SIZE).astype(np.float32)
    logits[32:48] = LOWEST  # whole blocks
    points = 20_000
    uniform = ((np.arange(points) + 0.5) / points).astype(np.float32)
    drawn = np.asarray(categorical(uniform, np.broadcast_to(logits, (points, SIZE)), block))
    assert np.all(np.diff(drawn) >= 0)
    shares = special.softmax(logits.astype(np.float64))
    assert np.abs(np.bincount(drawn, minlength=SIZE) - points * shares).max() < 2


def test_one_distribution_for_all_draws_is_not_copied():
    """XLA folds a constant of [B, M, V], which takes minutes at real size."""
    logits = np.random.default_rng(0).normal(3, 1.5, (1, 1, SIZE)).astype(np.float32)
    uniform = np.random.default_rng(1).random((10, 100), np.float32)
    drawn = {}
    for name, each in {"one": logits, "copied": np.tile(logits, (10, 100, 1))}.items():
        shapes = re.findall(r"tensor<([\dx]+)x\w+>", categorical.lower(uniform, each, block=16).as_text())
        largest = max(math.prod(map(int, shape.split("x"))) for shape in shapes)
        assert (largest >= uniform.size * SIZE) is (name == "copied")
        drawn[name] = categorical(uniform, each, block=16)
    np.testing.assert_array_equal(drawn["one"], drawn["copied"])


def test_size_must_be_a_multiple_of_the_block():
    with pytest.raises(ValueError, match="130 entries"):
        electra.sample(jnp.zeros(1), jnp.zeros((1, 130)))


@settings(max_examples=50)
@given(
    arrays.arrays(np.float32, 8, elements=st.sampled_from([0.0, 1e-30, 1e-8, 1e-3, 1 / 3, 0.7, 1.0])).filter(np.any),
    st.sampled_from([0.0, 2.0**-24, 2.0**-23, 0.5, 1 - 2.0**-23, 1 - 2.0**-24]),
)
def test_extreme_numbers_hit_an_entry_with_mass(mass, uniform):
    index, rest = invert(mass, np.float32(uniform))
    assert mass[index] > 0
    assert 0 <= rest < 1
    if uniform == 0:
        assert index == np.flatnonzero(mass)[0]


def test_log_frequencies_are_those_of_the_counts_special_tokens_left_out():
    logits = electra.log_frequencies(np.asarray([9, 9, 9, 9, 9, 1, 0, 3]), 10, OWN)
    np.testing.assert_allclose(np.exp(logits), [0, 0, 0, 0, 0, 0.25, 0, 0.75, 0, 0])
    assert logits.dtype == np.float32
    assert np.all(np.isfinite(logits))


def test_the_first_of_the_highest_entries_counts_as_predicted():
    rows = jnp.asarray([[[1.0, 3.0, 3.0], [electra.LOWEST, electra.LOWEST, 0.0]], [[2.0, 2.0, 2.0], [5.0, 4.0, 5.0]]])
    found = electra.first_highest(rows)
    np.testing.assert_array_equal(found, [[1, 2], [0, 0]])
    assert found.dtype == jnp.int32


def test_log_probabilities_have_the_derivative_of_a_log_softmax():
    logits = jnp.asarray([[[1.0, 3.0, -2.0], [0.5, LOWEST, 0.0]], [[60.0, -60.0, 0.0], [4.0, 4.0, 4.0]]])
    ids, weights = jnp.asarray([[1, 0], [2, 0]]), jnp.asarray([[1.0, -0.5], [0.25, 0.0]])

    def plain(logits):
        return jnp.sum(weights * jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], axis=-1)[..., 0])

    gradient = jax.value_and_grad(lambda logits: jnp.sum(weights * electra.log_prob(logits, ids)))
    found = gradient(logits)
    assert "scatter" not in str(jax.make_jaxpr(gradient)(logits))
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, rtol=1e-6), found, jax.value_and_grad(plain)(logits))
