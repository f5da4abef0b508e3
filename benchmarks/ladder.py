"""Draws downstream score against pre-training FLOPs for the paper's systems, on any machine.

    python benchmarks/ladder.py --input='text/*.txt.xz' --data_dir=glue --output=OUT
        [--results=benchmarks/results/ladder.jsonl] [--flops=3e14] [--hours=1000] [--workers=2] [--dry_run]
    python benchmarks/ladder.py --draw=FOLDER [--results=...]

The jobs, in this order:
1. Shapes: `electra` at 1e13 and 3e13 FLOPs with encoders of several shapes. From the best of each budget, by word
   order (`Plan.merit`), follows the shape at every budget (`Plan.shape_for`).
2. Of `electra` and `mlm`: learning rates, each system with three at 3e13, chosen by word order too; learning rates of
   fine-tuning, three for each task, at 3e13, with a seed that is not reported; then scores at 1e14: GLUE tasks with
   three seeds, and linear models on frozen states (benchmarks/frozen.py).
3. The same of an untrained encoder and of a bag of words (the mean of untrained embeddings), without pre-training.
4. Scores of `electra` and `mlm` at 3e13 and 1e13.
5. As 2, of configs/modern.py at all budgets up to 1e14.
6. STS-B of the untrained encoder with ten epochs, and with a head that reads the state of [CLS].
7. Scores of `electra` at 3e14, the longest run: with several workers the next jobs are done beside it.
8. As 2, of the other systems, one after the other, at 3e13 and 1e14, with the learning rate of `electra`.
9. What `electra`, `mlm` and the two that also fill masks can do at 1e14 without fine-tuning (benchmarks/abilities.py).
10. Scores of `mlm` at 3e14.
11. Scores of second runs of pre-training, with another seed, of `electra`, `modern` and `mlm` at 1e14; of these 6 too.
12. Scores of the other systems at 1e13.
Every schedule ends at its budget. OUT has the prepared text and the runs. RESULTS gets a line of JSON for each finished
job; a job with a line is not done again. Stopped at any moment, the same command goes on. --draw writes a table and
figures of what is complete, from the results alone. --dry_run says what all jobs cost, and what is left.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from electra_jax.runtime import host_memory

    host_memory.keep_freed()

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import job_queue
import ladder_report
from job_queue import Job, Results, ResultsFile
from ladder_jobs import KINDS, VOCABULARY, Folders
from ladder_plan import ASSUMED, BUDGETS, Plan

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, at_least, check_value
from electra_jax.data import corpus
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import ConsoleProgress

_SPEED = 4e10  # FLOPs a second of a core, before a job has said its own
OPTIONS: Mapping[str, Any] = {
    "input": "",
    "data_dir": "",
    "output": "",
    "results": "benchmarks/results/ladder.jsonl",
    "flops": BUDGETS[-1],
    "hours": 1000.0,
    "workers": 2,
    "dry_run": False,
    "draw": "",
    "job": "",  # of a worker: the settings of its job, and the file for the result
    "result": "",
}


def cost(jobs: Sequence[Job], done: Results) -> str:
    """What the jobs cost: a line for each kind, and what is left to do."""
    known = [job for job in jobs if job.name in done and "device_seconds" in done[job.name]]
    seconds = sum(done[job.name]["device_seconds"] for job in known)
    speed = sum(job.flops for job in known) / seconds if seconds else _SPEED
    lines = [
        f"{'':10} {'jobs':>5} {'done':>5} {'FLOPs':>8} {'hours of a core':>16}, at {short_number(speed)} FLOPs a second"
    ]
    left = [job for job in jobs if job.name not in done]
    kinds = {kind: [job for job in jobs if job.settings["kind"] == kind] for kind in KINDS}
    for title, part in {**kinds, "all": jobs, "left": left}.items():
        flops = sum(job.flops for job in part)
        finished = sum(job.name in done for job in part)
        lines.append(f"{title:10} {len(part):>5} {finished:>5} {flops:>8.1e} {flops / speed / 3600:>16.1f}")
    return "\n".join(lines)


def folders_in(output: Path, data_dir: str) -> Folders:
    return Folders(str(output / "text"), data_dir, output / "word_order", output / "minimal_pairs", output / "runs")


def prepare(source: str, folders: Folders) -> None:
    """Makes the prepared text, the task of word order and the minimal pairs where they are missing."""
    scripts = Path(__file__).parent
    # A text that is there is kept, even where a copy has given its sources new dates.
    if not corpus.is_prepared(Path(folders.text)):
        options = (f"--vocab_size={VOCABULARY}", f"--output={folders.text}")
        _call("-m", "electra_jax", "prepare", f"--input={source}", *options)
    if not (folders.word_order / "dev.tsv").exists():
        _call(str(scripts / "word_order.py"), f"--input={source}", f"--output={folders.word_order}")
    if not (folders.pairs / "order.tsv").exists():
        _call(str(scripts / "minimal_pairs.py"), f"--input={folders.text}", f"--output={folders.pairs}")


def _call(*arguments: str) -> None:
    print(f"python {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, *arguments], check=False).returncode
    if status:
        sys.exit(status)  # the subcommand printed the error


def work(settings: Mapping[str, Any], folders: Folders, result: Path) -> None:
    """Does one job in this process, and writes its result."""
    name = settings["name"]
    made = KINDS[settings["kind"]](folders, name, settings, ConsoleProgress(line_every=60.0))
    write_whole(result, json.dumps(made))


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", OPTIONS)
    output, results = Path(chosen["output"]), ResultsFile(Path(chosen["results"]))
    check_value("--flops", chosen["flops"], at_least(BUDGETS[0]))
    if chosen["draw"]:
        print(ladder_report.draw(Plan(results.read(), output, chosen["flops"]), Path(chosen["draw"])), end="")
        return 0

    def plan(done: Results, assumed: Mapping[str, Any] | None = None) -> list[Job]:
        return Plan(done, output / "runs", chosen["flops"], assumed).jobs()

    return run(__file__, chosen, plan, ASSUMED)


def run(script: str, chosen: Mapping[str, Any], plan: Callable[..., list[Job]], assumed: Mapping[str, Any]) -> int:
    """Does what the options say, other than --draw: a job, a dry run, or all jobs.

    Args:
      script: the script that a worker runs.
      chosen: `OPTIONS` with the values that were given.
      plan: (results, what to assume of missing ones) -> the jobs.
      assumed: what a dry run assumes.

    Returns:
      The exit status.
    """
    output, results = Path(chosen["output"]), ResultsFile(Path(chosen["results"]))
    if chosen["job"]:
        work(json.loads(chosen["job"]), folders_in(output, chosen["data_dir"]), Path(chosen["result"]))
        return 0
    cli.require(chosen, ("input", "data_dir", "output"))
    for name in ("flops", "hours", "workers"):
        check_value(f"--{name}", chosen[name], above(0))
    if chosen["dry_run"]:
        done = results.read()
        print(cost(plan(done, assumed), done))
        return 0
    prepare(chosen["input"], folders_in(output, chosen["data_dir"]))

    def command(job: Job, result: Path) -> list[str]:
        settings = json.dumps({"name": job.name, **job.settings})
        options = [f"--output={output}", f"--data_dir={chosen['data_dir']}"]
        return [sys.executable, script, *options, f"--job={settings}", f"--result={result}"]

    with ConsoleProgress(line_every=300.0) as progress:
        finished = job_queue.run(
            plan, command, results, output, workers=chosen["workers"], hours=chosen["hours"], progress=progress
        )
    if not finished:
        print("not all jobs are done; the same command goes on")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
