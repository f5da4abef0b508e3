"""Worker processes on this machine, which end with the process that started them."""

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

# Spawned, because a run prepares its text in a process with the threads of JAX, which a fork does not copy.
CONTEXT = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def pool(workers: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """Context manager that yields a pool of processes, all started; each calls `start(*arguments)` first.

    Raises:
      UserError: a process was killed.
    """
    executor = ProcessPoolExecutor(workers, CONTEXT, start, arguments)
    # Those of `read_ahead`, which ends them itself, and of a program that calls `prepare`.
    others = {*multiprocessing.active_children()}
    try:
        with starting():
            for _ in range(workers):
                # The executor starts a process only when a task needs one.
                executor.submit(int)
        yield executor
    except BrokenProcessPool as error:
        raise killed() from error
    # Nobody waits for the results.
    except (KeyboardInterrupt, GeneratorExit):
        for process in {*multiprocessing.active_children()} - others:
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Context manager that defers SIGINT and SIGTERM until all worker processes are fully started.

    An interrupt between starting a worker and sending it its task would leave behind a worker that prints a traceback.
    The workers inherit a blocked SIGINT, so that Ctrl-C does not reach them: this process ends them, and Ctrl-C during
    their imports would print a traceback.
    """
    # Otherwise the first semaphore would start the tracker, and starting it unblocks SIGINT.
    resource_tracker.ensure_running()
    with _interrupts_deferred():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Context manager that defers the first SIGINT or SIGTERM within it to its end.

    Blocking signals is not enough: the kernel delivers a signal to any thread that does not block it, and Python then
    calls the handler in the main thread.
    """
    # Python calls handlers in the main thread only, and lets no other thread set them.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noticed: list[int] = []
    left_alone = (signal.SIG_IGN, None)  # None: a handler that is not Python's
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) not in left_alone}
    for number in before:
        signal.signal(number, lambda number, frame: noticed.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # After the handlers are back, and once, however often the user has pressed Ctrl-C.
        for first in noticed[:1]:
            signal.raise_signal(first)


def cores() -> int:
    """Returns the number of cores this process may use: those of its SLURM job, not all of the machine."""
    try:
        return len(os.sched_getaffinity(0))
    # macOS does not have it.
    except AttributeError:
        return os.cpu_count() or 1


def check_main_is_guarded() -> None:
    """Raises UserError in a worker process that runs the user's script again as it starts.

    multiprocessing imports the script there under another name than "__main__", and marks the process meanwhile.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a process that prepares text runs this script again: put the calls of electra_jax below "
            'if __name__ == "__main__":'
        )


def end_with_parent() -> None:
    """Makes this process exit when its parent does, even if the parent is killed and cannot end it."""
    # A daemon thread does not keep the process alive when its work is done.
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # sys.exit would end this thread alone.
    os._exit(1)


def killed() -> UserError:
    """Returns the error for a worker process that was killed."""
    return UserError(
        "a worker process was killed, probably because memory ran out; run the same command with fewer --workers, it "
        "continues after the finished shards"
    )
