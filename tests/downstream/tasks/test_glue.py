import numpy as np
import pytest

from electra_jax.downstream.tasks import files, glue
from electra_jax.downstream.tasks.sentences import Example
from electra_jax.downstream.tasks.task import BadRows

# A line of each split in GLUE, and the expected example.
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
    (example,) = task.read(str(tmp_path), "train", BadRows())
    assert (example.texts, example.target) == (wanted or (("One", "Two"), {"qnli": 0, "wnli": 1}.get(name)))
    (hidden,) = task.read(str(tmp_path), "test", BadRows())
    assert (hidden.name, hidden.texts, hidden.target) == ("0", example.texts, None)


def test_mnli_has_two_dev_sets_and_three_test_sets(tmp_path):
    header = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for split in ("dev_matched", "dev_mismatched"):
        (tmp_path / f"{split}.tsv").write_text(f"{header}0\t1\t2\tg\tOne\tTwo\tneutral\tentailment\n")
    task = glue.TASKS["mnli"]
    assert [task.read(str(tmp_path), split, BadRows())[0].target for split in task.dev] == [1, 1]
    assert task.combine({"dev_matched": {"accuracy": 80.0}, "dev_mismatched": {"accuracy": 70.0}}) == {
        "accuracy": 80.0,
        "accuracy_dev_mismatched": 70.0,
    }
    assert list(task.test.values()) == ["MNLI-m", "MNLI-mm", "AX"]


def test_every_task_of_glue_has_its_folder():
    folders = {glue.task_dir("glue/", task) for task in glue.TASKS}
    assert folders >= {"glue/CoLA", "glue/SST-2", "glue/MNLI", "glue/WNLI"}
    assert glue.task_dir("tfds:glue", "sst2") == "tfds:glue/sst2"


def test_answers_in_the_format_of_the_leaderboard(tmp_path):
    examples = [Example("0", ("a", "b"), None), Example("7", ("a", "b"), None)]
    glue.TASKS["rte"].write(tmp_path / "RTE", examples, [1, 0])
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n7\tentailment\n"
    glue.TASKS["stsb"].write(tmp_path / "STS-B", examples, [1.23456, 6.0])
    assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t1.235\n7\t5.000\n"


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
            features = {**dict.fromkeys(columns, object()), "label": object(), "idx": object()}

    if names:
        Rows.dataset_info.features["label"] = type("Label", (), {"int2str": staticmethod(names.__getitem__)})()
    row = {column: f"{column} of it".encode() for column in columns}
    asked = []
    value = np.float32(2.5) if names is None else np.int64(1)
    rows = [{**row, "label": value, "idx": np.int32(idx)} for idx in (10, 9)]
    monkeypatch.setattr(files, "tfds_split", lambda *given: asked.append(given) or Rows(rows))
    task = glue.TASKS[name]
    first, second = task.read(glue.task_dir("tfds:glue", name), task.dev[0], BadRows())
    assert asked == [(f"glue/{name}", split)]
    assert first.texts == second.texts == tuple(f"{column} of it" for column in columns)
    assert first.target == second.target == target
    hidden = next(iter(task.test))
    assert [(e.name, e.target) for e in task.read("tfds:glue", hidden, BadRows())] == [("9", None), ("10", None)]


def test_a_table_of_question_pairs_needs_no_column_of_names(tmp_path):
    (tmp_path / "train.tsv").write_text("question1\tquestion2\tis_duplicate\na\tb\t0\n")
    assert [each.name for each in glue.TASKS["qqp"].read(str(tmp_path), "train", BadRows())] == ["0"]
