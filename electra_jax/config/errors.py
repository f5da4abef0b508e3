"""What a person did that cannot work, said in one line.

Everything a person can get wrong raises `UserError`; `run` turns it, the operating system's refusals and a lack of
memory into one line on standard error and exit status 2. Anything else is a bug of ours and keeps its traceback.
"""

import errno
import io
import sys
from collections.abc import Callable

EXIT_USER_ERROR = 2

_OS_ADVICE = {
    errno.ENOSPC: "no space left; free some, or use another disk",
    errno.EDQUOT: "disk quota used up; free some space, or use another disk",
    errno.EFBIG: "a file would grow past the limit set for this process (ulimit -f); raise it",
    errno.EROFS: "the file system is read-only; use another",
    errno.EACCES: "permission denied; give a path that this user can use",
    errno.EPERM: "operation not permitted; give a path that this user can use",
    errno.EEXIST: "is a file, not a folder; give another path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; give another path",
}


class UserError(Exception):
    """Raised with one line that names the cause, the place and the way out."""


def explain_os_error(error: OSError) -> str:
    """One line for an error of the operating system: place, cause, way out."""
    place = f"{error.filename}: " if error.filename else ""
    return place + _OS_ADVICE.get(error.errno or 0, error.strerror or str(error))


# What `explain` makes a line of.
MISTAKES = (UserError, OSError, MemoryError)


def explain(error: UserError | OSError | MemoryError) -> str:
    """Its one line."""
    text = explain_os_error(error) if isinstance(error, OSError) else str(error)
    if isinstance(error, MemoryError):
        asked = f" ({text})" if text else ""
        text = f"memory ran out{asked}; ask for less, as smaller batches, or use a larger machine"
    return " ".join(text.split())


def first_line(error: BaseException) -> str:
    """Of what another library says; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def run(main: Callable[[list[str]], int | None], argv: list[str] | None = None) -> int:
    """Calls `main(argv)` and returns its exit status; a person's mistake is one line on stderr and status 2.

    With `--debug` among the arguments errors keep their traceback.
    """
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever the terminal cannot show, nothing stops for it
    debug = "--debug" in argv
    try:
        return main([arg for arg in argv if arg != "--debug"]) or 0
    except MISTAKES as error:
        cause = error
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from what is finished", file=sys.stderr)
        return 130
    if debug:
        raise cause
    print(f"error: {explain(cause)}", file=sys.stderr)
    return EXIT_USER_ERROR
