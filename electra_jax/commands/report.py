"""Writes a page about one or several runs."""

from pathlib import Path
from typing import Any

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import at_least, check_value
from electra_jax.report import curves, page, samples
from electra_jax.runtime import run_log
from electra_jax.runtime.io import write_whole

USAGE = """\
usage: python -m electra_jax.report --runs DIR [DIR ...] --output=FILE [--samples=N] [--curves=DIR]

Writes a page that shows runs side by side: what was run, held-out numbers beside their yardsticks, curves against
steps, FLOPs or time, the settings that differ, and held-out sentences with fakes in them. It is one file, which needs
no network. A run that is still going on can be shown too.

  --runs runs/a runs/b   work directories of runs
  --output=report.html   where the page goes
  --samples=5            sentences for each run that tells fakes, read from its last checkpoint; 0 for none
  --curves=DIR           a folder with curves.jsonl: scores of tasks against the FLOPs of pre-training"""


def main(argv: list[str]) -> int:
    options: dict[str, Any] = {"runs": (), "output": "", "samples": 5, "curves": ""}
    chosen = cli.parse(argv, USAGE, options)
    if chosen is None:
        return 0
    cli.require(chosen, ("runs",), "give work directories of runs: --runs runs/a runs/b")
    cli.require(chosen, ("output",), "try --output=report.html")
    check_value("--samples", chosen["samples"], at_least(0))
    output = Path(chosen["output"])
    if output.is_dir():
        raise UserError(f"--output={output} is a folder; give a file, as {output / 'report.html'}")
    if output.exists() and not output.is_file():  # a device, which would be replaced
        raise UserError(f"--output={output} is no file; give one, as report.html")
    if not output.parent.is_dir():
        raise UserError(f"{output.parent}, the folder of --output, is not there; make it, or give another")
    found = run_log.read([Path(each) for each in chosen["runs"]])
    tasks = curves.read(Path(chosen["curves"]), found) if chosen["curves"] else []
    asked = [samples.of(run, chosen["samples"]) for run in found] if chosen["samples"] else []
    written = page.page(found, asked, tasks)
    write_whole(output, written.encode("utf-8", "replace").decode("utf-8"))  # a path may be no UTF-8
    print(f"{output}: {len(found)} run{'s' * (len(found) > 1)}, {output.stat().st_size / 1000:.0f} kB")
    return 0
