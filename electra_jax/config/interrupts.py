"""Makes Ctrl-C and SIGTERM end a command, whatever it is doing, with one line and exit status 130 or 143.

During imports the process exits at once, because imports run many callbacks in which Python drops exceptions. After
the imports, the first signal raises KeyboardInterrupt in the main thread, so that files are closed and the terminal is
restored; further signals are ignored. If the process is still running after `_GRACE` seconds, it is ended: it may be
compiling or training a vocabulary, in native code that does not return to Python, or a callback may have dropped the
exception.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# Seconds from the first signal until the process is ended, whatever it is doing.
_GRACE = 3.0


def exit_status(number: int) -> int:
    """Returns the exit status that a shell reports for a process ended by signal `number`."""
    return 128 + number


class Interrupts:
    """The process's handler of SIGINT and SIGTERM. Create it in the main thread.

    Attributes:
      noticed: the signal that interrupted the command; None if there was none.
    """

    def __init__(self, debug: bool = False) -> None:
        """Installs no handler yet; see `installed`.

        Args:
          debug: whether KeyboardInterrupt ends the command, with its traceback.
        """
        self.noticed: int | None = None
        self._debug = debug
        self._unwinds = False
        # The thread that ends the process takes this lock and never releases it.
        self._ending = threading.Lock()

    @contextlib.contextmanager
    def unwinding(self) -> Iterator[None]:
        """Context manager for the command itself: signals raise KeyboardInterrupt, and errors after it are dropped."""
        self._unwinds = True
        try:
            yield
        finally:
            if self.noticed is not None and not self._debug:
                # `os._exit` does not flush.
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                self._end(self.noticed)

    def _end(self, number: int) -> None:
        """Reports the interrupt and ends the process, unless another thread is doing so."""
        if not self._ending.acquire(blocking=False):
            return
        report_interrupt()
        _stop_children()
        # Not sys.exit: this may run in another thread, while the main thread is in native code.
        os._exit(exit_status(number))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.noticed is not None:
            return
        self.noticed = number
        if not self._unwinds:
            self._end(number)
        timer = threading.Timer(_GRACE, self._end, [number])
        # A daemon, so that a command that ends in time does not wait for it.
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context manager that handles the signals, except those that are ignored or have a handler already.

        SIGINT is ignored in a background job of a script, for example.
        """
        # Python has signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        default = (signal.SIG_DFL, signal.default_int_handler)
        before = {number: signal.getsignal(number) for number in _NUMBERS if signal.getsignal(number) in default}
        for number in before:
            signal.signal(number, self._handle)
        read, write = os.pipe()
        # Python requires it of the wakeup descriptor.
        os.set_blocking(write, False)
        # Python's C handler writes to the pipe at once, even while the main thread is in native code.
        wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(read,), name="interrupts", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            os.close(write)  # ends the thread
            for number, handler in before.items():
                signal.signal(number, handler)
            # The work is done: let Python end.
            atexit.register(_ignore_signals)

    def _watch(self, pipe: int) -> None:
        """Ends the process if the main thread does not return to Python, so that `_handle` is never called."""
        with open(pipe, "rb", 0) as signals:
            while number := signals.read(1):
                # In its loop, `train` has handlers of its own.
                if signal.getsignal(number[0]) == self._handle:
                    time.sleep(_GRACE)
                    if self.noticed is None:
                        self._end(number[0])


def report_interrupt() -> None:
    """Prints that the command was interrupted."""
    newline = "\n" if sys.stderr.isatty() else ""  # after ^C
    print(f"{newline}interrupted; run the same command again to continue", file=sys.stderr, flush=True)


def _ignore_signals() -> None:
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _stop_children() -> None:
    """Kills the worker processes, because os._exit skips the unwinding that would end them."""
    if "multiprocessing.util" in sys.modules:
        import multiprocessing.util

        for child in multiprocessing.active_children():
            child.kill()
        # Without this, multiprocessing's resource tracker warns of leaked semaphores.
        with contextlib.suppress(Exception):
            multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
