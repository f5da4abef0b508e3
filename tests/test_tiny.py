"""configs/tiny.py for real, as the README's first command runs it: it must learn what the README says.

Only the text is less than there: the docstrings of a few packages, so that it does not depend on what else is
installed.
"""

import json
import subprocess
import sys

import pytest
from cli_runs import ROOT, environment, logged


@pytest.mark.slow
def test_tiny_learns_what_the_readme_says(tmp_path):
    arguments = ["-m", "electra_jax.train", f"--config={ROOT}/configs/tiny.py", f"--workdir={tmp_path}"]
    arguments.append("--config.data.input=docstrings:jax,flax,optax,numpy,scipy,sklearn,matplotlib")
    fast = {**environment(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}  # as a user's
    done = subprocess.run(
        [sys.executable, *arguments], env=fast, capture_output=True, text=True, timeout=3000, check=False
    )
    assert done.returncode == 0, done.stderr
    last = logged(tmp_path)[-1]
    print(done.stdout, json.dumps(last, indent=2))
    assert last["heldout_unigram_entropy"] - last["heldout_mlm_loss"] >= 1.7
    assert last["heldout_unigram_auc"] >= 0.82  # .87 where it was tuned; the text differs with the packages installed
    assert last["heldout_disc_loss"] < last["heldout_constant_entropy"]
