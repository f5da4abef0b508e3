import fcntl
import os
import signal
import subprocess
import sys

import pytest
from cli_runs import environment
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


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock on `tmp_path`."""
    started = []

    def start() -> subprocess.Popen:
        arguments = [sys.executable, "-c", HOLD, str(tmp_path)]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def no_waiting(text: str) -> None:
    raise AssertionError(text)


def test_a_lock_can_be_taken_again(tmp_path):
    with pytest.raises(ZeroDivisionError), lock.lock(tmp_path / "new" / "run", no_waiting):
        1 / 0  # noqa: B018 - raises
    with lock.lock(tmp_path / "new" / "run", no_waiting):
        assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == [lock.LOCK]


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
    with lock.lock(tmp_path, no_waiting):
        pass


def test_without_locks_the_user_is_told(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    said = []
    with lock.lock(tmp_path, said.append):
        pass
    assert said == [f"{tmp_path} cannot be locked (Operation not supported): make sure that no other run uses it"]


def test_a_bucket_has_no_lock(tmp_path):
    with lock.lock(epath.Path(tmp_path), no_waiting), lock.lock(epath.Path(tmp_path), no_waiting):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", ["", "{", "[1]", "\0" * 512])
def test_a_damaged_lock_file_is_taken_over(tmp_path, left):
    (tmp_path / lock.LOCK).write_text(left)
    with lock.lock(tmp_path, no_waiting):
        assert (tmp_path / lock.LOCK).read_text().endswith(f", process {os.getpid()}\n")
