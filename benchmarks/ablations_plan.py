"""Which jobs benchmarks/ablations.py has, and what its results say."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from job_queue import Job, Results
from ladder_jobs import Shape
from ladder_plan import power
from ladder_report import spread
from scipy.stats import t as students_t

from electra_jax.config.errors import UserError

SEEDS = (0, 1, 2)
_TUNING_SEED = 100
# A change that is so many points behind the base with the first seed is not trained with the others. The standard
# deviation between seeds is 1.4 points (5e12 FLOPs, 2x96), so this is 2.5 standard deviations of a difference.
BEHIND = 5.0
# The share of the FLOPs with which changes are trained. At 1e13, Muon's word order is 91; with ten times as many FLOPs
# `electra` has 93, which leaves little to gain there.
SHARE = 0.5
Changes = Mapping[str, Any]

# Each optimizer with what its learning rates are chosen from.
OPTIMIZERS: dict[str, list[Changes]] = {
    "adam": [{"optim.learning_rate": rate} for rate in (1.5e-3, 3e-3, 6e-3, 1.2e-2)],
    "muon": [
        {"optim.name": "muon", "optim.learning_rate": rate, "optim.muon_rate": factor}
        for rate in (1.5e-3, 3e-3, 6e-3)
        for factor in (1.0, 2.0, 4.0)
    ],
}
# Changes to the better optimizer, one at a time, by the name of what they change; the more promising ones come first.
# With `averaged` nothing is trained: the probe reads the mean of the last checkpoints' parameters of the runs of that
# name, of the base if it is empty.
VARIANTS: dict[str, Changes] = {
    "batch 16": {"batch_size": 16},
    "batch 16, doubling to 64": {"batch_size": 64, "phases": "1/3 batch_size=16; 1/3 batch_size=32; 1/3"},
    "generator of a quarter of the width": {"model.generator_width": 0.25},
    "temperature 1": {"objective.temperature": 1.0},
    "schedule stable, decay .2": {"optim.schedule": "stable", "optim.decay": 0.2},
    "mean of the last checkpoints": {"averaged": ""},
    "schedule stable, decay .2, mean": {
        "optim.schedule": "stable",
        "optim.decay": 0.2,
        "averaged": "schedule stable, decay .2",
    },
    "masked 30%, falling to 15%": {"objective.mask_prob": 0.30, "objective.mask_prob_end": 0.15},
    "discriminator's weight 50": {"objective.discriminator_weight": 50.0},
    "zero outputs": {"model.modernbert.zero_outputs": True},
    "embeddings apart (GDES)": {"model.tying": "gdes"},
    "clipped apart": {"optim.clip_apart": True},
    "generator's rate x .5": {"optim.generator_rate": 0.5},
    "generator's rate x 2": {"optim.generator_rate": 2.0},
    "squared ReLU": {"model.modernbert.activation": "relu2"},
    "schedule cosine": {"optim.schedule": "cosine"},
    "clusters for a generator": {"generator": "clusters"},
    "temperature 2, decaying": {"objective.temperature": 2.0, "objective.temperature_decay": 0.3},
    "generator as wide": {"model.generator_width": 1.0},
    "masked 30%": {"objective.mask_prob": 0.30},
    "all layers global": {"model.modernbert.global_every": 1},
    "batch 64": {"batch_size": 64},
    "unigram generator": {"generator": "unigram"},
    "dropout .1": {"model.dropout": 0.1},
}
ASSUMED = {"word_order": 0.0}  # a result for a dry run


class Trial(NamedTuple):
    """A recipe with a seed and a budget; its name has the learning rates, so that with others it is another run."""

    name: str
    changes: Changes
    seed: int
    flops: float


class Difference(NamedTuple):
    """How much better a recipe's mean is than the base's, with half the width of its interval."""

    mean: float
    margin: float

    @property
    def verdict(self) -> str:
        if abs(self.mean) <= self.margin:
            return "no difference shown"
        return "better" if self.mean > 0 else "worse"


class Plan(NamedTuple):
    """The jobs that can be named, given the results so far.

    Attributes:
      results: the results, by job.
      runs: the folder of the runs.
      shape: the encoder's shape.
      flops: of the runs that choose an optimizer and its learning rates; those of changes have `SHARE` of them.
      assumed: a result for a job that has none, for a dry run.
    """

    results: Results
    runs: Path
    shape: Shape
    flops: float
    assumed: Mapping[str, Any] | None = None

    def jobs(self) -> list[Job]:
        """All jobs, each once, the more urgent ones first."""
        return list({job.name: job for trial in self._trials() for job in self._of(trial)}.values())

    def _trials(self) -> Iterator[Trial]:
        tuned = [trial for name in OPTIMIZERS for trial in self.tuning(name)]
        yield from tuned
        if any(self.score(trial) is None for trial in tuned):
            return
        chosen = [trial for name in OPTIMIZERS for trial in self.of_optimizer(name)]
        yield from chosen
        if any(self.score(trial) is None for trial in chosen):
            return
        base = self.of_variant(self.base)
        yield from base
        for name in VARIANTS:
            yield from self.of_variant(name)[:1]
        for name in VARIANTS:
            first, of_base = self.score(self.of_variant(name)[0]), self.score(base[0])
            if first is not None and of_base is not None and first > of_base - BEHIND:
                yield from self.of_variant(name)[1:]

    def tuning(self, optimizer: str) -> list[Trial]:
        """The trials from which an optimizer's learning rates are chosen."""
        return [Trial(_recipe(optimizer, rates), rates, _TUNING_SEED, self.flops) for rates in OPTIMIZERS[optimizer]]

    def best(self, optimizer: str) -> Changes:
        """The learning rates of an optimizer that were best on a seed that is not reported."""
        return max(self.tuning(optimizer), key=self._score).changes

    @property
    def base(self) -> str:
        """The better optimizer, over the reported seeds."""
        return max(OPTIMIZERS, key=lambda name: statistics.mean(map(self._score, self.of_optimizer(name))))

    def of_optimizer(self, name: str) -> list[Trial]:
        """An optimizer at its best learning rates, with each seed that is reported."""
        rates = self.best(name)
        return [Trial(_recipe(name, rates), rates, seed, self.flops) for seed in SEEDS]

    def of_variant(self, name: str) -> list[Trial]:
        """The base, or a change to it, with each seed that is reported."""
        changes = {**self.best(self.base), **VARIANTS.get(name, {})}
        return [Trial(self._recipe_of_variant(name), changes, seed, SHARE * self.flops) for seed in SEEDS]

    def _recipe_of_variant(self, name: str) -> str:
        base = _recipe(self.base, self.best(self.base))
        return f"{base} {name}" if name in VARIANTS else base

    def score(self, trial: Trial) -> float | None:
        """Word order on frozen states, in percent; None as long as it is not known."""
        result = self.results.get(self._of(trial)[1].name, self.assumed)
        return None if result is None else float(result["word_order"])

    def _score(self, trial: Trial) -> float:
        score = self.score(trial)
        assert score is not None
        return score

    def _of(self, trial: Trial) -> tuple[Job, Job]:
        """The jobs of a trial: it is trained, and judged."""
        changes = {"optim.name": "adam", "seed": trial.seed, **trial.changes}
        rate, averaged = float(changes.pop("optim.learning_rate")), changes.pop("averaged", None)
        recipe = trial.name if averaged is None else self._recipe_of_variant(averaged)
        run = f"{power(trial.flops)}-{self.shape}-{recipe}-{trial.seed}".replace(" ", "_")
        shared = {"kind": "pretrain", "run": run, "system": "electra", "flops": trial.flops}
        settings = {**shared, "shape": self.shape, "rate": rate, "changes": changes}
        trained = Job(f"pretrain/{run}", trial.flops, (), settings, self.runs / run)
        judged: dict[str, Any] = {"kind": "probe", "run": run, "tasks": ()}
        name = run
        if averaged is not None:
            judged["averaged"], name = True, f"{run}-mean"
        return trained, Job(f"word_order/{name}", 1e11, (trained.name,), judged)

    def scores(self, trials: Sequence[Trial]) -> list[float]:
        """The scores of a recipe that are known."""
        return [score for trial in trials if (score := self.score(trial)) is not None]


def intervals(scores: Mapping[str, Sequence[float]], base: str) -> dict[str, Difference]:
    """The difference of each recipe's mean from that of the base, with simultaneous 95% intervals.

    Three seeds say little of their own variance, so it is pooled over the recipes, the base among them: the scores of
    all are assumed to vary alike from seed to seed. Recipes with one seed have an interval too, as long as others have
    more. The correction for the number of recipes is Bonferroni's.
    """
    several = [of_one for of_one in scores.values() if len(of_one) > 1]
    if not several or len(scores) == 1:
        return {}
    freedom = sum(len(of_one) - 1 for of_one in several)
    variance = sum(statistics.variance(of_one) * (len(of_one) - 1) for of_one in several) / freedom
    factor = float(students_t.ppf(1 - 0.025 / (len(scores) - 1), freedom)) * math.sqrt(variance)
    mean = statistics.mean(scores[base])
    return {
        name: Difference(statistics.mean(of_one) - mean, factor * math.sqrt(1 / len(of_one) + 1 / len(scores[base])))
        for name, of_one in scores.items()
        if name != base
    }


def _recipe(optimizer: str, rates: Changes) -> str:
    return " ".join([optimizer, *(f"{value:g}" for name, value in rates.items() if name != "optim.name")])


def report(plan: Plan) -> str:
    """Markdown: the learning rates tried, the optimizers at their best ones, and each change against the base.

    Raises:
      UserError: there are no results of the plan's shape and FLOPs.
    """
    lines = [f"| {power(plan.flops)} FLOPs, {plan.shape}, seed {_TUNING_SEED} | word order |", "|---|---|"]
    tuned = [trial for name in OPTIMIZERS for trial in plan.tuning(name)]
    if not plan.scores(tuned):
        raise UserError("there is nothing to draw: expected --results=FILE with a run of this --shape and --flops")
    lines += [f"| {trial.name} | {score:.1f} |" for trial in tuned if (score := plan.score(trial)) is not None]
    if all(plan.score(trial) is not None for trial in tuned):
        optimizers = {name: plan.of_optimizer(name) for name in OPTIMIZERS}
        if all(plan.score(trial) is not None for trials in optimizers.values() for trial in trials):
            lines += _compared(plan, optimizers)
            lines += _compared(plan, {name: plan.of_variant(name) for name in (plan.base, *VARIANTS)})
    return "\n".join(lines) + "\n"


def _compared(plan: Plan, recipes: Mapping[str, Sequence[Trial]]) -> list[str]:
    """A table of recipes, each minus the base, as far as they are scored; nothing before the base is."""
    base = plan.base
    scores = {name: known for name, trials in recipes.items() if (known := plan.scores(trials))}
    if base not in scores:
        return []
    budget = power(recipes[base][0].flops)
    lines = ["", f"| {budget} FLOPs, {plan.shape} | word order | minus {base} | |", "|---|---|---|---|"]
    found = intervals(scores, base)
    for name, known in scores.items():
        if name == base:
            lines.append(f"| {name} | {spread(known)} |  | the base |")
        elif name in found:
            by = found[name]
            lines.append(f"| {name} | {spread(known)} | {by.mean:+.1f} ± {by.margin:.1f} | {by.verdict} |")
    return lines
