"""Rewinds a run to an earlier checkpoint and skips the batches that follow it.

A run's rewinds are kept in `rewinds.json` of its work directory: the data of every step after a rewind depends on it,
so a restarted run must know them.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, whole
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

    def skipped_batches(self, start: int, stop: float) -> int:
        """Counts the batches skipped by rewinds to steps in [start, stop)."""
        return sum(each.skip_batches for each in self.made if start <= each.step < stop)

    def newest(self, steps: Sequence[int]) -> int | None:
        """Returns the newest of the steps of a run's checkpoints that the last rewind leaves; None if there is none."""
        return max((step for step in steps if not self.pending or step <= self.made[-1].step), default=None)

    def settled(self, latest: int | None) -> "Rewinds":
        """Returns the rewinds of a run whose newest checkpoint is that of step `latest`, or that has none.

        Rewinds to later steps are dropped: their checkpoints have been moved away, and the run passes these steps anew.
        """
        return Rewinds([each for each in self.made if latest is not None and each.step <= latest], pending=False)


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


def plan(home: WorkDir, asked: Rewind | None, steps: Sequence[int]) -> Rewinds:
    """Returns the rewinds of a run, with the one that is asked for, and writes nothing.

    The most recent rewind is not repeated: running the same command again resumes the run. A rewind replaces those to
    its own step and to later steps.

    Args:
      home: the work directory.
      asked: the requested rewind; None: none.
      steps: the steps of the run's checkpoints.

    Raises:
      UserError: a number is negative, or the run has no such checkpoint.
    """
    before = read(home)
    if asked is None:
        return before
    for name, value in (("rewind_to", asked.step), ("skip_batches", asked.skip_batches)):
        check_value(f"--{name}", value, whole(0))
    if before.made[-1:] == [asked]:
        return before
    if asked.step not in steps:
        found = f"expected one of {', '.join(map(str, steps))}" if steps else "it has none yet; leave --rewind_to out"
        raise UserError(f"{home.path} has no checkpoint of --rewind_to={asked.step}: {found}")
    return Rewinds([*(each for each in before.made if each.step < asked.step), asked], pending=True)


def write(home: WorkDir, rewinds: Rewinds) -> None:
    """Writes `rewinds.json`, if it has to change; for the main process."""
    if rewinds == read(home):
        return
    content = {"pending": rewinds.pending, "rewinds": [each._asdict() for each in rewinds.made]}
    write_whole(home.folder / FILE, json.dumps(content, indent=2) + "\n")
    home.publish()
