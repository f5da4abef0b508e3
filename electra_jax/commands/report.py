"""`electra-jax report`: writes a page that compares runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_jax.config import cli
from electra_jax.config.settings import at_least, check_value
from electra_jax.report.page import make_page
from electra_jax.report.samples import make_samples
from electra_jax.report.task_scores import read_task_scores
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.run_log import read_run_logs

USAGE = """\
usage: electra-jax report --runs DIR [DIR ...] --output=FILE [--samples=N] [--curves=DIR]

Writes an HTML page that compares runs: summary, settings that differ, curves against steps, FLOPs or time, and held-out
sentences with replaced tokens. The page is one file and works without a network. Runs may still be in progress.

  --runs runs/a runs/b   work directories of runs
  --output=report.html   the file to write
  --samples=5            sample sentences of each run that detects replaced tokens, from its last checkpoint; 0: none
  --curves=DIR           output folder of `electra-jax curves`: adds task scores against pre-training FLOPs"""

_OPTIONS: Mapping[str, Any] = {"runs": (), "output": "", "samples": 5, "curves": ""}


def main(argv: list[str]) -> int:
    options = cli.parse(argv, USAGE, _OPTIONS)
    cli.require(options, ("runs",), "try --runs runs/a runs/b, or --help")
    cli.require(options, ("output",), "try --output=report.html, or --help")
    check_value("--samples", options["samples"], at_least(0))
    output = Path(options["output"])
    cli.check_output_file(output, "report.html")
    runs = read_run_logs([Path(workdir) for workdir in options["runs"]])
    tasks = read_task_scores(Path(options["curves"]), runs) if options["curves"] else []
    samples = [make_samples(run, options["samples"]) for run in runs] if options["samples"] else []
    html = make_page(runs, samples, tasks)
    # A path in the page may not be valid UTF-8.
    write_whole(output, html.encode("utf-8", "replace").decode("utf-8"))
    size = output.stat().st_size / 1000
    said = f"{output}: {len(runs)} run{'s' * (len(runs) > 1)}, {size:.0f} kB"
    PlainConsole().print(said)
    return 0
