import pytest

from electra_jax.config.errors import UserError
from electra_jax.downstream.tasks.labels import in_order, joined, label_text


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"10", "2", "1", "0"}, ("0", "1", "2", "10")),
        ({"1", "-1", "-10", "0"}, ("-10", "-1", "0", "1")),
        ({"10.0", "2.0", "2.5"}, ("2.0", "2.5", "10.0")),
        ({"10", "2", "other"}, ("10", "2", "other")),
        ({"10", "2", "007"}, ("007", "10", "2")),  # a code, not a number
        ({str(2**70), str(2**70 + 1), "9"}, ("9", str(2**70), str(2**70 + 1))),
        ({"b", "a"}, ("a", "b")),
        (set(), ()),
    ],
)
def test_numbers_are_in_numeric_order(labels, expected):
    assert in_order(labels, "train") == expected


@pytest.mark.parametrize("labels", [{"1", "1.0"}, {"1.50", "1.5", "2"}, {"-0", "0", "other"}])
def test_two_spellings_of_one_number_are_refused(labels):
    one, other = sorted(labels)[:2]
    with pytest.raises(
        UserError, match=f"train has the classes {one} and {other}, which are the same number: expected"
    ):
        in_order(labels, "train")


def test_values_as_labels():
    given = [True, 1.0, 1.5, -3, "a b", None, float("nan"), ["a"], {}]
    assert [label_text(value) for value in given] == ["true", "1", "1.5", "-3", "a b", "", "", "", ""]


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        (("joy", "joy, surprise", "surprise"), "joy, surprise"),
        (("Paris, Texas", "Paris", "London"), None),
        (("a,a", "a"), None),
        (("a|b", "a", "b"), None),
    ],
)
def test_labels_that_are_lists_of_others(classes, found):
    assert joined(classes) == found
