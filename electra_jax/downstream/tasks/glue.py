"""The nine tasks of GLUE (gluebenchmark.com): the columns of its files and the metrics of its leaderboard."""

from pathlib import Path

from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.sentences import Columns, Sentences

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCE = Columns(("sentence",), "label")
_SENTENCES = Columns(("sentence1", "sentence2"), "label")


def _tfds(*texts: str) -> Columns:
    """Returns the columns in TensorFlow Datasets, which shuffles rows; `idx` is a row's number in GLUE's files."""
    return Columns(texts, "label", name="idx")


# The first metric is the one in arXiv 2003.10555: Spearman for STS-B, Matthews for CoLA, accuracy for the rest.
# `swapped`: double_unordered in google-research/electra, configure_finetuning.py.
TASKS = {
    task.name: task
    for task in (
        Sentences(
            name="cola",
            # CoLA's train and dev files have no header line, unlike its test file.
            columns=Columns(("sentence",), "label", order=("source", "label", "mark", "sentence")),
            labels=_BINARY,
            metrics=("matthews", "accuracy"),
            test={"test": "CoLA"},
            test_columns=_SENTENCE,
            tfds=_tfds("sentence"),
            tfds_labels=("unacceptable", "acceptable"),
        ),
        Sentences(
            name="sst2",
            columns=_SENTENCE,
            labels=_BINARY,
            test={"test": "SST-2"},
            tfds=_tfds("sentence"),
            tfds_labels=("negative", "positive"),
        ),
        Sentences(
            name="mrpc",
            columns=Columns(("#1 String", "#2 String"), "Quality"),
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            swapped=True,
            test={"test": "MRPC"},
            tfds=_tfds("sentence1", "sentence2"),
            tfds_labels=("not_equivalent", "equivalent"),
        ),
        Sentences(
            name="stsb",
            columns=Columns(("sentence1", "sentence2"), "score"),
            metrics=("spearman", "pearson"),
            # Scores are from 0 to 5; the reference's model learns them divided by 5, too (classification_tasks.py).
            scale=(0.0, 5.0),
            bounds=(0.0, 5.0),
            swapped=True,
            test={"test": "STS-B"},
            tfds=_tfds("sentence1", "sentence2"),
        ),
        Sentences(
            name="qqp",
            columns=Columns(("question1", "question2"), "is_duplicate", name="id"),
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            test={"test": "QQP"},
            tfds=_tfds("question1", "question2"),
            tfds_labels=("not_duplicate", "duplicate"),
        ),
        Sentences(
            name="mnli",
            columns=Columns(("sentence1", "sentence2"), "gold_label"),
            labels=("contradiction", "entailment", "neutral"),
            dev=("dev_matched", "dev_mismatched"),
            # AX, GLUE's diagnostic set, is answered by the model of MNLI.
            test={"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
            tfds=_tfds("premise", "hypothesis"),
        ),
        Sentences(
            name="qnli",
            columns=Columns(("question", "sentence"), "label"),
            labels=_ENTAILMENT,
            test={"test": "QNLI"},
            tfds=_tfds("question", "sentence"),
        ),
        Sentences(
            name="rte",
            columns=_SENTENCES,
            labels=_ENTAILMENT,
            test={"test": "RTE"},
            tfds=_tfds("sentence1", "sentence2"),
        ),
        Sentences(
            name="wnli",
            columns=_SENTENCES,
            labels=_BINARY,
            test={"test": "WNLI"},
            tfds=_tfds("sentence1", "sentence2"),
            tfds_labels=("not_entailment", "entailment"),
        ),
    )
}

# Folder names in GLUE's download.
_FOLDERS = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}


def task_dir(data_dir: str, task: str) -> str:
    """Returns the `data_dir` of one task, given the folder with all of GLUE, or `tfds:glue`."""
    return f"{data_dir}/{task}" if data_dir.startswith(files.TFDS) else str(Path(data_dir) / _FOLDERS[task])
