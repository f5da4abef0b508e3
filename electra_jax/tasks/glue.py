"""The nine tasks of GLUE (gluebenchmark.com): columns as in its files, scores as on its leaderboard."""

from pathlib import Path

from electra_jax.tasks import files
from electra_jax.tasks.sentences import Columns, Sentences

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCE = Columns(("sentence",), "label")
_SENTENCES = Columns(("sentence1", "sentence2"), "label")

TASKS = {
    task.name: task
    for task in (
        Sentences(
            name="cola",
            columns=Columns(("sentence",), "label", order=("source", "label", "mark", "sentence")),
            labels=_BINARY,
            metrics=("matthews", "accuracy"),
            test={"test": "CoLA"},
            test_columns=_SENTENCE,
            tfds=_SENTENCE,
            tfds_labels=("unacceptable", "acceptable"),
        ),
        Sentences(
            name="sst2",
            columns=_SENTENCE,
            labels=_BINARY,
            test={"test": "SST-2"},
            tfds_labels=("negative", "positive"),
        ),
        Sentences(
            name="mrpc",
            columns=Columns(("#1 String", "#2 String"), "Quality"),
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            swapped=True,
            test={"test": "MRPC"},
            tfds=_SENTENCES,
            tfds_labels=("not_equivalent", "equivalent"),
        ),
        Sentences(
            name="stsb",
            columns=Columns(("sentence1", "sentence2"), "score"),
            metrics=("spearman", "pearson"),
            scale=(0.0, 5.0),
            bounds=(0.0, 5.0),
            swapped=True,
            test={"test": "STS-B"},
            tfds=_SENTENCES,
        ),
        Sentences(
            name="qqp",
            columns=Columns(("question1", "question2"), "is_duplicate", name="id"),
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            test={"test": "QQP"},
            tfds=Columns(("question1", "question2"), "label"),
            tfds_labels=("not_duplicate", "duplicate"),
        ),
        Sentences(
            name="mnli",
            columns=Columns(("sentence1", "sentence2"), "gold_label"),
            labels=("contradiction", "entailment", "neutral"),
            dev=("dev_matched", "dev_mismatched"),
            test={"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
            tfds=Columns(("premise", "hypothesis"), "label"),
        ),
        Sentences(
            name="qnli", columns=Columns(("question", "sentence"), "label"), labels=_ENTAILMENT, test={"test": "QNLI"}
        ),
        Sentences(name="rte", columns=_SENTENCES, labels=_ENTAILMENT, test={"test": "RTE"}),
        Sentences(
            name="wnli",
            columns=_SENTENCES,
            labels=_BINARY,
            test={"test": "WNLI"},
            tfds_labels=("not_entailment", "entailment"),
        ),
    )
}

# What the folders of GLUE are called.
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


def place(data_dir: str, task: str) -> str:
    """Where a task's files are: in a folder of GLUE's folders, or `tfds:glue`."""
    return f"{data_dir}/{task}" if data_dir.startswith(files.TFDS) else str(Path(data_dir) / _FOLDERS[task])
