"""Real processes that are really killed: a resumed run ends with the same bits as an uninterrupted one."""

import itertools
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from cli_runs import arrays, command, environment, logged, run, small_config

from electra_jax import train
from electra_jax.runtime.goodput import CATEGORIES, PHASES
from electra_jax.runtime.progress import Progress

STEPS = 120
# Long enough to be killed in the middle. The run that is killed writes a checkpoint every few steps, so one is often
# being written; the bits must not depend on that.
RARELY = (
    f"--config.steps={STEPS}",
    "--config.checkpoint.every=50",
    "--config.log_every=10",
    "--config.eval_every=1000",
)
OFTEN = (f"--config.steps={STEPS}", "--config.checkpoint.every=7", "--config.log_every=3", "--config.eval_every=50")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, text_file) -> Path:
    workdir = tmp_path_factory.mktemp("run") / "uninterrupted"
    done = run(command(text_file, workdir, *RARELY))
    assert done.returncode == 0, done.stderr
    return workdir


def start_and_signal(arguments: list[str], workdir: Path, step: int, number: signal.Signals) -> subprocess.Popen:
    """Starts a run and sends it a signal some milliseconds after it has logged `step`."""
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = workdir / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if lines and last_step(lines) >= step:
            break
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.03))
    process.send_signal(number)
    return process


def last_step(lines: list[str]) -> int:
    try:
        return json.loads(lines[-1])["step"]
    except json.JSONDecodeError:  # caught in the middle of a line
        return last_step(lines[:-1]) if lines[:-1] else 0


def assert_same_bits(one: Path, other: Path, step: int = STEPS) -> None:
    ours, theirs = arrays(one, step), arrays(other, step)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


class Interrupt(Progress):
    """Sends this process a signal when a step has been done."""

    def __init__(self, step: int, number: signal.Signals):
        self.step, self.number = step, number

    def update(self, completed: float, numbers: str = "") -> None:
        if completed == self.step:
            os.kill(os.getpid(), self.number)


def test_a_run_that_is_interrupted_ends_with_the_same_bits(tmp_path, text_file, small_run):
    """In this process, in the first of two steps; the slow tests below and tests/storm kill processes."""
    config = small_config(text_file, steps=2, log_every=1, eval_batches=1, checkpoint__every=100)
    interrupted = train.train(config, tmp_path / "stopped", Interrupt(0, signal.SIGTERM))
    assert not interrupted.finished
    assert interrupted.step == 1
    assert (tmp_path / "stopped" / "checkpoints" / "1").is_dir()
    assert train.train(config, tmp_path / "stopped").finished
    assert_same_bits(small_run, tmp_path / "stopped", 2)
    whole, stopped = logged(small_run), logged(tmp_path / "stopped")
    assert [line["step"] for line in stopped] == [1, 2]
    for name in ("total_tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc", "epoch"):
        assert whole[-1][name] == stopped[-1][name], name


@pytest.mark.slow
def test_a_run_that_is_killed_and_stopped_ends_with_the_same_bits(tmp_path, text_file, uninterrupted):
    """Killed while it prepares its text, killed twice at random steps, and stopped by SIGTERM."""
    random.seed()  # other steps in every test run
    workdir = tmp_path / "killed"
    arguments = command(text_file, workdir, *OFTEN)
    kill_during_preparation(arguments)
    began = time.time()
    first, second, third = sorted(random.sample(range(9, STEPS - 30), 3))
    for step in (first, third):
        process = start_and_signal(arguments, workdir, step, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        if step == first:
            saved = stop(arguments, workdir, second, signal.SIGTERM)
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stdout
    assert_same_bits(uninterrupted, workdir)

    steps = [line["step"] for line in logged(workdir)]
    assert steps == sorted(set(steps)), "a step was logged twice"
    assert saved in steps
    ours, theirs = logged(uninterrupted)[-1], logged(workdir)[-1]
    for name in ("total_tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc", "epoch"):
        assert ours[name] == theirs[name], name
    kept = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    assert kept == [100, 119, 120]  # every hundredth, and the last two
    assert_time_is_accounted_for(workdir, began)


def assert_time_is_accounted_for(workdir: Path, began: float) -> None:
    """Of a run that was killed and stopped, and whose first start that got as far as its loop was at `began`."""
    kept, last = json.loads((workdir / "goodput.json").read_text()), logged(workdir)[-1]
    for name in CATEGORIES:
        assert 0 <= last[f"total_seconds_{name}"] <= kept[f"seconds_{name}"]
    assert kept["seconds_lost"] == last["total_seconds_lost"]
    total = sum(last[f"total_seconds_{name}"] for name in CATEGORIES)
    assert last["goodput"] == pytest.approx(last["total_seconds_step"] / total)
    counted = sum(kept[f"seconds_{name}"] for name in (*CATEGORIES, "down"))
    assert counted == pytest.approx(kept["written"] - began, abs=5)  # starting Python is not counted
    for before, after in itertools.pairwise(logged(workdir)):  # of lines of one start, the window is what is between
        if after["total_seconds_setup"] == before["total_seconds_setup"]:
            for name in PHASES:
                spent = after[f"total_seconds_{name}"] - before[f"total_seconds_{name}"]
                # The clock is read twice, and another process may run in between.
                assert after[f"seconds_{name}"] == pytest.approx(spent, abs=0.05), name


def kill_during_preparation(arguments: list[str]) -> None:
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Training a vocabulary"):
            break
    process.kill()
    process.communicate()


def stop(arguments: list[str], workdir: Path, step: int, number: signal.Signals) -> int:
    """Sends a signal that a run answers by saving; the step that it saved."""
    process = start_and_signal(arguments, workdir, step, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err  # a supervisor starts it again
    saved = int(out.split("interrupted and saved at step ")[1].split(";")[0])
    assert out.rstrip().endswith("the same command resumes it")
    assert (workdir / "checkpoints" / str(saved)).is_dir()
    assert logged(workdir)[-1]["step"] == saved
    return saved


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_resume_and_costs_no_bits(tmp_path, text_file, uninterrupted):
    workdir = tmp_path / "stopped"
    arguments = command(text_file, workdir, *OFTEN)
    step = stop(arguments, workdir, 20, signal.SIGINT)
    done = run(arguments)
    assert f"resuming from step {step}" in done.stdout
    assert_same_bits(uninterrupted, workdir)


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
