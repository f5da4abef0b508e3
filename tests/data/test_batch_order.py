import functools
import itertools
import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from splits import from_lists

from electra_jax.config.errors import UserError
from electra_jax.data import batches as batches_lib
from electra_jax.data.batches import BatchPhase, Packed
from electra_jax.data.tokenizer import OWN
from electra_jax.modeling.batch import Batch

N = 22  # examples; with batches of 4 an epoch ends inside a batch


@pytest.fixture(scope="module")
def examples():
    """Example i is [CLS] 10+i [SEP] and nothing more."""
    return packed(range(N))


def packed(*sources, length=3):
    return Packed(from_lists(*([[[10 + i]] for i in source] for source in sources)), length, 0, OWN)


def training_batches(examples, batch_size, seed, weights=None, **options):
    return batches_lib.training_batches([BatchPhase(examples, batch_size, 10**6, weights)], seed, **options)


def heldout_batches(*args, **options):
    """The examples of each batch."""
    return [heldout.batch for heldout in batches_lib.heldout_batches(*args, **options)]


def drawn(batches, count):
    """Which examples the next `count` batches hold."""
    return [(batch.input_ids[:, 1] - 10).tolist() for batch in itertools.islice(batches, count)]


def order(batches, count):
    return list(itertools.chain.from_iterable(drawn(batches, count)))


def test_batch_is_the_examples_stacked(examples):
    batch = next(training_batches(examples, 4, seed=0))
    rows = (batch.input_ids[:, 1] - 10).tolist()
    assert isinstance(batch, Batch)
    for values, expected in zip(batch, examples.make_batch(np.array(rows)), strict=True):
        assert values.dtype == np.int32
        np.testing.assert_array_equal(values, expected)


def test_every_epoch_has_each_example_once_in_another_order(examples):
    four = order(training_batches(examples, 4, seed=0), 4 * N // 4)
    epochs = [four[start : start + N] for start in range(0, 4 * N, N)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(N))] * 4
    assert len(set(map(tuple, [*epochs, range(N)]))) == 5


def test_order_depends_on_the_seed_alone(examples):
    first, again, other = (drawn(training_batches(examples, 4, seed), 12) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_batch_size_does_not_change_the_order(examples):
    by_two, by_eleven = (order(training_batches(examples, size, seed=3), 2 * N // size) for size in (2, 11))
    assert by_two == by_eleven


@pytest.mark.parametrize("done", [0, 1, 5, 6, 30])
@pytest.mark.parametrize("weights", [None, [0.31, 0.53, 0.17]])
def test_state_continues_with_the_same_batches(done, weights):
    examples = packed(range(5), range(5, 18), range(18, N))
    batches = training_batches(examples, 4, seed=0, weights=weights)
    drawn(batches, done)
    state = json.loads(json.dumps(batches.get_state()))
    expected = drawn(batches, 9)

    fresh = training_batches(examples, 4, seed=0, weights=weights)
    fresh.set_state(state)
    assert drawn(fresh, 9) == expected
    batches.set_state(state)
    assert drawn(batches, 9) == expected


def test_fewer_examples_than_a_batch_are_refused(examples):
    with pytest.raises(UserError, match=rf"^batch_size={N + 1} is more than the corpus's {N} examples"):
        training_batches(examples, N + 1, seed=0)
    assert sorted(*drawn(training_batches(examples, N, seed=0), 1)) == list(range(N))


def test_heldout_batches_have_each_example_once_and_end_in_padding(examples):
    batches = heldout_batches(examples, 4, limit=100, seed=0, special=OWN._replace(pad=9))
    ids = np.concatenate([batch.input_ids for batch in batches])
    sequences = np.concatenate([batch.sequence_ids for batch in batches])
    assert [batch.input_ids.shape for batch in batches] == [(4, 3)] * 6
    assert sorted(ids[:N, 1]) == list(range(10, 10 + N))
    assert ids[:N, 1].tolist() != sorted(ids[:N, 1])
    assert (ids[N:] == 9).all()
    assert (sequences[:N] == 1).all()
    assert not sequences[N:].any()
    assert {value.dtype for batch in batches for value in batch} == {np.dtype(np.int32)}


def test_heldout_batches_need_no_padding_where_the_examples_fill_them(examples):
    batches = heldout_batches(examples, 11, 100, 0, OWN)
    assert sorted(order(batches, 100)) == list(range(N))


def test_heldout_limit_takes_the_first_batches_of_the_same_order(examples):
    whole = drawn(heldout_batches(examples, 4, 100, 0, OWN), 100)
    assert drawn(heldout_batches(examples, 4, 2, 0, OWN), 100) == whole[:2]
    assert drawn(heldout_batches(examples, 4, 6, 0, OWN), 100) == whole


def test_heldout_order_depends_on_the_seed_alone(examples):
    first, again, other = (drawn(heldout_batches(examples, 4, 5, seed, OWN), 5) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_no_heldout_examples_give_no_batches():
    assert heldout_batches(packed([]), 4, 5, 0, OWN) == []


def test_heldout_examples_know_their_source():
    examples = packed(range(9), [], range(9, 12), range(12, 13))
    batches = list(batches_lib.heldout_batches(examples, 5, 100, 0, OWN))
    assert {heldout.sources.dtype for heldout in batches} == {np.dtype(np.int32)}
    numbers = np.concatenate([heldout.batch.input_ids[:, 1] - 10 for heldout in batches])[:13]
    sources = np.concatenate([heldout.sources for heldout in batches])
    assert sources[:13].tolist() == np.where(numbers < 9, 0, np.where(numbers < 12, 2, 3)).tolist()
    assert sources[13:].tolist() == [-1, -1]


def share(process, processes):
    """Which rows of a batch a process makes."""
    return lambda size: slice(size // processes * process, size // processes * (process + 1))


def test_rows_of_several_processes_make_up_the_batch(examples):
    """Whatever their number: the global batch, and the position in the data, are the same."""
    whole = [batch.input_ids for batch in itertools.islice(training_batches(examples, 4, seed=0), 9)]
    for processes in (1, 2, 4):
        parts = [training_batches(examples, 4, seed=0, rows=share(p, processes)) for p in range(processes)]
        for batch in whole:
            np.testing.assert_array_equal(np.concatenate([next(part).input_ids for part in parts]), batch)


def test_a_position_is_taken_up_by_another_number_of_processes(examples):
    one = training_batches(examples, 4, seed=0)
    drawn(one, 7)
    state = json.loads(json.dumps(one.get_state()))
    two = [training_batches(examples, 4, seed=0, rows=share(p, 2)) for p in range(2)]
    for part in two:
        part.set_state(state)
    for batch in drawn(one, 5):
        assert [row for part in two for row in drawn(part, 1)[0]] == batch


def test_one_phase_follows_another_and_the_position_is_one(examples):
    longer = packed(range(N), length=6)
    phases = [BatchPhase(examples, 4, 3), BatchPhase(longer, 4, 5)]
    batches = batches_lib.training_batches(phases, seed=0)
    lengths, states = [], []
    for batch in batches:
        lengths.append(batch.input_ids.shape[1])
        states.append(json.loads(json.dumps(batches.get_state())))
    assert lengths == [3] * 3 + [6] * 5
    for done in (2, 3, 6):
        fresh = batches_lib.training_batches(phases, seed=0)
        fresh.set_state(states[done - 1])
        assert [batch.input_ids.shape[1] for batch in fresh] == lengths[done:]


def test_a_larger_batch_goes_on_with_the_examples_that_were_not_drawn(examples):
    phases = [BatchPhase(examples, 2, 4), BatchPhase(examples, 7, 2), BatchPhase(packed(range(N), length=6), 7, 1)]
    batches = batches_lib.training_batches(phases, seed=0)
    sizes = [len(batch.input_ids) for batch in batches]
    assert sizes == [2] * 4 + [7] * 3
    numbers = order(batches_lib.training_batches(phases, seed=0), 6)
    assert numbers == order(training_batches(examples, 2, seed=0), N // 2)
    assert sorted(numbers) == list(range(N))


def test_weights_decide_the_shares_of_sources_and_each_is_shuffled_and_repeated():
    examples = packed(range(10), range(10, 40), range(40, 43))
    numbers = order(training_batches(examples, 10, seed=0, weights=[2.0, 1.0, 1.0]), 36)
    shares = np.bincount([0 if i < 10 else 1 if i < 40 else 2 for i in numbers])
    assert shares.tolist() == [180, 90, 90]
    first = [i for i in numbers if i < 10]
    assert [sorted(first[start : start + 10]) for start in range(0, 180, 10)] == [list(range(10))] * 18
    assert first[:10] != first[10:20]
    assert set(numbers) == set(range(43))


WEIGHT = st.floats(1e-6, 1e6) | st.just(0.0)


@functools.cache
def two_sources():
    """Two sources of 500 examples; of each the range of its examples, and their order."""
    examples = packed(range(500), range(500, 1000))
    orders = [order(training_batches(examples, 10, seed=0, weights=only), 50) for only in ([1, 0], [0, 1])]
    return examples, [(0, 500, orders[0]), (500, 1000, orders[1])]


@given(
    weights=st.lists(st.tuples(WEIGHT, WEIGHT).filter(any), min_size=1, max_size=5),
    batches=st.integers(1, 9),
)
def test_sources_go_on_where_they_were_when_their_weights_change(weights, batches):
    """Nothing is drawn twice, and at most two of a source are left out each time."""
    examples, alone = two_sources()
    phases = [BatchPhase(examples, 10, batches, each) for each in weights]
    numbers = order(batches_lib.training_batches(phases, seed=0), batches * len(phases))
    assert len({*numbers}) == len(numbers) == 10 * batches * len(phases)
    for low, high, whole in alone:
        own = [i for i in numbers if low <= i < high]
        assert own == [i for i in whole if i in {*own}]
        assert not own or whole.index(own[-1]) < len(own) + 2 * len(weights)


def test_what_a_phase_draws_does_not_depend_on_those_after_it():
    """One without weights has one order of all sources, one with weights an order for each."""
    examples, alone = two_sources()
    phases = [BatchPhase(examples, 10, 5), BatchPhase(examples, 10, 5, [1, 0]), BatchPhase(examples, 10, 5)]
    numbers = order(batches_lib.training_batches(phases, seed=0), 15)
    plain = order(training_batches(examples, 10, seed=0), 5)
    assert numbers == [*plain, *alone[0][2][:50], *plain]


def test_without_weights_sources_are_as_frequent_as_they_are_large():
    numbers = order(training_batches(packed(range(10), range(10, 40)), 8, seed=0), 5)
    assert sorted(numbers) == list(range(40))
