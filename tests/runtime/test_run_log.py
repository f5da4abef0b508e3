import os
import sys

import fake_runs
import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import run_log
from electra_jax.runtime.run_log import Evaluation


def test_lines_that_nobody_logged_are_left_out(tmp_path):
    deep, long = "[" * 100_000, "9" * 5000
    text = ['{"step": 4, "a": 1}', "[]", "1", '{"a": 1}', '{"step": "2"}', deep, f'{{"step": {long}}}', '{"step": 2}']
    text += [f'{{"step": {10**400}}}', '{"step": true}', '{"step": 8, "lo']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*text, '{"step": 4, "a": 2}']))
    assert run_log.read_metrics(tmp_path) == [{"step": 2}, {"step": 4, "a": 2}]  # in order, the last of each step
    assert run_log.read_metrics(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "environment.json"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    workdir = fake_runs.write(tmp_path / "run")
    (workdir / name).unlink()
    os.mkfifo(workdir / name)
    with pytest.raises(UserError, match=f"{name} is not a regular file: expected one"):
        run_log.read_run_log(workdir)


def test_evaluations_have_the_held_out_numbers_of_each_step():
    metrics = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.0, "heldout_mlm_loss": 4.0, "heldout_disc_auc": None},
        {"step": 3, "heldout_mlm_loss": float("nan"), "heldout_disc_auc": 1e308},
        {"step": 4, "heldout_mlm_loss": 3.5},
    ]
    first, last = Evaluation(2, {"mlm_loss": 4.0}), Evaluation(4, {"mlm_loss": 3.5})
    assert run_log.evaluations(metrics) == [first, last]
    assert run_log.last_evaluation(metrics) == last
    assert run_log.last_evaluation(metrics, until_step=3) == first
    assert run_log.last_evaluation(metrics, until_step=1) is None


def test_an_evaluation_has_the_numbers_of_each_source():
    line = {
        "heldout_mlm_loss": 4.0,
        "heldout_mlm_loss/en": 3.0,
        "heldout_disc_auc/en": None,
        "heldout_disc_auc/fy": 0.5,
    }
    (made,) = run_log.evaluations([{"step": 2, **line}])
    assert made == Evaluation(2, {"mlm_loss": 4.0}, {"en": {"mlm_loss": 3.0}, "fy": {"disc_auc": 0.5}})


def test_a_run_log(tmp_path):
    workdir = fake_runs.write(tmp_path / "run", [fake_runs.line(20), fake_runs.line(25, mlm_loss=None)])
    run = run_log.read_run_log(workdir)
    assert (run.name, run.objective, run.steps, run.last["step"]) == ("run", "electra", 40, 25)
    assert run.heldout() == run.heldout(until_step=30) == run.evaluations()[0]
    assert run.heldout().step == 20
    assert run.points("step", "mlm_loss") == [(20, fake_runs.line(20)["mlm_loss"])]
    assert run.environment["processes"] == 2


def test_what_was_changed_by_hand_is_left_out(tmp_path):
    workdir = fake_runs.write(tmp_path / "run")
    (workdir / "environment.json").write_text('{"devices": 4, "packages": [1], "commit": 7, "python": "3.11"}')
    assert run_log.read_run_log(workdir).environment == {"python": "3.11"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in (0, -1.5, 1e99)),
        *(
            (value, False)
            for value in (None, "1", True, float("nan"), float("inf"), 10**400, sys.float_info.max, -1e101)
        ),
    ],
)
def test_what_counts_as_a_number(value, expected):
    assert run_log.is_number(value) is expected


@pytest.mark.parametrize("settings", [{"steps": 0}, {"steps": 10**400}, {"steps": "9"}, {"objective": []}])
def test_configs_that_are_not_a_runs(tmp_path, settings):
    workdir = fake_runs.write(tmp_path / "run", **settings)
    with pytest.raises(UserError, match=r"config\.json is not the config of a run; give the work directory of a run"):
        run_log.read_run_log(workdir)


def test_runs_are_named_by_the_shortest_ends_that_differ(tmp_path):
    workdirs = [fake_runs.write(tmp_path / name) for name in ("x/a/run", "x/b/run", "y/b/run", "other")]
    assert run_log.unique_names(workdirs) == ["a/run", "x/b/run", "y/b/run", "other"]
    assert [run.name for run in run_log.read_run_logs(workdirs[:2])] == ["a/run", "b/run"]
    assert repr(run_log.read_run_log(workdirs[0])).startswith(f"<RunLog of {workdirs[0]}: step ")


def test_settings_that_differ(tmp_path):
    first = fake_runs.write(tmp_path / "first")
    second = fake_runs.write(tmp_path / "second", model__tying=None, data__input="")
    runs = run_log.read_run_logs([first, second])
    assert run_log.differing_settings(runs) == [
        ("data.input", ["text/*.txt", ""]),
        ("model.tying", ["embeddings", None]),
    ]
    assert run_log.differing_settings([runs[0]]) == []
