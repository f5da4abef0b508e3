import json
import shutil

import pytest
from cli_runs import quiet, small_config, sst2_files

from electra_jax import train
from electra_jax.commands import curves
from electra_jax.config import errors
from electra_jax.downstream.finetuning import run


@pytest.mark.slow
def test_what_is_done_is_not_done_again(small_run, text_file, tmp_path, monkeypatch):
    workdir, out = tmp_path / "run", tmp_path / "out"
    sst2_files(tmp_path / "glue" / "SST-2")
    shutil.copytree(small_run, workdir)

    def command(seeds, *runs):
        return [
            *("--runs", *map(str, runs or (workdir,)), "--tasks=sst2", f"--data_dir={tmp_path / 'glue'}"),
            *(f"--output={out}", f"--config.seeds={seeds}", "--config.epochs=1", "--config.batch_size=4"),
        ]

    def rows():
        return [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]

    assert errors.run(curves.main, command(1)) == 0
    first = rows()
    assert [row["step"] for row in first] == [1, 2]
    # A run that goes on, and lies elsewhere, is the same run; only what is missing is done.
    train.train(small_config(text_file, steps=3, eval_batches=1, checkpoint__every=1), workdir, quiet())
    moved = workdir.rename(tmp_path / "moved")
    asked = []
    real = run.multi_seed.train
    monkeypatch.setattr(run.multi_seed, "train", lambda *given: asked.append(list(given[5])) or real(*given))
    assert errors.run(curves.main, command(1, moved)) == 0
    assert asked == [[0]]  # of step 3; step 1 is deleted by then
    assert [row["step"] for row in rows()] == [2, 3]
    assert rows()[0]["score"] == first[1]["score"]
    assert errors.run(curves.main, command(2, moved)) == 0
    assert asked == [[0], [1], [1]]
