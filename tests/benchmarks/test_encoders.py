"""benchmarks/encoders.py, whole but small."""

import json
import sys

import pytest
from cli_runs import ROOT, run

_FLOPS = 1e8
_PRETRAINING = {
    "batch_size": 8,
    "data.seq_length": 16,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ffn": 16,
    "model.embedding_size": 16,
    "eval_batches": 1,
    "log_every": 1,
    "optim.warmup_steps": 2,
}


@pytest.mark.slow
def test_encoders_have_the_same_flops(text_file, tmp_path):
    overrides = " ".join(f"--config.{name}={value}" for name, value in _PRETRAINING.items())
    command = [sys.executable, str(ROOT / "benchmarks" / "encoders.py"), f"--input={text_file}", f"--output={tmp_path}"]
    done = run([*command, f"--flops={_FLOPS}", "--vocab_size=40", f"--pretraining={overrides}"])
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "encoders.json").read_text())
    assert [each["encoder"] for each in found] == ["bert", "modernbert", "deberta"]
    for each in found:
        tokens = each["steps"] * 8 * 16
        assert each["flops_per_token"] * tokens == pytest.approx(_FLOPS, rel=0.6 / each["steps"])
        assert each["tokens_per_second"] > 0
    lines = done.stdout.splitlines()[-5:]
    assert [line.split("|")[1].strip() for line in lines[2:]] == [f"`encoder={each['encoder']}`" for each in found]
