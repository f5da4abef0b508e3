import dataclasses
import math

import numpy as np
import pytest
from char_tokenizer import Letters
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.downstream.tasks import custom_table
from electra_jax.downstream.tasks.config import TaskConfig
from electra_jax.downstream.tasks.sentences import Example
from electra_jax.downstream.tasks.task import BadRows

TABLE = TaskConfig(name="table", kind="multilabel", text="t", label="l")
TASK = custom_table.restore_task(TABLE, ("fear", "joy", "rage"))


def made(folder, name, content, **settings):
    (folder / name).write_text(content)
    return custom_table.make_task(dataclasses.replace(TABLE, **settings), str(folder))


ROWS = [["joy", "fear"], [], ["joy"], ["rage", "joy"], ["fear"], ["rage"]]
JSON = "".join(f'{{"t": "x", "l": {each}}}\n' for each in ROWS).replace("'", '"')


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("train.jsonl", JSON, {}),
        ("train.jsonl", JSON.replace('["joy"]', '"joy"').replace('["joy", "fear"]', '"fear,joy"'), {}),
        ("train.csv", "t,l\n" + "".join(f'x,"{", ".join(each)}"\n' for each in ROWS), {}),
        ("train.tsv", "t\tl\n" + "".join(f"x\t{'|'.join(each)}\n" for each in ROWS), {"separator": "|"}),
    ],
)
def test_lists_and_separated_texts_are_classes(tmp_path, name, content, settings):
    task = made(tmp_path, name, content, **settings)
    assert (task.labels, task.kind, task.outputs, task.main_metric) == (TASK.labels, "multilabel", 3, "micro_f1")
    examples = task.read(str(tmp_path), "train", BadRows())
    assert [example.target for example in examples] == [(0, 1), (), (1,), (1, 2), (0,), (2,)]
    rows = task.encode(examples, Letters(), 8, train=True)
    assert rows.targets["target"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 1]]
    batch = rows.make_batch([3, 1], 3, 4, tokenizer.OWN)
    assert batch.targets["target"].tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 1]]
    assert batch.targets["target"].dtype == np.float32


def test_classes_may_be_integers_and_repeated(tmp_path):
    rows = '{"t": "x", "l": [10, 2, 10]}\n{"t": "x", "l": [1.0]}\n{"t": "x", "l": 2}\n{"t": "x", "l": []}\n'
    task = made(tmp_path, "train.jsonl", rows + '{"t": "x", "l": "2"}\n')
    assert task.labels == ("1", "2", "10")
    assert [example.target for example in task.read(str(tmp_path), "train", BadRows())] == [
        (1, 2),
        (0,),
        (1,),
        (),
        (1,),
    ]


@pytest.mark.parametrize(
    "label", ["null", '["joy", null]', '["joy", "other"]', '["joy", ""]', '"joy,,fear"', "{}", '[["joy"]]']
)
def test_what_is_no_list_of_classes_is_a_bad_row(tmp_path, label):
    (tmp_path / "dev.jsonl").write_text(f'{{"t": "x", "l": ["joy"]}}\n{{"t": "x", "l": {label}}}\n')
    with pytest.raises(UserError, match=r"dev.jsonl:2: l is .*, expected a list of classes among fear, joy, rage; fix"):
        TASK.read(str(tmp_path), "dev", BadRows())
    assert len(TASK.read(str(tmp_path), "dev", BadRows(strict=False))) == 1


def test_settings_that_do_not_fit(tmp_path):
    with pytest.raises(UserError, match=r"the class 'a,b' contains config.task.separator=,, .*--config.task.separator"):
        made(tmp_path, "train.jsonl", '{"t": "x", "l": ["a,b", "c"]}\n' * 2)
    assert made(tmp_path, "train.jsonl", '{"t": "x", "l": ["a,b", "c"]}\n' * 2, separator="|").labels == ("a,b", "c")
    for kind, name, value in (("classification", "separator", "|"), ("regression", "class_threshold", 0.3)):
        with pytest.raises(UserError, match=rf"config.task.{name}=.* has no effect with config.task.kind={kind}"):
            made(tmp_path, "train.jsonl", "", kind=kind, **{name: value})


LOGITS = np.array([[math.log(3), -9, 0], [-1, -1, -1], [9, 9, -9]], np.float32)


def test_classes_above_the_threshold_are_predicted(tmp_path):
    outputs = {"scores": LOGITS}
    np.testing.assert_allclose(TASK.probabilities(outputs)[0], [0.75, 1 / (1 + math.exp(9)), 0.5], rtol=1e-6)
    examples = [Example(str(n), ("x",), ()) for n in range(3)]
    answers = TASK.answer(outputs, None, examples)
    assert answers == [(0, 2), (), (0, 1)]
    strict = custom_table.restore_task(dataclasses.replace(TABLE, class_threshold=0.9), TASK.labels)
    assert strict.answer(outputs, None, examples) == [(), (), (0, 1)]
    TASK.write(tmp_path / "dev", examples, answers)
    assert (tmp_path / "dev.tsv").read_text() == "index\tprediction\n0\tfear,rage\n1\t\n2\tfear,joy\n"


def fitted(logits, targets, labels=TASK.labels):
    task = custom_table.restore_task(dataclasses.replace(TABLE, class_threshold=0), labels)
    examples = [Example(str(number), ("x",), target) for number, target in enumerate(targets)]
    assert task.needs_fit
    fit = task.fit({"scores": np.asarray(logits)}, examples)
    assert not fit.needs_fit
    return fit, examples


def test_a_threshold_is_chosen_for_the_best_micro_f1():
    """Rare and underestimated: at .5 the class would never be predicted."""
    p = np.array([[0.3], [0.2], [0.1], [0.02], [0.2], [0.01]])
    logits = np.log(p / (1 - p))
    task, examples = fitted(logits, [(0,), (0,), (), (), (0,), ()], ("rare",))
    assert task.threshold == pytest.approx(0.15)
    assert task.answer({"scores": logits}, None, examples) == [(0,), (0,), (), (), (0,), ()]
    assert task.score(examples, task.answer({"scores": logits}, None, examples)) == {
        "micro_f1": 100,
        "macro_f1": 100,
        "f1_rare": 100,
    }
    assert fitted(logits, [()] * 6, ("rare",))[0].threshold == 0.5  # nothing to choose by
    assert fitted(logits, [(0,)] * 6, ("rare",))[0].threshold == pytest.approx(0.005)


@settings(max_examples=20)  # scikit-learn is slow
@given(st.integers(0, 2**32 - 1))
def test_no_other_threshold_is_better(seed):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-3, 3, (6, 3)).astype(np.float64)
    targets = [tuple(np.flatnonzero(row)) for row in rng.random((6, 3)) < 0.3]
    task, examples = fitted(logits, targets)

    def f1(threshold):
        other = dataclasses.replace(task, threshold=threshold)
        return other.score(examples, other.answer({"scores": logits}, None, examples))["micro_f1"]

    assert f1(task.threshold) >= max(map(f1, np.linspace(0.001, 0.999, 50))) - 1e-9


def test_f1_by_its_definition():
    examples = [Example("0", ("x",), target) for target in ((0, 1), (), (0,))]
    scores = TASK.score(examples, [(0,), (1,), (0, 1)])
    # fear: 2 of 2; joy: none right of 2 predicted and 1 true; rage neither occurs nor is predicted
    expected = {"micro_f1": 100 * 4 / 7, "macro_f1": 100 / 3, "f1_fear": 100, "f1_joy": 0, "f1_rage": 0}
    assert scores == pytest.approx(expected)
    assert TASK.score(examples[1:2], [()])["micro_f1"] == 0
