"""A threshold that is chosen on one half of the development set, for each seed its own."""

import numpy as np
import pytest
from char_tokenizer import Letters

from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import job, multi_seed, recipe
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.sentences import Columns, Example
from electra_jax.downstream.tasks.task import BadRows

TASK = MultiLabel(name="table", columns=Columns(("t",), "l", "index"), labels=("rare",), threshold=0.0)
TRUTH = [(0,), (0,), (), (0,), (), ()]
# The first half is told apart by .3 for the first seed, by .03 for the second; of the other half the last is wrong.
PROBABILITIES = ([0.4, 0.5, 0.2, 0.6, 0.1, 0.7], [0.04, 0.05, 0.02, 0.06, 0.01, 0.001])


def test_one_half_chooses_and_the_other_is_scored(monkeypatch):
    logits = [np.log(p / (1 - p))[:, None] for p in map(np.array, PROBABILITIES)]
    monkeypatch.setattr(multi_seed, "predict", lambda *_: [{"scores": each} for each in logits])
    examples = [Example(str(number), ("x",), target) for number, target in enumerate(TRUTH)]
    splits = {name: job.Split(examples, None) for name in ("dev", "test")}
    data = job.Data(None, {"dev": splits["dev"]}, {"test": splits["test"]})
    first, second = job._evaluate(job.Job(None, TASK, None, None, Letters(), data), np.zeros(2))
    for (scores, task, answers), threshold, f1 in ((first, 0.3, 80.0), (second, 0.03, 100.0)):
        assert task.threshold == pytest.approx(threshold)
        assert scores["f1_rare"] == pytest.approx(f1)
        assert answers["dev"] == answers["test"] == [(0,), (0,), (), (0,), (), (0,) if threshold == 0.3 else ()]


def test_one_example_cannot_be_halved(tmp_path):
    (tmp_path / "train.tsv").write_text("t\tl\na\trare\nb\t\n")
    (tmp_path / "dev.tsv").write_text("t\tl\na\trare\n")
    with pytest.raises(UserError, match="dev has one example: class_threshold=0 needs two or more"):
        job.load_data(recipe.resolve(recipe.make("table")), TASK, Letters(), str(tmp_path), BadRows())
