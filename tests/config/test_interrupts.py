"""Signals to a small command in a process of its own; tests/test_interrupted_commands.py has the real ones."""

import signal
import subprocess
import sys

import pytest
from cli_runs import environment, run

LINE = "interrupted; run the same command again to continue\n"

COMMAND = """
import functools, gc, hashlib, os, signal, sys, threading, time
from electra_jax.config import errors, interrupts

def swallow():
    class Callback:
        def __del__(self):
            signal.raise_signal(number)  # Python drops what a callback raises
    sys.unraisablehook = lambda args: None
    Callback()
    time.sleep(60)

def in_c():
    threading.Timer(0.1, os.kill, [os.getpid(), number]).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes without Python

def fails_by_it():
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        raise errors.UserError("training a vocabulary failed")

def three_times():
    for _ in range(3):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            print("closes files")

def finishes():
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        pass

def main(argv):
    with handled.unwinding():
        globals()[argv[0]]()

interrupts._GRACE = 0.5
number, debug = int(sys.argv[2]), "--debug" in sys.argv
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process inherits that Ctrl-C is ignored
handled = interrupts.Interrupts(debug)
with handled.installed():
    status = errors.run(main, [sys.argv[1], *sys.argv[3:]])
sys.exit(status)
"""


def command(case: str, number: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", COMMAND, case, str(int(number)), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=50, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("case", ["swallow", "in_c", "fails_by_it", "three_times", "finishes"])
def test_a_signal_is_one_line_and_its_status(case, number):
    done = command(case, number)
    assert (done.stderr, done.returncode) == (LINE, 128 + number)
    assert done.stdout == ("closes files\n" if case == "three_times" else "")  # it unwinds once


def test_with_debug_the_place_is_shown():
    done = command("fails_by_it", signal.SIGINT, "--debug")
    assert "in fails_by_it" in done.stderr


IGNORED = """
import signal, threading
from electra_jax.config import interrupts
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, print)
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
with interrupts.Interrupts().installed():
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    signal.raise_signal(signal.SIGINT)

def in_thread():
    with interrupts.Interrupts().installed():
        print("fine")

thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
"""


def test_signals_that_others_handle_are_left_alone():
    done = run([sys.executable, "-c", IGNORED])
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
