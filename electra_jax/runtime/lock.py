"""Lock on a work directory or a corpus: one process at a time, and a holder that has died does not block the next one.

It is the kernel's `flock`, which is released when the process ends, however it ends. It is reliable between processes
of one machine, containers included, and between machines whose file system supports it, as NFS does. `gs://` and some
network file systems have no locks: there nothing keeps a second run out.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from electra_jax.config.errors import UserError
from electra_jax.runtime.workdir import LOCK, AnyPath


@contextlib.contextmanager
def lock(folder: AnyPath, say: Callable[[str], None]) -> Iterator[None]:
    """Context manager that holds the lock on a folder; the folder is created if it is missing.

    The lock file is never deleted: otherwise two processes could each hold the lock on a file of this name.

    Args:
      folder: a `Path`, or an `epath.Path` on gs://.
      say: called with a message if the file system has no locks.

    Raises:
      UserError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # gs:// has no locks.
    if not isinstance(folder, Path):
        yield
        return
    # `a+` does not truncate: the file may name the holder.
    with open(folder / LOCK, "a+", encoding="utf-8", errors="replace") as file:
        file.seek(0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read().strip() or "unknown process"
            raise UserError(
                f"{folder} is in use by another run ({holder}): expected one run or preparation in a folder; stop that "
                "one first, or use another folder"
            ) from error
        except OSError as error:  # of several kinds: not supported, no lock server
            say(f"{folder} cannot be locked ({error.strerror}): make sure that no other run uses it")
        # The disk may be full, which the run itself reports.
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"{socket.gethostname()}, process {os.getpid()}\n")
            file.flush()
        yield
