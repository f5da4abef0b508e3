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

from electra_jax.data.tokenizer import CLS, MASK, OWN, PAD, SEP, UNK, Special
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import masking

LENGTH = 40
VOCABULARY = 60
_mask = jax.jit(masking.mask, static_argnames=("mask_prob", "vocab_size", "special", "most"))


@functools.partial(jax.jit, static_argnames="mask_prob")
def _choose(key, ids, mask_prob, words):
    most = masking.max_masked(ids.shape[1], mask_prob)
    return masking.choose(key, masking.is_maskable(ids, OWN), ids != PAD, mask_prob, most, words)


def choose(key, ids: np.ndarray, mask_prob: float, words=None):
    return jax.device_get(_choose(key, ids, mask_prob, words))


def text(rows: int, length: int = LENGTH) -> np.ndarray:
    """[CLS] words [SEP], no token twice in a row."""
    ids = np.tile(np.arange(10, 10 + length, dtype=np.int32), (rows, 1))
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def mask(ids: np.ndarray, replace_prob: float, random_prob: float = 0.0, seed: int = 0) -> masking.Masked:
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids))
    shares = np.float32(replace_prob), np.float32(random_prob)
    return jax.device_get(
        _mask(jax.random.key(seed), batch, VOCABULARY, OWN, 0.15, *shares, masking.max_masked(ids.shape[1], 0.15))
    )


@pytest.mark.parametrize(
    ("length", "mask_prob", "most"),
    [(128, 0.15, 19), (512, 0.15, 79), (512, 0.25, 130), (4, 0.15, 1), (512, 0.999, 512)],
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


@settings(max_examples=30)
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


STARTS = np.arange(20) % 2 == 0  # even ids begin a word, odd ones go on with it


@jax.jit
def _words_of(ids):
    return masking.words(jnp.asarray(STARTS)[ids], masking.is_maskable(ids, OWN))


def words_of(ids: np.ndarray) -> np.ndarray:
    return np.asarray(_words_of(np.asarray(ids, np.int32)))


def test_words_begin_at_their_first_pieces_and_special_tokens_stand_alone():
    ids = [[CLS, 6, 7, 9, 8, SEP, 9, 11, 10, SEP, PAD, PAD]]
    np.testing.assert_array_equal(words_of(ids), [[0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8]])


@settings(max_examples=60)
@given(arrays.arrays(np.int32, (3, LENGTH), elements=st.integers(0, 12)), st.integers(0, 99))
def test_whole_words_are_masked_or_not_at_all(ids, seed):
    words = words_of(ids)
    positions, weights = map(np.asarray, choose(jax.random.key(seed), ids, 0.15, words))
    maskable = ~np.isin(ids, [PAD, CLS, SEP, MASK])
    for row in range(3):
        chosen = np.zeros(LENGTH, bool)
        chosen[positions[row][weights[row] > 0]] = True
        most = np.clip(np.round(0.15 * np.sum(ids[row] != PAD)), 1, 6)
        touched = set(words[row][chosen])
        whole = [word for word in touched if np.all(chosen[maskable[row] & (words[row] == word)])]
        assert chosen.sum() <= most
        assert not np.any(chosen & ~maskable[row])
        assert len(whole) == len(touched) or (len(touched) == 1 and chosen.sum() == most)  # one too long for the count
        assert chosen.any() == maskable[row].any()


def test_as_many_whole_words_as_fit_are_masked():
    """38 pieces in words of two, six masked: three words, each as likely as the others."""
    ids = np.tile(np.asarray([CLS, *[6, 7] * 19, SEP], np.int32), (4000, 1))
    words = words_of(ids)
    positions, weights = map(np.asarray, choose(jax.random.key(0), ids, 0.15, words))
    assert np.all(weights == 1)
    counts = np.bincount(np.take_along_axis(words, positions, axis=1).ravel(), minlength=21)
    assert counts[0] == counts[20] == 0
    assert stats.chisquare(counts[1:20] / 2).pvalue > 1e-3


def test_of_a_word_that_is_too_long_any_part_is_masked():
    """As in scripts without spaces, where a line may be one word."""
    ids = np.tile(np.asarray([CLS, 6, *[7] * 37, SEP], np.int32), (4000, 1))
    positions, weights = map(np.asarray, choose(jax.random.key(0), ids, 0.15, words_of(ids)))
    assert np.all(weights == 1)
    counts = np.bincount(positions.ravel(), minlength=LENGTH)
    assert counts[0] == counts[-1] == 0
    assert np.all(counts[1:-1] > 0.5 * 6 * 4000 / 38)


def test_special_tokens_may_have_any_ids():
    """As in BERT's vocabulary, where they are not the first and in another order."""
    special = Special(pad=0, unk=7, cls=8, sep=9, mask=10)
    ids = np.full((2000, LENGTH), 5, np.int32)
    ids[:, 0], ids[:, -1] = special.cls, special.sep
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids))
    shares = np.float32(0.5), np.float32(0.5)
    masked = jax.device_get(_mask(jax.random.key(0), batch, 14, special, 0.15, *shares, most=6))
    assert set(masked.targets.ravel()) == {5}
    shown = masked.input_ids[masked.chosen > 0]
    assert stats.binomtest(int(np.sum(shown == special.mask)), 12_000, 0.5).pvalue > 1e-3
    counts = np.bincount(shown[shown != special.mask], minlength=14)
    ordinary = [1, 2, 3, 4, 5, 6, 11, 12, 13]
    assert counts.sum() == counts[ordinary].sum()
    assert stats.chisquare(counts[ordinary]).pvalue > 1e-3


def test_all_chosen_positions_become_mask_where_the_share_is_one():
    ids = text(2)
    masked = mask(ids, 1.0)
    expected = ids.copy()
    np.put_along_axis(expected, masked.positions, MASK, axis=1)
    np.testing.assert_array_equal(masked.input_ids, expected)
    np.testing.assert_array_equal(masked.targets, np.take_along_axis(ids, masked.positions, axis=1))
    np.testing.assert_array_equal(masked.original, ids)


def test_no_position_becomes_mask_where_the_share_is_zero():
    masked = mask(text(2), 0.0)
    np.testing.assert_array_equal(masked.input_ids, text(2))
    assert np.sum(masked.weights) == 12


def test_the_share_of_chosen_positions_becomes_mask_and_nothing_else_changes():
    ids = text(2000)
    masked = mask(ids, 0.85)
    changed = masked.input_ids != ids
    assert set(masked.input_ids[changed]) == {MASK}
    chosen = np.zeros_like(changed)
    np.put_along_axis(chosen, masked.positions, True, axis=1)
    assert not np.any(changed & ~chosen)
    assert stats.binomtest(int(changed.sum()), 12_000, 0.85).pvalue > 1e-3


def test_some_chosen_positions_become_random_tokens():
    """As BERT's .8, .1, .1; a token in 55 is drawn at random where it was already."""
    ids = text(2000)
    masked = mask(ids, 0.8, 0.1)
    shown = np.take_along_axis(masked.input_ids, masked.positions, axis=1)
    assert stats.binomtest(int(np.sum(shown == MASK)), 12_000, 0.8).pvalue > 1e-3
    random = (shown != MASK) & (shown != masked.targets)
    assert stats.binomtest(int(random.sum()), 12_000, 0.1 * 54 / 55).pvalue > 1e-3
    assert np.sum(masked.input_ids != ids) == np.sum(shown == MASK) + random.sum()


@pytest.mark.parametrize(("replace_prob", "random_prob"), [(1.0, 0.0), (0.0, 1.0)])
def test_fillers_are_left_as_they_are(replace_prob, random_prob):
    ids = np.full((1, LENGTH), SEP, np.int32)
    np.testing.assert_array_equal(mask(ids, replace_prob, random_prob).input_ids, ids)


def test_the_numbers_for_the_fakes_are_uniform_and_tell_nothing_of_the_rest():
    masked = mask(text(2000), 0.5, 0.5)
    assert masked.uniform.shape == masked.positions.shape
    assert masked.uniform.dtype == np.float32
    assert stats.kstest(masked.uniform.ravel(), "uniform").pvalue > 1e-3
    shown = np.take_along_axis(masked.input_ids, masked.positions, axis=1)
    is_mask = shown == MASK
    assert stats.ks_2samp(masked.uniform[is_mask], masked.uniform[~is_mask]).pvalue > 1e-3
    assert stats.spearmanr(masked.uniform[~is_mask], shown[~is_mask]).pvalue > 1e-3
    assert stats.spearmanr(masked.uniform.ravel(), masked.positions.ravel()).pvalue > 1e-3


def test_the_key_decides():
    first, again, other = mask(text(2), 0.5, 0.5), mask(text(2), 0.5, 0.5), mask(text(2), 0.5, 0.5, seed=1)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.any(first.positions != other.positions)
    assert np.all(first.uniform != other.uniform)
    for drawn in (first.positions, first.uniform):
        assert np.any(drawn[0] != drawn[1])  # each row for itself


LITERAL = masking.Masked(
    batch=Batch(
        jnp.asarray([[CLS, 10, UNK, SEP, MASK, 11, SEP, PAD], [PAD] * 8]),
        jnp.zeros((2, 8), jnp.int32),
        jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 0], [0] * 8]),
    ),
    candidates=jnp.asarray([[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0] * 8]),
    input_ids=jnp.asarray([[CLS, MASK, UNK, SEP, MASK, 11, SEP, PAD], [PAD] * 8]),
    positions=jnp.asarray([[5, 1, 0], [3, 0, 1]]),
    targets=jnp.asarray([[11, 10, CLS], [PAD] * 3]),
    weights=jnp.asarray([[1.0, 1.0, 0.0], [0.0] * 3]),
    uniform=jnp.zeros((2, 3)),
    hide=jnp.zeros((2, 3)),
)


def test_a_masked_batch_knows_its_text_and_which_positions_count():
    nothing = [0] * 8
    np.testing.assert_array_equal(LITERAL.original, LITERAL.batch.input_ids)
    np.testing.assert_array_equal(LITERAL.real, [[1, 1, 1, 1, 1, 1, 1, 0], nothing])
    np.testing.assert_array_equal(LITERAL.chosen, [[0, 1, 0, 0, 0, 1, 0, 0], nothing])
    assert all(x.dtype == jnp.float32 for x in (LITERAL.real, LITERAL.chosen))


def test_candidates_are_all_but_special_tokens():
    ids = np.asarray([[CLS, 10, UNK, SEP, MASK, 11, SEP, PAD]], np.int32)
    np.testing.assert_array_equal(mask(ids, 1.0).candidates, [[0, 1, 1, 0, 0, 1, 0, 0]])


def test_counts_are_of_the_whole_batch_and_at_least_one():
    assert [float(count) for count in masking.count(LITERAL)] == [2, 7, 3]
    assert masking.Counts._fields == ("masked", "real", "candidates")
    empty = jax.tree.map(jnp.zeros_like, LITERAL)
    assert [float(count) for count in masking.count(empty)] == [1, 1, 1]
