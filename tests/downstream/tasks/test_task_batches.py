import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from electra_jax.downstream.tasks import batches

LENGTHS = st.lists(st.integers(3, 130), min_size=1, max_size=60).map(np.array)


def test_buckets():
    assert batches.buckets(np.array([5, 130]), 16) == [16, 24, 32, 48, 64, 96, 128, 144]
    assert batches.buckets(np.array([5, 60]), 16) == [16, 24, 32, 48, 64]
    assert batches.buckets(np.array([5, 60]), 128) == [64]
    assert batches.buckets(np.array([5]), 16) == [16]


@given(LENGTHS, st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_has_each_row_once_in_a_length_that_holds_it(lengths, batch_size, seed):
    sizes = batches.buckets(lengths, 16)
    steps = batches.epoch_batches(lengths, sizes, batch_size, seed, 0)
    assert sorted(np.concatenate([rows for _, rows in steps])) == list(range(len(lengths)))
    assert all(lengths[rows].max() <= length for length, rows in steps)
    assert len(steps) == -(-len(lengths) // batch_size)  # only one batch may be short
    assert {length for length, _ in steps} <= set(sizes)


@given(LENGTHS, st.integers(1, 9))
def test_seeds_have_the_same_lengths_and_other_rows(lengths, batch_size):
    sizes = batches.buckets(lengths, 16)
    first, second = (batches.epoch_batches(lengths, sizes, batch_size, seed, 1) for seed in (0, 1))
    assert [(length, len(rows)) for length, rows in first] == [(length, len(rows)) for length, rows in second]


def test_epochs_and_seeds_differ():
    lengths = np.full(64, 10)
    orders = [
        np.concatenate([rows for _, rows in batches.epoch_batches(lengths, [16], 8, seed, number)]).tolist()
        for seed in (0, 1)
        for number in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


@given(LENGTHS, st.integers(1, 9))
def test_to_evaluate_each_row_comes_once_in_the_shortest_length_that_holds_it(lengths, batch_size):
    sizes = batches.buckets(lengths, 16)
    found = list(batches.evaluation_batches(lengths, sizes, batch_size))
    assert sorted(np.concatenate([rows for _, rows in found])) == list(range(len(lengths)))
    for length, rows in found:
        shorter = max((size for size in sizes if size < length), default=0)
        assert np.all((shorter < lengths[rows]) & (lengths[rows] <= length))
        assert len(rows) <= batch_size
