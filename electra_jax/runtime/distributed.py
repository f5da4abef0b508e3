"""Multi-process runs: start-up, agreement, preemption. There is usually one process per host.

JAX connects the processes, notices lost ones, and agrees on the step at which all of them stop after a SIGTERM. With a
single process every function here returns at once.
"""

import itertools
import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils

from electra_jax.config.errors import MISTAKES, UserError, explain
from electra_jax.runtime.workdir import AnyPath

OPTIONS: Mapping[str, Any] = {"coordinator": "", "processes": 0, "process": -1, "patience": 300}
USAGE = """\
  --coordinator=HOST:PORT --processes=N --process=I
                                     this is process I (from 0) of a run of N; HOST is the host of process 0. TPU pods,
                                     GKE, SLURM and Open MPI set these; --processes=1: a single process even there
  --patience=300                     seconds to wait for a process that has not started or no longer answers"""

Result = TypeVar("Result")
# Milliseconds. JAX ends a process that waits for a lost one.
_FOREVER = 10**10


def initialize(given: Mapping[str, Any]) -> None:
    """Connects this process to the others of the run. Call it before JAX is asked for a device.

    From then on JAX handles SIGTERM (`PreemptionGuard`). When a process is lost, or does not start, JAX aborts the
    others with a report of its own. It disconnects when Python exits.

    Args:
      given: values of `OPTIONS`.

    Raises:
      UserError: the options do not say which process this is.
    """
    count, this, patience = given["processes"], given["process"], given["patience"]
    if patience < 1:
        raise UserError(f"--patience={patience} is invalid: expected seconds, 1 or more")
    # JAX is not asked: it would connect to the cluster that it detects.
    if count == 1:
        return
    explicit = bool(given["coordinator"]) or count > 0 or this >= 0
    if explicit and not (":" in given["coordinator"] and 0 <= this < count):
        raise UserError(
            f"--coordinator={given['coordinator']} --processes={count} --process={this} is invalid: expected all "
            "three, as in --coordinator=10.0.0.1:1234 --processes=4 --process=0 (to 3)"
        )
    place = {"coordinator_address": given["coordinator"], "num_processes": count, "process_id": this}
    try:
        jax.distributed.initialize(
            **(place if explicit else {}),
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=patience,
            heartbeat_timeout_seconds=patience,
            shutdown_timeout_seconds=patience,
        )
    except ValueError as error:  # a value that the cluster did not provide; without a cluster, all are missing
        known = os.environ.get("JAX_COORDINATOR_ADDRESS")
        if known:
            raise UserError(
                f"JAX_COORDINATOR_ADDRESS={known} is set, but no cluster says which process this is; give "
                "--coordinator, --processes and --process, or unset the variable"
            ) from error
        if "coordinator_address" not in str(error):
            raise
    except RuntimeError as error:
        # If JAX is in use already, as in a notebook or a test, this is a single process.
        if explicit or "must be called before" not in str(error):
            raise


def _client() -> Any:
    """Returns JAX's client of process 0, for which there is no public API."""
    from jax._src import distributed

    return distributed.global_state.client


def is_main_process() -> bool:
    """True in process 0, which prints and writes."""
    return bool(jax.process_index() == 0)


def is_multi_process() -> bool:
    return bool(jax.process_count() > 1)


def main_process_first(make: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """Returns `make()` in process 0 and then `others()` in the others, which can use what process 0 has made.

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
        # The others wait for this text. Any other error is a bug: when process 0 ends, JAX aborts them.
        broadcast(explain(failure))
        raise
    broadcast("")
    return result


def on_main_process(act: Callable[[], object]) -> None:
    """Calls `act` in process 0 while the others wait; errors as in `main_process_first`."""
    main_process_first(act, others=lambda: None)


def check_shared_folder(folder: AnyPath) -> None:
    """Creates `folder`; raises UserError unless all processes see the files that process 0 writes to it."""
    if not is_multi_process():
        return
    # A random name: a file that an earlier start left behind would prove nothing.
    path = folder / f".shared-{broadcast(secrets.token_hex(4) if is_main_process() else None)}"

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    on_main_process(write)
    seen = all_gather(str(path.exists()))
    if is_main_process():
        # All processes have answered, so none still looks for the file.
        path.unlink()
    if set(seen) != {"True"}:
        blind = ", ".join(str(number) for number, answer in enumerate(seen) if answer != "True")
        raise UserError(
            f"{folder} is not the same folder for all processes: process {blind} does not see what process 0 writes; "
            "use a --workdir that all hosts share, on a network file system or gs://"
        )


def check_same(what: str, value: str, way_out: str = "make them the same") -> None:
    """Raises UserError in all processes unless `value`, which the message calls `what`, is the same in all of them."""
    values = all_gather(value) if is_multi_process() else []
    odd = [number for number, other in enumerate(values) if other != values[0]]
    if odd:
        raise UserError(f"process {odd[0]} has {what} that differs from that of process 0; {way_out}")


# Every process makes the same exchanges in the same order, so the number identifies one.
_exchange = itertools.count()


# Text goes through process 0's key-value store and not through the devices, whose collectives have time limits: one
# process may prepare text for hours while the others wait.
def broadcast(text: str | None = None) -> str:
    """Returns the `text` of process 0 in all processes; the others pass None and wait for it."""
    key = f"broadcast/{next(_exchange)}"
    if text is not None:
        _client().key_value_set(key, text)
    return str(_client().blocking_key_value_get(key, _FOREVER))


def share(names: Iterable[str]) -> list[str]:
    """Returns the `names` of process 0 in all processes."""
    if not is_multi_process():
        return [*names]
    # JSON, because a name may contain any character.
    return list(json.loads(broadcast(json.dumps([*names]) if is_main_process() else None)))


def all_gather(text: str) -> list[str]:
    """Returns the `text` of every process, in the order of process numbers, in all processes."""
    exchange = next(_exchange)
    _client().key_value_set(f"all_gather/{exchange}/{jax.process_index()}", text)
    keys = [f"all_gather/{exchange}/{number}" for number in range(jax.process_count())]
    return [str(_client().blocking_key_value_get(key, _FOREVER)) for key in keys]


class PreemptionGuard:
    """Context manager that notices SIGTERM and Ctrl-C in any process, so that all save the same step before they exit.

    In a single-process run, a second Ctrl-C ends the run at once. Python handles signals in the main thread only: in
    any other thread, no signal is noticed.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "PreemptionGuard":
        if threading.current_thread() is threading.main_thread():
            # With several processes JAX handles SIGTERM, and tells the others.
            numbers = (signal.SIGINT,) if is_multi_process() else (signal.SIGTERM, signal.SIGINT)
            self._previous = {number: signal.signal(number, self._notice) for number in numbers}
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if is_multi_process():  # a launcher may pass on the same Ctrl-C twice
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._signalled = True
        # A second Ctrl-C does what the first one would have done outside the loop.
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        before = self._previous[number]
        (before if callable(before) else signal.default_int_handler)(number, frame)

    def should_stop(self, step: int) -> bool:
        """True if the run is to stop after `step`, in all processes. Call it once in every step."""
        if is_multi_process():
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._signalled

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
