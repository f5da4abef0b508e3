"""Kills runs at random moments of their lives, and starts them again until they finish.

tests/test_kill_points.py kills at the points that are known to be dangerous.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cli_runs import environment

# The percentage of all kills that each kind of run gets.
SHARES = {"one_process": 30, "two_processes": 20, "prepare": 20, "finetune": 15, "curves": 15}
_LIMIT = 600  # seconds that any run may take

Processes = list[subprocess.Popen[str]]
Start = Callable[[Path], AbstractContextManager[Processes]]


class Storm:
    """Runs of one kind that are killed.

    A trial is a run in a folder of its own. It is started and killed one to four times, at moments that are uniform
    over the life of an uninterrupted run, and then left alone until it finishes.
    """

    def __init__(self, config: pytest.Config, kind: str, start: Start, folder: Path):
        """Prepares the kills of one kind.

        Args:
          config: pytest's; it has the number of kills of all kinds, and the seed.
          kind: one of SHARES.
          start: starts the processes of a run in a folder, and leaves none behind. Process I prints its errors to
            a file that is named as the folder, with -I.err after it.
          folder: a temporary folder.
        """
        kills, seed = config.getoption("--storm-kills"), config.getoption("--storm-seed")
        self._random = random.Random(f"{seed} {kind}")
        self._left = _share(kills, kind)
        self._repeat = f"pytest -m night tests/storm -k {kind} --storm-kills={kills} --storm-seed={seed}"
        self._start, self._folder, self._log = start, folder, list[str]()

    def uninterrupted(self) -> Path:
        """The folder of a run that nothing interrupts; its duration is the life of the others."""
        workdir, begun = self._folder / "uninterrupted", time.monotonic()
        self._finish(workdir)
        self._life = time.monotonic() - begun
        return workdir

    def trials(self) -> Iterator[Path]:
        """The folders of runs that were killed and then finished, until all kills have happened."""
        number = 0
        while self._left:
            number += 1
            workdir = self._folder / f"trial-{number}"
            self._log = [f"trial {number}"]
            for _ in range(min(self._random.randint(1, 4), self._left)):
                if not self._killed(workdir):
                    break
            self._finish(workdir)
            yield workdir

    def told(self, text: str = "") -> str:
        """What an assertion says: the kills of this trial, and how to repeat them."""
        return f"{text} ({', '.join(self._log)})\nrepeat with: {self._repeat}"

    def _finish(self, workdir: Path) -> None:
        with self._start(workdir) as started:
            self._check_all(started, workdir)

    def _check_all(self, started: Processes, workdir: Path) -> None:
        for number, process in enumerate(started):
            status = process.wait(_LIMIT)
            assert status == 0, self.told(f"status {status}: {Path(f'{workdir}-{number}.err').read_text()}")

    def _killed(self, workdir: Path) -> bool:
        """Starts a run and kills it; False if it finished first."""
        seconds, pause = self._random.uniform(0, self._life), self._random.uniform(0, 2)
        order = self._random.sample(range(2), 2)
        with self._start(workdir) as started:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and any(process.poll() is None for process in started):
                time.sleep(0.005)
            if all(process.poll() is not None for process in started):
                self._check_all(started, workdir)
                return False
            victims = [started[number] for number in order if number < len(started)]
            victims[0].kill()
            for process in victims[1:]:  # as a scheduler does, if it has not noticed by itself
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(pause)
                process.kill()
            for process in victims:
                process.wait()
        self._left -= 1
        self._log.append(f"killed after {seconds:.3f} s")
        return True


def alone(argv: Callable[[Path], Sequence[str]]) -> Start:
    """Starts a single process for `Storm`.

    When it is killed, processes that it started live on, and may still write while the next one begins; those that live
    when the next one has ended are killed too.

    Args:
      argv: the command line for a folder.
    """

    @contextlib.contextmanager
    def start(workdir: Path) -> Iterator[Processes]:
        with open(f"{workdir}-0.out", "w") as out, open(f"{workdir}-0.err", "w") as err:
            process = subprocess.Popen(
                argv(workdir), env=environment(), stdout=out, stderr=err, text=True, start_new_session=True
            )
        groups.append(process.pid)
        try:
            yield [process]
        finally:
            process.kill()
            process.wait()
            for group in groups[:-1] if process.returncode == -signal.SIGKILL else groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    groups: list[int] = []
    return start


def _share(kills: int, kind: str) -> int:
    """The kills of a kind; those of all kinds are exactly `kills`."""
    percent = done = 0
    for name, share in SHARES.items():
        percent += share
        upto = round(kills * percent / 100)
        if name == kind:
            return upto - done
        done = upto
    raise KeyError(kind)
