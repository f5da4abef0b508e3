"""The table, the figure and the ranking of benchmarks/ladder.py, from its results alone."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ladder_jobs import FINE_EPOCHS, MODERN
from ladder_plan import (
    AGAIN,
    BAG_OF_WORDS,
    BUDGETS,
    LARGEST_FOR_ALL,
    SEEDS,
    SYSTEMS,
    TASKS,
    TUNED_ALONE,
    UNTRAINED,
    VARIANTS,
    VARIED_TASK,
    Plan,
    power,
)
from scipy.stats import t as students_t

from electra_jax.config.errors import UserError
from electra_jax.downstream.curves import AVERAGE
from electra_jax.report import curve_plots
from electra_jax.report.curve_plots import Line
from electra_jax.runtime.io import write_whole

TABLE, FIGURE = "ladder.md", "ladder"
_CONTROLS = {UNTRAINED: "untrained encoder", BAG_OF_WORDS: "bag of words"}

Scores = dict[str, dict[int, float]]  # task -> seed -> score


class Entry(NamedTuple):
    """A run with all its scores.

    Attributes:
      system: the objective, or a control.
      flops: the budget; 0 for a control.
      run: the name of the run.
      scores: by task and seed.
      frozen: by task, of linear models on frozen states; empty for a bag of words.
      seed: of pre-training.
    """

    system: str
    flops: float
    run: str
    scores: Scores
    frozen: Mapping[str, float]
    seed: int = 0

    def averages(self) -> list[float]:
        """The average over the tasks, for each seed."""
        return [statistics.mean(self.scores[task][seed] for task in TASKS) for seed in SEEDS]

    def error(self) -> float:
        """The standard error of the average over tasks and seeds, from the variance between seeds."""
        variances = (statistics.variance(self.scores[task].values()) / len(SEEDS) for task in TASKS)
        return math.sqrt(sum(variances)) / len(TASKS)


class Difference(NamedTuple):
    """How much better one run's average is than another's, with its 95% interval, and on how many tasks it is."""

    mean: float
    margin: float
    better_on: int

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.margin:.1f} ({self.better_on} of {len(TASKS)} tasks)"


def entries(plan: Plan) -> list[Entry]:
    """The controls and the runs whose scores are complete, by budget."""
    found = [(control, 0.0, UNTRAINED, 0) for control in _CONTROLS]
    runs = [plan.run_of(system, flops) for flops in BUDGETS for system in plan.systems(flops)]
    runs += [plan.run_of(system, LARGEST_FOR_ALL, AGAIN) for system in TUNED_ALONE]
    found += [(run.system, run.flops, run.name, run.seed) for run in sorted(runs, key=lambda run: run.flops)]
    complete = []
    for system, flops, run, seed in found:
        jobs = {task: plan.scores_of(system, run, task) for task in TASKS}
        results = {task: plan.results[job.name] for task, job in jobs.items() if job and job.name in plan.results}
        if len(results) == len(TASKS):
            scores = {task: {int(seed): x for seed, x in results[task]["scores"].items()} for task in TASKS}
            frozen = {} if system == BAG_OF_WORDS else plan.results.get(f"probe/{run}", {})
            complete.append(Entry(system, flops, run, scores, frozen, seed))
    return complete


def difference(one: Entry, other: Entry) -> Difference:
    """The difference of two averages, seed by seed.

    Its variance is that of the differences between seeds within a task, pooled over the tasks. It knows nothing of
    other tasks, and nothing of other seeds of pre-training.
    """
    count = len(SEEDS)
    pairs = {task: [one.scores[task][seed] - other.scores[task][seed] for seed in SEEDS] for task in TASKS}
    variance = sum(statistics.variance(values) / count for values in pairs.values()) / len(TASKS) ** 2
    freedom = len(TASKS) * (count - 1)
    means = [statistics.mean(values) for values in pairs.values()]
    margin = float(students_t.ppf(0.975, freedom)) * math.sqrt(variance)
    return Difference(statistics.mean(means), margin, sum(mean > 0 for mean in means))


class Saving(NamedTuple):
    """How many times fewer FLOPs one system needs than another to reach a score, with its 95% interval.

    A curve has ends: `most` is the ratio if the score is reached at the smallest budget or before, and `least` the
    one if it is reached at the largest; beyond them a ratio is not known, and is `most` or 0.
    """

    ratio: float
    low: float
    high: float
    least: float
    most: float

    def __str__(self) -> str:
        if not self.ratio or self.low >= self.most:
            return self._text(self.ratio)
        return f"{self._text(self.ratio)} ({self._text(self.low)} to {self._text(self.high)})"

    def _text(self, ratio: float) -> str:
        if ratio < self.least:
            return f"less than {self.least:.1f}"
        return f"{ratio:.1f}{' or more' if ratio >= self.most else ''}"


def saving(curve: Sequence[Entry], other: Entry) -> Saving:
    """How many times fewer FLOPs the system of `curve` needs for the average of `other`.

    The curve is linear in the logarithm of FLOPs between its budgets. The interval is that of 10,000 draws in which all
    averages vary normally by their standard errors over seeds of fine-tuning.
    """
    curve = sorted(curve, key=lambda entry: entry.flops)
    flops = [entry.flops for entry in curve]

    def ratio(averages: Sequence[float], wanted: float) -> float:
        if averages[0] >= wanted:
            return other.flops / flops[0]
        for (x, below), (y, above) in itertools.pairwise(zip(flops, averages, strict=True)):
            if above >= wanted:
                return float(other.flops / (x * (y / x) ** ((wanted - below) / (above - below))))
        return 0.0

    means = [statistics.mean(entry.averages()) for entry in (*curve, other)]
    errors = [entry.error() for entry in (*curve, other)]
    draws = np.random.default_rng(0).normal(means, errors, (10_000, len(means)))
    low, high = np.quantile([ratio(draw[:-1], draw[-1]) for draw in draws], (0.025, 0.975))
    least, most = other.flops / flops[-1], other.flops / flops[0]
    return Saving(ratio(means[:-1], means[-1]), float(low), float(high), least, most)


def table(found: Sequence[Entry], plan: Plan) -> str:
    """Markdown: scores of every run, differences between systems at each budget, and FLOPs saved."""
    metrics = {task: _metric(plan, task) for task in TASKS}
    heads = [f"{task} ({metric})" for task, metric in metrics.items()]
    lines = [
        f"| FLOPs | system | shape | tokens | {' | '.join(heads)} | average | frozen | word order |",
        "|---|---|---|---|" + "---|" * (len(TASKS) + 3),
    ]
    for entry in found:
        cells = [_spread(list(entry.scores[task].values())) for task in TASKS]
        frozen = statistics.mean(entry.frozen[task] for task in TASKS) if entry.frozen else None
        if entry.flops:
            tokens = f"{plan.results[f'pretrain/{entry.run}']['tokens'] / 1e6:.1f}M"
            name = f"`{entry.system}`{f', seed {entry.seed}' if entry.seed else ''}"
            first = [power(entry.flops), name, entry.run.split("-")[2], tokens]
        else:
            first = ["", _CONTROLS[entry.system], "", ""]
        last = (f"{x:.1f}" if x is not None else "" for x in (frozen, entry.frozen.get("word_order")))
        lines.append(f"| {' | '.join([*first, *cells, _spread(entry.averages()), *last])} |")
    once = [entry for entry in found if not entry.seed]
    return "\n".join([*lines, "", *_ranking(once), "", *_savings(once), *_variants(found, plan)]) + "\n"


def _ranking(found: Sequence[Entry]) -> list[str]:
    """At each budget the systems from the best on, each minus the untrained encoder and minus the next one."""
    untrained = next((entry for entry in found if entry.system == UNTRAINED), None)
    lines = ["| FLOPs | system | minus the untrained encoder | minus the next system |", "|---|---|---|---|"]
    for flops in BUDGETS:
        ranked = sorted((e for e in found if e.flops == flops), key=lambda e: -statistics.mean(e.averages()))
        for one, other in itertools.zip_longest(ranked, ranked[1:]):
            cells = [str(difference(one, each)) if each else "" for each in (untrained, other)]
            lines.append(f"| {power(flops)} | `{one.system}` | {' | '.join(cells)} |")
    return lines


def _savings(found: Sequence[Entry]) -> list[str]:
    """How many times fewer FLOPs `electra` needs than the others, and configs/modern.py than `electra`.

    The aim is what the other system reaches with its largest budget. The score of an untrained encoder is reached
    without any FLOPs, so nothing can be saved on it.
    """
    curves = {system: [entry for entry in found if entry.system == system] for system in SYSTEMS}
    untrained = next((entry for entry in found if entry.system == UNTRAINED), None)
    pairs = [("electra", other) for other in SYSTEMS if other not in ("electra", MODERN)]
    lines = ["| system | reaches the average of | with fewer FLOPs, times |", "|---|---|---|"]
    for system, other in [*pairs, (MODERN, "electra")]:
        if curves[system] and curves[other]:
            largest = max(curves[other], key=lambda entry: entry.flops)
            gain = difference(largest, untrained) if untrained else None
            shown = gain is None or gain.mean > gain.margin
            cell = saving(curves[system], largest) if shown else "which shows no gain over the untrained encoder"
            lines.append(f"| `{system}` | `{other}` at {power(largest.flops)} | {cell} |")
    return lines


def _variants(found: Sequence[Entry], plan: Plan) -> list[str]:
    """The scores of `VARIED_TASK` in other ways of fine-tuning, beside the usual one of the same runs."""
    rows = []
    for entry in found:
        if entry.system != UNTRAINED and not entry.seed:
            continue
        jobs = [plan.variant_of(entry.system, LARGEST_FOR_ALL, variant) for variant in VARIANTS]
        results = [plan.results.get(job.name) if job else None for job in jobs]
        if any(results):
            name = _CONTROLS.get(entry.system, f"`{entry.system}`, seed {entry.seed}")
            scores = [entry.scores[VARIED_TASK], *(result["scores"] if result else {} for result in results)]
            cells = (_spread(list(each.values())) if each else "" for each in scores)
            rows.append(f"| {name} | {' | '.join(cells)} |")
    if not rows:
        return []
    what = f"{VARIED_TASK} ({_metric(plan, VARIED_TASK)}), {power(LARGEST_FOR_ALL)} FLOPs"
    heads = [what, f"{FINE_EPOCHS} epochs, mean of the states", *VARIANTS]
    return ["", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *rows]


def _metric(plan: Plan, task: str) -> str:
    scored = (r for name, r in plan.results.items() if name.startswith("finetune/") and f"/{task}-" in name)
    return str(next(scored)["metric"])


def _spread(scores: Sequence[float]) -> str:
    return f"{statistics.median(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def draw(plan: Plan, folder: Path) -> str:
    """Writes the table and the figures of the runs that are complete to a folder; returns the table."""
    found = entries(plan)
    if not found:
        raise UserError("there is nothing to draw: expected --results=FILE with all scores of a run or a control")
    folder.mkdir(parents=True, exist_ok=True)
    text = table(found, plan)
    write_whole(folder / TABLE, text)
    found = [entry for entry in found if not entry.seed]
    panels: dict[str, list[Line]] = {}
    for task in (AVERAGE, *TASKS):
        panels[task] = []
        for system in dict.fromkeys(entry.system for entry in found):
            own = [entry for entry in found if entry.system == system]
            points = [(e.flops, e.averages() if task == AVERAGE else list(e.scores[task].values())) for e in own]
            panels[task].append(Line(_CONTROLS.get(system, system), points, baseline=system in _CONTROLS))
    curve_plots.plot_scores(folder / FIGURE, panels, {task: _metric(plan, task) for task in TASKS}, "flops")
    curve_plots.plot_beside_paper(folder / f"{FIGURE}_and_paper", panels[AVERAGE], TASKS, "flops")
    return text
