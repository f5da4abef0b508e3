"""`electra-jax score`: accuracy on minimal pairs, of which a model should score the good text higher."""

from pathlib import Path

import numpy as np
from rich.table import Table

from electra_jax.config import cli
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above, check_value, one_of
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.loading.model import SCORES, load
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.run_log import unique_names

USAGE = """\
usage: electra-jax score --model=DIR --input='FILE;FOLDER' [--by=detection|masks|one_pass] [--good=COLUMN]
                         [--bad=COLUMN] [--batch_size=16]

Accuracy on minimal pairs such as BLiMP's: the fraction of pairs in which the good text scores higher than the bad one.
Ties count as errors. Several folders also get a mean each.

  --model=DIR          a run's work directory, a directory that electra-jax export wrote, or a Hugging Face directory
  --input='FILE;FOLDER'
                       .jsonl, .tsv or .csv files with a pair in each row, or folders of such files
  --by=masks           the score: the sum of log(1 - p(replaced)) by the discriminator (detection), or of log p(token)
                       by the MLM head of encoder or generator, each token masked in turn (masks) or none (one_pass);
                       default: detection, or masks if the encoder has an MLM head
  --good=COLUMN        the column of the good text (default sentence_good)
  --bad=COLUMN         the column of the bad text (default sentence_bad)
  --batch_size=16      batch size, in texts"""

_SUFFIXES = (".jsonl", ".tsv", ".csv")
_OPTIONS = {"model": "", "input": "", "by": "", "good": "sentence_good", "bad": "sentence_bad", "batch_size": 16}


def main(argv: list[str]) -> int:
    options = cli.parse(argv, USAGE, _OPTIONS)
    cli.require(options, ("model", "input"), "try --model=runs/tiny --input=blimp, or --help")
    check_value("--batch_size", options["batch_size"], above(0))
    if options["by"]:
        check_value("--by", options["by"], one_of(*SCORES))
    columns = (options["good"], options["bad"])
    # By resolved path: a folder that is named twice counts once.
    found = {Path(name).resolve(): _find(name) for name in filter(None, options["input"].split(";"))}
    if not found:
        raise UserError(
            f"--input={options['input']} names no file: expected files and folders, separated by semicolons"
        )
    # Before the model is loaded: an error in a file shows at once.
    pairs = {path: _read(path, columns) for paths in found.values() for path in paths}
    model = load(options["model"], batch_size=options["batch_size"])
    table = Table("file", "pairs", "accuracy")
    accuracies: dict[Path, float] = {}
    for name, (path, (good, bad)) in zip(unique_names(list(pairs)), pairs.items(), strict=True):
        # Strictly higher: a tie is an error.
        higher = model.score(good, by=options["by"] or None) > model.score(bad, by=options["by"] or None)
        accuracies[path] = 100 * float(higher.mean())
        table.add_row(name, f"{len(good):,}", f"{accuracies[path]:.1f}")
    folders = [folder for folder in found if folder.is_dir()]
    if len(found) > 1:
        for name, folder in zip(unique_names(folders), folders, strict=True):
            table.add_row(f"mean of {name}", "", f"{np.mean([accuracies[path] for path in found[folder]]):.1f}")
    if len(accuracies) > 1:
        table.add_row("mean of the files", "", f"{np.mean([*accuracies.values()]):.1f}")
    console = PlainConsole()
    for note in model.notes:
        console.print(note, style="dim")
    console.print(table)
    return 0


def _find(name: str) -> list[Path]:
    path = Path(name)
    inside = [path]
    if path.is_dir():
        # The order of a listing differs between file systems.
        inside = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
    if not inside or not inside[0].is_file() or inside[0].suffix not in _SUFFIXES:
        raise UserError(f"--input={name} is invalid: expected a .jsonl, .tsv or .csv file, or a folder of such files")
    return inside


def _read(path: Path, columns: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Reads the good and the bad texts of a file."""
    good, bad = columns
    rows = BadRows(advice="fix or remove it")
    texts: tuple[list[str], list[str]] = ([], [])
    for record in files.read_records(path, columns, rows):
        for name, column in zip(columns, texts, strict=True):
            text = record.values[name]
            if not isinstance(text, str) or not text.strip():
                rows.add(record.place, f"{name} is {text!r}, expected a text")
            column.append(text)
    if not texts[0]:
        raise UserError(f"{path} has no pairs: expected rows with {good} and {bad}; give another file")
    return texts
