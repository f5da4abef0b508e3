import json

import numpy as np
import pytest
from cli_runs import ROOT, sst2_files

from electra_jax.commands import finetune
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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--init_from=x"], "--config is missing: expected a config for fine-tuning, such as --config=glue"),
        ([GLUE, "--data_dir=y"], "--init_from is missing; try --init_from=runs/tiny"),
        ([GLUE, "--init_from=x"], "--data_dir is missing; try --init_from=runs/tiny"),
        ([GLUE, "--init_from=x", "--data_dir=y", "--config.epoch=1"], "did you mean --config.epochs?"),
        ([f"--config={ROOT}/configs/tiny.py"], "has the wrong kind: expected a config for fine-tuning, such as --conf"),
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
