"""Multi-process runs, with real processes on localhost."""

import json
import signal
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from cli_runs import arrays, assert_same_bits, command, logged, processes, run, sst2_files, until

from electra_jax.config.errors import UserError
from electra_jax.runtime import distributed

STEPS = 20
SETTINGS = (f"--config.steps={STEPS}", "--config.checkpoint.every=5", "--config.log_every=1", "--config.eval_every=10")
NUMBERS = ("step", "loss", "mlm_loss", "tokens", "total_flops", "heldout_mlm_loss", "heldout_unigram_auc")


@pytest.fixture(scope="module")
def single(tmp_path_factory, text_file) -> Path:
    """A single-process run."""
    workdir = tmp_path_factory.mktemp("single") / "run"
    done = run(command(text_file, workdir, *SETTINGS))
    assert done.returncode == 0, done.stderr
    return workdir


def finish(started, workdir: Path, expected: int = 0) -> None:
    """Waits for all processes, and checks their exit status."""
    for number, process in enumerate(started):
        assert process.wait(timeout=600) == expected, Path(f"{workdir}-{number}.err").read_text()


def assert_same_numbers(one: Path, other: Path) -> None:
    """Compares every logged step and the final state, up to the rounding of sums in another order."""
    for ours, theirs in zip(logged(one), logged(other), strict=True):
        for name in (name for name in NUMBERS if name in ours):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-4), (ours["step"], name)
    ours, theirs = arrays(one, STEPS), arrays(other, STEPS)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=0, atol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def double(tmp_path_factory, text_file) -> Path:
    """A run of two processes, which SLURM's variables tell their numbers."""
    workdir = tmp_path_factory.mktemp("double") / "run"
    with processes(text_file, workdir, 2, *SETTINGS, cluster="slurm") as started:
        finish(started, workdir)
    return workdir


def assert_computed_the_same(single: Path, workdir: Path, count: int) -> None:
    assert_same_numbers(single, workdir)
    assert json.loads((workdir / "environment.json").read_text())["processes"] == count
    printed = [Path(f"{workdir}-{number}.out").read_text() for number in range(count)]
    assert f"Done: {STEPS} steps" in printed[0]
    assert all("step" not in text for text in printed[1:])  # only process 0 prints


@pytest.mark.slow
def test_two_processes_compute_the_same_as_one(single, double):
    assert_computed_the_same(single, double, 2)


@pytest.mark.slow
def test_an_encoder_that_is_split_over_processes_learns_and_is_probed_as_one(single, text_file, tmp_path):
    """Both processes have the whole batch."""
    workdir, folder = tmp_path / "run", sst2_files(tmp_path / "sst2")
    mesh = ("--config.mesh.data=1", "--config.mesh.tensor=2")
    probe = ("--config.probe.every=10", "--config.probe.task=sst2", f"--config.probe.data_dir={folder}")
    with processes(text_file, workdir, 2, *SETTINGS, *mesh, *probe, cluster="ompi") as started:
        finish(started, workdir)
    assert_computed_the_same(single, workdir, 2)
    assert [line["step"] for line in logged(workdir) if "probe_sst2_accuracy" in line] == [10, 20]


KILLED_BEFORE_ITS_SECOND_CHECKPOINT = """
import os, signal, sys
from electra_jax import __main__
from electra_jax.runtime.checkpoint import Checkpoints

save = Checkpoints.save

def save_or_die(checkpoints, step, *rest):
    if step > 5:
        checkpoints.wait()  # until the first one is complete
        os.kill(os.getpid(), signal.SIGKILL)
    save(checkpoints, step, *rest)

Checkpoints.save = save_or_die
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "count", "fsdp"), [(0, 4, 4), (1, 2, 1)])
def test_when_one_process_is_killed_the_others_end_and_any_number_resumes(
    killed, count, fsdp, single, double, text_file, tmp_path
):
    workdir, programs = tmp_path / "run", {killed: KILLED_BEFORE_ITS_SECOND_CHECKPOINT}
    with processes(text_file, workdir, 2, *SETTINGS, "--patience=10", programs=programs) as started:
        assert started[killed].wait(timeout=600) == -signal.SIGKILL
        assert started[1 - killed].wait(timeout=600) not in (0, 143)  # JAX ends it, with a report of its own
    with processes(text_file, workdir, count, *SETTINGS, f"--config.mesh.fsdp={fsdp}") as started:
        finish(started, workdir)
    assert "resuming from step 5" in Path(f"{workdir}-0.out").read_text()
    assert_same_numbers(single, workdir)
    if count == 2:
        assert_same_bits(arrays(workdir, STEPS), arrays(double, STEPS))


@pytest.mark.slow
def test_after_a_signal_to_one_process_all_save_the_same_step(text_file, tmp_path):
    """Ctrl-C, which is passed on as SIGTERM, and of which JAX tells the other process."""
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS, "--config.steps=100000") as started:
        until(lambda: (workdir / "metrics.jsonl").exists() and len(logged(workdir)) > 5)
        started[1].send_signal(signal.SIGINT)
        finish(started, workdir, expected=143)
    saved = max(int(folder.name) for folder in (workdir / "checkpoints").iterdir())
    assert f"interrupted and saved at step {saved}" in Path(f"{workdir}-0.out").read_text()
    assert logged(workdir)[-1]["step"] == saved


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_refused_by_all_processes(text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS) as started:
        started[1].kill()
        place = [part for part in started[1].args if part.startswith(("--coord", "--process"))]
        elsewhere = run(command(text_file, tmp_path / "other", *place, *SETTINGS))
        assert started[0].wait(timeout=300) == 2
    assert elsewhere.returncode == 2
    for text in (Path(f"{workdir}-0.err").read_text(), elsewhere.stderr):
        assert "is not the same folder for all processes: process 1 does not see what process 0 writes" in text


@pytest.mark.slow
def test_an_error_of_process_0_before_the_first_step_ends_the_others_with_its_reason(text_file, tmp_path):
    workdir = tmp_path / "run"
    probe = ("--config.probe.every=10", "--config.probe.task=sst2", f"--config.probe.data_dir={tmp_path}")
    with processes(text_file, workdir, 2, *SETTINGS, *probe) as started:
        finish(started, workdir, expected=2)
    errors = [Path(f"{workdir}-{number}.err").read_text() for number in range(2)]
    assert "has no train.tsv" in errors[0]
    assert errors[1] == errors[0].replace("error: ", "error: process 0: ")


def initialize(**given):
    distributed.initialize({**distributed.OPTIONS, **given})


@pytest.mark.parametrize(
    "given",
    [
        {"coordinator": "host:1"},
        {"processes": 2},
        {"process": 0},
        {"coordinator": "host:1", "processes": 2, "process": 2},
        {"coordinator": "host", "processes": 2, "process": 1},
    ],
)
def test_incomplete_options_are_refused(given):
    with pytest.raises(UserError, match=r"--coordinator=.* is invalid: expected all three, as in --coordinator="):
        initialize(**given)


def test_patience_is_a_positive_number():
    with pytest.raises(UserError, match=r"--patience=0 is invalid: expected seconds, 1 or more"):
        initialize(patience=0)


def test_a_single_process_needs_no_agreement():
    initialize(processes=1)
    assert distributed.is_main_process()
    assert not distributed.is_multi_process()
    assert distributed.main_process_first(lambda: 1, others=lambda: 2) == 1
    distributed.check_shared_folder(Path("/nowhere"))
    distributed.check_same("a text", "x")


def test_what_must_be_the_same_in_all_processes(monkeypatch):
    monkeypatch.setattr(distributed, "is_multi_process", lambda: True)
    monkeypatch.setattr(distributed, "all_gather", lambda value: [value, value, "[5, 10]"])
    distributed.check_same("a list", "[5, 10]")
    with pytest.raises(UserError, match=r"^process 2 has a list that differs from that of process 0; try again$"):
        distributed.check_same("a list", "[5]", "try again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_preemption_guard_of_a_single_process(number):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    with distributed.PreemptionGuard() as guard:
        assert not guard.should_stop(1)
        signal.raise_signal(number)
        assert guard.should_stop(2)
        with pytest.raises(KeyboardInterrupt):  # a second Ctrl-C ends it at once
            signal.raise_signal(signal.SIGINT)
    assert {each: signal.getsignal(each) for each in before} == before


def test_in_another_thread_no_signal_is_handled():
    """Python has signal handlers in the main thread only."""
    stopped = []

    def loop():
        with distributed.PreemptionGuard() as guard:
            stopped.append(guard.should_stop(1))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert stopped == [False]
    assert signal.getsignal(signal.SIGINT) == before


def test_an_address_without_a_cluster_is_refused(monkeypatch):
    def unknown(**given):
        raise ValueError("Number of processes must be defined.")  # what JAX says in a process that has not used it

    monkeypatch.setattr(jax.distributed, "initialize", unknown)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1234")
    with pytest.raises(UserError, match=r"JAX_COORDINATOR_ADDRESS=10\.0\.0\.1:1234 is set, but no cluster says which"):
        initialize()
    initialize(processes=1)
