"""Several processes, mostly one a host, that are one run: how they find each other, agree, and stop together.

A run of one process passes through here untouched.
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
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils

from electra_jax.config.errors import EXIT_USER_ERROR, MISTAKES, UserError, explain, first_line

OPTIONS: Mapping[str, Any] = {"coordinator": "", "processes": 0, "process": -1, "patience": 300}
USAGE = """\
  --coordinator=HOST:PORT --processes=N --process=I
                                     this is process I, from 0, of N that are one run; HOST is that of process 0. Needed
                                     only where no TPU pod, SLURM, GKE or Open MPI says it; --processes=1: run alone
  --patience=300                     seconds that a process which does not come, or is gone, is waited for"""

Result = TypeVar("Result")
_FOREVER = 10**10  # milliseconds
_BEAT = 1.0  # seconds between two signs of life, at most


@contextlib.contextmanager
def initialize(given: Mapping[str, Any]) -> Iterator[None]:
    """Joins the other processes of this run, before anything else asks JAX for a device, and leaves them at the end.

    An error in one does not leave the others waiting for it.

    Args:
      given: values of `OPTIONS`.

    Raises:
      UserError: the options do not say which process this is, or the others did not come in time.
    """
    _join(given)
    if not is_multi_process():
        yield
        return
    watch = _Watch(given["patience"])
    watch.start()
    try:
        yield
        _client().wait_at_barrier("end", _FOREVER)  # each is heard until all have come
    except jax.errors.JaxRuntimeError as error:
        print(f"process {jax.process_index()}: {first_line(error)}; is another gone?", file=sys.stderr, flush=True)
        time.sleep(given["patience"] + 5)  # if so, the watch says it, and ends this one
        raise
    except MISTAKES as error:
        # All may be about to say the same: process 0, which keeps them together, ends after they have.
        print(f"error: {explain(error)}", file=sys.stderr, flush=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            _client().wait_at_barrier("error", 5000)
        os._exit(EXIT_USER_ERROR)
    finally:
        watch.stop()


def _join(given: Mapping[str, Any]) -> None:
    count, this, patience = given["processes"], given["process"], given["patience"]
    if patience < 1:
        raise UserError(f"--patience={patience} cannot be; give seconds, above 0")
    if count == 1:
        return
    explicit = bool(given["coordinator"]) or count > 0 or this >= 0
    if explicit and not (":" in given["coordinator"] and 0 <= this < count):
        raise UserError(
            f"--coordinator={given['coordinator']} --processes={count} --process={this} is no place among processes; "
            "give all three, as in --coordinator=10.0.0.1:1234 --processes=4 --process=0 (to 3)"
        )
    place = {"coordinator_address": given["coordinator"], "num_processes": count, "process_id": this}
    # JAX itself aborts, with a page of its own, where processes do not come or are gone: here a line comes first.
    waiting = threading.Timer(
        patience,
        _end,
        [
            f"the processes of this run did not all come within {patience} seconds; start every one of them, see that "
            "process 0 can be reached, or give a longer --patience (--processes=1: run alone)"
        ],
    )
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            **(place if explicit else {}),
            cluster_detection_method="deactivate" if explicit else None,
            initialization_timeout=2 * patience,
            heartbeat_timeout_seconds=2 * patience,
            shutdown_timeout_seconds=2 * patience,
        )
    except (ValueError, RuntimeError) as error:
        # Nothing here knows of other processes; or this one computes already, in a notebook or a test, and so is alone.
        if explicit or not re.search("coordinator_address|must be called before", str(error)):
            raise
        return
    finally:
        waiting.cancel()


class _Watch(threading.Thread):
    """Ends this process, with a line, when another has been silent for `patience` seconds.

    A computation cannot tell: it waits for a process that is gone as it waits for one that is slow.
    """

    def __init__(self, patience: float):
        super().__init__(name="watch", daemon=True)
        self._patience = patience
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends the watch. Python must not end before: a thread that then comes back from JAX aborts the process."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        client, reached = _client(), time.monotonic()
        last = {number: ("", time.monotonic()) for number in range(jax.process_count())}
        for beat in itertools.count():
            try:
                client.key_value_set(f"alive/{jax.process_index()}", str(beat), allow_overwrite=True)
                said = client.key_value_dir_get("alive/")
                reached = now = time.monotonic()
            except jax.errors.JaxRuntimeError:  # process 0, which keeps the list, does not answer
                said, now = [], time.monotonic()
            for key, value in said:
                number = int(key.rpartition("/")[2])
                if value != last[number][0]:
                    last[number] = (value, now)
            silent = [number for number, (_, heard) in last.items() if reached - heard > self._patience]
            if now - reached > self._patience:
                silent = [0]
            if silent:
                _end(
                    f"process {jax.process_index()} stops: process {silent[0]} of {len(last)} has said nothing for "
                    f"{self._patience} seconds; the same command, in all processes, goes on from the last checkpoint"
                )
            if self._stopped.wait(min(_BEAT, self._patience / 5)):
                return


def _client() -> Any:
    """JAX's connection to process 0: it has no public name."""
    from jax._src import distributed

    return distributed.global_state.client


def _end(message: str) -> None:
    """Ends this process from any thread, without waiting for what JAX would wait for."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_USER_ERROR)


def is_first() -> bool:
    """Whether this is the process that speaks and writes."""
    return jax.process_index() == 0


def is_multi_process() -> bool:
    return jax.process_count() > 1


def first_then_others(make: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """`make()` in process 0, and when that is done `others()` in the others; all raise what it raises in process 0.

    So process 0 makes what the others then find.
    """
    if not is_multi_process():
        return make()
    if not is_first():
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


def check_shared(folder: Path) -> None:
    """Makes `folder`, and raises UserError unless every process finds there what process 0 has written."""
    if not is_multi_process():
        return
    path = folder / f".shared-{broadcast(secrets.token_hex(4) if is_first() else None)}"

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    first_then_others(write, others=lambda: None)
    seen = all_gather(str(path.exists()))
    if is_first():
        path.unlink()
    if set(seen) != {"True"}:
        blind = ", ".join(str(number) for number, vote in enumerate(seen) if vote != "True")
        raise UserError(
            f"{folder} is not the same folder for all processes: what process 0 writes is not seen by {blind}; give a "
            "--workdir that all hosts share, on a network file system or gs://"
        )


def check_same(what: str, value: str) -> None:
    """Raises UserError in all processes where one has another `value`, which is named as `what`, than process 0."""
    votes = all_gather(value) if is_multi_process() else []
    odd = [number for number, vote in enumerate(votes) if vote != votes[0]]
    if odd:
        raise UserError(f"process {odd[0]} has {what} other than process 0 has; make them the same")


_turns = itertools.count()  # every process passes here in the same order


def broadcast(text: str | None = None) -> str:
    """What process 0 gives as `text`, in all processes; the others wait for it, for as long as the watch lets them."""
    key = f"told/{next(_turns)}"
    if text is not None:
        _client().key_value_set(key, f"={text}")  # an empty value would be none
    return str(_client().blocking_key_value_get(key, _FOREVER))[1:]


def all_gather(text: str) -> list[str]:
    """What each process gives as `text`, in all processes."""
    turn = next(_turns)
    _client().key_value_set(f"votes/{turn}/{jax.process_index()}", f"={text}")
    keys = [f"votes/{turn}/{number}" for number in range(jax.process_count())]
    return [str(_client().blocking_key_value_get(key, _FOREVER))[1:] for key in keys]


class PreemptionGuard:
    """Notices SIGTERM and Ctrl-C in any process, so that all save the same step before they end.

    Of one process alone a second Ctrl-C ends it at once.
    """

    def __init__(self) -> None:
        self._noticed = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "PreemptionGuard":
        # Among several JAX notices SIGTERM itself, tells the others, and finds a step that none has passed.
        notice = (
            {signal.SIGINT: _pass_on}
            if is_multi_process()
            else dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._notice)
        )
        self._before = {number: signal.signal(number, handler) for number, handler in notice.items()}
        return self

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def asked(self, step: int) -> bool:
        """Whether to end after `step`; all processes are told the same. Ask in every step."""
        if is_multi_process():
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._noticed

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _pass_on(number: int, frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
