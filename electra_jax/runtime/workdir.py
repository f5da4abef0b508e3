"""Where a run lives: a folder, or a place on gs:// with a folder of this machine in front of it.

Object stores have no files that grow, and the readers of prepared text want local ones. So everything but checkpoints,
which Orbax writes where they belong, is written in a folder here; process 0 copies it to the place.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from electra_jax.config.errors import UserError

AnyPath = Any  # a `Path`, or an `epath.Path` on gs://, which has the same methods
_NOT_COPIED = ("data", "checkpoints")


def resolve(text: str) -> AnyPath:
    """The folder, or the place, that `text` names.

    Raises:
      UserError: it names a place that nothing here can reach.
    """
    if "://" not in text:
        return Path(text)
    if not text.startswith("gs://"):
        raise UserError(f"{text} cannot be: a run lives in a folder or on gs://; give one of these")
    try:
        import gcsfs  # noqa: F401 - epath finds it
    except ImportError as error:
        raise UserError(f"{text} needs gcsfs; install it: pip install 'electra_jax[gcs]'") from error
    return epath.Path(text)


def is_remote(there: AnyPath) -> bool:
    return not isinstance(there, Path)


class WorkDir:
    """A run's place.

    Attributes:
      place: what the person gave: there are `checkpoints`, and what process 0 has published.
      folder: of this machine, in which files are written; the place itself, where it is a folder.
    """

    def __init__(self, there: AnyPath):
        self.place = there
        self.folder: Path = there
        self._published: dict[Path, tuple[float, int]] = {}
        if is_remote(there):
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            self.folder = cache / "electra_jax" / str(there).removeprefix("gs:").lstrip("/")

    @property
    def checkpoints(self) -> AnyPath:
        return self.place / "checkpoints"

    def fetch(self) -> None:
        """Makes the folder as the place is, texts aside; for process 0, before it writes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not is_remote(self.place):
            return
        for old in self.folder.iterdir():
            if old.name not in _NOT_COPIED:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        if self.place.exists():
            self._copy_down(self.place, self.folder)

    def _copy_down(self, there: AnyPath, here: Path) -> None:
        for entry in there.iterdir():
            if entry.name in _NOT_COPIED:
                continue
            if entry.is_dir():
                self._copy_down(entry, here / entry.name)
            else:
                here.mkdir(parents=True, exist_ok=True)
                (here / entry.name).write_bytes(entry.read_bytes())

    def publish(self) -> None:
        """Copies to the place what has changed in the folder; for process 0."""
        if not is_remote(self.place):
            return
        for path in sorted(self.folder.rglob("*")):
            within = path.relative_to(self.folder)
            if within.parts[0] in _NOT_COPIED or not path.is_file():
                continue
            stat = path.stat()
            if self._published.get(within) != (stat.st_mtime, stat.st_size):
                there = self.place / within.as_posix()
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(path.read_bytes())
                self._published[within] = (stat.st_mtime, stat.st_size)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[Path]:
        """The folder for prepared texts; one process of this machine at a time is let in, the next finds its text."""
        if not is_remote(self.place):  # all see one folder, and what process 0 has made there
            yield self.folder / "data"
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder.parent / f".{self.folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.folder / "data"
