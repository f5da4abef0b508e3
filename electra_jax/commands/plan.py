"""`electra-jax plan`: estimates a config's train step on TPU slices or GPUs, or finds settings that make it fit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import jax

from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.planning.estimate import Plan, best, estimate, sweep
from electra_jax.planning.targets import is_tpu
from electra_jax.runtime.console import PlainConsole, table_of
from electra_jax.runtime.metric_text import short_number

USAGE = """\
usage: electra-jax plan --config=NAME[:ARG] --topology=KIND:SHAPE [--slices=N] [--mfu=X] [--sweep] [--json]
                        [--config.NAME=VALUE ...]

Compiles the train step of a config for TPU slices or NVIDIA GPUs, without having them, and estimates memory and time.

  --config=base      the run, with any argument and setting that `electra-jax train` takes
  --topology=v3:4x4  a TPU slice, chips along each dimension: two for v2, v3, v5e, v6e, three for v4, v5p, tpu7x
  --topology=h100:8  GPUs of one machine: a100-40, a100-80, h100, h200, l4 or rtx4090, and how many (1 to 8)
  --slices=1         number of TPU slices (default 1); the slower network between slices is not in the bound
  --mfu=0.4          model FLOPs utilization to estimate days with, in addition to bound and forecast (default 0.4)
  --sweep            try which grad_accum_steps and model.remat fit, and print the fastest
  --json             JSON instead of tables

It needs Linux on x86 and a compiler: for TPUs libtpu, pip install 'electra_jax[tpu]'; for GPUs JAX's CUDA plugin,
pip install 'electra_jax[cuda]' (3.8 GB)."""

# Set in the child process, which compiles: a file descriptor of the command's standard error.
_INSIDE = "ELECTRA_JAX_PLAN_INSIDE"
_GIB = 2.0**30
_LARGEST = 12  # number of operations listed by their traffic
_FORECAST = {
    "compiler": "the compiler's cycles",
    "kernels": "Pallas kernels",
    "collectives": "collectives that nothing hides",
    "copies": "copies that nothing hides",
    "other": "without an estimate",
    "products": "matrix products",
    "attention": "attention kernels",
    "memory": "other kernels, by their bytes",
    "launches": "starts of kernels",
}


def show(console: PlainConsole, plan: Plan) -> None:
    s, memory = plan.settings, plan.memory
    console.print(
        f"{plan.topology}: {plan.devices} devices ({plan.kind}) on {plan.hosts} host{'s' * (plan.hosts > 1)}, "
        f"data {s['data']} x fsdp {s['fsdp']} x tensor {s['tensor']} · {s['batch_size']} sequences a step in "
        f"{s['grad_accum_steps']} part{'s' * (s['grad_accum_steps'] > 1)} · remat {s['remat']} · "
        f"attention {s['attention']} · compiled in {plan.compile_seconds:.0f} s",
    )
    grid = table_of("Memory of one device", ["kind"], ["GiB"])
    for name, size in memory.items():
        last = name in ("total", "usable")
        grid.add_row(name, f"{size / _GIB:.2f}", style="bold" if last else "", end_section=name == "program")
    console.print(grid)
    console.print("It fits." if plan.fits else "It does not fit; try --sweep or --config.mesh.fsdp", style="bold")
    console.print(
        f"FLOPs of a step: {plan.flops['model']:.4e} (model), {plan.flops['paper']:.4e} (paper), "
        f"{plan.flops['xla']:.4e} (XLA)",
    )
    if plan.seconds is not None:
        _show_traffic(console, plan)
        _show_time(console, plan)
    console.print(f"at {plan.mfu:.0%} MFU: {plan.days_at_mfu:.2f} days")


def _show_traffic(console: PlainConsole, plan: Plan) -> None:
    assert plan.moved is not None
    assert plan.largest is not None
    assert plan.collectives is not None
    title = f"Memory traffic of one device in a step: {plan.moved / 1e9:.1f} GB"
    grid = table_of(title, ["operation"], ["GB", "share"])
    for size, name in plan.largest[:_LARGEST]:
        grid.add_row(name, f"{size / 1e9:.2f}", f"{size / plan.moved:.1%}")
    rest = sum(size for size, _ in plan.largest[_LARGEST:])
    grid.add_row("other", f"{rest / 1e9:.2f}", f"{rest / plan.moved:.1%}")
    console.print(grid)
    grid = table_of("Collectives of a step", ["collective"], ["times", "MB", "MB sent by each"])
    for kind, each in plan.collectives.items():
        grid.add_row(kind, f"{each['times']:.0f}", f"{each['bytes'] / 1e6:.1f}", f"{each['sent'] / 1e6:.1f}")
    console.print(grid)


def _show_time(console: PlainConsole, plan: Plan) -> None:
    assert plan.seconds is not None
    assert plan.tokens_per_second is not None
    grid = table_of("Lower bounds on the time of a step", ["resource"], ["ms"])
    for name, seconds in plan.seconds.items():
        grid.add_row(name, f"{seconds * 1e3:.1f}", style="bold" if name == plan.bound else "")
    if plan.forecast is not None and plan.forecast_seconds is not None:
        grid.add_section()
        for name, seconds in plan.forecast.items():
            if seconds:
                grid.add_row(f"forecast: {_FORECAST[name]}", f"{seconds * 1e3:.1f}")
        grid.add_row("forecast", f"{plan.forecast_seconds * 1e3:.1f}", style="bold")
    console.print(grid)
    console.print(
        f"bound by {plan.bound}: at most {short_number(plan.tokens_per_second)} tokens/s, "
        f"at least {plan.days:.2f} days",
    )
    if plan.forecast_days is not None:
        console.print(f"forecast: {plan.forecast_mfu:.1%} MFU, {plan.forecast_days:.2f} days")
    for seconds, name in plan.unestimated or ():
        console.print(f"estimated without the compiler: {name}, taken as {seconds * 1e3:.2f} ms")


def line(plan: Plan) -> str:
    """Formats a plan as one line."""
    s = plan.settings
    memory = f"{plan.memory['total'] / _GIB:.2f} of {plan.memory['usable'] / _GIB:.2f} GiB"
    speed = f"at least {max(plan.seconds.values()) * 1e3:.1f} ms" if plan.seconds else ""
    speed += f", forecast {plan.forecast_seconds * 1e3:.1f} ms" if plan.forecast_seconds else ""
    return (
        f"grad_accum_steps {s['grad_accum_steps']}, remat {s['remat']}: "
        f"{_per_device(plan):g} sequences per device at a time, "
        f"{memory}, {'fits' if plan.fits else 'does not fit'}{', ' + speed if speed else ''}"
    )


def _per_device(plan: Plan) -> float:
    s = plan.settings
    return float(s["batch_size"] / (s["grad_accum_steps"] * s["data"] * s["fsdp"]))


def show_sweep(console: PlainConsole, plans: Sequence[Plan], fastest: Plan | None) -> None:
    headings = ["grad_accum_steps", "remat", "sequences per device", "GiB", "fits", "least ms", "forecast ms", "days"]
    grid = table_of(f"{plans[0].topology}: settings that fit", [], headings)
    for plan in plans:
        s = plan.settings
        grid.add_row(
            str(s["grad_accum_steps"]),
            s["remat"],
            f"{_per_device(plan):g}",
            f"{plan.memory['total'] / _GIB:.2f}",
            "yes" if plan.fits else "no",
            f"{max(plan.seconds.values()) * 1e3:.1f}" if plan.seconds else "-",
            f"{plan.forecast_seconds * 1e3:.1f}" if plan.forecast_seconds else "-",
            f"{days:.2f}" if (days := plan.forecast_days or plan.days) else "-",
            style="bold" if plan is fastest else "",
        )
    console.print(grid)
    if fastest is None:
        console.print("Nothing fits; use a larger slice or --config.mesh.fsdp", style="bold")
    else:
        s = fastest.settings
        console.print(
            f"best: --config.grad_accum_steps={s['grad_accum_steps']} --config.model.remat={s['remat']}", style="bold"
        )


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"topology": "", "slices": 1, "mfu": 0.4, "sweep": False, "json": False}
    parsed = config_file.parse(argv, USAGE, options)
    given = parsed.options
    cli.require(given, ("topology",), "try --topology=v3:4x4 or h100:8, or --help")
    if _INSIDE not in os.environ:
        return _run_in_child(argv, given["topology"])
    # The target need not exist here; this process uses no accelerator of this machine.
    jax.config.update("jax_platforms", "cpu")
    target = (given["topology"], given["slices"], given["mfu"])
    # With --json, standard output has nothing but the JSON value. The child's own standard error is shown at its end.
    shown = os.fdopen(int(os.environ[_INSIDE]), "w", closefd=False) if given["json"] else None
    console = PlainConsole(file=shown)
    if not given["sweep"]:
        plan = estimate(parsed.config, *target)
        print(json.dumps(dataclasses.asdict(plan), indent=2)) if given["json"] else show(console, plan)
        return 0
    plans = sweep(parsed.config, *target, on_plan=lambda plan: console.print(line(plan)))
    fastest = best(plans)
    if given["json"]:
        tried = [dataclasses.asdict(plan) for plan in plans]
        chosen = dataclasses.asdict(fastest) if fastest else None
        print(json.dumps({"fits": fastest is not None, "best": chosen, "tried": tried}, indent=2))
    else:
        show_sweep(console, plans, fastest)
    return 0


def _run_in_child(argv: list[str], topology: str) -> int:
    """Runs `main` in a child process, because the TPU compiler aborts the process if it cannot compile a program.

    Raises:
      UserError: the compiler aborted the process, or the system killed it.
    """
    command = [sys.executable, "-m", "electra_jax", "plan", *argv]
    # Standard error is held back: if the compiler aborts, one line replaces its page of text.
    with tempfile.TemporaryFile() as errors, os.fdopen(os.dup(sys.stderr.fileno()), "w") as shown:
        inside, kept = {**os.environ, _INSIDE: str(shown.fileno())}, [shown.fileno()]
        child = subprocess.run(command, env=inside, stderr=errors, pass_fds=kept, check=False)
        errors.seek(0)
        if child.returncode == -signal.SIGKILL:
            raise UserError(
                "the compiler was killed (SIGKILL), most likely because this machine's memory did not suffice: set "
                "--config.model.unroll=false, which compiles with less, or plan on a machine with more memory"
            )
        # A signal ended the child.
        if child.returncode < 0:
            name = signal.Signals(-child.returncode).name
            compiler, package = ("TPU", "libtpu") if is_tpu(topology) else ("CUDA", "version of JAX's CUDA plugin")
            raise UserError(
                f"the {compiler} compiler crashed on this step ({name}): change config.model.remat, "
                f"config.grad_accum_steps or config.batch_size, or install another {package}"
            )
        sys.stderr.buffer.write(errors.read())
    return child.returncode
