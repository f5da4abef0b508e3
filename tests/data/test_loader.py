import itertools
import json

import numpy as np
import pytest

from electra_jax.data import loader
from electra_jax.data.corpus import Split
from electra_jax.data.examples import Packed
from electra_jax.errors import UserError

N = 22  # examples; with batches of 4 an epoch ends inside a batch


@pytest.fixture(scope="module")
def examples():
    """Example i is [CLS] 10+i [SEP] and nothing more."""
    return Packed(Split.from_lists([[[10 + i]] for i in range(N)]), length=3, seed=0)


def drawn(batches, count):
    """Which examples the next `count` batches hold."""
    return [(batch["input_ids"][:, 1] - 10).tolist() for batch in itertools.islice(batches, count)]


def order(batches, count):
    return list(itertools.chain.from_iterable(drawn(batches, count)))


def test_batch_is_the_examples_stacked(examples):
    batch = next(loader.training_batches(examples, 4, seed=0))
    rows = (batch["input_ids"][:, 1] - 10).tolist()
    assert set(batch) == {"input_ids", "token_type_ids", "sequence_ids"}
    for name, value in batch.items():
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, np.stack([examples[i][name] for i in rows]))


def test_every_epoch_has_each_example_once_in_another_order(examples):
    four = order(loader.training_batches(examples, 4, seed=0), 4 * N // 4)
    epochs = [four[start : start + N] for start in range(0, 4 * N, N)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(N))] * 4
    assert len(set(map(tuple, [*epochs, range(N)]))) == 5


def test_order_depends_on_the_seed_alone(examples):
    first, again, other = (drawn(loader.training_batches(examples, 4, seed), 12) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_batch_size_does_not_change_the_order(examples):
    by_two, by_eleven = (order(loader.training_batches(examples, size, seed=3), 2 * N // size) for size in (2, 11))
    assert by_two == by_eleven


@pytest.mark.parametrize("done", [0, 1, 5, 6, 30])
def test_state_continues_with_the_same_batches(examples, done):
    batches = loader.training_batches(examples, 4, seed=0)
    drawn(batches, done)
    state = json.loads(json.dumps(batches.get_state()))
    expected = drawn(batches, 9)

    fresh = loader.training_batches(examples, 4, seed=0)
    fresh.set_state(state)
    assert drawn(fresh, 9) == expected
    batches.set_state(state)
    assert drawn(batches, 9) == expected


def test_fewer_examples_than_a_batch_are_refused(examples):
    with pytest.raises(UserError, match=rf"{N} examples.*batch of {N + 1}.*config\.batch_size"):
        loader.training_batches(examples, N + 1, seed=0)
    assert sorted(*drawn(loader.training_batches(examples, N, seed=0), 1)) == list(range(N))


def test_heldout_batches_have_each_example_once_and_end_in_padding(examples):
    batches = list(loader.heldout_batches(examples, 4, limit=100, seed=0))
    ids, sequences = (np.concatenate([batch[name] for batch in batches]) for name in ("input_ids", "sequence_ids"))
    assert [batch["input_ids"].shape for batch in batches] == [(4, 3)] * 6
    assert sorted(ids[:N, 1]) == list(range(10, 10 + N))
    assert ids[:N, 1].tolist() != sorted(ids[:N, 1])
    assert not ids[N:].any()
    assert (sequences[:N] == 1).all()
    assert not sequences[N:].any()
    assert {value.dtype for batch in batches for value in batch.values()} == {np.dtype(np.int32)}


def test_heldout_batches_need_no_padding_where_the_examples_fill_them(examples):
    batches = loader.heldout_batches(examples, 11, limit=100, seed=0)
    assert sorted(order(batches, 100)) == list(range(N))


def test_heldout_limit_takes_the_first_batches_of_the_same_order(examples):
    whole = drawn(loader.heldout_batches(examples, 4, limit=100, seed=0), 100)
    assert drawn(loader.heldout_batches(examples, 4, limit=2, seed=0), 100) == whole[:2]
    assert drawn(loader.heldout_batches(examples, 4, limit=6, seed=0), 100) == whole


def test_heldout_order_depends_on_the_seed_alone(examples):
    first, again, other = (drawn(loader.heldout_batches(examples, 4, 5, seed), 5) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_no_heldout_examples_give_no_batches():
    assert list(loader.heldout_batches(Packed(Split.from_lists([]), 8, 0), 4, 5, seed=0)) == []
