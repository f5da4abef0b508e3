"""One task, one encoder, several seeds: from files to scores. Each seed's are written when it is done, so that another
call goes on with those that are missing.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.errors import UserError
from electra_jax.files import read_json, write_whole
from electra_jax.finetuning import recipe as recipe_lib
from electra_jax.finetuning import seeds as seeds_lib
from electra_jax.modeling.alone import Network
from electra_jax.modeling.downstream import Downstream
from electra_jax.pretrained import Pretrained
from electra_jax.tasks import files, table
from electra_jax.tasks.task import Faults, Rows, Task

SCORES = "scores.json"
_SEEDS, _ANSWERS = "seeds", "answers"
_FREE = ("seeds:", "seeds_at_once:", "compile_cache:")  # settings that another call may have otherwise


class Watch:
    """Told what happens. This one keeps it to itself."""

    def say(self, text: str) -> None:
        """A line for the person."""

    def begin(self, task: Task, config: ConfigDict, data: "Data") -> None:
        """The data are there."""

    def training(self, seeds: Sequence[int], done: int, of: int) -> Callable[[int, int], None]:
        """Some seeds begin, `done` of `of` are finished; the function that is told how many steps are."""
        return lambda step, steps: None

    def scored(self, task: Task, seed: int, scores: Mapping[str, float]) -> None:
        """A seed is finished."""

    def end(self) -> None:
        """All are."""


class Data(NamedTuple):
    """A task's examples, encoded.

    Attributes:
      train: to train on.
      dev, test: by split, (examples, rows).
    """

    train: Rows
    dev: dict[str, tuple[list[Any], Rows]]
    test: dict[str, tuple[list[Any], Rows]]


def finetune(
    config: ConfigDict,
    get: Callable[[], Pretrained],
    place: str,
    data_dir: str,
    workdir: Path,
    strict: bool = True,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Fine-tunes with each seed that is not done yet.

    Args:
      config: a task's, see `configs/glue.py`.
      get: gives what it begins with; called where a seed is missing.
      place: where that is, for `workdir` to be known by.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
      workdir: where scores and answers go.
      strict: whether rows that cannot be used are refused.
      watch: told what happens.

    Returns:
      What is in `scores.json`.

    Raises:
      UserError: the config, the files, the network or the work directory cannot be used.
    """
    watch = watch or Watch()
    recipe_lib.check(config)
    if config.compile_cache:
        jax.config.update("jax_compilation_cache_dir", config.compile_cache)
    settings = _settings(config, place, data_dir, workdir)
    seeds = range(config.seed, config.seed + config.seeds)
    missing = [seed for seed in seeds if not _path(workdir, seed).exists()]
    faults = Faults(strict)
    task = table.make(config.task, data_dir)
    if missing:
        found = get()
        if found.tokenizer is None:
            raise UserError(f"{place} has no tokenizer; put its tokenizer.json beside its weights")
        for note in found.notes:
            watch.say(note)
        model, network = make_model(config, task, found)
        data = load(config, task, found.tokenizer, data_dir, faults)
        recipe, special = recipe_lib.recipe(config), found.tokenizer.special
        (workdir / _SEEDS).mkdir(parents=True, exist_ok=True)
        write_whole(workdir / "config.json", json.dumps(settings, indent=2) + "\n")
        longest, known = int(data.train.lengths().max()), network.config.max_length
        if longest > known:
            watch.say(f"{task.name} has rows of {longest} tokens; the encoder was pre-trained on {known}")
        watch.begin(task, config, data)
        for begin in range(0, len(missing), config.seeds_at_once):
            group = missing[begin : begin + config.seeds_at_once]
            since = time.perf_counter()
            told = watch.training(group, begin, len(missing))
            params, losses = seeds_lib.train(model, network, recipe, data.train, special, group, told)
            seconds = time.perf_counter() - since
            scores, answers = evaluate(task, model, params, recipe, special, data)
            for i, seed in enumerate(group):
                _write_answers(task, workdir, seed, data, answers[i])
                epochs = np.array_split(losses[i], config.epochs)
                done = {
                    "seed": seed,
                    "scores": scores[i],
                    "losses": [float(epoch.mean()) for epoch in epochs],
                    "steps": losses.shape[1],
                    "seconds": seconds / len(group),
                }
                write_whole(_path(workdir, seed), json.dumps(done, indent=2) + "\n")
                watch.scored(task, seed, scores[i])
        if faults.places:
            watch.say(faults.summary())
    watch.end()
    result = summary(task, config, place, [read_json(_path(workdir, seed)) for seed in seeds])
    write_whole(workdir / SCORES, json.dumps(result, indent=2) + "\n")
    return result


def make_model(config: ConfigDict, task: Task, found: Pretrained) -> tuple[Downstream, Network]:
    """The task's model, and the network that it begins with."""
    shape = found.encoder.config
    if shape.absolute and config.max_length > shape.max_length:
        raise UserError(
            f"config.max_length={config.max_length} is longer than the {shape.max_length} positions of what it begins "
            f"from; give --config.max_length={shape.max_length}"
        )
    encoder = dataclasses.replace(
        shape.encoder, dropout=config.dropout, dtype=jnp.dtype(config.dtype), remat="none", unroll=False
    )
    own = dataclasses.replace(shape, encoder=encoder, heads=())
    return Downstream(own, task.kind, task.outputs, config.task.get("beam", 0)), found.encoder


def load(config: ConfigDict, task: Task, tokenizer: Tokenizer, data_dir: str, faults: Faults) -> Data:
    """Reads and encodes all splits; test sets where there are any."""

    def encoded(split: str) -> tuple[list[Any], Rows]:
        examples = task.read(data_dir, split, faults)
        return examples, task.encode(examples, tokenizer, config.max_length, train=False)

    examples = task.read(data_dir, "train", faults)
    if config.examples and config.examples < len(examples):
        chosen = np.random.default_rng(0).choice(len(examples), config.examples, replace=False)
        examples = [examples[i] for i in np.sort(chosen)]
    train = task.encode(examples, tokenizer, config.max_length, train=True)
    tests = [split for split in task.test if files.has(data_dir, split, task.suffixes)]
    return Data(train, {split: encoded(split) for split in task.dev}, {split: encoded(split) for split in tests})


def summary(task: Task, config: ConfigDict, place: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, lowest, highest and standard deviation over seeds of each score."""
    names = seeds[0]["scores"]
    by_name = {name: [seed["scores"][name] for seed in seeds] for name in names}
    return {
        "task": config.task.name,
        "metric": task.main,
        "init_from": place,
        "median": {name: statistics.median(values) for name, values in by_name.items()},
        "lowest": {name: min(values) for name, values in by_name.items()},
        "highest": {name: max(values) for name, values in by_name.items()},
        "std": {name: statistics.stdev(values) if len(values) > 1 else None for name, values in by_name.items()},
        "seeds": list(seeds),
    }


def evaluate(
    task: Task, model: Downstream, params: Any, recipe: seeds_lib.Recipe, special: Any, data: Data
) -> tuple[list[dict[str, float]], list[dict[str, list[Any]]]]:
    """For each seed: scores, and the answers by split."""
    count = len(jax.tree.leaves(params)[0])
    answers: list[dict[str, list[Any]]] = [{} for _ in range(count)]
    by_split: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    for split, (examples, rows) in {**data.dev, **data.test}.items():
        for i, outputs in enumerate(seeds_lib.outputs(model, params, rows, special, recipe)):
            answers[i][split] = task.answer(outputs, rows, examples)
            if split in data.dev:
                by_split[i][split] = task.score(examples, answers[i][split])
    return [task.combine(scores) for scores in by_split], answers


def _write_answers(task: Task, workdir: Path, seed: int, data: Data, answers: Mapping[str, list[Any]]) -> None:
    folder = workdir / _ANSWERS / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for split, said in answers.items():
        examples, _ = data.dev[split] if split in data.dev else data.test[split]
        task.write(folder / task.test.get(split, split), examples, said)


def _settings(config: ConfigDict, place: str, data_dir: str, workdir: Path) -> dict[str, Any]:
    """What a work directory is known by. Raises UserError where the one that is there is of another fine-tuning."""
    settings = {**json.loads(config.to_json_best_effort()), "init_from": place, "data_dir": data_dir}
    path = workdir / "config.json"
    if path.exists():
        changed = config_lib.differences(read_json(path), settings)
        fixed = [text for text in changed if not text.startswith(_FREE)]
        if fixed:
            raise UserError(f"{workdir} holds another fine-tuning ({'; '.join(fixed)}); give another folder")
    return settings


def _path(workdir: Path, seed: int) -> Path:
    return workdir / _SEEDS / f"{seed}.json"
