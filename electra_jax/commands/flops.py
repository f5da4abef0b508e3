"""Prints operations: of the paper's runs, or of one config with its parts and the hours it takes."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.data import pipeline
from electra_jax.objectives import registry
from electra_jax.planning.flops import devices, paper_runs
from electra_jax.planning.flops.breakdown import Parts, together
from electra_jax.planning.flops.totals import ACCOUNTINGS, first_steps
from electra_jax.runtime.metric_text import short_number
from electra_jax.train_config import TrainConfig

USAGE = """\
usage: python -m electra_jax.flops [--config=FILE[:ARG]] [--config.NAME=VALUE ...] [--device=KIND] [--chips=N] [--mfu=X]
                                   [--json]

Without a config: training FLOPs of the runs in the ELECTRA paper's tables, as its script counts them and as the machine
must do them. With one: that run's tokens, FLOPs by part, and hours.

  --config=configs/base.py   which run; any argument and setting that training takes
  --device='TPU v3'          the hours on this kind of device only
  --chips=16                 how many of them (default 8)
  --mfu=0.4                  model FLOPs utilisation to reckon with (default 0.4)
  --json                     JSON instead of tables"""

_PARTS = tuple(Parts.__dataclass_fields__)


def runs_of_paper() -> list[dict[str, Any]]:
    """One object a run: name, what the paper prints, FLOPs in both accountings, and with the script's slip mended."""
    rows = []
    for run in (*paper_runs.RUNS, *paper_runs.OTHERS):
        rows.append(
            {
                "run": run.name,
                "printed": float(run.printed) if run.printed else None,
                "paper": run.paper(),
                "paper_corrected": run.paper(corrected=True),
                "model": run.model(),
            }
        )
    return rows


def one_run(config: TrainConfig, device: str, chips: int, mfu: float) -> dict[str, Any]:
    """A config's tokens, FLOPs by stage, network and part in both accountings, and hours by device."""
    prepared = pipeline.settings_of(Path(config.data.input))
    objective = registry.make(
        config.objective, config.model, config.steps, prepared.get("vocab_size", config.data.vocab_size)
    )
    batch, length = config.batch_size, config.data.seq_length
    stages: list[dict[str, Any]] = []
    start = 0
    for stage in objective.stages:
        counted = {name: lib.train_step(objective, batch, length, start) for name, lib in ACCOUNTINGS.items()}
        stages.append({"steps": stage.steps, **{name: _split(parts) for name, parts in counted.items()}})
        start += stage.steps
    phases = train_config.phases(config.data, config.steps)
    total = first_steps(objective, batch, phases, config.steps)
    kinds = devices.PEAK_FLOPS if not device else [device]
    hours = {}
    for kind in kinds:
        peak = devices.peak(kind, config.model.dtype)
        if peak is None:
            raise UserError(f"--device={kind} is not known; there are {', '.join(devices.PEAK_FLOPS)}")
        here = chips * devices.DEVICES_A_CHIP.get(devices.known(kind) or "", 1)
        hours[kind] = total["model"] / (peak * here * mfu) / 3600
    return {
        "objective": config.objective.name,
        "steps": config.steps,
        "batch": batch,
        "length": length,
        "tokens": sum(steps * batch * each for each, steps in phases),
        "stages": stages,
        "total": total,
        "chips": chips,
        "mfu": mfu,
        "precision": config.model.dtype,
        "hours": hours,
    }


def _split(networks: dict[str, Parts]) -> dict[str, Any]:
    parts = {name: {part: getattr(of, part) for part in _PARTS} for name, of in networks.items()}
    return {"total": together(networks), **parts}


def show_paper_runs(console: Console, rows: list[dict[str, Any]]) -> None:
    grid = Table(title="Training FLOPs of the paper's runs", title_justify="left")
    grid.add_column("run")
    for heading in ("printed", "paper", "corrected", "model"):
        grid.add_column(heading, justify="right")
    for row in rows:
        printed = f"{row['printed']:.1e}" if row["printed"] else "-"
        machine = f"{row['model']:.4e}" if row["model"] else "-"
        grid.add_row(row["run"], printed, f"{row['paper']:.6e}", f"{row['paper_corrected']:.4e}", machine)
    console.print(grid)
    console.print(
        "paper: by the conventions of the paper's script (flops/paper.py), its slips included: the layer norm after\n"
        "attention is counted once a position, and bert_large as 1M x 256. corrected: that layer norm in full.\n"
        "model: what the machine must do (flops/model.py), look-ups free, 3 x forward; - where it is no network\n"
        "of ours. electra_small_128: with the generator of width 128 that the printed 1.4e18 and its fractions\n"
        "take; as built it has 64. bert_large 464k x 2048: as the authors of ELECTRA trained it.",
        highlight=False,
    )


def show_run(console: Console, run: dict[str, Any]) -> None:
    console.print(
        f"{run['objective']}: {run['steps']:,} steps x {run['batch']} x {run['length']}, "
        f"{short_number(run['tokens'])} tokens",
        highlight=False,
    )
    for stage in run["stages"]:
        grid = Table(title=f"FLOPs of a step ({stage['steps']:,} such steps)", title_justify="left")
        for heading in ("network", "part"):
            grid.add_column(heading)
        for heading in ("model", "share", "paper", "share"):
            grid.add_column(heading, justify="right")
        for network in (name for name in stage["model"] if name != "total"):
            for part in _PARTS:
                values = [(stage[name][network][part], stage[name]["total"]) for name in ACCOUNTINGS]
                if any(value for value, _ in values):
                    cells = [cell for value, total in values for cell in (f"{value:.4e}", f"{value / total:.1%}")]
                    grid.add_row(network, part, *cells)
        totals = [cell for name in ACCOUNTINGS for cell in (f"{stage[name]['total']:.4e}", "100%")]
        grid.add_row("together", "", *totals, style="bold")
        console.print(grid)
    console.print(f"the whole run: {run['total']['model']:.4e} FLOPs (model), {run['total']['paper']:.4e} (paper)")
    grid = Table(title=f"Hours at {run['mfu']:.0%} MFU in {run['precision']}", title_justify="left")
    grid.add_column("device")
    grid.add_column("chips", justify="right")
    grid.add_column("hours", justify="right")
    for kind, hours in run["hours"].items():
        grid.add_row(kind, str(run["chips"]), f"{hours:,.1f}")
    console.print(grid)


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"config": "", "device": "", "chips": 8, "mfu": 0.4, "json": False}
    arguments = config_file.parse(argv, USAGE, options)
    if arguments is None:
        return 0
    given = arguments.options
    if not (given["chips"] > 0 and 0 < given["mfu"] <= 1):
        raise UserError(
            f"--chips={given['chips']} --mfu={given['mfu']} cannot be; give a chip or more, and 0 < mfu <= 1"
        )
    console = Console(soft_wrap=True)
    if arguments.config is None:
        if given != {**options, "config": given["config"], "json": given["json"]}:
            raise UserError("--device, --chips and --mfu are about a run; give it: --config=configs/base.py")
        rows = runs_of_paper()
        print(json.dumps(rows, indent=2)) if given["json"] else show_paper_runs(console, rows)
    else:
        run = one_run(train_config.resolve(arguments.config), given["device"], given["chips"], given["mfu"])
        print(json.dumps(run, indent=2)) if given["json"] else show_run(console, run)
    return 0
