"""Turns documents into a vocabulary and tokenised records: `python -m electra_jax.prepare --input=... --output=DIR`."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import validate
from electra_jax.data import cleaning, corpus, pipeline, shards
from electra_jax.data.config import VOCABULARY_TRAINING, CorpusConfig, corpus_settings
from electra_jax.data.local_runner import Done, LocalRunner, Watch
from electra_jax.runtime.io import write_whole
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import ConsoleProgress

USAGE = """\
usage: python -m electra_jax.prepare --input=SOURCES --output=DIR [--vocab_size=30522] [--workers=N] [...]

Turns documents into a vocabulary and tokenised records in DIR, to be trained on with --config.data.input=DIR. Started
again after a kill, it goes on from the shards that are finished.

  --input=SOURCES            files, a folder, a glob ('data/*.txt.xz'), tfds:NAME/CONFIG, or docstrings; several with
                             semicolons between, each with its share of the training examples after an @, or none with
                             any: 'wiki/*.txt@3;books/*.jsonl.gz@1'
                             .jsonl, .ndjson, .json: an object a line; .parquet; all else is text: a sentence or a
                             paragraph a line, a blank line between documents. Each plain, .gz, .xz, .bz2 or .zst
  --output=DIR               where the records go
  --workers=N                processes (default: one a core)
  --beam=OPTIONS             instead of them Apache Beam, with these options: '--runner=DirectRunner'; all its machines
                             must see DIR (pip install 'electra_jax[beam]')
  --verify=DIR               instead: reads a prepared text again and checks every file

text
  --field=text               where the text is in JSON lines, Parquet and TFDS
  --documents=blank_line     ends a document in text files; or file: each is one document
  --heldout_fraction=0.02    share of the documents that is kept from training
  --shard_mb=8               megabytes of text a shard

vocabulary
  --vocabulary=FILE          use this one: a SentencePiece model, a tokenizer.json, or a vocab.txt of WordPieces (of a
                             cased model: with --normalization=nmt_nfkc)
  --vocab_size=30522         otherwise train one of so many pieces
  --model_type=unigram       or bpe
  --normalization=nmt_nfkc_cf  SentencePiece's; nmt_nfkc keeps upper case; identity changes nothing
  --byte_fallback            a character that is no piece becomes its bytes instead of [UNK]
  --character_coverage=0.9995  share of the text's characters that are pieces; 1 where the script is small
  --sample_mb=20             megabytes of text that it is trained on, drawn from the whole"""


_LINE_EVERY = 60.0  # seconds, where there is no terminal to draw a bar on


class Bar(Watch):
    """Shows the stages of preparation. A context."""

    def __init__(self, console: Console):
        self._progress = ConsoleProgress(console, _LINE_EVERY)
        self._begun = 0.0

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.say(text)

    def begin(self, stage: str) -> None:
        self._begun = time.monotonic()
        self._progress.start(stage)

    def advance(self, done: Done) -> None:
        elapsed = time.monotonic() - self._begun or 1e-9
        self._progress.update(done.share, f"{done.documents:,} documents · {done.bytes / elapsed / 1e6:.1f} MB/s")


def hands(chosen: dict[str, Any], folder: Path, watch: Watch) -> pipeline.Runner:
    """Who does the work: this machine, or those of an Apache Beam runner."""
    if not chosen["beam"]:
        return LocalRunner(chosen["workers"], watch)
    from electra_jax.data.beam_runner import BeamRunner  # an extra

    return BeamRunner(chosen["beam"], folder, watch)


def report(folder: Path) -> dict[str, Any]:
    """What is to be known of a prepared text."""
    manifest = corpus.read_manifest(folder)
    made = [shards.Shard(**shard) for shard in manifest["shards"]]
    tokens = {split: sum(shard.tokens[split] for shard in made) for split in shards.SPLITS}
    size = sum(shard.bytes for shard in made)
    return {
        "documents": {split: sum(shard.documents[split] for shard in made) for split in shards.SPLITS},
        "tokens": tokens,
        "bytes": size,
        "bytes_per_token": size / max(1, sum(tokens.values())),
        "lines": sum(shard.lines for shard in made),
        "unknown_rate": sum(shard.unknown for shard in made) / max(1, sum(tokens.values())),
        "shards": len(made),
        "left_out": manifest["left_out"],
        "lengths": [sum(counts) for counts in zip(*(shard.lengths for shard in made), strict=True)],
        "longest": shards.longest(entry for shard in made for entry in shard.longest),
        "notes": cleaning.merge(shard.notes for shard in made),
    }


def show(console: Console, folder: Path, found: dict[str, Any]) -> None:
    """Prints a report."""
    documents, tokens = found["documents"], found["tokens"]
    facts = Table.grid(padding=(0, 3))
    facts.add_row("documents", f"{documents['train']:,} to train on, {documents['heldout']:,} held out")
    facts.add_row("tokens", f"{short_number(tokens['train'])} to train on, {short_number(tokens['heldout'])} held out")
    facts.add_row("text", f"{found['bytes'] / 1e6:,.1f} MB in {found['lines']:,} lines")
    facts.add_row("bytes a token", f"{found['bytes_per_token']:.2f}")
    facts.add_row("unknown tokens", f"{found['unknown_rate']:.3%}")
    facts.add_row("shards", str(found["shards"]))
    console.print(facts)
    console.print("\ndocuments by length in tokens")
    console.print(_histogram(found["lengths"]))
    console.print("\nlongest documents")
    grid = Table.grid(padding=(0, 3))
    grid.add_column(justify="right")
    grid.add_column(min_width=max((len(place) for _, place, _ in found["longest"]), default=0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for length, place, head in found["longest"]:
        grid.add_row(f"{length:,}", place, head)
    console.print(grid, markup=False, highlight=False)
    for kind, (count, place) in found["notes"].items():
        console.print(f"\n{kind}: {count:,}, the first at {place}", markup=False, highlight=False)
    if (left := found["left_out"])["files"]:
        console.print(
            f"\nfiles left out, of other kinds: {left['files']:,}, the first {left['first']}",
            markup=False,
            highlight=False,
        )
    console.print(f"\nTrain on it with --config.data.input={folder}", markup=False, highlight=False)


def _histogram(counts: Iterable[int]) -> Table:
    rows = [(i, count) for i, count in enumerate(counts) if count]
    most = max((count for _, count in rows), default=1)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_column(justify="right")
    for i, count in rows:
        label = "none" if i == 0 else "1" if i == 1 else f"{2 ** (i - 1):,} to {2**i - 1:,}"
        grid.add_row(label, "█" * max(1, round(40 * count / most)), f"{count:,}")
    return grid


def main(argv: list[str]) -> int:
    options = {**corpus_settings(CorpusConfig()), "input": "", "output": "", "workers": 0, "beam": "", "verify": ""}
    given = cli.read(argv, USAGE, options)
    if given is None:
        return 0
    chosen = cli.choose(given, options)
    console = Console(soft_wrap=True)
    if chosen["verify"] and len(given) > 1:
        raise UserError("--verify takes no other option; give it alone")
    if chosen["beam"] and "workers" in given:
        raise UserError("--workers are of this machine; with --beam leave it out, and give the runner's own options")
    if chosen["verify"]:
        folder = Path(chosen["verify"])
        console.print(f"{corpus.verify(folder)} files of {folder} are as they were written", highlight=False)
        return 0
    cli.require(chosen, ("input", "output"), "try --input='data/*.txt' --output=data/prepared, or --help")
    useless = given.keys() & {*VOCABULARY_TRAINING} if chosen["vocabulary"] else set()
    if useless:
        raise UserError(f"--{sorted(useless)[0]} is of a vocabulary to be trained; leave it out, or --vocabulary")
    if chosen["workers"] < 0:
        raise UserError(f"--workers={chosen['workers']} cannot be; give 1 or more")
    if corpus.is_prepared(Path(chosen["input"])):
        raise UserError(f"{chosen['input']} is a prepared text; train on it with --config.data.input={chosen['input']}")
    if "normalization" in given and chosen["vocabulary"] and not chosen["vocabulary"].endswith(".txt"):
        raise UserError("--normalization is that of the vocabulary which is given; leave it out, or --vocabulary")
    settings = CorpusConfig(**{name: chosen[name] for name in corpus_settings(CorpusConfig())})
    validate(settings, "--")
    folder = Path(chosen["output"])

    if corpus.is_prepared(folder):
        if corpus.read_manifest(folder)["key"] != pipeline.corpus_key(settings):
            raise UserError(f"{folder} holds a text prepared from other sources or settings; give another --output")
        console.print(f"{folder} is prepared already", highlight=False)
    else:
        with Bar(console) as bar:
            pipeline.prepare(folder, settings, hands(chosen, folder, bar))
    found = report(folder)
    write_whole(folder / "report.json", json.dumps(found, indent=1) + "\n")
    show(console, folder, found)
    return 0
