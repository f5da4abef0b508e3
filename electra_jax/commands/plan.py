"""Prints what a config's step needs on a slice, or which settings make it fit."""

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
from rich.console import Console
from rich.table import Table

from electra_jax import train_config
from electra_jax.config import cli, config_file
from electra_jax.config.errors import UserError
from electra_jax.planning.estimate import Plan, best, make, sweep
from electra_jax.runtime.metric_text import short_number

USAGE = """\
usage: python -m electra_jax.plan --config=FILE[:ARG] --topology=KIND:SHAPE [--slices=N] [--mfu=X] [--sweep] [--json]
                                  [--config.NAME=VALUE ...]

  --config=configs/base.py   which run; any argument and setting that training takes
  --topology=v3:4x4          which slice, chips along each dimension: v2, v3, v5e, v6e in two, v4, v5p, tpu7x in three
  --slices=1                 how many of them; the slower network between slices is not in the bound
  --mfu=0.4                  model FLOPs utilisation to reckon the days with, beside the bound (default 0.4)
  --sweep                    tries which parts of the batch (grad_accum_steps) and what computed again (model.remat) fit
  --json                     JSON instead of tables

It needs libtpu, which there is for Linux on x86: pip install 'electra_jax[tpu]'"""

_INSIDE = "ELECTRA_JAX_PLAN_INSIDE"  # set in the process that compiles
_GIB = 2.0**30
_LARGEST = 12  # lines of what moves most


def show(console: Console, plan: Plan) -> None:
    s, memory = plan.settings, plan.memory
    console.print(
        f"{plan.topology}: {plan.devices} devices ({plan.kind}) on {plan.hosts} host{'s' * (plan.hosts > 1)}, "
        f"data {s['data']} x fsdp {s['fsdp']} x tensor {s['tensor']} · {s['batch_size']} sequences a step in "
        f"{s['grad_accum_steps']} part{'s' * (s['grad_accum_steps'] > 1)} · remat {s['remat']} · compiled in "
        f"{plan.compile_seconds:.0f} s",
        highlight=False,
    )
    grid = Table(title="Memory of one device, GiB", title_justify="left")
    grid.add_column("what")
    grid.add_column("GiB", justify="right")
    for name, size in memory.items():
        last = name in ("total", "usable")
        grid.add_row(name, f"{size / _GIB:.2f}", style="bold" if last else "", end_section=name == "program")
    console.print(grid)
    console.print("it fits" if plan.fits else "it does not fit; try --sweep, or --config.mesh.fsdp", style="bold")
    console.print(
        f"FLOPs of a step: {plan.flops['model']:.4e} by our count, {plan.flops['xla']:.4e} by XLA's", highlight=False
    )
    if plan.seconds is not None:
        _show_traffic(console, plan)
        _show_time(console, plan)
    console.print(f"at {plan.mfu:.0%} MFU: {plan.days_at_mfu:.2f} days", highlight=False)


def _show_traffic(console: Console, plan: Plan) -> None:
    assert plan.moved is not None
    assert plan.largest is not None
    assert plan.collectives is not None
    grid = Table(
        title=f"Moved between memory and one device in a step: {plan.moved / 1e9:.1f} GB", title_justify="left"
    )
    grid.add_column("for")
    grid.add_column("GB", justify="right")
    grid.add_column("share", justify="right")
    for size, name in plan.largest[:_LARGEST]:
        grid.add_row(name, f"{size / 1e9:.2f}", f"{size / plan.moved:.1%}")
    rest = sum(size for size, _ in plan.largest[_LARGEST:])
    grid.add_row("all else", f"{rest / 1e9:.2f}", f"{rest / plan.moved:.1%}")
    console.print(grid)
    grid = Table(title="Between devices in a step", title_justify="left")
    for heading in ("collective", "times", "MB", "MB sent by each"):
        grid.add_column(heading, justify="left" if heading == "collective" else "right")
    for kind, each in plan.collectives.items():
        grid.add_row(kind, f"{each['times']:.0f}", f"{each['bytes'] / 1e6:.1f}", f"{each['sent'] / 1e6:.1f}")
    console.print(grid)


def _show_time(console: Console, plan: Plan) -> None:
    assert plan.seconds is not None
    assert plan.tokens_per_second is not None
    grid = Table(title="Time of a step at the least, ms", title_justify="left")
    grid.add_column("by")
    grid.add_column("ms", justify="right")
    for name, seconds in plan.seconds.items():
        grid.add_row(name, f"{seconds * 1e3:.1f}", style="bold" if name == plan.bound else "")
    console.print(grid)
    console.print(
        f"bound by {plan.bound}: {short_number(plan.tokens_per_second)} tokens/s at most, "
        f"{plan.days:.2f} days at the least",
        highlight=False,
    )


def line(plan: Plan) -> str:
    """A plan in a line."""
    s = plan.settings
    held = f"{plan.memory['total'] / _GIB:.2f} of {plan.memory['usable'] / _GIB:.2f} GiB"
    speed = f"{plan.step_seconds * 1e3:.1f} ms at the least" if plan.seconds else ""
    return (
        f"grad_accum_steps {s['grad_accum_steps']}, remat {s['remat']}: {_a_core(plan):g} sequences a core at once, "
        f"{held}, "
        f"{'fits' if plan.fits else 'does not fit'}{', ' + speed if speed else ''}"
    )


def _a_core(plan: Plan) -> float:
    s = plan.settings
    return float(s["batch_size"] / (s["grad_accum_steps"] * s["data"] * s["fsdp"]))


def show_sweep(console: Console, plans: Sequence[Plan], found: Plan | None) -> None:
    grid = Table(title=f"{plans[0].topology}: what fits", title_justify="left")
    for heading in ("grad_accum_steps", "remat", "a core at once", "GiB", "fits", "ms at the least", "days"):
        grid.add_column(heading, justify="right")
    for plan in plans:
        s = plan.settings
        grid.add_row(
            str(s["grad_accum_steps"]),
            s["remat"],
            f"{_a_core(plan):g}",
            f"{plan.memory['total'] / _GIB:.2f}",
            "yes" if plan.fits else "no",
            f"{plan.step_seconds * 1e3:.1f}" if plan.seconds else "-",
            f"{plan.days:.2f}" if plan.days else "-",
            style="bold" if plan is found else "",
        )
    console.print(grid)
    if found is None:
        console.print("nothing fits; use a larger slice, or --config.mesh.fsdp", style="bold")
    else:
        s = found.settings
        console.print(
            f"best: --config.grad_accum_steps={s['grad_accum_steps']} --config.model.remat={s['remat']}", style="bold"
        )


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"topology": "", "slices": 1, "mfu": 0.4, "sweep": False, "json": False}
    parsed = config_file.parse(argv, USAGE, options)
    if parsed is None:
        return 0
    given = parsed.options
    cli.require(given, ("topology",), "give a slice, as --topology=v3:4x4")
    if not (given["slices"] > 0 and 0 < given["mfu"] <= 1):
        raise UserError(
            f"--slices={given['slices']} --mfu={given['mfu']} cannot be; give a slice or more, and 0 < mfu <= 1"
        )
    jax.config.update("jax_platforms", "cpu")
    config = train_config.resolve(parsed.config)
    place = (given["topology"], given["slices"], given["mfu"])
    console = Console(soft_wrap=True, stderr=given["json"])
    if not given["sweep"]:
        plan = make(config, *place)
        print(json.dumps(dataclasses.asdict(plan), indent=2)) if given["json"] else show(console, plan)
        return 0
    plans = sweep(config, *place, say=lambda plan: console.print(line(plan), highlight=False))
    found = best(plans)
    if given["json"]:
        tried = [dataclasses.asdict(plan) for plan in plans]
        chosen = dataclasses.asdict(found) if found else None
        print(json.dumps({"fits": found is not None, "best": chosen, "tried": tried}, indent=2))
    else:
        show_sweep(console, plans, found)
    return 0


def guarded(_: list[str]) -> int:
    """`main` in a process of its own: what the TPU's compiler cannot do may end it with a page and a signal.

    Raises:
      UserError: it did.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.run(
            [sys.executable, "-m", "electra_jax", "plan", *sys.argv[1:]], env={**os.environ, _INSIDE: "1"}, stderr=said
        )
        said.seek(0)
        if child.returncode < 0:
            name = signal.Signals(-child.returncode).name
            raise UserError(
                f"the TPU's compiler itself failed on this step ({name}); try other settings (config.model.remat, "
                "config.grad_accum_steps, config.batch_size), or another libtpu"
            )
        sys.stderr.buffer.write(said.read())
    return child.returncode
