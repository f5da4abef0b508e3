"""A lock on a work directory: one run at a time, and a holder that has died does not block the next one.

A run holds `.lock` in its work directory, with what it is. Two things can say whether the holder lives:

- `flock`: the kernel drops it with the process, however that ends, so nobody waits and process numbers do not matter.
  It is exact between processes of one machine, containers included. Across machines it depends on the file system:
  some ignore it, some do not have it, gs:// has no such thing.
- A heartbeat: the holder writes a new number into the file every few seconds. A start that finds the record of another
  machine, or on a file system without `flock`, watches the number: if it changes, the holder lives; if it does not for
  `PATIENCE` seconds, it is dead. No clocks are compared, as those of two machines differ.

The alternative was process numbers, with their start times because numbers are used again, and with the name of the
machine and of the container because they mean nothing elsewhere; it would still have needed both of the above.

A run that did not answer for longer than `PATIENCE`, such as on a laptop that slept, may lose its lock to a run on
another machine. It notices at its next heartbeat and ends: two runs never go on.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from electra_jax.config.errors import EXIT_USER_ERROR, UserError
from electra_jax.runtime.io import from_json
from electra_jax.runtime.workdir import LOCK, AnyPath

HEARTBEAT = 10.0  # seconds between two heartbeats
PATIENCE = 60.0  # seconds without a heartbeat after which the holder counts as dead
_LENGTH = 512  # characters of a record: one overwrites another in a single write
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def lock(folder: AnyPath, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock on a folder inside the context; the folder is made if it is missing.

    Args:
      folder: a `Path`, or an `epath.Path` on gs://.
      say: is told if this has to wait for the heartbeat of another machine.

    Raises:
      UserError: another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with _flock(path, say) if isinstance(path, Path) else contextlib.nullcontext():
        if not isinstance(path, Path):
            _wait_until_dead(path, say)
        record = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid(), "id": secrets.token_hex(8)}
        heart = _Heart(path, record)
        heart.start()
        try:
            yield
        finally:
            heart.stop()
            with contextlib.suppress(Exception):  # as in `run`
                path.unlink()


@contextlib.contextmanager
def _flock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the kernel's lock on a file inside the context, where the file system has one and no other machine lives.

    Raises:
      UserError: another process holds it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = _machine()  # of its processes the kernel says that none holds the lock
            except BlockingIOError as error:
                raise _in_use(path, _read(path)) from error
            except OSError:  # of several kinds: not supported, no lock server
                known = ""
            _wait_until_dead(path, say, known)
            if _is_file_at(path, descriptor):  # else a run that ended has deleted it
                yield
                return
        finally:
            os.close(descriptor)


def _is_file_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _wait_until_dead(path: AnyPath, say: Callable[[str], None], known: str = "") -> None:
    """Returns when the run in the record has no heartbeat, at once if there is none or it is of the machine `known`.

    Raises:
      UserError: its heartbeat goes on.
    """
    holder = _read(path)
    if not holder or holder.get("machine") == known:
        return
    say(f"{path.parent} was last used on {_name(holder)}: waiting {PATIENCE:.0f} s for a sign of it")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(min(1.0, PATIENCE / 10))
        now = _read(path)
        if now is None:
            return  # it has ended
        if now and now != holder:
            raise _in_use(path, now)


def _in_use(path: AnyPath, holder: dict[str, Any] | None) -> UserError:
    return UserError(
        f"{path.parent} is in use by another run ({_name(holder)}): expected one run in a work directory; stop that "
        "one first, or use another --workdir"
    )


def _name(holder: dict[str, Any] | None) -> str:
    holder = holder or {}
    return f"{holder.get('host', 'an unknown host')}, process {holder.get('pid', 'unknown')}"


def _read(path: AnyPath) -> dict[str, Any] | None:
    """The record in a lock file; empty where it has none, None where there is no file."""
    try:
        record = from_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _machine() -> str:
    """What differs between machines, and between two starts of one: names of hosts are used again in a cluster."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


class _Heart(threading.Thread):
    """Writes a record with another number every `HEARTBEAT` seconds; ends the process if another run has taken over."""

    def __init__(self, path: AnyPath, record: dict[str, Any]):
        super().__init__(name="lock", daemon=True)
        self._path, self._record, self._beats = path, record, 0
        self._stopped = threading.Event()
        self._write()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.wait(HEARTBEAT):
            # The disk may be full, which the run itself reports, and gs:// has errors of many kinds, which pass.
            with contextlib.suppress(Exception):
                self._beat()

    def _beat(self) -> None:
        holder = _read(self._path)
        if holder and holder.get("id") != self._record["id"]:
            text = f"error: {_in_use(self._path, holder)}; this run had not answered for {PATIENCE:.0f} s"
            print(text, file=sys.stderr, flush=True)
            os._exit(EXIT_USER_ERROR)
        self._write()

    def _write(self) -> None:
        """Writes the record in place: a file that replaced this one would not have its lock."""
        self._beats += 1
        text = f"{json.dumps({**self._record, 'beat': self._beats}):{_LENGTH}}\n"
        if not isinstance(self._path, Path):
            self._path.write_text(text)
            return
        with open(self._path, "r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())  # other machines of a shared disk see it at once
