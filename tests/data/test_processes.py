"""Processes that work for another: what they inherit."""

import contextlib
import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import pytest
from cli_runs import run

from electra_jax.data import processes


def test_ctrl_c_is_blocked_for_the_processes_that_are_started_and_no_longer():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes.starting():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {*mask, signal.SIGINT}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_the_first_semaphore_of_a_process_does_not_unblock_it():
    """It starts a process of multiprocessing's own, which ends with SIGINT unblocked."""
    code = (
        "import signal\n"
        "from electra_jax.data import processes\n"
        "with processes.starting():\n"
        "    processes.CONTEXT.Semaphore(1)\n"
        "    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_processes_are_started_is_handled_once_and_afterwards(number):
    events = []
    before = signal.signal(number, lambda number, frame: events.append(number))
    try:
        with processes.starting():
            for _ in range(3):
                signal.raise_signal(number)
            events.append("started")
        events.append("after")
        signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert events == ["started", number, "after", number]


SCRIPT = """
import sys
import electra_jax
electra_jax.prepare(sys.argv[2], input=sys.argv[1], vocab_size=100, shard_mb=1)
"""


@pytest.mark.slow
def test_a_script_that_would_start_itself_again_is_told_what_to_do(tmp_path):
    script, text = tmp_path / "script.py", tmp_path / "text.txt"
    text.write_text("".join(f"This is line number {number} of a text.\n\n" for number in range(60_000)))
    script.write_text(SCRIPT)
    done = run([sys.executable, str(script), str(text), str(tmp_path / "out")])
    assert done.returncode == 1
    assert "a process that prepares text runs this script again: put the calls of electra_jax below" in done.stderr
    script.write_text(SCRIPT.replace("electra_jax.prepare", 'if __name__ == "__main__":\n    electra_jax.prepare'))
    done = run([sys.executable, str(script), str(text), str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr


def test_ignored_signals_stay_ignored_and_other_threads_have_no_handlers():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = []

    def start():
        with processes.starting():
            found.append(signal.getsignal(signal.SIGTERM))

    try:
        with processes.starting():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert found == [signal.getsignal(signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_processes_of_the_pool_alone():
    other = processes.CONTEXT.Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with contextlib.suppress(KeyboardInterrupt), processes.pool(1, int, ()) as pool:
            pool.submit(time.sleep, 60)
            raise KeyboardInterrupt
        other.join(0.5)
        assert multiprocessing.active_children() == [other]
    finally:
        other.terminate()
        other.join()


INTERRUPTED = """
import multiprocessing.util, os, signal, sys, time
from electra_jax.config import errors, interrupts
from electra_jax.data import processes

spawn = multiprocessing.util.spawnv_passfds

def spawn_and_interrupt(*arguments):
    pid = spawn(*arguments)
    os.kill(os.getpid(), int(sys.argv[1]))  # any thread takes it
    time.sleep(0.2)
    return pid

def main(argv):
    with handled.unwinding(), processes.pool(1, int, ()):
        pass

processes.resource_tracker.ensure_running()
multiprocessing.util.spawnv_passfds = spawn_and_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process inherits that Ctrl-C is ignored
handled = interrupts.Interrupts()
with handled.installed():
    errors.run(main, [])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_a_process_and_its_task_is_one_line(number):
    done = run([sys.executable, "-c", INTERRUPTED, str(int(number))])
    assert done.stderr == "interrupted; run the same command again to continue\n"
    assert done.returncode == 128 + number
