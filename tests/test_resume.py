"""A resumed run ends with the same bits as an uninterrupted one; its files are as other programs expect them."""

import json
import os
import signal

from cli_runs import arrays, assert_same_bits, logged, small_config

from electra_jax import train
from electra_jax.runtime.progress import Progress


class Interrupt(Progress):
    """Sends this process a signal when a step has been done."""

    def __init__(self, step: int, number: signal.Signals):
        self.step, self.number = step, number

    def update(self, completed: float, numbers: str = "") -> None:
        if completed == self.step:
            os.kill(os.getpid(), self.number)


def test_a_run_that_is_interrupted_ends_with_the_same_bits(tmp_path, text_file, small_run):
    """In this process, in the first of two steps.

    test_interrupted_commands.py does the same to processes, test_kill_points.py kills them.
    """
    config = small_config(text_file, steps=2, log_every=1, eval_batches=1, checkpoint__every=100)
    interrupted = train.train(config, tmp_path / "stopped", Interrupt(0, signal.SIGTERM))
    assert not interrupted.finished
    assert interrupted.step == 1
    assert (tmp_path / "stopped" / "checkpoints" / "1").is_dir()
    assert train.train(config, tmp_path / "stopped").finished
    assert_same_bits(arrays(tmp_path / "stopped", 2), arrays(small_run, 2))
    whole, stopped = logged(small_run), logged(tmp_path / "stopped")
    assert [line["step"] for line in stopped] == [1, 2]
    for name in ("total_tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc", "epoch"):
        assert whole[-1][name] == stopped[-1][name], name


def test_other_programs_can_read_the_files_of_a_run(small_run):
    wanted = {
        *("step", "loss", "mlm_loss", "mlm_accuracy", "disc_loss", "disc_auc", "replaced_fraction", "learning_rate"),
        *("grad_norm", "tokens_per_second", "flops", "total_flops", "mfu"),
    }
    lines = logged(small_run)
    assert all(wanted <= line.keys() for line in lines)
    assert all(line["mfu"] is None for line in lines), "the peak FLOPs of a CPU are unknown"
    assert lines[-1]["total_flops"] == 2 * lines[-1]["flops"]
    assert 0 <= lines[-1]["loader_wait"] < 1
    environment = json.loads((small_run / "environment.json").read_text())
    assert environment["devices"] == ["cpu"] * 8
    assert environment["packages"]["jax"]
    assert json.loads((small_run / "config.json").read_text())["steps"] == 2
    assert list((small_run / "tensorboard").glob("events.out.tfevents.*"))
