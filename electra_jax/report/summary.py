"""Summarizes runs side by side, as text: the run, its cost, held-out metrics, its data, and its environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.objectives import registry
from electra_jax.runtime.goodput import CATEGORIES
from electra_jax.runtime.metric_text import AREAS, short_number
from electra_jax.runtime.run_log import HELDOUT, Evaluation, RunLog, is_number

NONE = "–"
CHANCE = 0.5  # area under the ROC curve of a random detector


class Cell(NamedTuple):
    """A cell of the summary.

    Attributes:
      text: a number or a word.
      beside: a baseline, a unit or details, in small print.
      exact: the number with all its digits, if `text` is shortened.
    """

    text: str
    beside: str = ""
    exact: str = ""


class Group(NamedTuple):
    """Rows under a heading, each with a name and a cell for each run."""

    heading: str
    rows: list[tuple[str, list[Cell]]]


def baseline_of(metric: str) -> str:
    """Returns the metric that is the baseline of a loss; empty if it has none."""
    loss = registry.losses().get(metric)
    return loss.baseline if loss else ""


def title_of(metric: str) -> str:
    """Returns the title of a loss, an accuracy or an AUC: `mlm_loss` -> MLM loss."""
    if metric in AREAS:
        return f"AUC, {AREAS[metric]}"
    stem, _, kind = metric.rpartition("_")
    if loss := registry.losses().get(f"{stem}_loss"):
        # Not by `capitalize`, which makes MLM Mlm.
        return f"{loss.name[0].upper()}{loss.name[1:]} {kind}"
    return "Total loss" if metric == "loss" else metric.replace("_", " ").capitalize()


def logged_metrics(runs: Sequence[RunLog], suffix: str, heldout: bool) -> list[str]:
    """Returns the metrics ending in `suffix` that any run has logged as a number, in the order of training's output."""
    prefix = HELDOUT if heldout else ""
    names = {
        name.removeprefix(prefix)
        for run in runs
        for line in run.metrics
        for name, value in line.items()
        if name.endswith(suffix) and name.startswith(HELDOUT) == heldout and is_number(value)
    }
    order = [*registry.losses(), *AREAS]
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def logged_sources(runs: Sequence[RunLog]) -> list[str]:
    """Returns the mixture sources with held-out metrics in the log of any run, in the order of the log."""
    return list(dict.fromkeys(source for run in runs for each in run.evaluations() for source in each.by_source))


def make_groups(runs: Sequence[RunLog]) -> list[Group]:
    """Returns the summary of `runs`, without rows that are empty for all of them."""
    tables = [("Run", _RUN), ("Cost", _COST), ("Data", _DATA), ("Environment", _ENVIRONMENT)]
    groups = [
        Group(heading, [(name, [make_cell(run) for run in runs]) for name, make_cell in rows])
        for heading, rows in tables
    ]
    # Step 0 stands for a run without an evaluation.
    last = [run.heldout() or Evaluation(0, {}) for run in runs]
    at_step = ("at step", [_count(evaluation.step or None) for evaluation in last])
    groups[2:2] = [
        Group("Last held-out evaluation", [at_step, *_heldout_rows(runs, [each.metrics for each in last])]),
        *(
            Group(
                f"Last held-out evaluation of {source}",
                _heldout_rows(runs, [each.by_source.get(source, {}) for each in last]),
            )
            for source in logged_sources(runs)
        ),
    ]
    groups = [
        Group(heading, [row for row in rows if any(cell.text != NONE for cell in row[1])]) for heading, rows in groups
    ]
    return [group for group in groups if group.rows]


def _heldout_rows(runs: Sequence[RunLog], last: Sequence[Mapping[str, float]]) -> list[tuple[str, list[Cell]]]:
    """Returns rows for the losses, AUCs and accuracies among the last metrics of each run."""
    rows = []
    kinds: list[tuple[str, Callable[[str, Mapping[str, float]], str]]] = [
        ("_loss", _loss_baseline),
        ("_auc", lambda metric, numbers: f"chance {CHANCE}"),
        ("_accuracy", _accuracy_baseline),
    ]
    for suffix, baseline in kinds:
        for metric in logged_metrics(runs, suffix, heldout=True):
            cells = [_number(each.get(metric), baseline(metric, each), ".3f") for each in last]
            rows.append((title_of(metric), cells))
    return rows


def _loss_baseline(metric: str, numbers: Mapping[str, float]) -> str:
    baseline = baseline_of(metric)
    return f"{baseline.split('_')[0]} {numbers[baseline]:.3f}" if baseline in numbers else ""


def _accuracy_baseline(metric: str, numbers: Mapping[str, float]) -> str:
    """Returns the accuracy of a detector that gives every token the same answer."""
    replaced = numbers.get("replaced_fraction")
    if metric != "disc_accuracy" or replaced is None:
        return ""
    return f"constant {max(replaced, 1 - replaced):.3f}"


def _steps(run: RunLog) -> Cell:
    step = run.last["step"]
    return Cell(f"{step:,} of {run.steps:,}", "" if step >= run.steps else f"{step / run.steps:.0%}")


def _encoder(run: RunLog) -> Cell:
    # With `get` throughout, because another version's config may lack a setting.
    m = run.settings["model"]
    return Cell(
        f"{m.get('encoder', NONE)}, {m.get('layers', NONE)} × {m.get('width', NONE)}",
        f"FFN {m.get('ffn', NONE)} · {m.get('heads', NONE)} heads · embeddings {m.get('embedding_size', NONE)}",
    )


def _generator(run: RunLog) -> Cell:
    m = run.settings["model"]
    if all(is_number(m.get(part)) for part in ("layers", "width", "generator_layers", "generator_width")):
        layers, width = round(m["layers"] * m["generator_layers"]), round(m["width"] * m["generator_width"])
        return Cell(f"{m.get('encoder', NONE)}, {layers} × {width}", f"shared: {m['tying']}" if "tying" in m else "")
    return Cell(str(run.settings["objective"].get("generator", NONE)))


def _batch(run: RunLog) -> Cell:
    size, length = run.settings.get("batch_size"), run.settings["data"].get("seq_length")
    phases = str(run.settings.get("phases", ""))
    return Cell(f"{size} × {length}", phases or "sequences × tokens") if size and length else Cell(NONE)


def _vocabulary(run: RunLog) -> Cell:
    try:
        size = len(tokenizer.load_from_folder(run.workdir))
    except UserError:  # the folder has no tokenizer
        size = run.settings["data"].get("vocab_size")
    return _count(size, "pieces")


def _devices(run: RunLog) -> Cell:
    devices = run.environment.get("devices") or []
    processes = run.environment.get("processes", 1)
    return Cell(
        f"{len(devices)} × {devices[0]}" if devices else NONE, f"{processes} processes" if processes != 1 else ""
    )


def _versions(run: RunLog) -> Cell:
    packages = run.environment.get("packages") or {}
    jax, *others = [f"{package} {packages[package]}" for package in ("jax", "flax") if package in packages] or [NONE]
    others += [f"python {run.environment['python']}"] if "python" in run.environment else []
    return Cell(jax, " · ".join(others), ", ".join(f"{package} {version}" for package, version in packages.items()))


def _commit(run: RunLog) -> Cell:
    commit = run.environment.get("commit") or ""
    return Cell(commit[:10] or NONE, "with uncommitted changes" if commit.endswith("-dirty") else "", commit)


def _hours(run: RunLog) -> Cell:
    seconds = run.last.get("device_seconds")
    if not is_number(seconds):
        return Cell(NONE)
    return Cell(f"{seconds / 3600:.4g}", f"{seconds / 60:.3g} minutes" if seconds < 3600 else "", f"{seconds} seconds")


def _goodput(run: RunLog) -> Cell:
    """Returns the fraction of the time spent in steps, and beside it the other categories, the largest first."""
    share = run.last.get("goodput")
    seconds = {name: run.last.get(f"total_seconds_{name}") for name in CATEGORIES}
    known = {name: value for name, value in seconds.items() if is_number(value)}
    total = sum(known.values())
    if not is_number(share) or total <= 0:
        return Cell(NONE)
    # Less than .5% would be shown as 0%.
    rest = sorted((name for name in known if name != "step" and known[name] / total >= 0.005), key=lambda n: -known[n])
    beside = " · ".join(f"{name} {known[name] / total:.0%}" for name in rest)
    return Cell(f"{share:.1%}", beside, ", ".join(f"{name} {value:.1f} s" for name, value in known.items()))


def _number(value: Any, beside: str = "", spec: str = "") -> Cell:
    """Returns a cell with a number, formatted by `spec` or shortened with an SI prefix."""
    if not is_number(value):
        return Cell(NONE)
    return Cell(format(value, spec) if spec else short_number(value), beside, str(value))


def _count(value: Any, beside: str = "") -> Cell:
    return Cell(f"{value:,}", beside) if is_number(value) else Cell(NONE)


def _logged(metric: str, spec: str = "") -> Callable[[RunLog], Cell]:
    return lambda run: _number(run.last.get(metric), spec=spec)


def _data_setting(name: str) -> Callable[[RunLog], Cell]:
    return lambda run: Cell(str(run.settings["data"].get(name, NONE)))


_Rows = list[tuple[str, Callable[[RunLog], Cell]]]

_RUN: _Rows = [
    ("objective", lambda run: Cell(run.objective)),
    ("encoder, layers × width", _encoder),
    ("generator, layers × width", _generator),
    ("batch", _batch),
    ("steps", _steps),
]
_COST: _Rows = [
    ("tokens", _logged("total_tokens")),
    ("FLOPs", _logged("total_flops")),
    ("FLOPs as the paper counts them", _logged("total_flops_paper")),
    ("device hours", _hours),
    ("model FLOPs utilization", _logged("mfu", ".1%")),
    ("goodput", _goodput),
]
_DATA: _Rows = [
    ("input", _data_setting("input")),
    ("vocabulary", _vocabulary),
    ("examples", _data_setting("mode")),
    ("epochs", _logged("epoch", ".3g")),
]
_ENVIRONMENT: _Rows = [
    ("devices", _devices),
    ("precision", lambda run: Cell(str(run.settings["model"].get("dtype", NONE)))),
    ("versions", _versions),
    ("commit", _commit),
]
