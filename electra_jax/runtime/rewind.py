"""Rewinds a run to an earlier checkpoint and skips the batches that follow it.

A run's rewinds are kept in `rewinds.json` of its work directory: the data of every step after a rewind depends on it,
so a restarted run must know them.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.workdir import WorkDir

FILE = "rewinds.json"


class Rewind(NamedTuple):
    """One return to a checkpoint.

    Attributes:
      step: the step of the checkpoint.
      skip_batches: the number of batches after that step to skip.
    """

    step: int
    skip_batches: int


class Rewinds(NamedTuple):
    """The rewinds of a run.

    Attributes:
      made: all of them, in the order of their steps.
      pending: whether the checkpoints after the last one are still to be deleted.
    """

    made: list[Rewind]
    pending: bool

    def skipped_batches(self, start: int, stop: int) -> int:
        """Counts the batches skipped by rewinds to steps in [start, stop)."""
        return sum(each.skip_batches for each in self.made if start <= each.step < stop)


def read(home: WorkDir) -> Rewinds:
    """Reads `rewinds.json`; a run without it has made none.

    Raises:
      UserError: the file is damaged.
    """
    # Where process 0 publishes it: all processes read it, and on gs:// only process 0 fetches it.
    path = home.path / FILE
    if not path.exists():
        return Rewinds([], False)
    written = read_json(path)
    try:
        made = [Rewind(int(each["step"]), int(each["skip_batches"])) for each in written["rewinds"]]
        return Rewinds(made, bool(written["pending"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}); restore it, or use another --workdir") from error


def record(home: WorkDir, asked: Rewind, steps: Sequence[int]) -> None:
    """Adds `asked` to the rewinds of a run; for the main process.

    The most recent rewind is not repeated: running the same command again resumes the run. A rewind replaces those to
    its own step and to later steps.

    Args:
      home: the work directory.
      asked: the requested rewind.
      steps: the steps of the run's checkpoints.

    Raises:
      UserError: a number is negative, or the run has no such checkpoint.
    """
    for name, value in (("rewind_to", asked.step), ("skip_batches", asked.skip_batches)):
        if value < 0:
            raise UserError(f"--{name}={value} is invalid: expected 0 or more")
    made = read(home).made
    if made[-1:] == [asked]:
        return
    if asked.step not in steps:
        found = f"expected one of {', '.join(map(str, steps))}" if steps else "it has none yet; leave --rewind_to out"
        raise UserError(f"{home.path} has no checkpoint of --rewind_to={asked.step}: {found}")
    # Before a checkpoint is deleted: a start after a kill in between must know that it has to delete the rest.
    _write(home, Rewinds([*(each for each in made if each.step < asked.step), asked], pending=True))


def settle(home: WorkDir, latest: int | None) -> None:
    """Records that no checkpoint after the last rewind is left; for the main process.

    Rewinds to later steps than that of the newest checkpoint are dropped: their checkpoints have been moved away, and
    the run passes these steps anew.

    Args:
      home: the work directory.
      latest: the step of the newest checkpoint; None if there is none.
    """
    before = read(home)
    after = Rewinds([each for each in before.made if latest is not None and each.step <= latest], pending=False)
    if after != before:
        _write(home, after)


def _write(home: WorkDir, rewinds: Rewinds) -> None:
    content = {"pending": rewinds.pending, "rewinds": [each._asdict() for each in rewinds.made]}
    write_whole(home.folder / FILE, json.dumps(content, indent=2) + "\n")
    home.publish()
