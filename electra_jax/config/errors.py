"""Errors that a user can fix, reported in one line.

Everything that a user can get wrong raises `UserError`; `run` reports it, errors of the operating system and a lack of
memory as one line on standard error, with exit status 2. Any other exception is a bug and keeps its traceback.
"""

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable

from electra_jax.config.interrupts import exit_status, report_interrupt
from electra_jax.config.printable import printable

EXIT_USER_ERROR = 2
EXIT_BROKEN_PIPE = 1  # Python's own

_OS_ADVICE = {
    errno.ENOSPC: "no space left; free some, or use another disk",
    errno.EDQUOT: "disk quota exceeded; free some space, or use another disk",
    errno.EFBIG: "a file would exceed the size limit of this process; raise it with ulimit -f",
    errno.EROFS: "the file system is read-only; use another one",
    errno.EACCES: "permission denied; use a path that this user can access",
    errno.EPERM: "operation not permitted; use a path that this user can access",
    errno.EEXIST: "is a file: expected a folder; use another path",
    errno.ENOTDIR: "a parent of the path is a file: expected a folder; use another path",
    errno.ENAMETOOLONG: "the path is too long; use a shorter one",
}
_CLOSED = (
    "standard output was closed before the command ended, as by `head`; send it to a file instead, and run the same "
    "command again"
)


class UserError(Exception):
    """An error that the user can fix; its message is one line: what is wrong, what was expected, what to do."""


MISTAKES = (UserError, OSError, MemoryError)
"""What `explain` takes."""


def explain(error: UserError | OSError | MemoryError) -> str:
    """The one line that reports `error`."""
    text = explain_os_error(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, MemoryError):
        detail = f" ({text})" if text else ""
        text = f"out of memory{detail}; use less, for instance smaller batches, or a larger machine"
    return printable(" ".join(text.split()))


def explain_os_error(error: OSError) -> str:
    """One line for an error of the operating system: path, cause, what to do."""
    path = f"{error.filename}: " if error.filename else ""
    return path + _OS_ADVICE.get(error.errno or 0, error.strerror or str(error))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe(error: BaseException) -> str:
    """An exception of another library, for a message: its type and the first line, 200 characters at most."""
    return f"{type(error).__name__}: {first_line(error)}"[:200]


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> int:
    """Calls `main(argv)` and returns its exit status; errors that the user can fix are one line and status 2.

    With `--debug` among the arguments errors keep their traceback.

    Args:
      main: the command.
      argv: its arguments; by default those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not stop a run
    cause: UserError | OSError | MemoryError
    try:
        status = main([arg for arg in argv if arg != "--debug"]) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        if debug:
            raise
        report_interrupt()
        return exit_status(signal.SIGINT)
    except MISTAKES as error:
        if isinstance(error, BrokenPipeError) and _drop_closed_stdout():
            print(f"error: {_CLOSED}", file=sys.stderr)
            return EXIT_BROKEN_PIPE
        if debug:
            raise
        cause = error
    except ValueError as error:
        refused = _refused_argument(error, argv)
        if debug or refused is None:
            raise
        cause = UserError(f"argument {refused!r} is invalid: expected UTF-8 without NUL; use another name")
    print(f"error: {explain(cause)}", file=sys.stderr)
    return EXIT_USER_ERROR


def _drop_closed_stdout() -> bool:
    """Whether the reader of standard output, such as `head`, has gone; if so, what is left to write is dropped."""
    try:
        stdout = sys.stdout.fileno()
    except (AttributeError, OSError):  # there is none, or it is captured
        return False
    poll = select.poll()
    poll.register(stdout, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)  # Python flushes once more when it exits
    return True


def _refused_argument(error: ValueError, argv: list[str]) -> str | None:
    """The argument with a character that no path can have, if that is what `error` is about."""
    if isinstance(error, UnicodeEncodeError):
        return next((arg for arg in argv if any("\ud800" <= letter <= "\udfff" for letter in arg)), None)
    return next((arg for arg in argv if "\0" in arg), None) if "embedded null" in str(error) else None
