"""Errors that a user can fix, reported in one line.

User mistakes raise `UserError`. `run` reports these, operating-system errors and out-of-memory errors as one line on
standard error, with exit status 2. Any other exception is a bug and keeps its traceback.
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


class UserError(Exception):
    """An error that the user can fix; its message is one line: what is wrong, what was expected and how to fix it."""


MISTAKES = (UserError, OSError, MemoryError)
"""The exceptions that `explain` takes."""


def explain(error: UserError | OSError | MemoryError) -> str:
    """Formats `error` as the line that `run` prints."""
    text = explain_os_error(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, MemoryError):
        detail = f" ({text})" if text else ""
        text = f"out of memory{detail}; use less, for instance smaller batches, or a larger machine"
    return printable(" ".join(text.split()))


def explain_os_error(error: OSError) -> str:
    """Formats an operating-system error as one line: path, cause and, for known causes, how to fix it."""
    path = f"{error.filename}: " if error.filename else ""
    return path + _OS_ADVICE.get(error.errno or 0, error.strerror or str(error))


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, at most 200 characters, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def describe(error: BaseException) -> str:
    """Formats an exception of another library for a message: its type and `first_line`."""
    return f"{type(error).__name__}: {first_line(error)}"


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> int:
    """Calls `main(argv)` and returns its exit status. Errors that the user can fix are printed as one line, status 2.

    With `--debug` among the arguments, errors keep their traceback.

    Args:
      main: the command.
      argv: its arguments; by default those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 must not stop a run.
            stream.reconfigure(errors="backslashreplace")
    cause: UserError | OSError | MemoryError
    try:
        try:
            status = main([arg for arg in argv if arg != "--debug"]) or 0
        except SystemExit as end:  # after --help
            if end.code:
                raise
            status = 0
        if sys.stdout is not None:
            # A closed pipe raises here, where it is reported, and not when Python exits.
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        if debug:
            raise
        report_interrupt()
        return exit_status(signal.SIGINT)
    except MISTAKES as error:
        # The broken pipe may also be another one, such as that of a worker process.
        # Nothing is printed, as by other commands: a reader such as `head` has what it wants.
        if isinstance(error, BrokenPipeError) and _drop_closed_stdout():
            return EXIT_BROKEN_PIPE
        if debug:
            raise
        cause = error
    # Python refuses a path with NUL or a lone surrogate by a ValueError, not by an OSError.
    except ValueError as error:
        refused = _refused_argument(error, argv)
        if debug or refused is None:
            raise
        cause = UserError(f"argument {refused!r} is invalid: expected UTF-8 without NUL; use another name")
    print(f"error: {explain(cause)}", file=sys.stderr)
    return EXIT_USER_ERROR


def _drop_closed_stdout() -> bool:
    """True if the reader of standard output, such as `head`, has exited. Pending output is then dropped."""
    try:
        stdout = sys.stdout.fileno()
    except (AttributeError, OSError):  # there is none, or it is captured
        return False
    poll = select.poll()
    poll.register(stdout, select.POLLOUT)
    # The write end of a pipe has an error if its read end is closed.
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    # Python flushes once more when it exits, which would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def _refused_argument(error: ValueError, argv: list[str]) -> str | None:
    """Returns the argument with a character that no path can have, if `error` is about one; else None."""
    if isinstance(error, UnicodeEncodeError):
        return next((arg for arg in argv if any("\ud800" <= letter <= "\udfff" for letter in arg)), None)
    return next((arg for arg in argv if "\0" in arg), None) if "embedded null" in str(error) else None
