"""Processes that work for another: what they inherit."""

import signal
import subprocess
import sys

from electra_jax.data import processes


def test_ctrl_c_is_blocked_for_the_processes_that_are_started_and_no_longer():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes.interrupts_blocked():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {*mask, signal.SIGINT}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_the_first_semaphore_of_a_process_does_not_unblock_it():
    """It starts a process of multiprocessing's own, which ends with SIGINT unblocked."""
    code = (
        "import signal\n"
        "from electra_jax.data import processes\n"
        "with processes.interrupts_blocked():\n"
        "    processes.CONTEXT.Semaphore(1)\n"
        "    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
