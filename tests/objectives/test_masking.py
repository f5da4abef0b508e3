import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from electra_jax.data.tokenizer import CLS, MASK, PAD, SEP, UNK
from electra_jax.objectives import masking

LENGTH = 40
choose = jax.jit(masking.choose, static_argnames="mask_prob")
mask = jax.jit(masking.mask, static_argnames="mask_prob")


def text(rows: int, length: int = LENGTH) -> np.ndarray:
    """[CLS] words [SEP], no token twice in a row."""
    ids = np.tile(np.arange(10, 10 + length, dtype=np.int32), (rows, 1))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


@pytest.mark.parametrize(
    ("length", "mask_prob", "most"), [(128, 0.15, 19), (512, 0.15, 79), (512, 0.25, 130), (4, 0.15, 1)]
)
def test_most_masked_positions_are_the_references(length, mask_prob, most):
    assert masking.max_masked(length, mask_prob) == most


@pytest.mark.parametrize(
    ("length", "mask_prob", "count"),
    [
        *((40, 0.15, 6), (39, 0.15, 6), (36, 0.15, 5), (24, 0.15, 4), (10, 0.15, 2), (5, 0.15, 1), (3, 0.15, 1)),
        *((40, 0.25, 10), (20, 0.25, 5), (40, 0.99, 38)),
    ],
)
def test_count_is_the_share_of_the_length_without_padding(length, mask_prob, count):
    ids = np.pad(text(1, length), ((0, 0), (0, LENGTH - length)))
    _, weights = choose(jax.random.key(0), ids, mask_prob=mask_prob)
    assert np.sum(weights) == count


def test_count_is_never_above_the_most():
    """.15 x 24 rounds to 4, but .155 x 24 is cut to 3."""
    assert masking.max_masked(24, 0.15) == 3
    _, weights = choose(jax.random.key(0), text(1, 24), mask_prob=0.15)
    np.testing.assert_array_equal(weights, [[1, 1, 1]])


@settings(max_examples=30, deadline=None)
@given(arrays.arrays(np.int32, (3, LENGTH), elements=st.integers(0, 8)), st.integers(0, 99))
def test_any_text_is_masked_at_distinct_candidates(ids, seed):
    positions, weights = map(np.asarray, choose(jax.random.key(seed), ids, mask_prob=0.15))
    assert positions.shape == weights.shape == (3, 6)
    for row, places, weight in zip(ids, positions, weights, strict=True):
        assert len(set(places)) == 6
        assert set(weight) <= {0, 1}
        assert not set(row[places[weight > 0]]) & {PAD, CLS, SEP, MASK}
        wanted = np.clip(np.round(0.15 * np.sum(row != PAD)), 1, 6)
        candidates = np.sum(~np.isin(row, [PAD, CLS, SEP, MASK]))
        assert weight.sum() == min(wanted, candidates)


def test_unknown_words_are_candidates():
    _, weights = choose(jax.random.key(0), np.full((1, LENGTH), UNK, np.int32), mask_prob=0.15)
    assert np.sum(weights) == 6


def test_rows_with_too_few_candidates_get_zero_weights():
    ids = np.full((2, LENGTH), SEP, np.int32)
    ids[1, 7] = 99
    positions, weights = choose(jax.random.key(0), ids, mask_prob=0.15)
    np.testing.assert_array_equal(weights, [[0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    assert positions[1, 0] == 7


def test_pairs_of_candidates_are_equally_likely():
    """Ten tokens that are no padding, hence two masked; six candidates, hence 15 pairs."""
    row = np.asarray([CLS, 9, 9, SEP, 9, MASK, 9, 9, 9, SEP] + [PAD] * 6, np.int32)
    positions, weights = choose(jax.random.key(0), np.tile(row, (30_000, 1)), mask_prob=0.15)
    assert np.all(np.asarray(weights) == 1)
    pairs = [tuple(pair) for pair in np.sort(positions, axis=1).tolist()]
    counts = [pairs.count(pair) for pair in itertools.combinations([1, 2, 4, 6, 7, 8], 2)]
    assert sum(counts) == 30_000
    assert stats.chisquare(counts).pvalue > 1e-3


def test_put_writes_where_it_holds():
    ids = jnp.asarray([[5, 6, 7, 8], [9, 10, 11, 12]])
    positions = jnp.asarray([[3, 0], [1, 2]])
    values = jnp.asarray([[50, 60], [70, 80]])
    where = jnp.asarray([[True, False], [True, True]])
    np.testing.assert_array_equal(masking.put(ids, positions, values, where), [[5, 6, 7, 50], [9, 70, 80, 12]])


def test_all_chosen_positions_become_mask_where_the_share_is_one():
    ids = text(2)
    masked = mask(jax.random.key(0), ids, 0.15, 1.0)
    expected = ids.copy()
    np.put_along_axis(expected, np.asarray(masked.positions), MASK, axis=1)
    np.testing.assert_array_equal(masked.input_ids, expected)
    np.testing.assert_array_equal(masked.targets, np.take_along_axis(ids, np.asarray(masked.positions), axis=1))


def test_no_position_becomes_mask_where_the_share_is_zero():
    masked = mask(jax.random.key(0), text(2), 0.15, 0.0)
    np.testing.assert_array_equal(masked.input_ids, text(2))
    assert np.sum(masked.weights) == 12


def test_the_share_of_chosen_positions_becomes_mask_and_nothing_else_changes():
    ids = text(2000)
    masked = mask(jax.random.key(0), ids, 0.15, 0.85)
    changed = np.asarray(masked.input_ids) != ids
    assert set(np.asarray(masked.input_ids)[changed]) == {MASK}
    chosen = np.zeros_like(changed)
    np.put_along_axis(chosen, np.asarray(masked.positions), True, axis=1)
    assert not np.any(changed & ~chosen)
    assert stats.binomtest(int(changed.sum()), 12_000, 0.85).pvalue > 1e-3


def test_fillers_are_left_as_they_are():
    ids = np.full((1, LENGTH), SEP, np.int32)
    np.testing.assert_array_equal(mask(jax.random.key(0), ids, 0.15, 1.0).input_ids, ids)


def test_the_key_decides():
    run = functools.partial(mask, input_ids_BL=text(2), mask_prob=0.15, replace_prob=0.5)
    first, again, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.any(np.asarray(first.positions != other.positions))
    rows = np.asarray(first.positions)
    assert np.any(rows[0] != rows[1])  # each row for itself
