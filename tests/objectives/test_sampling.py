import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special, stats

from electra_jax.objectives import sampling

SIZE = 256
LOWEST = np.finfo(np.float32).min
categorical = jax.jit(sampling.categorical, static_argnames="block")
invert = jax.jit(sampling._invert)


@functools.partial(jax.jit, static_argnames=("draws", "block"))
def count(logits: jax.Array, draws: int, block: int = 128) -> jax.Array:
    """How often each entry is drawn; 10,000 draws at a time, for memory."""

    def part(key):
        drawn = sampling.categorical(key, jnp.broadcast_to(logits, (10_000, SIZE)), block)
        return jnp.bincount(drawn, length=SIZE)

    return jax.lax.map(part, jax.random.split(jax.random.key(0), draws // 10_000)).sum(axis=0)


@pytest.mark.parametrize(("block", "draws"), [(16, 1_000_000), (4, 200_000), (128, 200_000)])
def test_draws_follow_the_softmax(block, draws):
    logits = np.random.default_rng(0).normal(3, 1.5, SIZE).astype(np.float32)
    logits[[3, 130]] = LOWEST
    logits[32:48] = LOWEST  # a whole block of 16
    counts = np.asarray(count(logits, draws, block))
    possible = logits > LOWEST
    assert counts[~possible].sum() == 0
    expected = draws * special.softmax(logits[possible].astype(np.float64))
    assert stats.chisquare(counts[possible], expected).pvalue > 1e-3


@pytest.mark.parametrize("lowest", [LOWEST, -np.inf, -200.0], ids=["finfo.min", "-inf", "rounds to 0"])
@pytest.mark.parametrize("possible", [[127, 128], [0, 255], [255], [130, 131, 200]], ids=str)
def test_impossible_entries_and_blocks_are_never_drawn(lowest, possible):
    logits = np.full(SIZE, lowest, np.float32)
    logits[possible] = 0
    counts = np.asarray(count(logits, 50_000))
    assert np.flatnonzero(counts).tolist() == possible
    assert np.ptp(counts[possible]) < 800  # more than five sigma


def test_one_hot_rows_give_their_entry_whatever_the_scale():
    logits = np.where(np.eye(SIZE, dtype=bool), np.float32(-1e30), LOWEST)
    drawn = categorical(jax.random.key(0), jnp.asarray(logits).reshape(16, 16, SIZE))
    np.testing.assert_array_equal(drawn, np.arange(SIZE).reshape(16, 16))
    assert drawn.dtype == jnp.int32


def test_rows_are_drawn_independently_and_the_key_decides():
    logits = jnp.zeros((1000, SIZE))
    first, again, other = (np.asarray(categorical(jax.random.key(seed), logits)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.03
    assert len(np.unique(first)) > 200


def test_size_must_be_a_multiple_of_the_block():
    with pytest.raises(ValueError, match="130 entries"):
        sampling.categorical(jax.random.key(0), jnp.zeros((1, 130)))


def test_an_entry_is_hit_where_the_number_falls_into_its_share():
    mass = jnp.asarray([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
    uniform = np.asarray([0, 0.125, 0.25, 0.5, 0.75, 0.875], np.float32)
    index, rest = invert(jnp.tile(mass, (6, 1)), uniform)
    np.testing.assert_array_equal(index, [1, 1, 3, 3, 4, 4])
    np.testing.assert_allclose(rest, [0, 0.5, 0, 0.5, 0, 0.5])


@settings(max_examples=50, deadline=None)
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
