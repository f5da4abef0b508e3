"""`electra-jax flops`: prints the FLOPs of the paper's runs, or of one config with its parts and hours."""

import dataclasses
import json
from typing import Any

from electra_jax.config import config_file
from electra_jax.config.errors import UserError
from electra_jax.flops import devices, paper_runs
from electra_jax.flops.count import RunFlops, count_flops
from electra_jax.flops.hardware import Parts
from electra_jax.flops.totals import ACCOUNTINGS
from electra_jax.runtime.console import PlainConsole, table_of
from electra_jax.runtime.metric_text import short_number

USAGE = """\
usage: electra-jax flops [--config=NAME[:ARG]] [--config.NAME=VALUE ...] [--device=KIND] [--chips=N] [--mfu=X] [--json]

Without a config: training FLOPs of the runs in the ELECTRA paper's tables, as its script counts them and as the
hardware must do them. With a config: that run's tokens, FLOPs by part, and hours.

  --config=base      the run, with any argument and setting that `electra-jax train` takes
  --device='TPU v3'  hours on this kind of device only
  --chips=16         number of chips (default 8)
  --mfu=0.4          model FLOPs utilization to estimate hours with (default 0.4)
  --json             JSON instead of tables"""

_PARTS = tuple(Parts.__dataclass_fields__)


def paper_rows() -> list[dict[str, Any]]:
    """Returns a dict per run of the paper: printed FLOPs, both accountings, and `paper` without the script's error."""
    return [
        {
            "run": run.name,
            "printed": float(run.printed) if run.printed else None,
            "paper": run.paper(),
            "paper_corrected": run.paper(corrected=True),
            "model": run.model(),
        }
        for run in (*paper_runs.RUNS, *paper_runs.OTHERS)
    ]


def config_report(run: RunFlops, device: str, chips: int, mfu: float) -> dict[str, Any]:
    """Returns the report about a config: its FLOPs, and the hours on one kind of device or on all known ones."""
    segments = [
        {"steps": segment.steps, "batch": segment.batch, "length": segment.length}
        | {
            name: {"total": segment.total[name]}
            | {network: dataclasses.asdict(parts) for network, parts in networks.items()}
            for name, networks in segment.networks.items()
        }
        for segment in run.segments
    ]
    hours = {kind: run.hours(kind, chips, mfu) for kind in ([device] if device else devices.PEAK_FLOPS)}
    return {**vars(run), "segments": segments, "chips": chips, "mfu": mfu, "hours": hours}


def show_paper_runs(console: PlainConsole, rows: list[dict[str, Any]]) -> None:
    grid = table_of("Training FLOPs of the paper's runs", ["run"], ["printed", "paper", "corrected", "model"])
    for row in rows:
        printed = f"{row['printed']:.1e}" if row["printed"] else "-"
        model = f"{row['model']:.4e}" if row["model"] else "-"
        grid.add_row(row["run"], printed, f"{row['paper']:.6e}", f"{row['paper_corrected']:.4e}", model)
    console.print(grid)
    console.print(
        "paper: the conventions of the paper's script, including its errors: the layer norm after attention counts\n"
        "once per position, and bert_large is 1M x 256. corrected: that layer norm in full. model: operations that\n"
        "the hardware must do, look-ups free, 3 x forward; - where the network is not one of ours.\n"
        "electra_small_128: with the generator of width 128 that the printed 1.4e18 assumes; as built it has 64.\n"
        "bert_large 464k x 2048: as trained by the authors of ELECTRA.",
    )


def show_run(console: PlainConsole, run: dict[str, Any]) -> None:
    console.print(
        f"{run['objective']}: {run['steps']:,} steps x {run['batch']} x {run['length']}, "
        f"{short_number(run['tokens'])} tokens",
    )
    for segment in run["segments"]:
        title = f"FLOPs of a step of {segment['batch']} x {segment['length']} ({segment['steps']:,} such steps)"
        grid = table_of(title, ["network", "part"], ["model", "share", "paper", "share"])
        for network in (name for name in segment["model"] if name != "total"):
            for part in _PARTS:
                values = [(segment[name][network][part], segment[name]["total"]) for name in ACCOUNTINGS]
                if any(value for value, _ in values):
                    cells = [cell for value, total in values for cell in (f"{value:.4e}", f"{value / total:.1%}")]
                    grid.add_row(network, part, *cells)
        totals = [cell for name in ACCOUNTINGS for cell in (f"{segment[name]['total']:.4e}", "100%")]
        grid.add_row("total", "", *totals, style="bold")
        console.print(grid)
    console.print(f"the whole run: {run['total']['model']:.4e} FLOPs (model), {run['total']['paper']:.4e} (paper)")
    grid = table_of(f"Hours at {run['mfu']:.0%} MFU in {run['precision']}", ["device"], ["chips", "hours"])
    for kind, hours in run["hours"].items():
        grid.add_row(kind, str(run["chips"]), f"{hours:,.1f}")
    console.print(grid)


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"config": "", "device": "", "chips": 8, "mfu": 0.4, "json": False}
    arguments = config_file.parse(argv, USAGE, options)
    given = arguments.options
    console = PlainConsole()
    if arguments.config is None:
        # A value that differs from its default would have no effect.
        if given != {**options, "config": given["config"], "json": given["json"]}:
            raise UserError("--device, --chips and --mfu need a run; add --config=base")
        rows = paper_rows()
        print(json.dumps(rows, indent=2)) if given["json"] else show_paper_runs(console, rows)
    else:
        report = config_report(count_flops(arguments.config), given["device"], given["chips"], given["mfu"])
        print(json.dumps(report, indent=2)) if given["json"] else show_run(console, report)
    return 0
