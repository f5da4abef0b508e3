"""Which jobs benchmarks/ladder.py has, and what follows from their results: shapes, learning rates, what is scored."""

import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from job_queue import Job, Results
from ladder_jobs import FINE_EPOCHS, MODERN, THEN_MLM, Shape, flops_per_step, pretraining_config

SYSTEMS = ("electra", MODERN, "mlm", "all_tokens_mlm", "replace_mlm", "electra_15", "electra_mlm", THEN_MLM)
ABLE = ("electra", "mlm", "electra_mlm", THEN_MLM)  # what these can do without fine-tuning is measured too
FIRST = ("electra", "mlm")  # done before the others, at all budgets
TUNED_ALONE = ("electra", MODERN, "mlm")  # with learning rates of their own; the others have that of `electra`
BUDGETS = (1e13, 3e13, 1e14, 3e14)
LARGEST_FOR_ALL = 1e14  # the largest budget of the other systems
AGAIN = 1  # the seed of second runs of pre-training, of those with learning rates of their own at `LARGEST_FOR_ALL`
TUNED = 3e13  # where learning rates are chosen, the middle of all systems' budgets
TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
SEEDS = (0, 1, 2)

# Each row is one ratio of depth to width, its shapes from the cheapest to the most expensive.
FAMILIES = (
    (Shape(1, 96), Shape(2, 128), Shape(2, 192), Shape(3, 256), Shape(4, 320)),
    (Shape(2, 64), Shape(2, 96), Shape(3, 128), Shape(4, 192), Shape(6, 256), Shape(8, 320)),
    (Shape(4, 64), Shape(4, 96), Shape(6, 128), Shape(8, 192), Shape(12, 256)),
)
SWEPT = {
    1e13: (Shape(2, 64), Shape(2, 96), Shape(3, 128), Shape(4, 192), Shape(2, 128), Shape(4, 96), Shape(6, 128)),
    3e13: (Shape(2, 96), Shape(3, 128), Shape(4, 192), Shape(6, 256), Shape(2, 192), Shape(6, 128), Shape(8, 192)),
}
RATES = (1.5e-3, 3e-3, 6e-3)
FINE_RATES = (5e-4, 1e-3, 2e-3)
TUNING_SEEDS = (100,)
# Most of the differences are in this task, so it is also fine-tuned with the paper's epochs and with its head.
DECISIVE_TASK = "stsb"
VARIANTS: Mapping[str, Mapping[str, Any]] = {"10 epochs": {"epochs": 10}, "state of [CLS]": {"pooling": "cls"}}
_TOKENS = {
    "cola": 4e5,
    "sst2": 8e5,
    "mrpc": 1.4e6,
    "stsb": 1.2e6,
    "rte": 7e5,
}  # of a seed in `FINE_EPOCHS`, with padding
_NO_RATE = 1e-12
ASSUMED: Mapping[str, Any] = {"scores": {0: 0.0}, "word_order": 0.0}  # a result for a dry run


class Run(NamedTuple):
    """A run of pre-training."""

    system: str
    flops: float
    shape: Shape
    rate: float
    seed: int = 0

    @property
    def name(self) -> str:
        seed = f"-{self.seed}" if self.seed else ""
        return f"{power(self.flops)}-{self.system}-{self.shape}-{self.rate:g}{seed}"


# An encoder that one step at a rate of nothing has left as it was, and its embeddings alone.
UNTRAINED, BAG_OF_WORDS = "untrained", "bag_of_words"


def power(flops: float) -> str:
    return f"{flops:g}".replace("+", "")  # all digits: runs of 1.5e13 and of 2e13 FLOPs are not the same


class Plan:
    """The jobs that can be named, given the results so far.

    Attributes:
      results: the results, by job.
      runs: the folder of the runs.
      largest: the largest budget.
    """

    def __init__(self, results: Results, runs: Path, largest: float, assumed: Mapping[str, Any] | None = None):
        """`assumed` stands for results that are needed and missing."""
        self.results, self.runs, self.largest, self.assumed = results, runs, largest, assumed

    def jobs(self) -> list[Job]:
        """All jobs, each once, the more urgent ones first."""
        return list({job.name: job for job in self._all()}.values())

    def _all(self) -> Iterator[Job]:
        shapes = [Run("electra", flops, shape, RATES[1]) for flops, swept in SWEPT.items() for shape in swept]
        for run in shapes:
            yield from (self._pretrain(run), self._judge(run))
        if not self._are_judged(shapes):
            return
        others = [system for system in SYSTEMS if system not in TUNED_ALONE]
        budgets = [flops for flops in BUDGETS if flops <= self.largest]
        smaller = [flops for flops in budgets if flops <= LARGEST_FOR_ALL]
        yield from self._ladder(FIRST, smaller[-1:])
        yield self._pretrain_control()
        for control in (UNTRAINED, BAG_OF_WORDS):
            yield from self._tune(control, UNTRAINED)
            yield from self._score(control, UNTRAINED)
        yield from self._ladder(FIRST, smaller)
        yield from self._ladder([MODERN], smaller)
        if not self._are_judged(self._with_rates("electra")):
            return  # the others have its learning rate
        yield from self._variants([UNTRAINED], smaller[-1])
        yield from self._ladder(FIRST[:1], budgets[-1:])  # the longest run, so that the others are done beside it
        for system, flops in itertools.product(others, [flops for flops in smaller if flops >= TUNED]):
            yield from self._ladder([system], [flops])
        if all(self._are_judged(self._with_rates(system)) for system in ABLE):
            for run in (self.run_of(system, smaller[-1]) for system in ABLE):
                yield from (self._pretrain(run), self.abilities(run.name))
        yield from self._ladder(FIRST, budgets)
        yield from self._ladder(TUNED_ALONE, smaller[-1:], AGAIN)
        yield from self._variants(TUNED_ALONE, smaller[-1])
        yield from self._ladder(others, smaller)

    def _ladder(self, systems: Sequence[str], budgets: Sequence[float], seed: int = 0) -> Iterator[Job]:
        """The jobs of some systems at some budgets, as far as their learning rates are known."""
        rates = {system: self._with_rates(system) for system in systems}
        for run in itertools.chain.from_iterable(rates.values()):
            yield from (self._pretrain(run), self._judge(run))
        known = [system for system, runs in rates.items() if self._are_judged(runs)]
        for system in known:
            middle = self.run_of(system, TUNED)
            yield self._pretrain(middle)
            yield from self._tune(system, middle.name)
        for flops, system in itertools.product(sorted(budgets, reverse=True), known):
            run = self.run_of(system, flops, seed)
            yield self._pretrain(run)  # and scored before the next begins, as its folder may be lost with the machine
            yield from self._score(system, run.name)

    def _variants(self, systems: Sequence[str], flops: float) -> Iterator[Job]:
        jobs = (self.variant_of(system, flops, variant) for system in systems for variant in VARIANTS)
        yield from (job for job in jobs if job is not None)

    def systems(self, flops: float) -> Sequence[str]:
        """The systems at a budget."""
        return SYSTEMS if flops <= LARGEST_FOR_ALL else FIRST

    def run_of(self, system: str, flops: float, seed: int = 0) -> Run:
        """The run of a system at a budget, with the learning rate that was best at `TUNED`."""
        best = max(self._with_rates(system), key=self.merit)
        return Run(system, flops, self.shape_for(flops), best.rate, seed)

    def _with_rates(self, system: str) -> list[Run]:
        """The runs of a system from which its learning rate is chosen."""
        rates = RATES if system in TUNED_ALONE else [self.run_of("electra", TUNED).rate]
        return [Run(system, TUNED, self.shape_for(TUNED), rate) for rate in rates]

    def _are_judged(self, runs: Sequence[Run]) -> bool:
        return all(self.merit(run) > -math.inf for run in runs)

    def shape_for(self, flops: float) -> Shape:
        """The shape of all systems at a budget.

        Parameters and tokens grow alike with the budget (arXiv 2203.15556), so FLOPs per step grow as its root. The
        factor is the geometric mean over the best shapes of the swept budgets; the ratio of depth to width is that of
        the best shape at the larger one. Of that family's shapes this is the one with the nearest FLOPs.
        """
        best = self._best_shapes
        wanted = math.exp(sum(math.log(step_flops(best[b]) * math.sqrt(flops / b)) for b in SWEPT) / len(SWEPT))
        family = next(family for family in FAMILIES if best[max(SWEPT)] in family)
        return min(family, key=lambda shape: abs(math.log(step_flops(shape) / wanted)))

    @functools.cached_property
    def _best_shapes(self) -> dict[float, Shape]:
        """The best shape at each of the swept budgets."""
        return {
            swept: max((Run("electra", swept, shape, RATES[1]) for shape in shapes), key=self.merit).shape
            for swept, shapes in SWEPT.items()
        }

    def merit(self, run: Run) -> float:
        """What shapes and rates are chosen by, larger is better; -inf as long as it is not known.

        It is the score of a linear model on frozen states that decides whether the words of a sentence were shuffled.
        Scores after fine-tuning differ by less than between seeds at these budgets. Held-out losses and AUCs measure
        the generator too: the weaker it is, the more its fakes are like those that the AUC on unigram fakes is about.
        """
        result = self.results.get(self._judge(run).name, self.assumed)
        return -math.inf if result is None else float(result["word_order"])

    def _judge(self, run: Run) -> Job:
        settings = {"kind": "probe", "run": run.name, "tasks": ()}
        return Job(f"word_order/{run.name}", 1e11, (f"pretrain/{run.name}",), settings)

    def _pretrain(self, run: Run) -> Job:
        settings = {"kind": "pretrain", "run": run.name, **run._asdict(), "changes": {"seed": run.seed}}
        return Job(f"pretrain/{run.name}", run.flops, (), settings, self.runs / run.name)

    def _finetune(self, system: str, run: str, task: str, rate: float, seeds: Sequence[int], variant: str = "") -> Job:
        settings: dict[str, Any] = {
            "kind": "finetune",
            "run": run,
            "task": task,
            "rate": rate,
            "seeds": tuple(seeds),
            "epochs": FINE_EPOCHS,
            "pooling": "mean",  # a bag of words has no state of [CLS]
            "bag_of_words": system == BAG_OF_WORDS,
            **VARIANTS.get(variant, {}),
        }
        owner = BAG_OF_WORDS if system == BAG_OF_WORDS else run
        name = f"finetune/{owner}/{task}-{rate:g}-{'-'.join(map(str, seeds))}"
        if variant:
            name += "-" + re.sub(r"\W+", "_", variant).strip("_")
        flops = len(seeds) * _TOKENS[task] * 3e6 * settings["epochs"] / FINE_EPOCHS
        return Job(name, flops, (f"pretrain/{run}",), settings)

    def _tune(self, system: str, run: str) -> Iterator[Job]:
        for task in TASKS:
            for rate in FINE_RATES:
                yield self._finetune(system, run, task, rate, TUNING_SEEDS)

    def fine_rate(self, system: str, task: str) -> float | None:
        """The best learning rate of a system's fine-tuning; None as long as it is not known."""
        control = system in (UNTRAINED, BAG_OF_WORDS)
        run = UNTRAINED if control else self.run_of(system, TUNED).name
        jobs = {rate: self._finetune(system, run, task, rate, TUNING_SEEDS) for rate in FINE_RATES}
        found = {rate: self.results.get(job.name, self.assumed) for rate, job in jobs.items()}
        means = {rate: statistics.mean(each["scores"].values()) for rate, each in found.items() if each is not None}
        return max(means, key=means.__getitem__) if len(means) == len(FINE_RATES) else None

    def scores_of(self, system: str, run: str, task: str) -> Job | None:
        """The job that gives a system's reported scores; None as long as its learning rate is not known."""
        rate = self.fine_rate(system, task)
        return None if rate is None else self._finetune(system, run, task, rate, SEEDS)

    def variant_of(self, system: str, flops: float, variant: str) -> Job | None:
        """The job that fine-tunes a system's second run at a budget, or the untrained encoder, in another way.

        Its learning rate is the one that is best in the usual way; None as long as that is not known.
        """
        rate = self.fine_rate(system, DECISIVE_TASK)
        if rate is None:
            return None
        run = system if system == UNTRAINED else self.run_of(system, flops, AGAIN).name
        return self._finetune(system, run, DECISIVE_TASK, rate, SEEDS, variant)

    def _score(self, system: str, run: str) -> Iterator[Job]:
        for task in TASKS:
            job = self.scores_of(system, run, task)
            if job is not None:
                yield job
        if system != BAG_OF_WORDS:
            settings = {"kind": "probe", "run": run, "tasks": TASKS}
            yield Job(f"probe/{run}", 1e12, (f"pretrain/{run}",), settings)

    def abilities(self, run: str) -> Job:
        """The job that measures what a run can do without fine-tuning."""
        return Job(f"abilities/{run}", 1e12, (f"pretrain/{run}",), {"kind": "abilities", "run": run})

    def _pretrain_control(self) -> Job:
        """The job that makes an encoder with its initial parameters, of the shape at 1e14 FLOPs."""
        settings = {
            "run": UNTRAINED,
            "system": "electra",
            "flops": 1.0,
            "shape": self.shape_for(1e14),
            "rate": _NO_RATE,
        }
        return Job(f"pretrain/{UNTRAINED}", 1.0, (), {"kind": "pretrain", **settings}, self.runs / UNTRAINED)


@functools.cache
def step_flops(shape: Shape) -> float:
    """FLOPs of a train step of `electra` with an encoder of this shape."""
    return flops_per_step(pretraining_config("electra", shape, RATES[1], 1e13))
