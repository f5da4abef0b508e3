"""Work directories: a local folder, or one on gs:// with a local folder as its cache.

Object stores cannot append to a file, and the readers of a corpus need local files. So everything but checkpoints,
which Orbax writes to their final place, is written to a local folder; process 0 copies it to gs://.
"""

import contextlib
import fcntl
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from etils import epath

from electra_jax.config.errors import UserError, describe
from electra_jax.runtime import run_log
from electra_jax.runtime.io import read_json, user_cache

_log = logging.getLogger(__name__)
AnyPath: TypeAlias = Path | epath.Path  # on gs:// an `epath.Path`, which has the methods of a `Path`
LOCK = ".lock"  # lock file of the run in the folder, see lock.py
# On gs://, each host has its own copy of a corpus, and Orbax writes checkpoints there itself.
_NOT_COPIED = ("data", "checkpoints", "wandb", LOCK)
# Left by a process that was killed before it wrote config.json, or written by a shell or a scheduler.
_LEFT = re.compile(r"data|checkpoints|\..*|.*\.(tmp|log|out|err)")
_CORPUS_KEY = re.compile(r"[0-9a-f]{16}")


def resolve(text: str) -> AnyPath:
    """Converts the name of a work directory to a path.

    Raises:
      UserError: `text` is neither a path nor on gs://, or gcsfs is not installed.
    """
    # TensorStore refuses such paths.
    if "\0" in text or text.encode("utf-8", "ignore") != text.encode("utf-8", "surrogatepass"):
        raise UserError(f"work directory {text!r} is invalid: expected UTF-8 without NUL; use another name")
    if re.match(r"\w{2,}:/(?!/)", text):
        raise UserError(
            f"work directory {text} is an address that lost a slash in a Path; give it as a string, gs://BUCKET/FOLDER"
        )
    if "://" not in text:
        return Path(text)
    if not text.startswith("gs://"):
        raise UserError(f"work directory {text} is invalid: expected a folder or gs://BUCKET/FOLDER; use one of these")
    from electra_jax.runtime.remote_files import require_package

    require_package(text)  # epath finds it
    return epath.Path(text)


class WorkDir:
    """A run's work directory.

    Attributes:
      path: the path that the user gave; it holds `checkpoints`, and what process 0 has published.
      folder: the local folder that files are written to; the same as `path` unless that is on gs://.
    """

    def __init__(self, path: AnyPath):
        self.path = path
        self.folder = path if isinstance(path, Path) else _cache_folder(path)
        self._published: dict[Path, tuple[float, int]] = {}

    @property
    def checkpoints(self) -> AnyPath:
        return self.path / "checkpoints"

    @property
    def is_remote(self) -> bool:
        return not isinstance(self.path, Path)

    def has_checkpoints(self) -> bool:
        """True if a checkpoint, or a part of one, has been written."""
        return self.checkpoints.exists() and any(self.checkpoints.iterdir())

    def check_is_run(self) -> None:
        """Checks that a run may write here: the folder is missing, empty, or holds a run.

        Raises:
          UserError: it holds something else, which the run would overwrite.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path} is a file: expected a folder; use another --workdir")
        if (self.path / "config.json").exists():
            if not run_log.is_run_config(read_json(self.path / "config.json")):
                raise self._holds_other_files("config.json")
            return
        # A run writes config.json before its first checkpoint, so here it was lost.
        if self.has_checkpoints():
            raise UserError(f"{self.path} has checkpoints but no config.json; use another --workdir")
        for entry in sorted(entry.name for entry in self.path.iterdir()):
            if not _LEFT.fullmatch(entry):
                raise self._holds_other_files(entry)
        if (self.path / "data").exists():
            for entry in sorted(entry.name for entry in (self.path / "data").iterdir()):
                if not _CORPUS_KEY.fullmatch(entry):
                    raise self._holds_other_files(f"data/{entry}")

    def _holds_other_files(self, name: str) -> UserError:
        return UserError(
            f"{self.path} holds something other than a run ({name}): expected a run, or an empty or new folder; use "
            "another --workdir"
        )

    def fetch(self) -> None:
        """Makes the local folder equal to `path`, except for corpora, checkpoints, W&B's files and the lock.

        For process 0, before it writes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.is_remote:
            return
        # What is only in the cache is of an earlier run at this path, or was never published.
        for old in self.folder.iterdir():
            if old.name not in _NOT_COPIED:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        if self.path.exists():
            _copy_down(self.path, self.folder)

    def publish(self) -> None:
        """Copies changed files of the local folder to `path`, with the exceptions of `fetch`. For process 0."""
        if not self.is_remote:
            return
        for source in sorted(self.folder.rglob("*")):
            relative = source.relative_to(self.folder)
            if relative.parts[0] in _NOT_COPIED or not source.is_file():
                continue
            stat = source.stat()
            version = (stat.st_mtime, stat.st_size)
            if self._published.get(relative) != version:
                target = self.path / relative.as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
                self._published[relative] = version

    def publish_if_possible(self) -> None:
        """Like `publish`, but if the store fails, warns and leaves the files to the next call: training continues."""
        try:
            self.publish()
        # Each library for a store has its own kinds of errors.
        except Exception as error:
            text = "warning: logs were not copied to %s (%s); the next checkpoint tries again"
            _log.warning(text, self.path, describe(error))

    @contextlib.contextmanager
    def lock_data_folder(self) -> Iterator[Path]:
        """Context manager that yields the local folder for corpora.

        On gs://, only one process of a host is inside at a time; the next ones reuse its corpus.
        """
        # All processes share the folder, and process 0 prepares.
        if not self.is_remote:
            yield self.folder / "data"
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder.parent / f".{self.folder.name}.lock", "w") as lock:
            # Waits for the holder; the kernel releases the lock if that dies.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.folder / "data"


def _cache_folder(path: AnyPath) -> Path:
    return user_cache() / str(path).removeprefix("gs:").lstrip("/")


def _copy_down(source: AnyPath, target: Path) -> None:
    """Copies the files of a folder, except those that `WorkDir.fetch` leaves out."""
    for entry in source.iterdir():
        if entry.name in _NOT_COPIED:
            continue
        if entry.is_dir():
            _copy_down(entry, target / entry.name)
        else:
            target.mkdir(parents=True, exist_ok=True)
            (target / entry.name).write_bytes(entry.read_bytes())
