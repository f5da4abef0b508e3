"""Processes of this machine that work for the one that started them, and end with it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

from electra_jax.config.errors import UserError

CONTEXT = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def pool(workers: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """Processes that have all been started; each calls `start(*arguments)` first.

    Raises:
      UserError: one of them was killed.
    """
    executor = ProcessPoolExecutor(workers, CONTEXT, start, arguments)
    try:
        with interrupts_blocked():
            for _ in range(workers):
                executor.submit(int)
        yield executor
    except BrokenProcessPool as error:
        raise killed() from error
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what they are working on
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes that are started meanwhile inherit that Ctrl-C does not reach them.

    The process that started them handles it, and they would print a traceback if it came during their imports.
    """
    resource_tracker.ensure_running()  # else the first semaphore starts it, which unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Has this process end when its parent has been killed, which cannot end it."""
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def killed() -> UserError:
    """The error of a process that has gone."""
    return UserError(
        "a worker process was killed, probably because memory ran out; run the same command with fewer --workers, it "
        "continues after the finished shards"
    )
