import dataclasses

import pytest
from char_tokenizer import Letters

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import OWN
from electra_jax.downstream.tasks import custom_table
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.sentences import Example
from electra_jax.downstream.tasks.task import BadRows

TABLE = TaskConfig(name="table", text="t", label="l")


def test_a_table_of_ones_own_has_the_classes_of_its_training_set(tmp_path):
    lines = ['{"t": "x", "l": true}', '{"t": "y", "l": false}', '{"t": "z", "l": true}', '{"t": "z", "l": false}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    task = custom_table.make_task(TABLE, str(tmp_path))
    assert (task.labels, task.metrics, task.kind) == (
        ("false", "true"),
        ("accuracy", "f1", "matthews"),
        "classification",
    )
    assert [example.target for example in task.read(str(tmp_path), "train", BadRows())] == [1, 0, 1, 0]
    given = custom_table.make_task(dataclasses.replace(TABLE, labels="true,false,other"), str(tmp_path))
    assert (given.labels, given.outputs) == (("true", "false", "other"), 3)


def test_classes_that_are_given_may_be_as_the_file_has_them(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"t": "x", "l": 1.0}\n{"t": "y", "l": 2.0}\n')
    for labels in ("1,2", "1.0,2.0"):
        task = custom_table.make_task(dataclasses.replace(TABLE, labels=labels), str(tmp_path))
        assert [example.target for example in task.read(str(tmp_path), "train", BadRows())] == [0, 1]


def test_a_table_of_numbers_is_scaled_by_its_training_set(tmp_path):
    (tmp_path / "train.csv").write_text("t,l\nx,1\ny,3\n")
    task = custom_table.make_task(dataclasses.replace(TABLE, kind="regression"), str(tmp_path))
    assert (task.kind, task.scale, task.main_metric) == ("regression", (2.0, 1.0), "spearman")
    (tmp_path / "train.csv").write_text("t,l\nx,1\ny,1\n")
    with pytest.raises(UserError, match="every l in train is 1: expected different numbers"):
        custom_table.make_task(dataclasses.replace(TABLE, kind="regression"), str(tmp_path))


def test_a_column_that_holds_no_classes(tmp_path):
    (tmp_path / "train.csv").write_text("t,l\n" + "\n".join(f"x,{number}" for number in range(10)) + "\n")
    with pytest.raises(UserError, match=r"column l has 10 different values in the 10 rows .*task\.kind=regression"):
        custom_table.make_task(TABLE, str(tmp_path))


def test_integer_classes_are_in_numeric_order(tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(f'{{"t": "x", "l": {n % 12 - 1}}}\n' for n in range(24)))
    task = custom_table.make_task(TABLE, str(tmp_path))
    assert task.labels == ("-1", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
    assert [example.target for example in task.read(str(tmp_path), "train", BadRows())] == [*range(12)] * 2
    assert custom_table.restore_task(TABLE, ("1", "10", "2")).labels == ("1", "10", "2")  # of a model of before


def test_lists_of_classes_are_no_class(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"t": "x", "l": ["a", "b"]}\n{"t": "y", "l": []}\n{"t": "y", "l": "a"}\n')
    with pytest.raises(
        UserError, match=r"column l has lists of classes in 2 of the 3 rows of train: .*--config.task.kind=multilabel"
    ):
        custom_table.make_task(TABLE, str(tmp_path))
    task = custom_table.make_task(dataclasses.replace(TABLE, labels="a,b"), str(tmp_path))
    with pytest.raises(UserError, match=r"train.jsonl:1: l is the list \['a', 'b'\], expected a or b"):
        task.read(str(tmp_path), "train", BadRows())


def test_columns_of_text_that_hold_none(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"t": 3, "l": "a"}\n{"t": "y", "l": "b"}\n')
    task = custom_table.make_task(dataclasses.replace(TABLE, labels="a,b"), str(tmp_path))
    with pytest.raises(UserError, match=r"train\.jsonl:1: t is 3, expected a text"):
        task.read(str(tmp_path), "train", BadRows())


def test_what_is_missing_is_no_class(tmp_path):
    lines = ['{"t": "x", "l": 1}', '{"t": "y", "l": 0}', '{"t": "z", "l": 1.0}', '{"t": "z", "l": 0}']
    missing = ['{"t": "z", "l": null}', '{"t": "z", "l": NaN}', '{"t": "z", "l": [1]}', '{"t": "z", "l": ""}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines + missing))
    task = custom_table.make_task(TABLE, str(tmp_path))
    assert task.labels == ("0", "1")
    with pytest.raises(UserError, match=r"train\.jsonl:5: l is 'None', expected 0 or 1"):
        task.read(str(tmp_path), "train", BadRows())
    bad_rows = BadRows(strict=False)
    assert [example.target for example in task.read(str(tmp_path), "train", bad_rows)] == [1, 0, 1, 0]
    assert len(bad_rows.problems) == 4
    (tmp_path / "train.jsonl").write_text("\n".join(f'{{"t": "x", "l": {n}}}' for n in (1234567.5, 1234568.5) * 2))
    assert custom_table.make_task(TABLE, str(tmp_path)).labels == ("1234567.5", "1234568.5")
    with pytest.raises(UserError, match="labels=a,b,a is invalid: expected 2 or more different classes"):
        custom_table.make_task(dataclasses.replace(TABLE, labels="a,b,a"), str(tmp_path))


def test_a_column_of_names_must_be_there_if_one_is_chosen(tmp_path):
    (tmp_path / "train.csv").write_text("t,l,i\nx,a,r1\ny,b,r2\nx,a,r3\ny,b,r4\n")
    task = custom_table.make_task(dataclasses.replace(TABLE, index="i"), str(tmp_path))
    assert [each.name for each in task.read(str(tmp_path), "train", BadRows())] == ["r1", "r2", "r3", "r4"]
    with pytest.raises(
        UserError, match=r"train.csv:1: no column 'name'; its columns are 't', 'l', 'i': expected a first"
    ):
        custom_table.make_task(dataclasses.replace(TABLE, index="name"), str(tmp_path))


def test_a_table_without_rows(tmp_path):
    for content, said in (
        ("", r"train\.csv:1: no column 't'"),
        ("t,l\n", "has no row to use in train: expected examples"),
    ):
        (tmp_path / "train.csv").write_text(content)
        with pytest.raises(UserError, match=said):
            custom_table.make_task(TABLE, str(tmp_path))


def test_a_class_with_a_comma_can_be_listed_in_quotation_marks(tmp_path):
    (tmp_path / "train.csv").write_text('t,l\nx,"a, b"\ny,c\n')
    task = custom_table.make_task(dataclasses.replace(TABLE, labels='c, "a, b"'), str(tmp_path))
    assert task.labels == ("c", "a, b")
    assert [each.target for each in task.read(str(tmp_path), "train", BadRows())] == [1, 0]
    assert custom_table.make_task(dataclasses.replace(TABLE, labels="c,\na b"), str(tmp_path)).labels == ("c", "a b")
    with pytest.raises(UserError, match=r"labels=c,.a.b is invalid .*: expected classes separated by commas; double a"):
        custom_table.make_task(dataclasses.replace(TABLE, labels='c,"a"b'), str(tmp_path))


def test_rows_left_out_keep_their_numbers(tmp_path):
    # The reader refuses row 0, which is not JSON, and the task row 2, whose class is unknown.
    (tmp_path / "dev.jsonl").write_text('{\n{"t": "x", "l": "a"}\n{"t": "y", "l": "c"}\n{"t": "z", "l": "b"}\n')
    task = custom_table.restore_task(TABLE, ("a", "b"))
    bad_rows = BadRows(strict=False)
    bad_rows.add("train.jsonl:1", "of another split")
    assert [(each.name, each.texts) for each in task.read(str(tmp_path), "dev", bad_rows)] == [
        ("1", ("x",)),
        ("3", ("z",)),
    ]


def test_answers_are_a_table_whatever_the_numbers_and_names(tmp_path):
    (tmp_path / "train.csv").write_text("t,l\nx,0.000001\ny,0.000003\n")
    task = custom_table.make_task(dataclasses.replace(TABLE, kind="regression"), str(tmp_path))
    task.write(tmp_path / "test", [Example("a\tb", ("x",), None)], [2e-6])
    assert (tmp_path / "test.tsv").read_text() == "index\tprediction\na b\t2e-06\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("none", None), ("balanced", [2 / 3, 2 / 3, 2.0, 2 / 3]), ("1,5", [1.0, 1.0, 5.0, 1.0])],
)
def test_rows_of_a_rare_class_weigh_more_in_training(given, expected):
    task = custom_table.restore_task(dataclasses.replace(TABLE, class_weights=given), ("common", "rare"))
    examples = [Example(str(row), ("ab",), target) for row, target in enumerate([0, 0, 1, 0])]
    rows = task.encode(examples, Letters(), 16, train=True)
    assert (None if rows.weights is None else rows.weights.tolist()) == (expected and pytest.approx(expected))
    batch = rows.make_batch([2, 0], 3, 8, OWN)
    assert batch.weights.tolist() == pytest.approx([*([expected[2], expected[0]] if expected else [1, 1]), 0])
    assert task.encode(examples, Letters(), 16, train=False).weights is None


def test_the_best_seed_with_class_weights_is_that_of_the_best_f1():
    for weights, metric in (("none", "accuracy"), ("balanced", "f1"), ("1,5", "f1")):
        task = custom_table.restore_task(dataclasses.replace(TABLE, class_weights=weights), ("common", "rare"))
        assert task.main_metric == metric


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,-1", "1,0", "1,inf", "1,nan", "heavy", ""])
def test_class_weights_that_are_none(weights, tmp_path):
    (tmp_path / "train.csv").write_text("t,l\nx,a\ny,b\n")
    with pytest.raises(UserError, match=r"class_weights=.* is invalid: expected none, balanced, or 2 positive numbers"):
        custom_table.make_task(dataclasses.replace(TABLE, class_weights=weights), str(tmp_path))


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_class_weights_are_for_one_class_each(kind, tmp_path):
    with pytest.raises(UserError, match=rf"class_weights=balanced has no effect with config\.task\.kind={kind}"):
        custom_table.make_task(dataclasses.replace(TABLE, class_weights="balanced", kind=kind), str(tmp_path))
