"""Training in one and two processes that are killed at any moment ends with the bits of an uninterrupted run."""

from pathlib import Path

import pytest
from cli_runs import arrays, assert_same_bits, command, logged, processes
from kills import Storm, alone

STEPS = 20
# A checkpoint is nearly always being written.
OFTEN = (f"--config.steps={STEPS}", "--config.checkpoint.every=3", "--config.log_every=2", "--config.eval_every=10")
EQUAL = ("total_tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc", "epoch")

pytestmark = pytest.mark.night


def check(storm: Storm) -> None:
    """Compares final states to the bit, and what was logged: every step once."""
    first = storm.uninterrupted()
    wanted, metrics = arrays(first, STEPS), logged(first)
    for workdir in storm.trials():
        assert_same_bits(arrays(workdir, STEPS), wanted, storm.told())
        lines = logged(workdir)
        assert [line["step"] for line in lines] == [line["step"] for line in metrics], storm.told()
        for line, want in zip(lines, metrics, strict=True):
            for name in EQUAL:
                assert line.get(name) == want.get(name), storm.told(f"{name} at step {line['step']}")


def test_one_process(request, text_file, tmp_path):
    start = alone(lambda workdir: command(text_file, workdir, *OFTEN))
    check(Storm(request.config, "one_process", start, tmp_path))


def test_two_processes(request, text_file, tmp_path):
    """One of the two is killed, then the other, unless it has stopped by itself."""

    def start(workdir: Path):
        return processes(text_file, workdir, 2, *OFTEN, "--patience=60")

    check(Storm(request.config, "two_processes", start, tmp_path))
