"""Multi-process runs: start-up, agreement, shutdown.

There is usually one process per host. With a single process every function here returns at once.
"""

import atexit
import contextlib
import functools
import itertools
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import jax

from electra_jax.config.errors import EXIT_USER_ERROR, MISTAKES, UserError, explain, first_line
from electra_jax.config.interrupts import exit_status
from electra_jax.runtime.goodput import Clock
from electra_jax.runtime.relay import Relay
from electra_jax.runtime.watchdog import GRACE, GRACE_OF_PROCESS_0, Watchdog, end, end_without_process_0
from electra_jax.runtime.workdir import AnyPath

OPTIONS: Mapping[str, Any] = {"coordinator": "", "processes": 0, "process": -1, "patience": 300}
USAGE = """\
  --coordinator=HOST:PORT --processes=N --process=I
                                     this is process I (from 0) of a run of N; HOST is the host of process 0. TPU pods,
                                     GKE, SLURM and Open MPI set these; --processes=1: a single process even there
  --patience=300                     seconds to wait for a process that has not started or no longer answers; after as
                                     many without a step, all processes print their stacks"""

Result = TypeVar("Result")
_FOREVER = 10**10  # milliseconds
_MARGIN = 30  # seconds from when the watchdog ends a process to when JAX may abort it


@contextlib.contextmanager
def initialize(given: Mapping[str, Any], clock: Clock | None = None) -> Iterator[None]:
    """Connects this process to the others of the run, and disconnects at the end.

    Enter it before JAX is asked for a device. When a process fails or is killed, all others stop too. In every process
    a thread reports steps that do not end.

    Args:
      given: values of `OPTIONS`.
      clock: tells what this process does; None: steps are not watched.

    Raises:
      UserError: the options do not say which process this is, or other processes did not start in time.
    """
    relay = _connect(given)
    patience, several = given["patience"], is_multi_process()
    watchdog = Watchdog(patience, clock or Clock(), _client() if several else None)
    watchdog.start()
    try:
        with _remember_sigterm() if several else contextlib.nullcontext():
            yield
            if several:
                _client().wait_at_barrier("end", _FOREVER)  # heartbeats go on until all processes are done
    except jax.errors.JaxRuntimeError as error:
        if several:
            text = f"process {jax.process_index()}: {first_line(error)}; another process may have stopped"
            print(text, file=sys.stderr, flush=True)
            time.sleep(patience + GRACE)  # if one did, the watchdog reports it and ends this process
            _fail(watchdog, error)
        raise
    except BaseException as error:
        if several:
            _fail(watchdog, error)
        raise
    finally:
        if not several or sys.exc_info()[0] is None:
            watchdog.stop()
    if relay is not None:
        relay.stop()


def _fail(watchdog: Watchdog, error: BaseException) -> None:
    """Lets the other processes know of an error, which this one is about to report, before it ends."""
    if isinstance(error, MISTAKES):
        watchdog.fail(explain(error))
    elif isinstance(error, KeyboardInterrupt):
        watchdog.fail("it was interrupted")
    else:
        watchdog.fail(f"{type(error).__name__}: {first_line(error)}")
    atexit.register(_leave)  # before what JAX does then, which waits for the others and aborts


def _leave() -> None:
    """Ends this process after an error that it has reported."""
    # All processes may fail for the same reason: then they need not wait. Else the others report that of this one, and
    # process 0, without which this barrier never answers, ends last.
    seconds = GRACE_OF_PROCESS_0 if is_main_process() else GRACE
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().wait_at_barrier("error", round(1000 * seconds))
    sys.stdout.flush()
    printed_traceback = hasattr(sys, "last_value")
    # A launcher that signals all processes of a job also ends those that prepare the text, which is then the error.
    os._exit(exit_status(signal.SIGTERM) if _remembered else 1 if printed_traceback else EXIT_USER_ERROR)


def _connect(given: Mapping[str, Any]) -> Relay | None:
    """Connects JAX; the relay to process 0, if there is one."""
    count, this, patience = given["processes"], given["process"], given["patience"]
    if patience < 1:
        raise UserError(f"--patience={patience} is invalid: expected seconds, 1 or more")
    if count == 1:
        return None
    explicit = bool(given["coordinator"]) or count > 0 or this >= 0
    if explicit and not (":" in given["coordinator"] and 0 <= this < count):
        raise UserError(
            f"--coordinator={given['coordinator']} --processes={count} --process={this} is invalid: expected all "
            "three, as in --coordinator=10.0.0.1:1234 --processes=4 --process=0 (to 3)"
        )
    # JAX itself aborts with a long message when processes do not start or die: the timer reports it first.
    late = (
        f"not all processes of this run started within {patience} seconds; start every one of them, check that process "
        "0 can be reached, or use a longer --patience (--processes=1: a single process)"
    )
    timer = threading.Timer(patience, end, [late])
    timer.daemon = True
    timer.start()
    relay = None
    try:
        place = _Place(given["coordinator"], count, this) if explicit else _place_in_cluster(2 * patience)
        if place is None:
            return None
        if place.process > 0:
            relay = Relay(place.coordinator, lost=functools.partial(end_without_process_0, place.process))
        jax.config.update("jax_enable_preemption_service", False)  # see PreemptionGuard
        jax.distributed.initialize(
            coordinator_address=place.coordinator if relay is None else relay.address,
            num_processes=place.processes,
            process_id=place.process,
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=2 * patience,
            heartbeat_timeout_seconds=_heartbeat_timeout(patience),
            shutdown_timeout_seconds=2 * patience,
        )
    except RuntimeError as error:
        # Where JAX is in use already, as in a notebook or a test, this is a single process.
        if explicit or "must be called before" not in str(error):
            raise
    finally:
        timer.cancel()
    return relay


def _heartbeat_timeout(patience: int) -> int:
    """Seconds without a heartbeat after which JAX aborts all processes.

    JAX sends a heartbeat every half of this time. The last one may have been sent that long before a process was lost,
    so JAX may act after the other half, which must leave the watchdog time to end the processes with one line.
    """
    return 2 * (patience + _MARGIN)


class _Place(NamedTuple):
    """Which process of a run this is, and where process 0 listens."""

    coordinator: str
    processes: int
    process: int


def _place_in_cluster(timeout: int) -> _Place | None:
    """What the cluster says; None if there is none. It is JAX that knows the clusters, without a public name for it."""
    from jax._src import clusters

    known = os.environ.get("JAX_COORDINATOR_ADDRESS")
    find = clusters.ClusterEnv.auto_detect_unset_distributed_params
    coordinator, processes, process, _ = find(known, None, None, None, None, timeout)
    if known and (processes is None or process is None):
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS={known} is set, but no cluster says which process this is; give --coordinator, "
            "--processes and --process, or unset the variable"
        )
    if coordinator is None or processes is None or process is None:
        return None
    return _Place(coordinator, processes, process)


def _client() -> Any:
    """JAX's connection to process 0, which has no public name."""
    from jax._src import distributed

    return distributed.global_state.client


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


def check_same(what: str, value: str, way_out: str = "make them the same") -> None:
    """Raises UserError in all processes unless `value`, which the message calls `what`, is the same in all of them."""
    values = all_gather(value) if is_multi_process() else []
    odd = [number for number, other in enumerate(values) if other != values[0]]
    if odd:
        raise UserError(f"process {odd[0]} has {what} that differs from that of process 0; {way_out}")


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

    In a single-process run a second Ctrl-C ends it at once. Python handles signals in the main thread only: in another
    thread this notices none.

    The process that got the signal at step n has all of them stop at n + 2. That is late enough: before any process
    asks about n + 2, it has read the metrics of n + 1, to which the signalled process contributed after it had
    announced the step.

    JAX's own protocol, `multihost_utils.reached_preemption_sync_point`, does not fit here. It waits for the answers of
    the other processes with the GIL held, which the relay needs to receive them. And Orbax calls it with the steps of
    earlier saves, which sets its count of steps back.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._previous: dict[int, Any] = {}
        self._key = f"stop/{next(_exchange)}"

    def __enter__(self) -> "PreemptionGuard":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._notice) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if not is_multi_process():  # with several, a launcher may pass on the same Ctrl-C twice
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        before = self._previous[number]
        (before if callable(before) else signal.default_int_handler)(number, frame)

    def should_stop(self, step: int) -> bool:
        """Whether to stop after `step`; the answer is the same in all processes.

        Call it in every step, after the metrics of the previous step have been read and before the next one starts.
        """
        signalled = self._signalled or bool(_remembered)
        if not is_multi_process():
            return signalled
        last = _try_get(self._key)
        if last is None and signalled:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was signalled and came first
                _client().key_value_set(self._key, str(step + 2))
        return last is not None and step >= int(last)

    def __exit__(self, *error: object) -> None:
        _restore(self._previous)


def _try_get(key: str) -> str | None:
    """What a process has stored; None if none has."""
    try:
        return str(_client().key_value_try_get(key))
    except jax.errors.JaxRuntimeError as error:
        if str(error).startswith("NOT_FOUND"):
            return None
        raise


_remembered: list[int] = []  # the signals of `_remember_sigterm`


@contextlib.contextmanager
def _remember_sigterm() -> Iterator[None]:
    """Lets a SIGTERM wait for the training loop, where all processes can save and end with the status for it."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, frame: _remembered.append(number))}
    try:
        yield
    finally:
        _restore(previous)


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it is not Python's
