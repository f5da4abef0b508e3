"""Multi-process runs, with real processes on localhost."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from cli_runs import arrays, command, environment, free_port, logged, processes, run, sst2_files, until
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.runtime import distributed

STEPS = 40
SETTINGS = (f"--config.steps={STEPS}", "--config.checkpoint.every=5", "--config.log_every=1", "--config.eval_every=20")
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
@pytest.mark.parametrize(
    ("devices", "mesh", "cluster"),
    [
        (2, ("--config.mesh.data=1", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"), "ompi"),
        (1, ("--config.mesh.data=1", "--config.mesh.tensor=2"), ""),  # both processes have the whole batch
    ],
)
def test_with_any_mesh_they_compute_the_same(devices, mesh, cluster, single, text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS, *mesh, devices=devices, cluster=cluster) as started:
        finish(started, workdir)
    assert_computed_the_same(single, workdir, 2)


@pytest.mark.slow
def test_a_probe_of_an_encoder_that_is_sharded_over_processes(single, text_file, tmp_path):
    workdir, folder = tmp_path / "run", sst2_files(tmp_path / "sst2")
    mesh = ("--config.mesh.data=1", "--config.mesh.fsdp=2")
    probe = ("--config.probe.every=20", "--config.probe.task=sst2", f"--config.probe.data_dir={folder}")
    with processes(text_file, workdir, 2, *SETTINGS, *mesh, *probe) as started:
        finish(started, workdir)
    assert [line["step"] for line in logged(workdir) if "probe_sst2_accuracy" in line] == [20, 40]
    assert_same_numbers(single, workdir)
    (folder / "dev.tsv").unlink()
    with processes(text_file, tmp_path / "other", 2, *SETTINGS, *probe) as started:
        finish(started, tmp_path / "other", expected=2)
    line = Path(f"{tmp_path}/other-1.err").read_text()
    assert line.startswith("error: process 0: ")
    assert "has no dev.tsv" in line


@pytest.mark.slow
def test_when_one_process_is_killed_the_others_stop_and_any_number_resumes(single, double, text_file, tmp_path):
    workdir, patience = tmp_path / "run", 5
    with processes(text_file, workdir, 2, *SETTINGS, f"--patience={patience}") as started:
        until(lambda: (workdir / "checkpoints" / "10").exists())
        started[1].kill()
        killed = time.monotonic()
        finish(started[:1], workdir, expected=2)
        assert time.monotonic() - killed < 2 * patience + 5
    last = Path(f"{workdir}-0.err").read_text().splitlines()[-1]
    assert last == (
        f"error: process 0 stops: process 1 of 2 has not answered for {patience} seconds; run the same command in all "
        "processes to resume from the last checkpoint"
    )
    saved = max(int(folder.name) for folder in (workdir / "checkpoints").iterdir() if folder.name.isdigit())
    assert saved < STEPS
    resharded = shutil.copytree(workdir, tmp_path / "resharded")
    for count, folder in ((2, workdir), (4, resharded)):
        with processes(text_file, folder, count, *SETTINGS) as started:
            finish(started, folder)
        assert f"resuming from step {saved}" in Path(f"{folder}-0.out").read_text()
    uninterrupted = arrays(double, STEPS)
    assert all(np.array_equal(value, uninterrupted[name]) for name, value in arrays(workdir, STEPS).items())
    assert_same_numbers(single, resharded)


@pytest.mark.slow
def test_after_a_signal_to_one_process_all_save_the_same_step(text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS, "--config.steps=100000") as started:
        until(lambda: (workdir / "metrics.jsonl").exists() and len(logged(workdir)) > 5)
        started[1].send_signal(signal.SIGTERM)
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
def test_a_process_that_does_not_start_is_reported(text_file, tmp_path):
    options = ("--coordinator=localhost:1", "--processes=2", "--process=1", "--patience=2")
    done = run(command(text_file, tmp_path / "run", *options))
    assert done.returncode == 2
    assert "not all processes of this run started within 2 seconds" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def two_processes(code: str) -> list[subprocess.Popen]:
    """Starts a script twice, with the address of process 0 and its own number as arguments."""
    coordinator = f"localhost:{free_port()}"
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, coordinator, str(number)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]


BUSY_WATCHDOG = """
import sys
from electra_jax.runtime import distributed, watchdog
watchdog._HEARTBEAT = 0
options = {"coordinator": sys.argv[1], "processes": 2, "process": int(sys.argv[2]), "patience": 60}
with distributed.initialize(options):
    print(distributed.all_gather(sys.argv[2]))
"""


@pytest.mark.slow
def test_the_watchdog_ends_before_python(tmp_path):
    for _ in range(3):
        for process in two_processes(BUSY_WATCHDOG):
            printed, errors = process.communicate(timeout=300)
            assert (process.returncode, printed) == (0, "['0', '1']\n"), errors


def initialize(**given):
    with distributed.initialize({**distributed.OPTIONS, **given}):
        pass


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


class Store:
    """What all processes see of process 0's keys and values. `meanwhile` happens before a value is set."""

    def __init__(self, meanwhile):
        self.values, self.meanwhile = {}, meanwhile

    def key_value_set(self, key, value):
        self.meanwhile()
        if key in self.values:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key):
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]


@settings(deadline=None, max_examples=300)
@given(st.integers(2, 4), st.data())
def test_processes_that_are_signalled_in_any_order_stop_at_the_same_step(count, data):
    """As metrics are sums over all, no process asks about a step before all have started the one before it."""
    signals = data.draw(st.dictionaries(st.integers(0, count - 1), st.integers(2, 4), min_size=1))
    asked, started, stopped, busy = [0] * count, [1] * count, [0] * count, set()

    def free():
        return [one for one in range(count) if one not in busy and not stopped[one] and asked[one] <= min(started)]

    def ask(one):
        asked[one] += 1
        busy.add(one)
        guards[one]._signalled = asked[one] >= signals.get(one, 100)
        if guards[one].should_stop(asked[one]):
            stopped[one] = asked[one]
        else:
            started[one] += 1
        busy.remove(one)

    def others_ask():
        while (others := free()) and data.draw(st.booleans()):
            ask(data.draw(st.sampled_from(others)))

    store = Store(meanwhile=others_ask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_client", lambda: store)
        patch.setattr(distributed, "is_multi_process", lambda: True)
        guards = [distributed.PreemptionGuard() for _ in range(count)]
        for guard in guards:
            guard._key = "stop"
        while not all(stopped):
            assert free(), (asked, stopped)  # else they wait for each other
            ask(data.draw(st.sampled_from(free())))
    assert len(set(stopped)) == 1
    assert stopped[0] - 2 in signals.values()


STOPPED_OFTEN = """
import os, signal, sys, time
from electra_jax.runtime import distributed
this = int(sys.argv[2])
options = {"coordinator": sys.argv[1], "processes": 2, "process": this, "patience": 60}

def stops_at(name, signals):
    with distributed.PreemptionGuard() as guard:
        step = 0
        while True:  # step + 1 starts before the metrics of `step` are read
            client.key_value_set(f"{name}/{step + 1}/{this}", "started")
            if step:
                client.blocking_key_value_get(f"{name}/{step}/{1 - this}", 60_000)
            step += 1
            if step == signals.get(this):
                os.kill(os.getpid(), signal.SIGINT if this else signal.SIGTERM)
            if guard.should_stop(step):
                return step

with distributed.initialize(options):
    client = distributed._client()
    for turn in range(40):
        print(stops_at(turn, ({0: 5}, {1: 5}, {0: 5, 1: 5}, {0: 6, 1: 5})[turn % 4]))
    os.kill(os.getpid(), signal.SIGTERM)  # outside of the loop
    distributed.all_gather("signalled")
    print(stops_at("last", {}))
    pids = distributed.all_gather(str(os.getpid()))
    if this == 0:
        time.sleep(1)  # until process 1 waits for this one to end
        os.kill(int(pids[1]), signal.SIGTERM)
        time.sleep(1)
"""


@pytest.mark.slow
def test_signals_to_any_process_at_any_time_stop_both_at_the_same_step():
    """Once, one of them waited for the other with the GIL held, which its own relay needed to receive the answer."""
    printed = []
    for process in two_processes(STOPPED_OFTEN):
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        printed.append([int(step) for step in output.split()])
    assert printed[0] == printed[1]
    assert len(printed[0]) == 41
    assert set(printed[0][:40]) <= {7, 8}
    assert printed[0][40] == 3


SIGNALLED_BEFORE_AN_ERROR = """
import os, signal, sys
from electra_jax.config import errors
from electra_jax.runtime import distributed

def main(argv):
    with distributed.initialize({"coordinator": argv[0], "processes": 2, "process": int(argv[1]), "patience": 60}):
        os.kill(os.getpid(), signal.SIGTERM)
        raise errors.UserError("a worker process was killed")

sys.exit(errors.run(main))
"""


@pytest.mark.slow
def test_an_error_after_a_signal_has_the_status_of_the_signal():
    for process in two_processes(SIGNALLED_BEFORE_AN_ERROR):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 143, errors


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
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1234")
    with pytest.raises(UserError, match=r"JAX_COORDINATOR_ADDRESS=10\.0\.0\.1:1234 is set, but no cluster says which"):
        initialize()
    initialize(processes=1)


@pytest.mark.slow
def test_when_process_0_is_killed_the_others_stop_with_a_line(text_file, tmp_path):
    workdir = tmp_path / "run"
    with processes(text_file, workdir, 2, *SETTINGS, "--config.steps=100000") as started:
        until(lambda: (workdir / "metrics.jsonl").exists() and len(logged(workdir)) > 5)
        started[0].kill()
        assert started[1].wait(timeout=60) == 2  # less than --patience
    errors = Path(f"{workdir}-1.err").read_text().splitlines()
    assert errors[-1] == (
        "error: process 1 stops: process 0 was killed or has failed; run the same command in all processes to resume "
        "from the last checkpoint"
    )
    assert all("another process may have stopped" in line for line in errors[:-1]), errors


ONE_FAILS = """
import sys
from electra_jax.config import errors
from electra_jax.runtime import distributed

def main(argv):
    options = {"coordinator": argv[0], "processes": 2, "process": int(argv[1]), "patience": 60}
    with distributed.initialize(options):
        if argv[1] == argv[2]:
            raise errors.UserError("bad disk") if argv[3] == "mistake" else ZeroDivisionError("bug")
        distributed.broadcast(None)

sys.exit(errors.run(main))
"""


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("error", "arguments", "status", "line"),
    [
        ("mistake", [], 2, "error: bad disk"),
        ("mistake", ["--debug"], 1, "electra_jax.config.errors.UserError: bad disk"),
        ("bug", [], 1, "ZeroDivisionError: bug"),
    ],
)
def test_an_error_in_one_process_ends_the_others_with_its_reason(failing, error, arguments, status, line):
    coordinator, pipe = f"localhost:{free_port()}", subprocess.PIPE
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_FAILS, coordinator, str(number), str(failing), error, *arguments],
            env=environment(),
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for number in range(2)
    ]
    ended = [(process.communicate(timeout=50)[1].splitlines(), process.returncode) for process in started]
    assert (ended[failing][0][-1], ended[failing][1]) == (line, status)
    reason = "bad disk" if error == "mistake" else "ZeroDivisionError: bug"
    assert ended[1 - failing] == ([f"error: process {failing}: {reason}"], 2)


@pytest.mark.slow
def test_when_process_0_does_not_answer_the_others_stop_with_a_line(text_file, tmp_path):
    """Its connection stays open, as that of a host that has lost its power or its network."""
    workdir, patience = tmp_path / "run", 5
    with processes(text_file, workdir, 2, *SETTINGS, "--config.steps=100000", f"--patience={patience}") as started:
        until(lambda: (workdir / "metrics.jsonl").exists() and len(logged(workdir)) > 5)
        started[0].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert started[1].wait(timeout=60) == 2
        assert time.monotonic() - stopped < 2 * patience  # then JAX would abort
        started[0].kill()
    last = Path(f"{workdir}-1.err").read_text().splitlines()[-1]
    assert last == (
        f"error: process 1 stops: process 0 of 2 has not answered for {patience} seconds; run the same command in all "
        "processes to resume from the last checkpoint"
    )
