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
    ABLE,
    AGAIN,
    BAG_OF_WORDS,
    BUDGETS,
    DECISIVE_TASK,
    LARGEST_FOR_ALL,
    SEEDS,
    SYSTEMS,
    TASKS,
    TUNED_ALONE,
    UNTRAINED,
    VARIANTS,
    Plan,
    power,
)
from numpy.typing import NDArray
from scipy.stats import t as students_t

from electra_jax.config.errors import UserError
from electra_jax.downstream.curves import AVERAGE
from electra_jax.loading.model import SCORES
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

    def better_of_both(self) -> float:
        """The average over the tasks of the better of fine-tuning (mean over seeds) and a linear model."""
        return statistics.mean(max(statistics.mean(self.scores[task].values()), self.frozen[task]) for task in TASKS)


class Estimate(NamedTuple):
    """A mean over tasks and seeds, the standard error that seeds of fine-tuning give it, and its degrees of freedom."""

    mean: float
    error: float
    freedom: float

    @property
    def margin(self) -> float:
        """Half of the 95% interval."""
        return float(students_t.ppf(0.975, self.freedom)) * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.margin:.1f}"


def estimate(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over some tasks of the values of their seeds.

    Some tasks vary much more between seeds than others, so the variance is not pooled, and degrees of freedom are those
    of Welch and Satterthwaite (doi:10.2307/3002019).
    """
    count = len(SEEDS)
    variances = [statistics.variance(of_task) / count for of_task in values.values()]
    squares = sum(variance**2 for variance in variances) / (count - 1)
    return Estimate(
        statistics.mean(statistics.mean(of_task) for of_task in values.values()),
        math.sqrt(sum(variances)) / len(values),
        sum(variances) ** 2 / squares if squares else math.inf,
    )


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


def difference(one: Entry, other: Entry, tasks: Sequence[str] = TASKS) -> Estimate:
    """How much better one run's average over some tasks is than another's, seed by seed.

    The error does not cover other tasks, other examples and other seeds of pre-training.
    """
    return estimate({task: [one.scores[task][seed] - other.scores[task][seed] for seed in SEEDS] for task in tasks})


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
        ratio, low, high = map(self._text, (self.ratio, self.low, self.high))
        return ratio if low == high else f"{ratio} ({low} to {high})"

    def _text(self, ratio: float) -> str:
        if ratio < self.least:
            return f"less than {self.least:.1f}"
        return f"{ratio:.1f}{' or more' if ratio >= self.most else ''}"


def saving(curve: Sequence[Entry], other: Entry) -> Saving:
    """How many times fewer FLOPs the system of `curve` needs for the average of `other`.

    The curve is linear in the logarithm of FLOPs between its budgets. The interval is that of 10,000 draws in which all
    averages vary by their standard errors over seeds of fine-tuning, with Student's t distribution.
    """
    curve = sorted(curve, key=lambda entry: entry.flops)
    flops = [entry.flops for entry in curve]

    def ratio(averages: NDArray[np.float64], wanted: float) -> float:
        if averages[0] >= wanted:
            return other.flops / flops[0]
        for (x, below), (y, above) in itertools.pairwise(zip(flops, averages, strict=True)):
            if above >= wanted:
                return float(other.flops / (x * (y / x) ** ((wanted - below) / (above - below))))
        return 0.0

    found = [estimate({task: list(of_task.values()) for task, of_task in e.scores.items()}) for e in (*curve, other)]
    means, errors, freedoms = (np.asarray(values) for values in zip(*found, strict=True))
    draws = means + errors * np.random.default_rng(0).standard_t(np.minimum(freedoms, 1e6), (10_000, len(means)))
    low, high = np.quantile([ratio(draw[:-1], draw[-1]) for draw in draws], (0.025, 0.975))
    least, most = other.flops / flops[-1], other.flops / flops[0]
    return Saving(ratio(means[:-1], float(means[-1])), float(low), float(high), least, most)


def table(found: Sequence[Entry], plan: Plan) -> str:
    """Markdown: scores of every run, differences between systems at each budget, and FLOPs saved."""
    scores = _head(["FLOPs", "system", *TASKS, "average", "frozen", "better of both", "word order"])
    ranges = _head(["FLOPs", "system", "shape", "tokens", *TASKS, "average"])
    for entry in found:
        name, of_run = _CONTROLS.get(entry.system, ""), ["", "", ""]
        if entry.flops:
            name = f"`{entry.system}`{f', seed {entry.seed}' if entry.seed else ''}"
            tokens = f"{plan.results[f'pretrain/{entry.run}']['tokens'] / 1e6:.1f}M"
            of_run = [power(entry.flops), entry.run.split("-")[2], tokens]
        frozen = [""] * 3
        if entry.frozen:
            of_tasks = statistics.mean(entry.frozen[task] for task in TASKS)
            frozen = [f"{x:.1f}" for x in (of_tasks, entry.better_of_both(), entry.frozen["word_order"])]
        seeds = [*([*entry.scores[task].values()] for task in TASKS), entry.averages()]
        scores.append(_row([of_run[0], name, *(f"{statistics.median(each):.1f}" for each in seeds), *frozen]))
        ranges.append(_row([of_run[0], name, *of_run[1:], *map(_range, seeds)]))
    fold = "<details><summary>Lowest and highest score of the seeds, shape and tokens of each run</summary>"
    once = [entry for entry in found if not entry.seed]
    parts = [*_differences(once), "", *_savings(once), *_abilities(once, plan), *_variants(found, plan)]
    return "\n".join([*scores, "", fold, "", *ranges, "", "</details>", "", *parts]) + "\n"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _differences(found: Sequence[Entry]) -> list[str]:
    """At each budget the systems from the best on, each minus the untrained encoder and minus `electra`."""
    untrained = next((entry for entry in found if entry.system == UNTRAINED), None)
    rest = [task for task in TASKS if task != DECISIVE_TASK]
    without = f"without {DECISIVE_TASK}"
    lines = _head(["FLOPs", "system", "minus the untrained encoder", without, "minus `electra`", without])
    for flops in BUDGETS:
        ranked = sorted((e for e in found if e.flops == flops), key=lambda e: -statistics.mean(e.averages()))
        electra = next((entry for entry in ranked if entry.system == "electra"), None)
        for entry in ranked:
            others = (untrained, None if entry is electra else electra)
            cells = [str(difference(entry, o, tasks)) if o else "" for o in others for tasks in (TASKS, rest)]
            lines.append(_row([power(flops), f"`{entry.system}`", *cells]))
    return lines


def _savings(found: Sequence[Entry]) -> list[str]:
    """How many times fewer FLOPs `electra` needs than the others, and configs/modern.py than `electra`.

    The aim is what the other system reaches with its largest budget. Systems for which no gain over the untrained
    encoder is shown are left out: its score is reached without any FLOPs, so nothing can be saved on it.
    """
    curves = {system: [entry for entry in found if entry.system == system] for system in SYSTEMS}
    untrained = next((entry for entry in found if entry.system == UNTRAINED), None)
    pairs = [("electra", other) for other in SYSTEMS if other not in ("electra", MODERN)]
    lines = _head(["system", "reaches the average of", "with fewer FLOPs, times"])
    for system, other in [*pairs, (MODERN, "electra")]:
        if curves[system] and curves[other]:
            largest = max(curves[other], key=lambda entry: entry.flops)
            gain = difference(largest, untrained) if untrained else None
            if gain is None or gain.mean > gain.margin:
                saved = str(saving(curves[system], largest))
                lines.append(_row([f"`{system}`", f"`{other}` at {power(largest.flops)}", saved]))
    return lines


def _abilities(found: Sequence[Entry], plan: Plan) -> list[str]:
    """What encoders can do at `LARGEST_FOR_ALL` without fine-tuning, beside their averages."""
    rows = []
    for entry in (entry for entry in found if entry.system in ABLE and entry.flops == LARGEST_FOR_ALL):
        abilities = plan.results.get(plan.abilities(entry.run).name)
        if abilities:
            heldout = plan.results[f"pretrain/{entry.run}"]["heldout"][-1]
            aucs = [f"{100 * heldout[name]:.1f}" for name in ("disc_auc", "unigram_auc") if name in heldout]
            pairs = [
                " / ".join(f"{value:.1f}" for name, value in abilities.items() if name.endswith(f" by {way}"))
                for way in SCORES
            ]
            average, fill = f"{statistics.mean(entry.averages()):.1f}", f"{abilities['fill']:.1f}"
            rows.append(_row([f"`{entry.system}`", average, " / ".join(aucs), fill, *pairs]))
    heads = ["average", "AUC, own / unigram fakes", "words filled", *(f"pairs by {way}" for way in SCORES)]
    return ["", *_head([f"{power(LARGEST_FOR_ALL)} FLOPs", *heads]), *rows] if rows else []


def _variants(found: Sequence[Entry], plan: Plan) -> list[str]:
    """The scores of `DECISIVE_TASK` in other ways of fine-tuning, beside the usual one of the same runs."""
    rows = []
    for entry in found:
        if entry.system != UNTRAINED and not entry.seed:
            continue
        jobs = [plan.variant_of(entry.system, LARGEST_FOR_ALL, variant) for variant in VARIANTS]
        results = [plan.results.get(job.name) if job else None for job in jobs]
        if any(results):
            name = _CONTROLS.get(entry.system, f"`{entry.system}`, seed {entry.seed}")
            scores = [entry.scores[DECISIVE_TASK], *(result["scores"] if result else {} for result in results)]
            rows.append(_row([name, *(spread(list(each.values())) if each else "" for each in scores)]))
    if not rows:
        return []
    what = f"{DECISIVE_TASK} ({_metric(plan, DECISIVE_TASK)}), {power(LARGEST_FOR_ALL)} FLOPs"
    return ["", *_head([what, f"{FINE_EPOCHS} epochs, mean of the states", *VARIANTS]), *rows]


def _metric(plan: Plan, task: str) -> str:
    scored = (r for name, r in plan.results.items() if name.startswith("finetune/") and f"/{task}-" in name)
    return str(next(scored)["metric"])


def spread(scores: Sequence[float]) -> str:
    """Median, lowest and highest score of several seeds, or the score of one."""
    if len(scores) == 1:
        return f"{scores[0]:.1f} (one seed)"
    return f"{statistics.median(scores):.1f} ({_range(scores)})"


def _range(scores: Sequence[float]) -> str:
    return f"{min(scores):.1f} to {max(scores):.1f}"


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
