"""benchmarks/efficiency.py, whole but small."""

import json
import sys

import pytest
from cli_runs import ROOT, logged, run, sst2_files

_FLOPS = 2e9
_PRETRAINING = {
    "batch_size": 8,
    "data.seq_length": 16,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ffn": 16,
    "model.embedding_size": 16,
    "eval_batches": 1,
    "eval_every": 3,  # what is given goes before what the script would choose
    "optim.warmup_steps": 2,
}


@pytest.mark.slow
def test_systems_have_the_same_flops_and_each_point_is_scored(text_file, tmp_path):
    sst2_files(tmp_path / "glue" / "SST-2")
    out = tmp_path / "out"
    systems = ["electra", "mlm"]
    command = [
        *(sys.executable, str(ROOT / "benchmarks" / "efficiency.py"), f"--input={text_file}", f"--output={out}"),
        *(f"--data_dir={tmp_path / 'glue'}", f"--flops={_FLOPS}", "--systems", *systems, "--tasks=sst2", "--points=2"),
        "--vocab_size=40",
        "--pretraining=" + " ".join(f"--config.{name}={value}" for name, value in _PRETRAINING.items()),
        "--finetuning=--config.seeds=1 --config.epochs=1",
    ]
    done = run(command)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "curves" / "curves.jsonl").read_text().splitlines()]
    for system in systems:
        lines = logged(out / system)
        steps = lines[-1]["step"]
        # To half a step.
        assert lines[-1]["total_flops"] == pytest.approx(_FLOPS, rel=0.6 / steps)
        half, whole = (row["step"] for row in rows if row["objective"] == system)
        assert whole == steps
        assert abs(half - steps / 2) <= 1
        assert [line["step"] for line in lines if "heldout_mlm_loss" in line][:2] == [3, 6]
    (floor,) = [json.loads(line) for line in (out / "floor" / "curves.jsonl").read_text().splitlines()]
    assert floor["step"] == 1
    said = run(command)
    assert said.returncode == 0, said.stderr
    assert [json.loads(line) for line in (out / "curves" / "curves.jsonl").read_text().splitlines()] == rows
