import json

import numpy as np
import pytest
from cli_runs import ROOT, sst2_files

from electra_jax.commands import finetune
from electra_jax.commands import train as train_command
from electra_jax.config import errors

GLUE = f"--config={ROOT}/configs/glue.py:task=sst2,runlocal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sst2_files(tmp_path_factory.mktemp("sst2"))


@pytest.mark.slow
def test_from_a_run_to_scores(small_run, folder, tmp_path, capsys):
    argv = [GLUE, f"--init_from={small_run}", f"--data_dir={folder}", f"--workdir={tmp_path}/out"]
    assert errors.run(finetune.main, [*argv, "--step=1", "--config.seeds=1"]) == 0
    out = capsys.readouterr().out
    assert "sst2: 12 rows to train on, 12 examples to evaluate on" in out
    assert "cut to fit rows" not in out
    assert "sst2, seed 0: accuracy " in out
    assert "sst2, 1 seed" in out
    result = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert result["init_from"] == f"{small_run} at step 1"
    assert np.isfinite(result["median"]["accuracy"])
    assert errors.run(finetune.main, argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {tmp_path}/out holds another fine-tuning (weights: ")
    assert err.count("\n") == 1


def test_a_run_whose_checkpoints_are_gone(small_run, folder, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text((small_run / name).read_text())
    argv = [GLUE, f"--init_from={tmp_path}/run", f"--data_dir={folder}", f"--workdir={tmp_path}/out"]
    assert errors.run(finetune.main, argv) == 2
    assert f"{tmp_path}/run has no checkpoint yet; continue the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--init_from=x", "--data_dir=y"],
            "--config is missing: expected a config for fine-tuning, such as --config=glue",
        ),
        ([GLUE, "--data_dir=y"], "--init_from is missing; try --init_from=runs/tiny"),
        ([GLUE, "--init_from=x"], "--data_dir is missing; try --init_from=runs/tiny"),
        ([GLUE, "--init_from=x", "--data_dir=y", "--config.epoch=1"], "did you mean --config.epochs?"),
        (
            [GLUE, "--init_from=x", "--data_dir=y", "--config.epochs=0"],
            "config.epochs=0 is invalid: expected more than 0",
        ),
        (
            [f"--config={ROOT}/configs/tiny.py"],
            "has the wrong kind: expected a config for fine-tuning, such as --config=glue:task=cola",
        ),
        ([GLUE, "--init_from=nowhere", "--data_dir=y"], "nowhere has no model: expected a run's work directory"),
        ([GLUE, "--init_from=x", "--step=3", "--data_dir=y"], "x is not a run, so it has no checkpoint of step 3"),
        ([GLUE, "--init_from=x", "--step=0", "--data_dir=y"], "x is not a run, so it has no checkpoint of step 0"),
        ([GLUE, "--init_from=x", "--step=-5", "--data_dir=y"], "--step=-5 is invalid: expected 0 or more"),
    ],
)
def test_a_mistake_is_one_line(argv, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert errors.run(finetune.main, argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_config_of_a_task_is_not_one_of_pre_training(capsys):
    assert errors.run(train_command.main, [GLUE]) == 2
    assert "has the wrong kind: expected a config for pre-training, such as --config=tiny" in capsys.readouterr().err


def test_a_folder_without_the_files(small_run, tmp_path, capsys):
    argv = [GLUE, f"--init_from={small_run}", f"--data_dir={tmp_path}", f"--workdir={tmp_path}/out"]
    assert errors.run(finetune.main, argv) == 2
    assert f"{tmp_path} has no train.tsv or train.csv or train.jsonl" in capsys.readouterr().err
