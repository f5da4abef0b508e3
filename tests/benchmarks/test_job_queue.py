"""Jobs are real processes that write a number."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import job_queue
import pytest
from job_queue import Job, ResultsFile

from electra_jax.config.errors import UserError
from electra_jax.runtime import lock
from electra_jax.runtime.progress import Progress

JOB = """
import json, sys, time
settings, result = json.loads(sys.argv[1]), sys.argv[2]
time.sleep(settings.get("seconds", 0))
if settings.get("fails"):
    sys.exit("the disk is full")
open(settings["log"], "a").write(settings["name"] + "\\n")
open(result, "w").write(json.dumps({"number": settings["number"]}))
"""


class Queue:
    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "log.txt"
        self.results = ResultsFile(folder / "results" / "all.jsonl")

    def job(self, name, number=1, needs=(), made=None, **settings):
        return Job(name, 1.0, needs, {"name": name, "number": number, "log": str(self.log), **settings}, made)

    def run(self, plan, hours=1.0, workers=2):
        def command(job, result):
            return [sys.executable, "-c", JOB, json.dumps(job.settings), str(result)]

        return job_queue.run(
            plan, command, self.results, self.folder, workers=workers, hours=hours, progress=Progress()
        )

    def order(self):
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def queue(tmp_path):
    return Queue(tmp_path)


def test_a_folder_has_one_queue_at_a_time(queue):
    with lock.lock(queue.folder, print), pytest.raises(UserError, match="is in use by"):
        queue.run(lambda done: [queue.job("first")])
    assert queue.order() == []
    assert queue.run(lambda done: [queue.job("first")])


def test_a_result_lets_the_plan_name_more_jobs(queue):
    def plan(done):
        first = queue.job("first", 3)
        return [first, *(queue.job(f"{i}", i, ("first",)) for i in range(done.get("first", {"number": 0})["number"]))]

    assert queue.run(plan)
    assert queue.order()[0] == "first"
    assert queue.results.read() == {"first": {"number": 3}, **{f"{i}": {"number": i} for i in range(3)}}
    assert queue.run(plan)
    assert len(queue.order()) == 4  # nothing is done twice


def test_jobs_wait_for_those_that_they_need_and_urgent_ones_come_first(queue):
    jobs = [queue.job("last", needs=("b", "a")), queue.job("b"), queue.job("a")]
    assert queue.run(lambda done: jobs, workers=1)
    assert queue.order() == ["b", "a", "last"]


def test_a_job_whose_folder_is_gone_is_done_again_for_those_that_need_it(queue):
    jobs = [queue.job("run", made=queue.folder / "run"), queue.job("scores", needs=("run",))]
    done = {"run": {"number": 1}}
    assert [job.name for job in job_queue.unfinished(jobs, done)] == ["run", "scores"]
    (queue.folder / "run").mkdir()  # begun again
    assert [job.name for job in job_queue.unfinished(jobs, done)] == ["run", "scores"]
    (queue.folder / "run.done").touch()
    assert [job.name for job in job_queue.unfinished(jobs, done)] == ["scores"]
    (queue.folder / "run").rmdir()
    assert job_queue.unfinished(jobs, {**done, "scores": {"number": 1}}) == []


def test_nothing_starts_on_a_folder_that_is_made_again(queue):
    """Two workers: `scores` waits although `run` has a result and, as soon as it is begun, a folder."""
    (queue.folder / "run").mkdir()
    queue.results.add("run", {"number": 1})
    jobs = [queue.job("run", made=queue.folder / "run", seconds=1), queue.job("scores", needs=("run",))]
    assert queue.run(lambda done: jobs)
    assert queue.order() == ["run", "scores"]


def test_a_folder_that_was_made_is_not_made_any_more_once_it_is_begun_again(queue):
    made = queue.folder / "run"
    job_queue._marker(made).touch()
    queue.results.add("run", {"number": 1})
    jobs = [queue.job("run", made=made, fails=True), queue.job("scores", needs=("run",))]
    with pytest.raises(UserError, match="run failed"):
        queue.run(lambda done: jobs)
    made.mkdir()  # by the job that failed
    assert job_queue.unfinished(jobs, queue.results.read()) == jobs


def test_a_job_that_fails_is_named_with_its_last_line_when_all_others_are_done(queue):
    jobs = [queue.job("bad", fails=True), queue.job("after", needs=("bad",)), queue.job("good")]
    with pytest.raises(UserError, match=r"^bad failed: the disk is full \(all of it: .*bad\.txt\); mend the cause"):
        queue.run(lambda done: jobs, workers=1)
    assert queue.order() == ["good"]
    assert queue.results.read() == {"good": {"number": 1}}


@pytest.mark.slow
def test_time_that_is_up_and_a_signal_end_it_and_the_next_call_goes_on(queue):
    jobs = [queue.job("slow", seconds=60), queue.job("quick")]
    begin = time.monotonic()
    assert not queue.run(lambda done: jobs, hours=3 / 3600)
    threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert not queue.run(lambda done: jobs)
    assert time.monotonic() - begin < 30
    assert queue.results.read() == {"quick": {"number": 1}}
    assert queue.run(lambda done: [queue.job("slow"), queue.job("quick")])
    assert queue.order() == ["quick", "slow"]


@pytest.mark.parametrize("line", ["[]", '{"job": "b", "num'])
def test_a_damaged_line_is_named(queue, line):
    queue.results.path.parent.mkdir()
    queue.results.path.write_text(f'{{"job": "a", "number": 1}}\n{line}\n')
    with pytest.raises(UserError, match=r"all\.jsonl:2 is damaged: expected a job's result; remove the line"):
        queue.results.read()
