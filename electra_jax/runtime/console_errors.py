"""Keeps libraries from printing errors that electra_jax reports itself. Only the command line calls this."""

import logging
import sys
import threading
import warnings

from absl import logging as _absl_logging  # noqa: F401 - makes its logger on import

from electra_jax.config.interrupts import Interrupts

# The system's texts for ENOSPC, EDQUOT and EFBIG, which TensorStore quotes.
_REPORTED = ("No space left on device", "Disk quota exceeded", "File too large")


def disk_error(error: BaseException | None) -> str | None:
    """Returns the cause if `error` is about a full disk, else None; TensorStore's is a ValueError with a long text."""
    return next((text for text in _REPORTED if text in str(error)), None)


def is_left_behind(error: BaseException | None) -> bool:
    """True if `error` is from a read that Orbax abandoned after another read of the same checkpoint had failed.

    Orbax raises the error of the failed read. Errors of abandoned reads appear when Python collects their coroutines.
    """
    text = str(error)
    return text == "Event loop is closed" or text.startswith("Encountered error while reading array index")


def quiet_libraries(interrupts: Interrupts | None = None) -> None:
    """Silences what Orbax and TensorStore print about errors in their threads; saving raises these errors again.

    Sets logger levels, a warnings filter, `threading.excepthook` and `sys.unraisablehook` of the whole process.

    Args:
      interrupts: once it has noticed a signal, errors in threads and callbacks are not printed either.
    """
    # Before a library sets a format in which a line begins with the name of a logger.
    logging.basicConfig(format="%(message)s")
    # Orbax logs to absl's logger.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Coroutines of reads that Orbax abandons after an error.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)

    def is_interrupted() -> bool:
        return interrupts is not None and interrupts.noticed is not None

    def report_thread_error(args: threading.ExceptHookArgs) -> None:
        if disk_error(args.exc_value) is None and not is_interrupted():
            threading.__excepthook__(args)

    def report_callback_error(args: "sys.UnraisableHookArgs") -> None:
        if not is_left_behind(args.exc_value) and not is_interrupted():
            sys.__unraisablehook__(args)

    threading.excepthook, sys.unraisablehook = report_thread_error, report_callback_error
