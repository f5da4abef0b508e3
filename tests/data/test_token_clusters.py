import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from splits import from_lists

from electra_jax.data import token_clusters
from electra_jax.data.token_clusters import NONE, cluster_tokens

SPECIAL = (0, 1)
VOCABULARY = 12
X, Y, U, V = 2, 3, 4, 5  # frequent: x a y, x b y, u c v, u d v
A, B, C, D = 6, 7, 8, 9
UNSEEN = 10


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(token_clusters, "_SIZE", 2)
    monkeypatch.setattr(token_clusters, "_NEIGHBORS", 4)


def clusters(lines):
    counts = np.bincount([token for line in lines for token in line], minlength=VOCABULARY)
    return cluster_tokens(from_lists([lines]), counts, SPECIAL)


LINES = [[X, A, Y], [X, B, Y], [U, C, V], [U, D, V]] * 20


def test_tokens_between_the_same_neighbors_are_together():
    found = clusters(LINES)
    assert NONE != found[A] == found[B] != found[C] == found[D] != NONE
    assert found.dtype == np.int32


def test_special_tokens_and_those_that_do_not_occur_have_none():
    found = clusters([[0, X, A, Y], [1, X, B, Y], [X, 0, Y]] * 20)
    assert found[[0, 1, UNSEEN]].tolist() == [NONE] * 3


def test_a_token_alone_has_none():
    """It would be replaced by itself only."""
    found = clusters([*LINES, *[[X, 11, V], [11, 11, 11]] * 20])
    assert found[11] == NONE
    assert found[A] == found[B] != NONE


def test_neighbors_are_of_the_same_line():
    """End to end, c would stand after y as often as a and b stand before it."""
    assert np.array_equal(clusters(LINES), clusters(LINES[::-1]))
    apart = [[X, A, Y], [C], [X, B, Y], [C]] * 20
    described = token_clusters._describe(
        token_clusters._sample_lines(from_lists([apart])), np.array([X, Y, C, A, B]), VOCABULARY
    )
    assert not described[2].any()
    assert described[3].any()


def test_a_sample_of_a_long_text_has_whole_lines(monkeypatch):
    monkeypatch.setattr(token_clusters, "_SAMPLE", 60)
    ids, begins = token_clusters._sample_lines(from_lists([LINES]))
    lines = np.split(ids, begins[1:])
    assert len(lines) == 20
    assert all(line.tolist() in LINES for line in lines)


def test_an_empty_text_has_no_clusters():
    assert clusters([[]]).tolist() == [NONE] * VOCABULARY


@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), min_size=1, max_size=30))
def test_every_text_has_clusters_of_two_or_more_tokens_that_occur(lines):
    found = clusters(lines)
    seen = {token for line in lines for token in line} - {*SPECIAL}
    assert {*np.flatnonzero(found != NONE)} <= seen
    assert all(np.count_nonzero(found == each) > 1 for each in {*found.tolist()} - {NONE})
