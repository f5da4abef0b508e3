"""Real processes that are really killed: a resumed run ends with the same bits as an uninterrupted one."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from cli_runs import arrays, command, environment, logged, run

STEPS = 120
# Long enough to be killed in the middle; with a checkpoint every few steps, one is often being written.
SETTINGS = (f"--config.steps={STEPS}", "--config.checkpoint.every=7", "--config.log_every=3", "--config.eval_every=50")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, text_file) -> Path:
    workdir = tmp_path_factory.mktemp("run") / "uninterrupted"
    done = run(command(text_file, workdir, *SETTINGS))
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


def assert_same_bits(one: Path, other: Path) -> None:
    ours, theirs = arrays(one, STEPS), arrays(other, STEPS)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_a_run_killed_at_random_steps_ends_with_the_same_bits(tmp_path, text_file, uninterrupted):
    random.seed()  # other steps in every test run
    workdir = tmp_path / "killed"
    arguments = command(text_file, workdir, *SETTINGS)
    for step in sorted(random.sample(range(9, STEPS - 30), 3)):
        process = start_and_signal(arguments, workdir, step, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stdout
    assert_same_bits(uninterrupted, workdir)

    steps = [line["step"] for line in logged(workdir)]
    assert steps == sorted(set(steps)), "a step was logged twice"
    ours, theirs = logged(uninterrupted)[-1], logged(workdir)[-1]
    for name in ("total_tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc", "epoch"):
        assert ours[name] == theirs[name], name


def test_a_run_killed_during_preparation_starts_again(tmp_path, text_file):
    workdir = tmp_path / "early"
    arguments = command(text_file, workdir, "--config.steps=2")
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Training a vocabulary"):
            break
    process.kill()
    process.communicate()
    done = run(arguments)
    assert done.returncode == 0, done.stderr
    assert (workdir / "checkpoints" / "2").is_dir()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_saves_says_how_to_resume_and_exits_0(tmp_path, text_file, uninterrupted, number):
    workdir = tmp_path / "stopped"
    arguments = command(text_file, workdir, *SETTINGS)
    process = start_and_signal(arguments, workdir, 20, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    step = int(out.split("interrupted and saved at step ")[1].split(";")[0])
    assert out.rstrip().endswith("the same command resumes it")
    assert (workdir / "checkpoints" / str(step)).is_dir()
    assert logged(workdir)[-1]["step"] == step

    done = run(arguments)
    assert f"resuming from step {step}" in done.stdout
    assert_same_bits(uninterrupted, workdir)


def test_a_finished_run_is_not_trained_further(uninterrupted, text_file):
    before = (uninterrupted / "metrics.jsonl").read_text()
    done = run(command(text_file, uninterrupted, *SETTINGS))
    assert done.returncode == 0, done.stderr
    assert "Done: 120 steps" in done.stdout
    assert (uninterrupted / "metrics.jsonl").read_text() == before


def test_other_programs_can_read_the_files_of_a_run(uninterrupted):
    wanted = {
        *("step", "loss", "mlm_loss", "mlm_accuracy", "disc_loss", "disc_auc", "replaced_fraction", "learning_rate"),
        *("grad_norm", "tokens_per_second", "flops", "total_flops", "mfu"),
    }
    lines = logged(uninterrupted)
    assert all(wanted <= line.keys() for line in lines)
    assert all(line["mfu"] is None for line in lines), "the peak FLOPs of a CPU are unknown"
    assert lines[-1]["total_flops"] == STEPS * lines[-1]["flops"]
    assert 0 <= lines[-1]["loader_wait"] < 1
    environment = json.loads((uninterrupted / "environment.json").read_text())
    assert environment["devices"] == ["cpu"]
    assert environment["packages"]["jax"]
    assert json.loads((uninterrupted / "config.json").read_text())["steps"] == STEPS
    assert list((uninterrupted / "tensorboard").glob("events.out.tfevents.*"))
    kept = sorted(int(path.name) for path in (uninterrupted / "checkpoints").iterdir() if path.name.isdigit())
    assert kept == [100, 119, 120]  # every hundredth, and the last two


def test_bits_do_not_depend_on_when_a_run_saves_or_logs(tmp_path, text_file, uninterrupted):
    workdir = tmp_path / "other"
    settings = ("--config.checkpoint.every=50", "--config.log_every=10", "--config.eval_every=1000")
    done = run(command(text_file, workdir, f"--config.steps={STEPS}", *settings))
    assert done.returncode == 0, done.stderr
    assert_same_bits(uninterrupted, workdir)
