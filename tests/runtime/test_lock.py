import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from cli_runs import environment, until
from etils import epath

from electra_jax.config.errors import UserError
from electra_jax.runtime import lock

HOLD = """
import sys, time
from pathlib import Path
from electra_jax.runtime import lock
with lock.lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""
# A process that holds the lock in a bucket, where a write replaces the whole object, with a heart that beats fast.
ELSEWHERE = """
import os, sys, time
from pathlib import Path
from etils import epath
from electra_jax.runtime import lock

def replace(path, text):
    Path(f"{path}.part").write_text(text)
    os.replace(f"{path}.part", path)

lock.HEARTBEAT, lock._machine, epath.gpath.PosixGPath.write_text = 0.05, lambda: "elsewhere", replace
with lock.lock(epath.Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock on `tmp_path`."""
    started = []

    def start(code: str = HOLD) -> subprocess.Popen:
        arguments = [sys.executable, "-c", code, str(tmp_path)]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def no_waiting(text: str) -> None:
    raise AssertionError(text)


def test_a_lock_leaves_nothing_and_can_be_taken_again(tmp_path):
    for _ in range(2):
        with lock.lock(tmp_path / "new" / "run", no_waiting):
            assert (tmp_path / "new" / "run" / lock.LOCK).exists()
        assert list((tmp_path / "new" / "run").iterdir()) == []
    with pytest.raises(ZeroDivisionError), lock.lock(tmp_path, no_waiting):
        1 / 0  # noqa: B018 - raises
    assert not (tmp_path / lock.LOCK).exists()


def test_a_second_run_is_refused_in_this_process_and_in_another(tmp_path, holder):
    with lock.lock(tmp_path, no_waiting), pytest.raises(UserError, match=f"process {os.getpid()}"):
        lock.lock(tmp_path, no_waiting).__enter__()
    process = holder()
    with pytest.raises(UserError, match=rf"is in use by another run \(.*process {process.pid}\): expected one run"):
        lock.lock(tmp_path, no_waiting).__enter__()
    process.terminate()


def test_the_lock_of_a_killed_run_is_free_at_once(tmp_path, holder):
    for _ in range(2):
        process = holder()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / lock.LOCK).exists()
    with lock.lock(tmp_path, no_waiting):
        pass


@pytest.mark.parametrize("folder", [lambda path: path, epath.Path], ids=["disk", "bucket"])
def test_a_run_that_died_on_another_machine_is_waited_for(tmp_path, holder, monkeypatch, folder):
    process = holder(ELSEWHERE)
    monkeypatch.setattr(lock, "PATIENCE", 2.0)
    said = []
    with pytest.raises(UserError, match=rf"in use by another run .*process {process.pid}"):
        lock.lock(folder(tmp_path), said.append).__enter__()
    process.kill()
    process.wait()
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    with lock.lock(folder(tmp_path), said.append):
        assert lock._read(tmp_path / lock.LOCK)["pid"] == os.getpid()
    waits = [text.partition(": ")[2] for text in said]
    assert waits == [f"waiting {seconds} s for a sign of it" for seconds in (2, 0)]


def test_without_flock_the_heartbeat_decides(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(lock, "HEARTBEAT", 0.05)
    monkeypatch.setattr(lock, "PATIENCE", 1.0)
    with lock.lock(tmp_path, no_waiting), pytest.raises(UserError, match="in use by another run"):
        lock.lock(tmp_path, lambda text: None).__enter__()
    with lock.lock(tmp_path, no_waiting):  # it has ended in an orderly way: nobody waits
        pass


def test_the_heart_beats_on_after_an_error_of_the_store(tmp_path, monkeypatch):
    read, errors = lock._read, iter([RuntimeError("503")] * 3)

    def read_with_errors(path):
        for error in errors:
            raise error
        return read(path)

    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    with lock.lock(epath.Path(tmp_path), no_waiting):
        monkeypatch.setattr(lock, "_read", read_with_errors)
        until(lambda: (read(tmp_path / lock.LOCK) or {}).get("beat", 0) > 3)
    assert next(errors, None) is None


def test_a_run_that_ends_while_it_is_watched_is_not_waited_for(tmp_path, holder):
    process = holder(ELSEWHERE)
    (tmp_path / lock.LOCK).write_text('{"machine": "elsewhere", "beat": 1}')
    process.kill()
    timer = threading.Timer(0.5, (tmp_path / lock.LOCK).unlink)
    timer.start()
    began = time.monotonic()
    with lock.lock(tmp_path, lambda text: None):
        assert time.monotonic() - began < lock.PATIENCE
    timer.join()


def test_a_run_whose_lock_another_machine_has_taken_ends(tmp_path, holder):
    process = holder(ELSEWHERE)
    process.send_signal(signal.SIGSTOP)
    (tmp_path / lock.LOCK).write_text('{"machine": "third", "host": "third", "pid": 7, "id": "x", "beat": 1}')
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=60) == 2
    assert '"third"' in (tmp_path / lock.LOCK).read_text()


@pytest.mark.parametrize("left", ["", "{", "[1]", "\0" * 512])
def test_a_damaged_lock_file_is_taken_over(tmp_path, left):
    (tmp_path / lock.LOCK).write_text(left)
    with lock.lock(tmp_path, no_waiting):
        assert lock._read(tmp_path / lock.LOCK)["pid"] == os.getpid()
