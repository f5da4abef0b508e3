"""configs/tiny.py for real, as the README's first command runs it, with less than half of the steps.

The text is less than there: the docstrings of a few packages, so that it does not depend on what else is installed.
"""

import json
import subprocess
import sys

import pytest
from cli_runs import ROOT, environment, logged


@pytest.mark.slow
def test_tiny_learns(tmp_path):
    arguments = ["-m", "electra_jax.train", f"--config={ROOT}/configs/tiny.py", f"--workdir={tmp_path}"]
    arguments += ["--config.data.input=docstrings:jax,numpy,scipy"]
    arguments += ["--config.steps=400", "--config.eval_every=400"]
    fast = {**environment(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}  # as a user's
    done = subprocess.run(
        [sys.executable, *arguments], env=fast, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, done.stderr
    last = logged(tmp_path)[-1]
    print(done.stdout, json.dumps(last, indent=2))
    # 1.17, .788 and .80 when these were chosen.
    assert last["heldout_unigram_entropy"] - last["heldout_mlm_loss"] >= 1.0
    assert last["heldout_unigram_auc"] >= 0.75
    assert last["heldout_disc_loss"] < 0.88 * last["heldout_constant_entropy"]
