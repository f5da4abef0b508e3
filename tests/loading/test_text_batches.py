import numpy as np
import pytest

from electra_jax.config.errors import UserError
from electra_jax.data.batches import pad_rows
from electra_jax.data.tokenizer import CLS, OWN, PAD, SEP
from electra_jax.loading.text_batches import bucket_lengths, check_texts, length_batches


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (16, [16]),
        (10, [10]),
        (20, [16, 20]),
        (64, [16, 24, 32, 48, 64]),
        (130, [16, 24, 32, 48, 64, 96, 128, 130]),
    ],
)
def test_buckets_grow_by_half_up_to_the_longest(longest, expected):
    assert bucket_lengths(longest) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is None: expected a string or a sequence of strings"),
        ({"text": "a"}, "texts is a dict: expected a string or a sequence of strings"),
        (["a", None], "text 1 is None: expected a string"),
        (["a", 1.5], r"text 1 is 1\.5: expected a string"),
        ("a\ud83db", "text 0 has a lone surrogate at character 1: expected Unicode"),
    ],
)
def test_what_is_no_text_is_refused(texts, message):
    with pytest.raises(UserError, match=message):
        check_texts(texts)


def test_each_row_is_in_one_batch_of_its_bucket():
    lengths = [2, 16, 17, 30, 5, 64]
    batches = list(length_batches(lengths, 64, batch_size=2))
    assert batches == [(16, 2, [0, 1]), (16, 1, [4]), (24, 1, [2]), (32, 1, [3]), (64, 1, [5])]
    assert list(length_batches([], 64, 2)) == []


def test_long_batches_have_fewer_rows_for_the_same_number_of_tokens():
    assert [size for _, size, _ in length_batches(4 * [512, 1000, 8000], 8192, batch_size=4)] == [4, 2, 2] + 4 * [1]


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (2, [2]), (3, [4]), (5, [6]), (6, [6]), (9, [6, 4])])
def test_what_remains_is_padded_to_a_power_of_two(count, sizes):
    assert [size for _, size, _ in length_batches([9] * count, 16, batch_size=6)] == sizes


def test_rows_are_padded_between_cls_and_sep():
    batch = pad_rows([[7, 8], []], 5, OWN)
    np.testing.assert_array_equal(batch.input_ids, [[CLS, 7, 8, SEP, PAD], [CLS, SEP, PAD, PAD, PAD]])
    np.testing.assert_array_equal(batch.sequence_ids, [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    assert not batch.token_type_ids.any()
