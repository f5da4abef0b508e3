"""Checks, measures and trains on GPUs or TPUs, in calls of some minutes each.

    python benchmarks/accelerator.py --input=PREPARED --output=OUT [--minutes=9] [--sizes small base large]
        [--shares 0.0625 0.125 0.25 0.5 1] [--data_dir=glue] [--rehearse]

1. Correctness: 20 steps of ELECTRA-Small, 16 sequences at a time, on the device in bfloat16 and on the CPU in float32
   and bfloat16.
2. Speed of the paper's small, base and large, in bfloat16: tokens/s, MFU and memory with the `grad_accum_steps` and
   `model.remat` that are fastest here, and where the time goes. On NVIDIA's GPUs also without dropout of attention
   weights, with which cuDNN's kernels cannot be used.
3. ELECTRA-Small for 6.25%, 12.5%, ... of the paper's steps, each with a schedule of its own, exported at its end.
4. With --data_dir, the folder with GLUE's folders: each of these runs fine-tuned on five tasks with three seeds.

After --minutes, what runs is stopped; the same command goes on where it was. OUT/results.jsonl has a line for each
finished job. OUT/report.md has tables; they are also printed. PREPARED comes from `electra-jax prepare
--vocab_size=30522`. The fine-tuning can be left to another machine: give it OUT, --data_dir and JAX_PLATFORMS=cpu.
--rehearse shrinks the networks, and has 1/1000 of the steps; without --input it reads docstrings of Python.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import job_queue
from accelerator_jobs import KINDS, Folders
from accelerator_plan import ON_CPU, SHARES, SIZES, Plan, report
from job_queue import Job, Results, ResultsFile

from electra_jax.config import cli, errors
from electra_jax.config.settings import above, check_value, one_of
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.progress import ConsoleProgress

_OPTIONS: Mapping[str, Any] = {
    "input": "",
    "output": "",
    "data_dir": "",
    "minutes": 9.0,
    "sizes": SIZES,
    "shares": tuple(map(str, SHARES)),
    "rehearse": False,
    "job": "",  # of a worker: the settings of its job, and the file for the result
    "result": "",
}
_MEMORY = "0.92"  # the share of a GPU's memory that JAX takes; its own default is .75


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    if chosen is None:
        return 0
    cli.require(chosen, ("output",) if chosen["rehearse"] else ("input", "output"))
    output = Path(chosen["output"]).absolute()
    folders = Folders(chosen["input"], chosen["data_dir"], output)
    if chosen["job"]:
        settings = json.loads(chosen["job"])
        made = KINDS[settings["kind"]](folders, settings, ConsoleProgress(line_every=30.0))
        write_whole(Path(chosen["result"]), json.dumps(made))
        return 0
    check_value("--minutes", chosen["minutes"], above(0))
    for size in chosen["sizes"]:
        check_value("--sizes", size, one_of(*SIZES))
    shares = [cli.convert("--shares", text, 0.0) for text in chosen["shares"]]
    for share in shares:
        check_value("--shares", share, above(0))

    def plan(done: Results) -> Plan:
        return Plan(done, chosen["sizes"], shares, bool(chosen["data_dir"]), chosen["rehearse"])

    def command(job: Job, result: Path) -> list[str]:
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(output / "compiled"),
            "XLA_CLIENT_MEM_FRACTION": os.environ.get("XLA_CLIENT_MEM_FRACTION", _MEMORY),
            **({"JAX_PLATFORMS": "cpu"} if job.name == ON_CPU else {}),
        }
        options = [f"--{name}={chosen[name]}" for name in ("input", "output", "data_dir")]
        worker = [sys.executable, __file__, *options, f"--job={json.dumps(job.settings)}", f"--result={result}"]
        worker += ["--rehearse"] if chosen["rehearse"] else []
        return ["env", *(f"{name}={value}" for name, value in environment.items()), *worker]

    (output / "compiled").mkdir(parents=True, exist_ok=True)
    results = ResultsFile(output / "results.jsonl")
    try:
        with ConsoleProgress(line_every=60.0) as progress:
            finished = job_queue.run(
                lambda done: plan(done).jobs(),
                command,
                results,
                output,
                workers=1,
                hours=chosen["minutes"] / 60,
                progress=progress,
                pinned=False,
            )
    finally:
        text = report(plan(results.read()))
        write_whole(output / "report.md", text)
        print(text, end="")
    if not finished:
        print("not all jobs are done; the same command goes on")
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
