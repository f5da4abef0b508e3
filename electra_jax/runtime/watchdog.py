"""Watches the processes of a run: reports steps that hang, and ends this process when another one is lost.

A computation cannot tell: it waits for a dead process as it waits for a slow one.
"""

import contextlib
import faulthandler
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from electra_jax.config.errors import EXIT_USER_ERROR
from electra_jax.runtime.goodput import Clock

GRACE = 5.0  # seconds in which a process may report its own error before it reports that of another one
GRACE_OF_PROCESS_0 = GRACE + 3.0  # it ends last, because the others hear of a failure through it
_HEARTBEAT = 1.0  # seconds between two heartbeats, at most
_WATCHED = ("step", "data")  # what happens in every step; compiling, evaluating and saving may take long
_RESUME = "run the same command in all processes to resume from the last checkpoint"


class Watchdog(threading.Thread):
    """A thread that looks every second after the steps of this process, and after the other processes.

    It never waits for process 0: another thread exchanges the heartbeats, in calls of JAX that have no timeout.

    Attributes:
      patience: the seconds in which a step must end, and another process must answer.
    """

    def __init__(self, patience: float, clock: Clock, client: Any = None):
        """Creates the thread.

        Args:
          patience: see above.
          clock: tells what this process does.
          client: JAX's connection to process 0; None: this is the only process.
        """
        super().__init__(name="watchdog", daemon=True)
        self.patience = patience
        self._clock, self._client = clock, client
        self._stopped = threading.Event()
        self._report_at = patience
        self._hangs = 0  # times that this process has reported that no step ends
        self._failure = ""

    def stop(self) -> None:
        """Ends both threads. Python must not exit before: a thread that then returns from JAX aborts the process."""
        self._stopped.set()
        self.join()

    def fail(self, reason: str) -> None:
        """Tells the other processes why this one is about to end."""
        self._failure = reason
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _say(self._client, 0, self._hangs, reason)

    def run(self) -> None:
        peers = None if self._client is None else _Peers(self._client)
        heartbeats = threading.Thread(target=self._repeat, args=(self._exchange, peers), name="heartbeats", daemon=True)
        if peers is not None:
            heartbeats.start()
        self._repeat(self._look, peers)
        if peers is not None:
            heartbeats.join()

    def _repeat(self, action: Callable[[Any], None], peers: "_Peers | None") -> None:
        while True:
            action(peers)
            if self._stopped.wait(min(_HEARTBEAT, self.patience / 5)):
                return

    def _exchange(self, peers: "_Peers") -> None:
        peers.exchange(self._hangs, self._failure)

    def _look(self, peers: "_Peers | None") -> None:
        if self._hangs_now():
            self._hangs += 1
            self._report_hang("no step has finished")
        if peers is not None:
            self._look_after(peers)

    def _hangs_now(self) -> bool:
        """Whether to report that no step ends; once in `patience` seconds of it."""
        phase, seconds = self._clock.activity()
        if phase not in _WATCHED or seconds <= self.patience:
            self._report_at = self.patience
            return False
        if seconds <= self._report_at:
            return False
        self._report_at = seconds + self.patience
        return True

    def _report_hang(self, what: str) -> None:
        phase, seconds = self._clock.activity()
        number = f"process {jax.process_index()}: " if self._client is not None else ""
        print(
            f"warning: {number}{what} for {self.patience} seconds; this process has been in the phase {phase!r} for "
            f"{seconds:.0f} seconds; the Python stacks of its threads:",
            file=sys.stderr,
            flush=True,
        )
        _print_stacks()

    def _look_after(self, peers: "_Peers") -> None:
        """Acts on the heartbeats of the other processes."""
        if self._failure:
            return  # this process reports its own error, and ends
        number, reason = peers.failed(self.patience)
        if number is not None and reason:
            end(f"process {number}: {reason}")
        elif number is not None:
            _print_stacks()
            end(
                f"process {peers.this} stops: process {number} of {peers.count} has not answered for {self.patience} "
                f"seconds; {_RESUME}"
            )
        for number in peers.hanging():
            self._report_hang(f"process {number} has finished no step")


class _Peers:
    """What the other processes have last said: a heartbeat, how often they reported a hang, and why they end."""

    def __init__(self, client: Any):
        self.this, self.count = jax.process_index(), jax.process_count()
        self._client = client
        self._lock = threading.Lock()  # between the two threads of a watchdog
        self._beat = 0
        self._reached = self._looked = time.monotonic()  # when process 0, which keeps the list, answered; last look
        self._last = dict.fromkeys(range(self.count), ("", self._reached))  # what it said, when that changed
        self._hangs = dict.fromkeys(range(self.count), 0)
        self._hanging: list[int] = []
        self._failures: dict[int, tuple[str, float]] = {}

    def exchange(self, hangs: int, failure: str) -> None:
        """Sends a heartbeat, and hears those of the others."""
        self._beat += 1
        try:
            _say(self._client, self._beat, hangs, failure)
            heard = self._client.key_value_dir_get("alive/")
        except jax.errors.JaxRuntimeError:
            return
        with self._lock:
            self._reached = now = time.monotonic()
            for key, value in heard:
                number = int(key.rpartition("/")[2])
                if number == self.this or value == self._last[number][0]:
                    continue
                self._last[number] = (value, now)
                _, hung, reason = json.loads(value)
                if hung > self._hangs[number]:
                    self._hanging.append(number)
                self._hangs[number] = hung
                if reason:
                    self._failures.setdefault(number, (reason, now))

    def hanging(self) -> list[int]:
        """The processes that have reported a hang since the last call."""
        with self._lock:
            hanging, self._hanging = self._hanging, []
        return hanging

    def failed(self, patience: float) -> tuple[int | None, str]:
        """A process that has failed, with its reason, or that has been silent for `patience` seconds; else None."""
        grace = GRACE_OF_PROCESS_0 if self.this == 0 else GRACE
        with self._lock:
            now = time.monotonic()
            if now - self._looked > patience / 2:  # this process was paused, and may hear the others in a moment
                self._reached, self._last = now, {number: (said, now) for number, (said, _) in self._last.items()}
            self._looked = now
            for number, (reason, since) in self._failures.items():
                if now - since > grace:
                    return number, reason
            if now - self._reached > patience:
                return 0, ""
            silent = (number for number, (_, at) in self._last.items() if self._reached - at > patience)
            return next((number for number in silent if number != self.this), None), ""


def _say(client: Any, beat: int, hangs: int, failure: str) -> None:
    said = json.dumps([beat, hangs, failure])
    client.key_value_set(f"alive/{jax.process_index()}", said, allow_overwrite=True)


def end(message: str) -> None:
    """Ends this process from any thread, with an error, without waiting for what JAX would wait for."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_USER_ERROR)


def end_without_process_0(this: int) -> None:
    """Ends process `this`, to which process 0 has closed its connection, unless it ends by itself before."""
    time.sleep(GRACE)
    end(f"process {this} stops: process 0 was killed or has failed; {_RESUME}")


def _print_stacks() -> None:
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):  # standard error is not a file
        faulthandler.dump_traceback(sys.stderr)
