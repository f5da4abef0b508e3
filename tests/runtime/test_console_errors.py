import subprocess
import sys

import pytest
from cli_runs import environment

from electra_jax.runtime.console_errors import disk_error

THREADS = """
import logging, sys, threading
from electra_jax.runtime import console_errors
console_errors.quiet_libraries()
assert logging.getLogger("absl").level == logging.CRITICAL

class Callback:
    def __init__(self, message):
        self.message = message
    def __del__(self):
        raise RuntimeError(self.message)

def fail():
    raise ValueError(sys.argv[1])

thread = threading.Thread(target=fail)
thread.start()
thread.join()
Callback(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        # Each is hidden in one of the two.
        ("x: No space left on device", 1),
        ("Event loop is closed", 1),
        ("Encountered error while reading array index: (). See", 1),
        ("a bug", 2),
    ],
)
def test_only_errors_that_are_reported_elsewhere_are_hidden(message, printed):
    argv = [sys.executable, "-c", THREADS, message]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr.count(f"Error: {message}") == printed


def test_importing_the_library_changes_no_hook():
    code = """
import sys, threading, logging, warnings
import electra_jax.train
from electra_jax.runtime import checkpoint
assert threading.excepthook is threading.__excepthook__
assert sys.unraisablehook is sys.__unraisablehook__
assert logging.getLogger("absl").level != logging.CRITICAL
"""
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_disk_error():
    assert disk_error(ValueError("long text: No space left on device [x]")) == "No space left on device"
    assert disk_error(ValueError("other")) is None
    assert disk_error(None) is None
