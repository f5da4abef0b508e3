import numpy as np
import pytest
from char_tokenizer import Letters
from hypothesis import given
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.downstream.tasks import glue
from electra_jax.downstream.tasks.sentences import Columns, Example, Sentences
from electra_jax.downstream.tasks.task import BadRows, frame, truncate

CLS, SEP = tokenizer.CLS, tokenizer.SEP


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("sst2", "sentence\tlabel\nx\t2", r"train\.tsv:2: label is '2', expected 0 or 1"),
        ("stsb", "sentence1\tsentence2\tscore\nx\ty\tmuch", r"train\.tsv:2: score is 'much', expected a number"),
        ("stsb", "sentence1\tsentence2\tscore\nx\ty\tnan", r"train\.tsv:2: score is 'nan', expected a number"),
    ],
)
def test_labels_that_are_none(tmp_path, name, line, message):
    (tmp_path / "train.tsv").write_text(f"{line}\n" + line.splitlines()[1].rpartition("\t")[0] + "\t1\n")
    with pytest.raises(UserError, match=message):
        glue.TASKS[name].read(str(tmp_path), "train", BadRows())
    bad_rows = BadRows(strict=False)
    assert len(glue.TASKS[name].read(str(tmp_path), "train", bad_rows)) == 1
    assert len(bad_rows.problems) == 1


@pytest.mark.parametrize("value", [None, float("nan"), {"a": 1}, [1]])
def test_a_missing_label_is_no_class_of_its_spelling(value):
    task = Sentences(name="table", columns=Columns(("a",), "label"), labels=(str(value), "other"))
    assert task.parse_target(value) is None


@pytest.mark.parametrize("value", [1.0, True])
def test_a_class_may_be_spelled_as_python_does(value):
    task = Sentences(name="table", columns=Columns(("a",), "label"), labels=("other", str(value)))
    assert task.parse_target(value) == 1


@pytest.mark.parametrize("value", ["1_000", True, 10**400, "", None])
def test_numbers_that_are_none(value):
    task = Sentences(name="table", columns=Columns(("a",), "label"))
    assert task.parse_target(value) is None
    assert task.parse_target("1e3") == 1000


def test_a_table_with_a_header_is_read_by_it_where_glues_has_none(tmp_path):
    (tmp_path / "train.csv").write_text("sentence,label\nA cat.,1\n")
    assert glue.TASKS["cola"].read(str(tmp_path), "train", BadRows()) == [Example("0", ("A cat.",), 1)]


def test_a_split_without_examples_is_refused(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(UserError, match="has no example to use in dev"):
        glue.TASKS["sst2"].read(str(tmp_path), "dev", BadRows())


PAIRS = Sentences(name="pairs", columns=Columns(("a", "b"), "label"), labels=("0", "1"), swapped=True)
EXAMPLES = [Example("0", ("abc", "de"), 1), Example("1", ("f", "g"), 0)]


def test_pairs_are_framed_and_to_train_on_also_swapped():
    rows = PAIRS.encode(EXAMPLES, Letters(), 8, train=True)
    assert rows.input_ids == [
        [CLS, 10, 11, 12, SEP, 13, 14, SEP],
        [CLS, 15, SEP, 16, SEP],
        [CLS, 13, 14, SEP, 10, 11, 12, SEP],
        [CLS, 16, SEP, 15, SEP],
    ]
    assert rows.second == [5, 3, 4, 3]
    assert rows.example.tolist() == [0, 1, 0, 1]
    assert rows.targets["target"].tolist() == [1, 0, 1, 0]
    assert len(PAIRS.encode(EXAMPLES, Letters(), 8, train=False).input_ids) == 2


def test_a_batch_is_padded_and_filled_up():
    rows = PAIRS.encode(EXAMPLES, Letters(), 8, train=False)
    batch = rows.make_batch([1], 2, 6, tokenizer.OWN)
    assert batch.inputs.input_ids.tolist() == [[CLS, 15, SEP, 16, SEP, 0]] * 2
    assert batch.inputs.token_type_ids.tolist() == [[0, 0, 0, 1, 1, 0]] * 2
    assert batch.inputs.sequence_ids.tolist() == [[1, 1, 1, 1, 1, 0]] * 2
    assert batch.weights.tolist() == [1, 0]
    assert batch.targets["target"].tolist() == [0, 0]


def test_single_sentences_are_cut():
    task = Sentences(name="one", columns=Columns(("a",), "label"), labels=("0", "1"))
    rows = task.encode([Example("0", ("abcdef",), None)], Letters(), 5, train=False)
    assert rows.input_ids == [[CLS, 10, 11, 12, SEP]]
    assert rows.second == [5]
    assert rows.targets == {}
    assert rows.cut == 1


@pytest.mark.parametrize(("length", "cut"), [(8, 0), (7, 1), (5, 1), (4, 2)])
def test_examples_that_are_cut_are_counted_once(length, cut):
    assert PAIRS.encode(EXAMPLES, Letters(), length, train=False).cut == cut
    assert PAIRS.encode(EXAMPLES, Letters(), length, train=True).cut == cut


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 20))
def test_truncation_takes_off_the_longer_token_by_token(a, b, room):
    first, second = list(range(a)), list(range(b))
    cut = truncate(first, second, room)
    while len(first) + len(second) > room:  # as google-research/bert does
        (first if len(first) > len(second) else second).pop()
    assert cut == (first, second)


def test_frames():
    assert frame([7, 8], None, tokenizer.OWN) == ([CLS, 7, 8, SEP], 4)
    assert frame([7], [8, 9], tokenizer.OWN) == ([CLS, 7, SEP, 8, 9, SEP], 3)


def test_regression_is_scaled():
    task = glue.TASKS["stsb"]
    examples = [Example("0", ("a", "b"), 5.0), Example("1", ("a", "b"), 2.5)]
    rows = task.encode(examples, Letters(), 8, train=False)
    assert rows.targets["target"].tolist() == [1.0, 0.5]
    assert task.answer({"scores": np.array([[0.5], [1.2]])}, rows, examples) == [2.5, 6.0]
