"""The summary of runs side by side, as text: what was run, how far it is, what it has learned, on what, and where."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.runtime import progress
from electra_jax.runtime.progress import short
from electra_jax.runtime.run_log import Run, is_number

NONE = "–"
CHANCE = 0.5  # of an area under the ROC curve


class Cell(NamedTuple):
    """A number or a word in the summary.

    Attributes:
      text: as it is read.
      beside: its yardstick or unit, in small letters.
      exact: all figures, where `text` has not.
    """

    text: str
    beside: str = ""
    exact: str = ""


class Group(NamedTuple):
    """Rows under a heading: (what, a cell for each run)."""

    heading: str
    rows: list[tuple[str, list[Cell]]]


def yardstick(measure: str) -> str:
    """The held-out number that stands beside a loss, empty where none does."""
    return progress.LOSSES.get(measure, ("", ""))[1]


def name(measure: str) -> str:
    """A loss, an accuracy or an area in words: `mlm_loss` -> MLM loss."""
    if measure in progress.AREAS:
        return f"AUC, {progress.AREAS[measure]}"
    stem, _, kind = measure.rpartition("_")
    if f"{stem}_loss" in progress.LOSSES:
        said = progress.LOSSES[f"{stem}_loss"][0]
        return f"{said[0].upper()}{said[1:]} {kind}"
    return "Loss that is minimised" if measure == "loss" else measure.replace("_", " ").capitalize()


def measures(runs: Sequence[Run], suffix: str, heldout: bool) -> list[str]:
    """What any of the runs has logged a number of, with that ending, in the order that training prints it."""
    prefix = "heldout_" if heldout else ""
    there = {
        key.removeprefix(prefix)
        for run in runs
        for line in run.logged
        for key, value in line.items()
        if key.endswith(suffix) and key.startswith("heldout_") == heldout and is_number(value)
    }
    order = [*progress.LOSSES, *progress.AREAS]
    return sorted(there, key=lambda key: (order.index(key) if key in order else len(order), key))


def groups(runs: Sequence[Run]) -> list[Group]:
    """The summary of `runs`."""
    tables = [("Run", _RUN), ("Cost", _COST), ("Text", _TEXT), ("Made with", _MADE)]
    found = [Group(heading, [(what, [of(run) for run in runs]) for what, of in rows]) for heading, rows in tables]
    found.insert(2, Group("Held out, last", _heldout(runs)))
    kept = [
        Group(heading, [row for row in rows if any(cell.text != NONE for cell in row[1])]) for heading, rows in found
    ]
    return [group for group in kept if group.rows]


def _heldout(runs: Sequence[Run]) -> list[tuple[str, list[Cell]]]:
    last = [run.heldout() for run in runs]

    def loss(measure: str, numbers: dict[str, Any]) -> Cell:
        beside = yardstick(measure)
        there = is_number(numbers.get(beside))
        return _number(numbers.get(measure), f"{beside.split('_')[0]} {numbers[beside]:.3f}" if there else "", ".3f")

    def guessing(measure: str, numbers: dict[str, Any]) -> str:
        """What share is right of a detector that says the same of every token."""
        fakes = numbers.get("replaced_fraction")
        return f"constant {max(fakes, 1 - fakes):.3f}" if measure == "disc_accuracy" and is_number(fakes) else ""

    rows = [("at step", [_count(numbers.get("step")) for numbers in last])]
    for measure in measures(runs, "_loss", heldout=True):
        rows.append((name(measure), [loss(measure, numbers) for numbers in last]))
    for measure in measures(runs, "_auc", heldout=True):
        rows.append((name(measure), [_number(numbers.get(measure), f"chance {CHANCE}", ".3f") for numbers in last]))
    for measure in measures(runs, "_accuracy", heldout=True):
        rows.append(
            (name(measure), [_number(numbers.get(measure), guessing(measure, numbers), ".3f") for numbers in last])
        )
    return rows


def _steps(run: Run) -> Cell:
    step, steps = run.last["step"], run.settings["steps"]
    return Cell(f"{step:,} of {steps:,}", "" if step >= steps else f"{step / steps:.0%}")


def _encoder(run: Run) -> Cell:
    m = run.settings["model"]
    return Cell(
        f"{m.get('encoder', NONE)}, {m.get('layers', NONE)} × {m.get('width', NONE)}",
        f"FFN {m.get('ffn', NONE)} · {m.get('heads', NONE)} heads · embeddings {m.get('embedding_size', NONE)}",
    )


def _generator(run: Run) -> Cell:
    m = run.settings["model"]
    if all(is_number(m.get(part)) for part in ("layers", "width", "generator_layers", "generator_width")):
        layers, width = round(m["layers"] * m["generator_layers"]), round(m["width"] * m["generator_width"])
        return Cell(f"{m.get('encoder', NONE)}, {layers} × {width}", f"shared: {m['tying']}" if "tying" in m else "")
    return Cell(str(run.settings["objective"].get("generator", NONE)))


def _batch(run: Run) -> Cell:
    size, length = run.settings.get("batch_size"), run.settings["data"].get("seq_length")
    return Cell(f"{size} × {length}", "sequences × tokens") if size and length else Cell(NONE)


def _vocabulary(run: Run) -> Cell:
    try:
        return _count(len(tokenizer.kept_in(run.workdir)), "pieces")
    except UserError:  # there is none in the folder; then what was asked for
        return _count(run.settings["data"].get("vocab_size"), "pieces")


def _devices(run: Run) -> Cell:
    devices = run.environment.get("devices") or []
    return Cell(f"{len(devices)} × {devices[0]}", _processes(run)) if devices else Cell(NONE)


def _processes(run: Run) -> str:
    count = run.environment.get("processes", 1)
    return f"{count} processes" if count != 1 else ""


def _versions(run: Run) -> Cell:
    packages = run.environment.get("packages") or {}
    jax, *others = [f"{package} {packages[package]}" for package in ("jax", "flax") if package in packages] or [NONE]
    others += [f"python {run.environment['python']}"] if "python" in run.environment else []
    return Cell(jax, " · ".join(others), ", ".join(f"{package} {version}" for package, version in packages.items()))


def _commit(run: Run) -> Cell:
    commit = run.environment.get("commit") or ""
    said = "changed since" if commit.endswith("-dirty") else ""
    return Cell(commit[:10] or NONE, said, commit)


def _hours(run: Run) -> Cell:
    seconds = run.last.get("device_seconds")
    if not is_number(seconds):
        return Cell(NONE)
    return Cell(f"{seconds / 3600:.4g}", f"{seconds / 60:.3g} minutes" if seconds < 3600 else "", f"{seconds} seconds")


def _number(value: Any, beside: str = "", how: str = "") -> Cell:
    """A number as `how` says, or with an SI letter."""
    if not is_number(value):
        return Cell(NONE)
    return Cell(format(value, how) if how else short(value), beside, str(value))


def _count(value: Any, beside: str = "") -> Cell:
    return Cell(f"{value:,}", beside) if is_number(value) else Cell(NONE)


def _logged(key: str, how: str = "") -> Callable[[Run], Cell]:
    return lambda run: _number(run.last.get(key), how=how)


def _data(key: str) -> Callable[[Run], Cell]:
    return lambda run: Cell(str(run.settings["data"].get(key, NONE)))


_Rows = list[tuple[str, Callable[[Run], Cell]]]

_RUN: _Rows = [
    ("system", lambda run: Cell(run.system)),
    ("encoder, layers × width", _encoder),
    ("generator, layers × width", _generator),
    ("batch", _batch),
    ("steps", _steps),
]
_COST: _Rows = [
    ("tokens", _logged("total_tokens")),
    ("FLOPs", _logged("total_flops")),
    ("FLOPs, the paper's accounting", _logged("total_flops_paper")),
    ("device hours", _hours),
    ("model FLOPs utilisation", _logged("mfu", ".1%")),
]
_TEXT: _Rows = [
    ("input", _data("input")),
    ("vocabulary", _vocabulary),
    ("examples", _data("mode")),
    ("times seen", _logged("epoch", ".3g")),
]
_MADE: _Rows = [("devices", _devices), ("precision", lambda run: Cell(str(run.settings["model"].get("dtype", NONE))))]
_MADE += [("versions", _versions), ("commit of the code", _commit)]
