"""`electra-jax prepare`: turns documents into a vocabulary and tokenized records."""

import logging
import shlex
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, describe, within
from electra_jax.data import pipeline
from electra_jax.data.config import CorpusConfig, corpus_settings
from electra_jax.data.corpus import CorpusReport, SourceReport
from electra_jax.data.documents import NOT_UTF8
from electra_jax.data.local_runner import LocalRunner
from electra_jax.data.runner import Runner
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import ConsoleProgress

_MOST_WORKERS = 4096  # more than any machine has cores
_FEW = 0.01  # broken documents among all that are no reason to think of another encoding
_LINE_EVERY = 60.0  # seconds between two lines of progress without a terminal

_USAGE = """\
usage: electra-jax prepare --input=SOURCES --output=DIR [--name=value ...]

Turns documents into a vocabulary and tokenized records in DIR, to train on with --config.data.input=DIR. After an
interruption, the same command continues after the finished shards.

--input and --output are required; the defaults of all other settings are shown below.

  --output=DIR    the folder for the corpus
  --workers=N     number of processes (default: one per core)
  --beam=OPTIONS  use Apache Beam instead, with these pipeline options: '--runner=DirectRunner'. All its machines must
                  see DIR. Needs pip install 'electra_jax[beam]'

Files: JSON lines have one object per line, Parquet and Arrow one record per row, WET and WARC one page per record; all
others are text with one sentence or paragraph per line and blank lines between documents. They may be compressed (.gz,
.xz, .bz2, .zst), or in tar and zip archives. What a file is, its first bytes say before its name.

"""


def main(argv: list[str]) -> int:
    options = {**corpus_settings(CorpusConfig()), "input": "", "output": "", "workers": 0, "beam": ""}
    given = cli.read(argv, _USAGE + describe(CorpusConfig, "--"), options)
    chosen = cli.choose(given, options)
    console = PlainConsole()
    # gcsfs also raises what it logs.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    cli.require(chosen, ("input", "output"), "try --input='data/*.txt' --output=data/prepared, or --help")
    report = pipeline.prepare(
        chosen["output"],
        runner=_runner(chosen),
        progress=ConsoleProgress(console, line_every=_LINE_EVERY),
        **{name: chosen[name] for name in given if name in corpus_settings(CorpusConfig())},
    )
    _show(console, report)
    console.print(f"\nTrain on it with --config.data.input={shlex.quote(chosen['output'])}")
    return 0


def _runner(chosen: dict[str, Any]) -> Runner:
    check_value("--workers", chosen["workers"], within(0, _MOST_WORKERS))
    if not chosen["beam"]:
        return LocalRunner(chosen["workers"])
    if chosen["workers"]:
        raise UserError("--workers has no effect with --beam; leave it out, and set the workers in the options of Beam")
    # Here, because Beam is an optional dependency.
    from electra_jax.data.beam_runner import BeamRunner

    return BeamRunner(chosen["beam"])


def _show(console: PlainConsole, report: CorpusReport) -> None:
    documents, tokens = report.documents, report.tokens
    facts = Table.grid(padding=(0, 3))
    facts.add_row("documents", f"{documents['train']:,} to train on, {documents['heldout']:,} held out")
    facts.add_row("tokens", f"{short_number(tokens['train'])} to train on, {short_number(tokens['heldout'])} held out")
    facts.add_row("text", f"{report.bytes / 1e6:,.1f} MB in {report.lines:,} lines")
    facts.add_row("bytes per token", f"{report.bytes_per_token:.2f}")
    facts.add_row("unknown tokens", f"{report.unknown_rate:.3%}")
    facts.add_row("shards", str(report.shards))
    console.print(facts)
    if len(report.sources) > 1:
        console.print("\nsources, by their share of the training examples")
        console.print(_list_sources(report.sources))
        for source in report.sources:
            if not source.tokens["heldout"]:
                console.print(f"{source.label} has no held-out document, so held-out metrics do not cover it")
    console.print("\ndocuments by length in tokens")
    console.print(_histogram(report.lengths))
    console.print("\nlongest documents")
    grid = Table.grid(padding=(0, 3))
    grid.add_column(justify="right")
    grid.add_column(min_width=max((len(place) for _, place, _ in report.longest), default=0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for length, place, head in report.longest:
        grid.add_row(f"{length:,}", place, head)
    console.print(grid)
    for note, (count, place) in report.notes.items():
        console.print(f"\n{note}: {count:,}, the first at {place}")
        if note == NOT_UTF8 and count > _FEW * sum(documents.values()):
            console.print("So many mean another encoding: convert the files, for example with iconv -f cp1252 -t utf-8")
    if report.left_out["files"]:
        text = f"\nfiles of other kinds, left out: {report.left_out['files']:,}, the first {report.left_out['first']}"
        console.print(text)


def _list_sources(sources: Sequence[SourceReport]) -> Table:
    grid = Table.grid(padding=(0, 3))
    grid.add_column(min_width=max(len(source.label) for source in sources))
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row("in metrics", "share", "tokens", "held out", "source")
    for source in sorted(sources, key=lambda source: -source.share):
        counts = [short_number(source.tokens[split]) for split in ("train", "heldout")]
        grid.add_row(source.label, f"{source.share:.2%}", *counts, source.name)
    return grid


def _histogram(counts: Sequence[int]) -> Table:
    rows = [(i, count) for i, count in enumerate(counts) if count]
    most = max((count for _, count in rows), default=1)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_column(justify="right")
    for i, count in rows:
        # Entry i counts lengths of i binary digits.
        label = "none" if i == 0 else "1" if i == 1 else f"{2 ** (i - 1):,} to {2**i - 1:,}"
        # At least one block, so that rare lengths show.
        grid.add_row(label, "█" * max(1, round(40 * count / most)), f"{count:,}")
    return grid
