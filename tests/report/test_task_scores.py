import json

import fake_runs
import pytest

from electra_jax.commands import report as command
from electra_jax.config import errors
from electra_jax.config.errors import UserError
from electra_jax.loading.networks import Source
from electra_jax.report import curves
from electra_jax.runtime import run_log


@pytest.fixture
def scores(tmp_path):
    """Of a run that was called electra, and of one that no page is about."""
    rows = [
        fake_runs.scored(name, step, "cola", seed, step / 100)
        for name in ("electra", "other")
        for step in (20, 40)
        for seed in (0, 1)
    ]
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "curves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "scores"


@pytest.fixture
def page(tmp_path):
    """The runs that the page is about: two of the same name."""
    return run_log.read([fake_runs.write(tmp_path / folder / "electra") for folder in ("x", "y")])


@pytest.fixture
def learned(monkeypatch):
    """What each run's checkpoints of some steps have learned; the others are gone."""
    there = {}

    def find(workdir, step):
        if step not in there.get(workdir.parent.name, {}):
            raise UserError("it is gone")
        return Source("a run", there[workdir.parent.name][step], lambda: pytest.fail("nobody asked"))

    monkeypatch.setattr(curves.networks, "find_source", find)
    return there


def owners(scores, page):
    (task,) = curves.read(scores, page)
    return {curve.run: curve.owner for curve in task.curves}


def test_scores_are_of_the_run_that_has_learned_the_same(scores, page, learned):
    assert owners(scores, page[:1]) == {"electra": 0, "other": None}  # by its name alone: nothing is there to compare
    assert owners(scores, page) == {"electra": None, "other": None}  # it may be either
    learned["y"] = {40: "electra40"}
    assert owners(scores, page) == {"electra": 1, "other": None}
    learned["x"] = {20: "electra20", 40: "of another seed"}
    assert owners(scores, page) == {"electra": 1, "other": None}
    del learned["y"]
    assert owners(scores, page) == {"electra": 1, "other": None}  # it cannot be the first
    assert owners(scores, []) == {"electra": None, "other": None}


def test_scores_of_another_run_of_the_same_name_are_refused(scores, page, learned, tmp_path, capsys):
    learned["x"] = {20: "electra20", 40: "of another seed"}
    argv = ["--runs", str(page[0].workdir), f"--output={tmp_path / 'a.html'}", "--samples=0", f"--curves={scores}"]
    assert errors.run(command.main, argv) == 2
    said = f"{scores} has scores of another run that was called electra, not of {page[0].workdir}: its weights are"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()
