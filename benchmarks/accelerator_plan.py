"""Which jobs benchmarks/accelerator.py has, and what its results say."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from job_queue import Job, Results

SIZES = ("small", "base", "large")
SHARES = (0.0625, 0.125, 0.25, 0.5, 1.0)
TASKS = ("cola", "sst2", "mrpc", "stsb", "rte")
ON_CPU, ON_DEVICE = "losses/cpu", "losses/device"
_PAPER_STEPS = 1_000_000  # of ELECTRA-Small
_BATCHES = {"small": 128, "base": 256, "large": 2048}
_REMAT = ("none", "dots")
_TOLERANCE = 0.01  # of a loss; or twice what the CPU's own bfloat16 differs from its float32, where that is more
_REHEARSED = 1000  # a rehearsal has this share of the steps


class Recipe(NamedTuple):
    """A size, with the paper's dropout of attention weights or without it."""

    size: str
    attention_dropout: bool = True

    def __str__(self) -> str:
        return self.size if self.attention_dropout else f"{self.size}, no attention dropout"


class Plan(NamedTuple):
    """The jobs that can be named, given the results so far.

    Attributes:
      results: the results, by job.
      sizes: the sizes whose speed is measured.
      shares: how much of the paper's ELECTRA-Small is trained, one run for each.
      scored: whether these runs are fine-tuned.
      rehearse: whether everything is shrunk.
    """

    results: Results
    sizes: Sequence[str] = SIZES
    shares: Sequence[float] = SHARES
    scored: bool = False
    rehearse: bool = False

    def jobs(self) -> list[Job]:
        """All jobs, the more urgent ones first."""
        return list(self._all())

    def _all(self) -> Iterator[Job]:
        yield self._job(ON_CPU, "losses", dtypes=("float32", "bfloat16"))
        yield self._job(ON_DEVICE, "losses", dtypes=("bfloat16",))
        if ON_DEVICE not in self.results:
            return
        for recipe in self.recipes():
            yield from self._speeds(recipe)
        best = self.best(Recipe("small"))
        if best is None or not all(map(self._is_measured, self.recipes())):
            return
        for share in self.shares:
            steps = max(1, round(share * _PAPER_STEPS / (_REHEARSED if self.rehearse else 1)))
            run = f"small-{share:g}"
            settings = {name: self.settings_of(best)[name] for name in ("grad_accum_steps", "model")}
            yield self._job(f"train/{run}", "train", run=run, steps=steps, **settings)
            if self.scored:
                for task in TASKS:
                    yield self._job(f"score/{run}/{task}", "score", (f"train/{run}",), run=run, task=task)

    def _job(self, name: str, kind: str, needs: tuple[str, ...] = (), **settings: Any) -> Job:
        return Job(name, 1.0, needs, {"kind": kind, "rehearse": self.rehearse, **settings})

    def recipes(self) -> list[Recipe]:
        """What is measured. On NVIDIA's GPUs cuDNN computes attention where its weights have no dropout."""
        on_gpu = "NVIDIA" in self.results[ON_DEVICE]["kind"]
        sizes = dict.fromkeys((*self.sizes, "small"))
        return [Recipe(size, dropout) for size in sizes for dropout in ((True, False) if on_gpu else (True,))]

    def settings_of(self, name: str) -> dict[str, Any]:
        """The settings that the name of a job of speed stands for."""
        _, recipe, setting = name.split("/")
        parts, remat = setting.split("-")
        size, _, without = recipe.partition(", ")
        model: dict[str, Any] = {"remat": remat, **({"attention_dropout": 0.0} if without else {})}
        return {"size": size, "grad_accum_steps": int(parts), "model": model}

    def _speeds(self, recipe: Recipe) -> Iterator[Job]:
        for name in self._tried(recipe):
            yield self._job(name, "speed", **self.settings_of(name))

    def _tried(self, recipe: Recipe) -> Iterator[str]:
        """For each `remat` more and more parts of a batch, until the first that fits."""
        most = _BATCHES[recipe.size] // self.results[ON_DEVICE]["devices"]
        for remat in _REMAT:
            parts = 1
            while parts <= most:
                name = f"speed/{recipe}/{parts}-{remat}"
                yield name
                result = self.results.get(name)
                if result is None or result["fits"]:
                    break
                too_large = result.get("bytes", 0) / (result["limit"] or math.inf)
                parts *= 2 ** max(1, math.floor(math.log2(max(2.0, too_large))))

    def _is_measured(self, recipe: Recipe) -> bool:
        """Whether no job of a recipe is missing."""
        return all(name in self.results for name in self._tried(recipe))

    def best(self, recipe: Recipe) -> str | None:
        """The fastest job of a recipe; None as long as one is missing, or where nothing fits."""
        if not self._is_measured(recipe):
            return None
        fitting = [name for name in self._tried(recipe) if self.results[name]["fits"]]
        return max(fitting, key=lambda name: self.results[name]["tokens_per_second"], default=None)


def report(plan: Plan) -> str:
    """Markdown: what is known so far."""
    parts = []
    if {ON_CPU, ON_DEVICE} <= plan.results.keys():
        parts.append(_correctness(plan.results))
    if ON_DEVICE in plan.results:
        parts += [_speed(plan), _training(plan)]
    return "\n".join(filter(None, parts))


def _correctness(results: Results) -> str:
    device, cpu = results[ON_DEVICE], results[ON_CPU]
    lines = [
        f"{device['devices']} x {device['kind']}: losses of {len(cpu['float32']['mlm_loss'])} steps, largest relative "
        "difference from the CPU in float32",
        "",
        "| loss | device, bfloat16 | CPU, bfloat16 | agrees |",
        "|---|---|---|---|",
    ]
    for name, exact in cpu["float32"].items():
        ours, theirs = (_difference(found["bfloat16"][name], exact) for found in (device, cpu))
        verdict = "yes" if ours <= max(_TOLERANCE, 2 * theirs) else "NO"
        lines.append(f"| {name} | {ours:.2%} | {theirs:.2%} | {verdict} |")
    return "\n".join(lines) + "\n"


def _difference(values: Sequence[float], exact: Sequence[float]) -> float:
    return max(abs(value - other) / abs(other) for value, other in zip(values, exact, strict=True))


def _speed(plan: Plan) -> str:
    lines = [
        "| step | batch x length | parts | remat | attention | GiB | tokens/s | MFU | idle | matrix products | "
        "most time |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe in plan.recipes():
        best = plan.best(recipe)
        if best is None:
            continue
        found, settings = plan.results[best], plan.settings_of(best)
        mfu = "" if found["mfu"] is None else f"{found['mfu']:.1%}"
        place, share = found["places"][0]
        cells = (
            str(recipe),
            f"{found['batch_size']} x {found['length']}",
            settings["grad_accum_steps"],
            settings["model"]["remat"],
            found["attention"],
            f"{found['bytes'] / 2**30:.1f}",
            f"{found['tokens_per_second']:,}",
            mfu,
            f"{found['idle']:.0%}",
            f"{found['kinds'].get('matrix products', 0):.0%}",
            f"{place} ({share:.0%})",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _training(plan: Plan) -> str:
    lines = [
        f"| ELECTRA-Small | FLOPs | tokens | epochs | device hours | MLM | detection AUC | {' | '.join(TASKS)} |",
        "|---" * (7 + len(TASKS)) + "|",
    ]
    for share in plan.shares:
        found = plan.results.get(f"train/small-{share:g}")
        if found is None:
            continue
        last: Mapping[str, float] = found["heldout"][-1]
        scores = [plan.results.get(f"score/small-{share:g}/{task}") for task in TASKS]
        medians = [f"{statistics.median(each['scores'].values()):.1f}" if each else "" for each in scores]
        cells = (
            f"{share:.2%} of the steps",
            f"{found['flops']:.1e}",
            f"{found['tokens']:.2e}",
            f"{found['epochs']:.1f}",
            f"{found['device_seconds'] / 3600:.2f}",
            f"{last['mlm_loss']:.3f}",
            f"{last['disc_auc']:.3f}",
            *medians,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""
