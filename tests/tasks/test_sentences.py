import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from letters import Letters

from electra_jax.data import tokenizer
from electra_jax.errors import UserError
from electra_jax.tasks import files, glue, table
from electra_jax.tasks.sentences import Columns, Example, Sentences
from electra_jax.tasks.task import Faults, frame, truncate

CLS, SEP = tokenizer.CLS, tokenizer.SEP


# A line of each split as GLUE has it, and what is to come of it.
LINES = {
    "cola": ("gj04\t1\t\tA text.", "index\tsentence\n0\tA text.", (("A text.",), 1)),
    "sst2": ("sentence\tlabel\na text \t0", "index\tsentence\n0\ta text ", (("a text ",), 0)),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne\tTwo",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tOne\tTwo",
        (("One", "Two"), 1),
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\t2012\t1\tnone\tnone\tOne\tTwo\t2.500",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tg\tf\t2012\t1\tnone\tnone\tOne\tTwo",
        (("One", "Two"), 2.5),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tOne\tTwo\t0",
        "id\tquestion1\tquestion2\n0\tOne\tTwo",
        (("One", "Two"), 0),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tOne\tTwo\tentailment",
        "index\tquestion\tsentence\n0\tOne\tTwo",
        None,
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tOne\tTwo\tnot_entailment",
        "index\tsentence1\tsentence2\n0\tOne\tTwo",
        (("One", "Two"), 1),
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tOne\tTwo\t1", "index\tsentence1\tsentence2\n0\tOne\tTwo", None),
}


@pytest.mark.parametrize("name", LINES)
def test_glue_in_its_original_columns(tmp_path, name):
    train, test, wanted = LINES[name]
    (tmp_path / "train.tsv").write_text(train + "\n")
    (tmp_path / "test.tsv").write_text(test + "\n")
    task = glue.TASKS[name]
    (example,) = task.read(str(tmp_path), "train", Faults())
    assert (example.texts, example.target) == (wanted or (("One", "Two"), {"qnli": 0, "wnli": 1}.get(name)))
    (hidden,) = task.read(str(tmp_path), "test", Faults())
    assert (hidden.name, hidden.texts, hidden.target) == ("0", example.texts, None)


def test_mnli_has_two_dev_sets_and_three_test_sets(tmp_path):
    header = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for split in ("dev_matched", "dev_mismatched"):
        (tmp_path / f"{split}.tsv").write_text(f"{header}0\t1\t2\tg\tOne\tTwo\tneutral\tentailment\n")
    task = glue.TASKS["mnli"]
    assert [task.read(str(tmp_path), split, Faults())[0].target for split in task.dev] == [1, 1]
    assert task.combine({"dev_matched": {"accuracy": 80.0}, "dev_mismatched": {"accuracy": 70.0}}) == {
        "accuracy": 80.0,
        "accuracy_dev_mismatched": 70.0,
    }
    assert list(task.test.values()) == ["MNLI-m", "MNLI-mm", "AX"]


def test_every_task_of_glue_has_its_folder():
    assert {glue.place("glue/", task) for task in glue.TASKS} >= {"glue/CoLA", "glue/SST-2", "glue/MNLI", "glue/WNLI"}
    assert glue.place("tfds:glue", "sst2") == "tfds:glue/sst2"


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
        glue.TASKS[name].read(str(tmp_path), "train", Faults())
    faults = Faults(strict=False)
    assert len(glue.TASKS[name].read(str(tmp_path), "train", faults)) == 1
    assert len(faults.places) == 1


def test_a_split_without_examples_is_refused(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(UserError, match="has no example to use in dev"):
        glue.TASKS["sst2"].read(str(tmp_path), "dev", Faults())


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
    batch = rows.batch([1], 2, 6, tokenizer.OWN)
    assert batch["input_ids"].tolist() == [[CLS, 15, SEP, 16, SEP, 0]] * 2
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0]] * 2
    assert batch["sequence_ids"].tolist() == [[1, 1, 1, 1, 1, 0]] * 2
    assert batch["weights"].tolist() == [1, 0]
    assert batch["target"].tolist() == [0, 0]


def test_single_sentences_are_cut():
    task = Sentences(name="one", columns=Columns(("a",), "label"), labels=("0", "1"))
    rows = task.encode([Example("0", ("abcdef",), None)], Letters(), 5, train=False)
    assert rows.input_ids == [[CLS, 10, 11, 12, SEP]]
    assert rows.second == [5]
    assert rows.targets == {}


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


def test_answers_in_the_format_of_the_leaderboard(tmp_path):
    examples = [Example("0", ("a", "b"), None), Example("7", ("a", "b"), None)]
    glue.TASKS["rte"].write(tmp_path / "RTE", examples, [1, 0])
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n7\tentailment\n"
    glue.TASKS["stsb"].write(tmp_path / "STS-B", examples, [1.23456, 6.0])
    assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t1.235\n7\t5.000\n"


SETTINGS = {
    "name": "table",
    "kind": "classification",
    "text": "t",
    "pair": "",
    "label": "l",
    "labels": "",
    "index": "i",
}


class Settings(dict):
    __getattr__ = dict.__getitem__


def test_a_table_of_ones_own_has_the_classes_of_its_training_set(tmp_path):
    lines = ['{"t": "x", "l": true}', '{"t": "y", "l": false}', '{"t": "z", "l": true}', '{"t": "z", "l": false}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    task = table.make(Settings(SETTINGS), str(tmp_path))
    assert (task.labels, task.metrics, task.kind) == (
        ("false", "true"),
        ("accuracy", "f1", "matthews"),
        "classification",
    )
    assert [example.target for example in task.read(str(tmp_path), "train", Faults())] == [1, 0, 1, 0]
    given = table.make(Settings(SETTINGS, labels="true,false,other"), str(tmp_path))
    assert (given.labels, given.outputs) == (("true", "false", "other"), 3)


def test_a_table_of_numbers_is_scaled_by_its_training_set(tmp_path):
    (tmp_path / "train.csv").write_text("t,l\nx,1\ny,3\n")
    task = table.make(Settings(SETTINGS, kind="regression"), str(tmp_path))
    assert (task.kind, task.scale, task.main) == ("regression", (2.0, 1.0), "spearman")
    (tmp_path / "train.csv").write_text("t,l\nx,1\ny,1\n")
    with pytest.raises(UserError, match="every l in train is 1; there is nothing to learn"):
        table.make(Settings(SETTINGS, kind="regression"), str(tmp_path))


def test_a_column_that_holds_no_classes(tmp_path):
    (tmp_path / "train.csv").write_text("t,l\n" + "\n".join(f"x,{number}" for number in range(10)) + "\n")
    with pytest.raises(UserError, match=r"column l has 10 different values in the 10 rows .*task\.kind=regression"):
        table.make(Settings(SETTINGS), str(tmp_path))


def test_unknown_tasks():
    with pytest.raises(UserError, match="there is no task 'colla'; there are cola, "):
        table.make(Settings(name="colla"), "")


def test_columns_of_text_that_hold_none(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"t": 3, "l": "a"}\n{"t": "y", "l": "b"}\n')
    with pytest.raises(UserError, match=r"train\.jsonl:1: t is 3, expected a text"):
        table.make(Settings(SETTINGS, labels="a,b"), str(tmp_path)).read(str(tmp_path), "train", Faults())


# Features and class names of the sets in TensorFlow Datasets (text/glue.py), and what one row of each is here.
_TFDS = {
    "cola": (("sentence",), ["unacceptable", "acceptable"], "validation", 1),
    "sst2": (("sentence",), ["negative", "positive"], "validation", 1),
    "mrpc": (("sentence1", "sentence2"), ["not_equivalent", "equivalent"], "validation", 1),
    "stsb": (("sentence1", "sentence2"), None, "validation", 2.5),
    "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"], "validation", 1),
    "mnli": (("premise", "hypothesis"), ["entailment", "neutral", "contradiction"], "validation_matched", 2),
    "qnli": (("question", "sentence"), ["entailment", "not_entailment"], "validation", 1),
    "rte": (("sentence1", "sentence2"), ["entailment", "not_entailment"], "validation", 1),
    "wnli": (("sentence1", "sentence2"), ["not_entailment", "entailment"], "validation", 1),
}


@pytest.mark.parametrize("name", _TFDS)
def test_glue_in_the_columns_of_tfds(monkeypatch, name):
    columns, names, split, target = _TFDS[name]

    class Rows(list):
        class dataset_info:  # noqa: N801
            features = {**dict.fromkeys(columns, object()), "label": object()}

    if names:
        Rows.dataset_info.features["label"] = type("Label", (), {"int2str": staticmethod(names.__getitem__)})()
    row = {column: f"{column} of it".encode() for column in columns}
    asked = []
    value = np.float32(2.5) if names is None else np.int64(1)
    monkeypatch.setattr(files, "tfds_split", lambda *given: asked.append(given) or Rows([{**row, "label": value}]))
    task = glue.TASKS[name]
    (example,) = task.read(glue.place("tfds:glue", name), task.dev[0], Faults())
    assert asked == [(f"glue/{name}", split)]
    assert example.texts == tuple(f"{column} of it" for column in columns)
    assert example.target == target
