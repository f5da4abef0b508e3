"""Multi-process runs: start-up, agreement, shutdown.

There is usually one process per host. With a single process every function here returns at once.
"""

import contextlib
import itertools
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils

from electra_jax.config.errors import EXIT_USER_ERROR, MISTAKES, UserError, explain, first_line
from electra_jax.runtime.workdir import AnyPath

OPTIONS: Mapping[str, Any] = {"coordinator": "", "processes": 0, "process": -1, "patience": 300}
USAGE = """\
  --coordinator=HOST:PORT --processes=N --process=I
                                     this is process I (from 0) of a run of N; HOST is the host of process 0. TPU pods,
                                     GKE, SLURM and Open MPI set these; --processes=1: a single process even there
  --patience=300                     seconds to wait for a process that has not started or no longer answers"""

Result = TypeVar("Result")
_FOREVER = 10**10  # milliseconds
_HEARTBEAT = 1.0  # seconds between two heartbeats, at most


@contextlib.contextmanager
def initialize(given: Mapping[str, Any]) -> Iterator[None]:
    """Connects this process to the others of the run, and disconnects at the end.

    Enter it before JAX is asked for a device. When a process fails or is killed, all others stop too.

    Args:
      given: values of `OPTIONS`.

    Raises:
      UserError: the options do not say which process this is, or other processes did not start in time.
    """
    _connect(given)
    if not is_multi_process():
        yield
        return
    watchdog = _Watchdog(given["patience"])
    watchdog.start()
    try:
        yield
        _client().wait_at_barrier("end", _FOREVER)  # heartbeats go on until all processes are done
    except jax.errors.JaxRuntimeError as error:
        text = f"process {jax.process_index()}: {first_line(error)}; another process may have stopped"
        print(text, file=sys.stderr, flush=True)
        time.sleep(given["patience"] + 5)  # if one did, the watchdog reports it and ends this process
        raise
    except MISTAKES as error:
        # All processes may fail for the same reason: process 0, which the others depend on, exits after they have.
        print(f"error: {explain(error)}", file=sys.stderr, flush=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _client().wait_at_barrier("error", 5000)
        os._exit(EXIT_USER_ERROR)
    finally:
        watchdog.stop()


def _connect(given: Mapping[str, Any]) -> None:
    count, this, patience = given["processes"], given["process"], given["patience"]
    if patience < 1:
        raise UserError(f"--patience={patience} is invalid: expected seconds, 1 or more")
    if count == 1:
        return
    explicit = bool(given["coordinator"]) or count > 0 or this >= 0
    if explicit and not (":" in given["coordinator"] and 0 <= this < count):
        raise UserError(
            f"--coordinator={given['coordinator']} --processes={count} --process={this} is invalid: expected all "
            "three, as in --coordinator=10.0.0.1:1234 --processes=4 --process=0 (to 3)"
        )
    place = {"coordinator_address": given["coordinator"], "num_processes": count, "process_id": this}
    # JAX itself aborts with a long message when processes do not start or die: the timer reports it first.
    late = (
        f"not all processes of this run started within {patience} seconds; start every one of them, check that process "
        "0 can be reached, or use a longer --patience (--processes=1: a single process)"
    )
    timer = threading.Timer(patience, _exit, [late])
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **(place if explicit else {}),
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=2 * patience,
            heartbeat_timeout_seconds=2 * patience,
            shutdown_timeout_seconds=2 * patience,
        )
    except (ValueError, RuntimeError) as error:
        # Without a cluster, or where JAX is in use already, as in a notebook or a test, this is a single process.
        if explicit or not re.search("coordinator_address|must be called before", str(error)):
            raise
    finally:
        timer.cancel()


class _Watchdog(threading.Thread):
    """Ends this process, with a line, when another one has sent no heartbeat for `patience` seconds.

    A computation cannot tell: it waits for a dead process as it waits for a slow one.
    """

    def __init__(self, patience: float):
        super().__init__(name="watchdog", daemon=True)
        self._patience = patience
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends the thread. Python must not exit before: a thread that then returns from JAX aborts the process."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        client, reached = _client(), time.monotonic()
        last = {number: ("", time.monotonic()) for number in range(jax.process_count())}
        for beat in itertools.count():
            try:
                client.key_value_set(f"alive/{jax.process_index()}", str(beat), allow_overwrite=True)
                beats = client.key_value_dir_get("alive/")
                reached = now = time.monotonic()
            except jax.errors.JaxRuntimeError:  # process 0, which keeps the list, does not answer
                beats, now = [], time.monotonic()
            for key, value in beats:
                number = int(key.rpartition("/")[2])
                if value != last[number][0]:
                    last[number] = (value, now)
            silent = [number for number, (_, heard) in last.items() if reached - heard > self._patience]
            if now - reached > self._patience:
                silent = [0]
            if silent:
                _exit(
                    f"process {jax.process_index()} stops: process {silent[0]} of {len(last)} has not answered for "
                    f"{self._patience} seconds; run the same command in all processes to resume from the last "
                    "checkpoint"
                )
            if self._stopped.wait(min(_HEARTBEAT, self._patience / 5)):
                return


def _client() -> Any:
    """JAX's connection to process 0, which has no public name."""
    from jax._src import distributed

    return distributed.global_state.client


def _exit(message: str) -> None:
    """Ends this process from any thread, without waiting for what JAX would wait for."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_USER_ERROR)


def is_main_process() -> bool:
    """Whether this is process 0, which prints and writes."""
    return bool(jax.process_index() == 0)


def is_multi_process() -> bool:
    return bool(jax.process_count() > 1)


def main_process_first(make: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """`make()` in process 0 and then `others()` in the others, which can use what process 0 has made.

    Raises:
      UserError: in all processes, if `make` raises an error that the user can fix.
    """
    if not is_multi_process():
        return make()
    if not is_main_process():
        error = broadcast()
        if error:
            raise UserError(f"process 0: {error}")
        return others()
    try:
        result = make()
    except MISTAKES as failure:
        broadcast(explain(failure))
        raise
    broadcast("")
    return result


def check_shared_folder(folder: AnyPath) -> None:
    """Makes `folder`; raises UserError unless all processes see the files that process 0 writes to it."""
    if not is_multi_process():
        return
    path = folder / f".shared-{broadcast(secrets.token_hex(4) if is_main_process() else None)}"

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    main_process_first(write, others=lambda: None)
    seen = all_gather(str(path.exists()))
    if is_main_process():
        path.unlink()
    if set(seen) != {"True"}:
        blind = ", ".join(str(number) for number, answer in enumerate(seen) if answer != "True")
        raise UserError(
            f"{folder} is not the same folder for all processes: process {blind} does not see what process 0 writes; "
            "use a --workdir that all hosts share, on a network file system or gs://"
        )


def check_same(what: str, value: str) -> None:
    """Raises UserError in all processes unless `value`, which the message calls `what`, is the same in all of them."""
    values = all_gather(value) if is_multi_process() else []
    odd = [number for number, other in enumerate(values) if other != values[0]]
    if odd:
        raise UserError(f"process {odd[0]} has {what} that differs from that of process 0; make them the same")


_exchange = itertools.count()  # every process makes the same exchanges in the same order


def broadcast(text: str | None = None) -> str:
    """The `text` of process 0, in all processes.

    The others pass None, and wait for it as long as the watchdog lets them.
    """
    key = f"broadcast/{next(_exchange)}"
    if text is not None:
        _client().key_value_set(key, f"={text}")  # JAX refuses an empty value
    return str(_client().blocking_key_value_get(key, _FOREVER))[1:]


def all_gather(text: str) -> list[str]:
    """The `text` of each process, by process number, in all processes."""
    exchange = next(_exchange)
    _client().key_value_set(f"all_gather/{exchange}/{jax.process_index()}", f"={text}")
    keys = [f"all_gather/{exchange}/{number}" for number in range(jax.process_count())]
    return [str(_client().blocking_key_value_get(key, _FOREVER))[1:] for key in keys]


class PreemptionGuard:
    """Notices SIGTERM and Ctrl-C in any process, so that all processes save the same step before they exit.

    In a single-process run a second Ctrl-C ends it at once.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "PreemptionGuard":
        # In a multi-process run JAX handles SIGTERM: it tells the other processes and agrees on a step to stop at.
        handlers = (
            {signal.SIGINT: _forward_as_sigterm}
            if is_multi_process()
            else dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._notice)
        )
        self._previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def should_stop(self, step: int) -> bool:
        """Whether to stop after `step`; the answer is the same in all processes. Call it in every step."""
        if is_multi_process():
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._signalled

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _forward_as_sigterm(number: int, frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
