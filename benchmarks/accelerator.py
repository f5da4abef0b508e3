"""Measures a machine with a GPU or a TPU and trains on it, a part in each call of some minutes.

    python benchmarks/accelerator.py speed --output=OUT [--only=NAME]
    python benchmarks/accelerator.py train --output=OUT --input=PREPARED [--minutes=9] [--steps=N] [--config=...]
    python benchmarks/accelerator.py score --output=OUT --data_dir=glue [--minutes=4]
    python benchmarks/accelerator.py report --output=OUT

speed: the train steps of `accelerator_steps.STEPS`, on random tokens. They compile in threads, the first ones first, on
half of the cores, and are measured while nothing compiles. OUT/steps.json has what is known so far, which is not
measured again. PyTorch beside them: benchmarks/step.py, as its help says.

train: pre-trains for --minutes, from the start of the process to the end of the export, in OUT/run, and exports to
OUT/exported. The schedule has --steps; by default as many as OUT/steps.json says that the time allows, less a minute
and a half. There is a checkpoint every two minutes. When the time is up, the run is saved and exported as it is; the
same call goes on with it. The config is budget:flops=1e17; or --config, with --steps, and --config.NAME, as in `train`.

score: fine-tunes OUT/exported on five of GLUE's tasks, side by side in processes of their own, three seeds each, with
what is best for small encoders (docs/howto/finetune.md, "For a small encoder").

Each part writes OUT/report.md, with tables of all of them. --rehearse shrinks the networks, to try it all on a CPU.
PREPARED comes from `electra-jax prepare --vocab_size=16384`. What a GPU computes is checked by
tests/modeling/test_gpu.py.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import accelerator_steps
import jax

import electra_jax
from electra_jax.config import cli, config_file, errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, check_value, one_of
from electra_jax.downstream.tasks import glue
from electra_jax.runtime import goodput, run_log
from electra_jax.runtime.compile_cache import AUTO, compile_cache
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.progress import ConsoleProgress

_OPTIONS: Mapping[str, Any] = {
    "output": "",
    "only": "",
    "input": "",
    "minutes": 9.0,
    "steps": 0,
    "data_dir": "",
    "rehearse": False,
}
_RECIPE = (f"--config={accelerator_steps.TRAINED}",)
_REHEARSED = (f"--config={accelerator_steps.TRAINED},runlocal",)
_RESERVED = 90.0  # seconds of `train` in which it does not train: it starts, compiles and exports
_TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
_MOST_EXAMPLES = 16_000  # of a task's training set, so that SST-2 takes as long as the others
_STEPS, _RUN, _EXPORTED, _SCORES = "steps.json", "run", "exported", "finetuned"


def main(argv: list[str]) -> int:
    part, *rest = argv or ["--help"]
    if part not in ("-h", "--help"):
        check_value("the part", part, one_of(*_PARTS))
    given = any(argument.partition("=")[0] == "--config" for argument in rest)
    recipe = () if given else _REHEARSED if "--rehearse" in rest else _RECIPE
    chosen = config_file.parse([*recipe, *rest] if part in _PARTS else argv, __doc__ or "", _OPTIONS)
    cli.require(chosen.options, ("output",))
    check_value("--minutes", chosen.options["minutes"], above(0))
    if part == "train" and given:  # the step that `speed` has measured is another one
        cli.require(chosen.options, ("steps",), "expected it with --config")
    output = Path(chosen.options["output"]).absolute()
    output.mkdir(parents=True, exist_ok=True)
    try:
        with compile_cache(AUTO):
            _PARTS[part](output, chosen)
    finally:
        text = report(output)
        write_whole(output / "report.md", text)
        print(text, end="")
    return 0


def speed(output: Path, chosen: config_file.Arguments) -> None:
    """Measures the steps whose names contain --only, and which have not been measured yet."""
    only, rehearse = chosen.options["only"], chosen.options["rehearse"]
    known, failed = read_steps(output), list[str]()
    device = jax.devices()[0].device_kind + ", rehearsed" * rehearse
    if known and (other := read_json(output / _STEPS)["device"]) != device:
        raise UserError(f"{output / _STEPS} is of {other}, and this is {device}: use another --output")
    wanted = {name: each for name, each in accelerator_steps.STEPS.items() if only in name}
    if not wanted:
        raise UserError(f"--only={only} is in no name of a step: expected part of {', '.join(accelerator_steps.STEPS)}")
    missing, at_once = [name for name in wanted if name not in known], max(1, (os.cpu_count() or 1) // 2)
    for begin in range(0, len(missing), at_once):
        with ThreadPoolExecutor(at_once) as pool:
            compiled = {
                name: pool.submit(accelerator_steps.compile_step, *wanted[name], rehearse)
                for name in missing[begin : begin + at_once]
            }
        # Only now: compilation tries kernels on the GPU, and a step that runs meanwhile waits for them.
        for name, done in compiled.items():
            try:
                known[name] = accelerator_steps.measure(done.result())
            except Exception:  # the machine may be rented: the other steps are measured first
                print(f"{name} failed: {traceback.format_exc()}", file=sys.stderr, flush=True)
                failed.append(name)
                continue
            write_whole(output / _STEPS, json.dumps({"device": device, "steps": known}, indent=1))
            print(f"{name}: {json.dumps(known[name])}", flush=True)
    if failed:
        raise UserError(f"{', '.join(failed)} failed, as standard error says; the others are in {output / _STEPS}")


def train(output: Path, chosen: config_file.Arguments) -> None:
    """Pre-trains until the steps are done or the time is up, and exports."""
    options, config = chosen.options, chosen.config
    cli.require(options, ("input",))
    assert config is not None
    seconds = 60 * options["minutes"] - (time.monotonic() - goodput.process_started())
    if seconds < _RESERVED:  # its end would come before `pretrain` can save what there is
        raise UserError(f"--minutes={options['minutes']:g} leaves {seconds:.0f} s: give {_RESERVED / 60 + 1:g} or more")
    config.data.input = options["input"]
    steps = options["steps"] or _steps_so_far(output) or _affordable(output, seconds - _RESERVED)
    config.steps, config.optim.warmup_steps = steps, max(1, min(config.optim.warmup_steps, steps // 10))
    config.log_every, config.eval_every = max(1, steps // 200), steps
    config.checkpoint.update(every=max(1, round(steps * 120 / seconds)), keep_last=1, keep_every=steps)
    clock = threading.Timer(max(0.0, seconds - _RESERVED / 3), os.kill, (os.getpid(), signal.SIGTERM))
    clock.start()
    try:
        electra_jax.pretrain(config, output / _RUN, ConsoleProgress(line_every=15.0))
    finally:
        clock.cancel()
    shutil.rmtree(output / _EXPORTED, ignore_errors=True)  # of an earlier call, which may have made fewer steps
    electra_jax.export(output / _RUN, output / _EXPORTED, dtype="float16")  # half as much to bring home


def _steps_so_far(output: Path) -> int:
    """The steps in the schedule of an earlier call; 0: there was none."""
    path = output / _RUN / "config.json"
    return int(read_json(path)["steps"]) if path.exists() else 0


def _affordable(output: Path, seconds: float) -> int:
    """How many steps of the run that is trained take so many seconds."""
    measured = read_steps(output).get(accelerator_steps.TRAINED)
    if measured is None:
        raise UserError(f"{output / _STEPS} has no {accelerator_steps.TRAINED}: give --steps, or run speed first")
    return max(1, int(1e3 * seconds / measured["milliseconds"]))


def score(output: Path, chosen: config_file.Arguments) -> None:
    """Fine-tunes the export; the same call goes on where an earlier one was stopped."""
    options = chosen.options
    cli.require(options, ("data_dir",))
    shrunk = ("runlocal",) if options["rehearse"] else ()
    running = []
    for task in _TASKS:
        folder = output / _SCORES / task
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "electra_jax", "finetune", f"--init_from={output / _EXPORTED}"),
            *(f"--config=glue:{','.join((f'task={task}', 'head=paper', *shrunk))}", f"--workdir={folder}"),
            *(f"--data_dir={glue.task_dir(options['data_dir'], task)}", "--keep=none", "--config.seeds=3"),
            *("--config.seeds_at_once=3", f"--config.examples={_MOST_EXAMPLES}"),
            *("--config.pooling=mean", "--config.optim.learning_rate=5e-4"),
        ]
        share = {"XLA_CLIENT_MEM_FRACTION": f"{0.9 / len(_TASKS):.2f}"}
        with (folder / "log.txt").open("w") as log:
            running.append(subprocess.Popen(command, env={**os.environ, **share}, stdout=log, stderr=log))
    end, failed = time.monotonic() + 60 * options["minutes"], list[str]()
    for task, process in zip(_TASKS, running, strict=True):
        try:
            status = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            status, ended = 0, "stopped, as the time is up"
        else:
            ended = f"exit status {status}"
        failed += [task] if status else []
        print(f"{task}: {ended}; {output / _SCORES / task / 'log.txt'}")
    if failed:
        raise UserError(f"{', '.join(failed)} failed; see log.txt of each in {output / _SCORES}")


_PARTS: Mapping[str, Callable[[Path, config_file.Arguments], None]] = {
    "speed": speed,
    "train": train,
    "score": score,
    "report": lambda output, chosen: None,
}


def read_steps(output: Path) -> dict[str, Any]:
    path = output / _STEPS
    return dict(read_json(path)["steps"]) if path.exists() else {}


def report(output: Path) -> str:
    """Markdown: what is known so far."""
    lines = [*accelerator_steps.table(read_steps(output)), ""]
    metrics = run_log.read_metrics(output / _RUN)
    if metrics:
        last = metrics[-1]
        names = ("step", "total_tokens", "total_flops", "tokens_per_second", "mfu", "mlm_loss", "disc_loss", "disc_auc")
        lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        cells = ("" if last.get(name) is None else f"{last[name]:.6g}" for name in names)
        lines += [f"| {' | '.join(cells)} |", ""]
    found = {task: output / _SCORES / task / "scores.json" for task in _TASKS}
    scores = {task: read_json(path) for task, path in found.items() if path.exists()}
    if scores:
        lines += ["| task | metric | median | seeds |", "|---|---|---|---|"]
        for task, each in scores.items():
            values = [seed["scores"][each["metric"]] for seed in each["seeds"]]
            median = statistics.median(values)
            lines.append(f"| {task} | {each['metric']} | {median:.1f} | {', '.join(f'{v:.1f}' for v in values)} |")
    return "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    sys.exit(errors.run(main))
