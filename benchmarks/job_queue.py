"""Runs jobs in processes of their own, several at once, and keeps the result of each in one file.

A plan names the jobs that the results so far allow; the first ones are started first. A job that is stopped goes on
where it was when it is started again, as the jobs see to that themselves; one with a result is never started again.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.runtime import lock
from electra_jax.runtime.io import from_json, write_whole
from electra_jax.runtime.progress import Progress

Results = dict[str, dict[str, Any]]  # by the job's name
_PATIENCE = 60  # seconds that a job has to save and end
_POLL = 0.2  # seconds
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Job(NamedTuple):
    """A job.

    Attributes:
      name: its name in the results.
      flops: what it costs, estimated.
      needs: the jobs that must be finished before it can start.
      settings: what it does, by the kind of job; JSON.
      folder: what it makes besides its result. Where that is gone, the job is done again for jobs that need it.
    """

    name: str
    flops: float
    needs: tuple[str, ...]
    settings: Mapping[str, Any]
    folder: Path | None = None


class ResultsFile(NamedTuple):
    """A file with a line of JSON for each finished job."""

    path: Path

    def read(self) -> Results:
        """The results by job.

        Raises:
          UserError: a line is not a result.
        """
        results: Results = {}
        if self.path.exists():
            for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    result = from_json(line)
                except ValueError:
                    result = None
                if not isinstance(result, dict) or "job" not in result:
                    raise UserError(f"{self.path}:{number} is damaged: expected a job's result; remove the line")
                results[result.pop("job")] = result
        return results

    def add(self, name: str, result: Mapping[str, Any]) -> None:
        """Adds a line; all lines are in the order of their names, so that the file's history reads well."""
        results = {**self.read(), name: dict(result)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"job": job, **results[job]}) + "\n" for job in sorted(results)]
        write_whole(self.path, "".join(lines))


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    slot: int
    result: Path


def run(
    plan: Callable[[Results], Sequence[Job]],
    command: Callable[[Job, Path], Sequence[str]],
    results: ResultsFile,
    folder: Path,
    *,
    workers: int,
    hours: float,
    progress: Progress,
) -> bool:
    """Runs the jobs of a plan, each worker on one core. SIGTERM, Ctrl-C and the end of the time stop running jobs.

    A job that fails is left out, and the others go on.

    Args:
      plan: the jobs that can be named given the results so far; the more urgent ones first.
      command: the command line that does a job and writes its result, a JSON object, to a path.
      results: where the results are kept.
      folder: the jobs' logs and unfinished results.
      workers: how many jobs run at once.
      hours: after this time no job goes on.
      progress: receives the share of the work that is done, by `Job.flops`.

    Returns:
      Whether all jobs are done.

    Raises:
      UserError: jobs failed, and all others are done that do not need them; or another queue is at work in `folder`.
    """
    end = time.monotonic() + 3600 * hours
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    running: list[_Running] = []
    failed: dict[str, str] = {}
    with lock.lock(folder, progress.say), _noted_signals() as stopped, _ended(running, progress):
        while not stopped and time.monotonic() < end:
            done = results.read()
            jobs = plan(done)
            missing = {job.name: job for job in unfinished(jobs, done)}
            total = sum(job.flops for job in jobs)
            finished = total - sum(job.flops for job in missing.values())
            progress.start("jobs", completed=finished / total)
            started = {each.job.name for each in running}
            progress.update(finished / total, " · ".join(started))
            ready = [
                job
                for job in missing.values()
                if job.name not in started | failed.keys()
                and not any(name in missing or name not in done for name in job.needs)
            ]
            free = [slot for slot in range(workers) if slot not in {each.slot for each in running}]
            for job, slot in zip(ready, free, strict=False):
                running.append(_start(job, command, folder, slot, cores[slot % len(cores)]))
            if not running:
                if failed:
                    raise UserError(f"{'; '.join(failed.values())}; mend the cause and start again")
                return True
            while not stopped and time.monotonic() < end and all(each.process.poll() is None for each in running):
                time.sleep(_POLL)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                reason = _take_result(each, results, folder)
                if reason:
                    failed[each.job.name] = reason
                progress.say(reason or f"{each.job.name} is done")
        return False


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """The signals that ask this process to stop; inside the context they are added to a list and do nothing else."""
    noted: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in _SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ended(running: list[_Running], progress: Progress) -> Iterator[None]:
    """Stops the jobs that still run when the context ends, and the progress."""
    try:
        yield
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            try:
                each.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                each.process.kill()
        progress.stop()


def unfinished(jobs: Sequence[Job], done: Results) -> list[Job]:
    """The jobs without a result, and those whose folder is gone though a job without a result needs it."""
    needed = {name for job in jobs if job.name not in done for name in job.needs}
    return [job for job in jobs if job.name not in done or (job.name in needed and not _is_made(job))]


def _is_made(job: Job) -> bool:
    """Whether what a job makes besides its result is there, and not just begun."""
    return job.folder is None or (job.folder.exists() and _marker(job.folder).exists())


def _marker(folder: Path) -> Path:
    """The file that says that a job has finished its folder."""
    return folder.with_name(f"{folder.name}.done")


def _log(folder: Path, job: Job) -> Path:
    return folder / "logs" / f"{job.name.replace('/', '_')}.txt"


def _start(job: Job, command: Callable[[Job, Path], Sequence[str]], folder: Path, slot: int, core: int) -> _Running:
    result = _log(folder, job).with_suffix(".json")
    if job.folder is not None:
        _marker(job.folder).unlink(missing_ok=True)  # of a folder that is gone
    with _log(folder, job).open("ab") as log:
        process = subprocess.Popen(
            command(job, result),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops them
        )
    os.sched_setaffinity(process.pid, {core})  # before it has threads, which inherit it
    return _Running(job, process, slot, result)


def _take_result(ended: _Running, results: ResultsFile, folder: Path) -> str:
    """Why the job failed; empty if it did not, and its result is kept."""
    if ended.process.returncode or not ended.result.exists():
        log = _log(folder, ended.job)
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no output"]
        return f"{ended.job.name} failed: {last[0]} (all of it: {log})"
    if ended.job.folder is not None:
        ended.job.folder.parent.mkdir(parents=True, exist_ok=True)
        _marker(ended.job.folder).touch()
    results.add(ended.job.name, from_json(ended.result.read_text(encoding="utf-8")))
    ended.result.unlink()
    return ""
