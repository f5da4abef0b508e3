"""What further training does to a discriminator whose generator is not there, at its start and later.

    python benchmarks/continued.py --input='text/*.txt.xz' --output=OUT [--flops=2e13] [--steps=1000]

It trains a small DeBERTa as DeBERTaV3 is trained (`tying=gdes`, a generator of half the depth), exports it, and goes on
from the exported discriminator alone, with each of `RECIPES`, at a third of the learning rate. After a tenth of the
steps, three tenths and all of them it measures
- detection of the fakes of the first run's own generator, which is the same for all: the loss and the AUC on held-out
  text;
- word order, a linear model on frozen states (benchmarks/frozen.py).
OUT/continued.json gets the numbers, and a table is printed. Started again, it goes on.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from electra_jax.runtime import host_memory

    host_memory.keep_freed()

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frozen
import ladder
from ladder_jobs import Shape, pretraining_config, train_to_end
from ml_collections import ConfigDict

import electra_jax
from electra_jax.config import cli, errors
from electra_jax.config.settings import Check, above, check_value
from electra_jax.runtime.io import from_json, write_whole
from electra_jax.runtime.progress import ConsoleProgress

SHAPE, _RATE = Shape(4, 96), 3e-3
_MODEL = {
    "model.encoder": "deberta",
    "model.tying": "gdes",
    "model.generator_width": 1.0,
    "model.generator_layers": 0.5,
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "random generator": {},
    "the generator first": {"objective.generator_steps": 0.1},
    "the encoder's layers": {"init.generator": "spread"},
    "the encoder's layers, the generator first": {"init.generator": "spread", "objective.generator_steps": 0.1},
    "its own generator": {"generator_from": "generator"},  # what the others miss
}
_OPTIONS: Mapping[str, Any] = {
    "input": "",
    "output": "",
    "flops": 2e13,
    "steps": 1000,
}


class Trial:
    """The first run, and what goes on from it.

    Attributes:
      output: the folder of the text, the runs and the exports.
      text: the prepared corpus.
      word_order: the folder of the task.
    """

    def __init__(self, output: Path, text: str, word_order: Path):
        self.output, self.text, self.word_order = output, text, word_order
        self.exported = output / "exported"

    def train_first(self, flops: float) -> None:
        """Trains and exports the model that all recipes start from."""
        run = self.output / "first"
        train_to_end(pretraining_config("electra", SHAPE, _RATE, flops, _MODEL, self.text), run, _progress())
        if not self.exported.exists():
            electra_jax.export(run, self.exported)

    def config(self, recipe: str, steps: int) -> ConfigDict:
        """The run that goes on from the discriminator."""
        changes = {**_MODEL, "init_from": str(self.exported / "discriminator"), **RECIPES[recipe], "batch_size": 16}
        if "objective.generator_steps" in changes:
            changes["objective.generator_steps"] = round(changes["objective.generator_steps"] * steps)
        if "generator_from" in changes:
            changes["generator_from"] = str(self.exported / "generator")
        config = pretraining_config("electra", SHAPE, _RATE / 3, 1.0, changes, self.text)
        config.steps, config.optim.warmup_steps = steps, max(1, steps // 20)
        config.log_every, config.eval_every = max(1, steps // 20), steps
        config.checkpoint.update(every=max(1, steps // 10), keep_last=10)
        return config

    def go_on(self, recipe: str, steps: int) -> Path:
        """Trains from the discriminator; returns the work directory."""
        run = self.output / recipe.replace(" ", "_").replace(",", "")
        train_to_end(self.config(recipe, steps), run, _progress())
        return run

    def measure(self, run: Path, step: int | None) -> dict[str, float]:
        """The numbers of a run after some steps; None: after all."""
        made = self.output / "measured" / f"{run.name}-{step}"
        if not (made / "exported").exists():
            electra_jax.export(run, made / "exported", step=step)
        # A frozen generator's run that does not learn: its evaluation is the detection of that generator's fakes.
        changes = {name: value for name, value in _MODEL.items() if name != "model.tying"} | {
            "init_from": str(made / "exported" / "discriminator"),
            "generator_from": str(self.exported / "generator"),
            "objective.temperature": 1.0,
        }
        config = pretraining_config("frozen_generator", SHAPE, 1e-12, 1.0, changes, self.text)
        found = train_to_end(config, made / "evaluated", _progress()).evaluations()[-1].metrics
        model = electra_jax.load(run, step, batch_size=32)
        return {
            **{name: round(found[name], 4) for name in ("disc_loss", "disc_auc")},
            **frozen.scores(model, "", self.word_order, ()),
        }


def _progress() -> ConsoleProgress:
    return ConsoleProgress(line_every=60.0)


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Markdown: detection loss and word order before, and for each recipe after some numbers of steps."""
    ((_, before),) = found["before"].items()
    recipes = {recipe: by_step for recipe, by_step in found.items() if recipe != "before"}
    steps = list(next(iter(recipes.values())))
    head = [f"{name}, {each} steps" for name in ("detection loss", "word order") for each in ("0", *steps)]
    lines = [["generator", *head], ["---"] * (1 + len(head))]
    for recipe, by_step in recipes.items():
        measured = [before, *by_step.values()]
        losses, orders = ([numbers[name] for numbers in measured] for name in ("disc_loss", "word_order"))
        lines.append([recipe, *(f"{loss:.3f}" for loss in losses), *(f"{order:.1f}" for order in orders)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    cli.require(chosen, ("input", "output"))
    check_value("--flops", chosen["flops"], above(0))
    check_value("--steps", chosen["steps"], Check(lambda steps: steps > 0 and steps % 10 == 0, "a multiple of 10"))
    output, steps = Path(chosen["output"]), chosen["steps"]
    folders = ladder.folders_in(output, data_dir="")
    ladder.prepare(chosen["input"], folders)
    trial = Trial(output, folders.text, folders.word_order)
    trial.train_first(chosen["flops"])
    results = output / "continued.json"
    found: dict[str, dict[str, Any]] = from_json(results.read_text()) if results.exists() else {}
    if "before" not in found:
        found["before"] = {"0": trial.measure(output / "first", None)}
    measured = (steps // 10, 3 * steps // 10, steps)
    for recipe in RECIPES:
        if recipe in found:
            if list(found[recipe]) != [str(step) for step in measured]:
                raise errors.UserError(f"{results} has other --steps than {steps}: use these, or another --output")
            continue
        run = trial.go_on(recipe, steps)
        found[recipe] = {str(step): trial.measure(run, step) for step in measured}
        write_whole(results, json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(errors.run(main))
