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

from electra_jax.config.errors import UserError
from electra_jax.config.settings import differences
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import multi_seed as seeds_lib
from electra_jax.downstream.finetuning import recipe as recipe_lib
from electra_jax.downstream.tasks import files, registry
from electra_jax.downstream.tasks import scores as scores_lib
from electra_jax.downstream.tasks.task import BadRows, Rows, Task
from electra_jax.loading.networks import Pretrained, Source
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.progress import Progress

SCORES = "scores.json"
_SEEDS, _ANSWERS = "seeds", "answers"
# What another call may have otherwise: of the place of weights and of files it is their digests that count.
_FREE = ("seed", "seeds", "seeds_at_once", "compile_cache", "init_from", "data_dir")


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
    source: Source,
    data_dir: str,
    workdir: Path,
    strict: bool = True,
    tests: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fine-tunes with each seed that is not done yet.

    Args:
      config: a task's, which `recipe.check` has passed.
      source: what it begins with; loaded where a seed is missing.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
      workdir: where scores and answers go.
      strict: whether rows that cannot be used are refused.
      tests: whether test sets are answered, where there are any.
      progress: receives progress.

    Returns:
      What is in `scores.json`.

    Raises:
      UserError: the config, the files, the network or the work directory cannot be used.
    """
    progress = progress or Progress()
    if config.compile_cache:
        jax.config.update("jax_compilation_cache_dir", config.compile_cache)
    scores_lib.require()
    task = registry.make(config.task, data_dir)
    settings = _settings(config, source, task, data_dir, strict)
    seeds = range(config.seed, config.seed + config.seeds)
    missing = [seed for seed in seeds if not _path(workdir, seed).exists()]
    _check_same(settings, workdir)
    faults = BadRows(strict)
    if missing:
        found = source.load()
        if found.tokenizer is None:
            raise UserError(f"{source.name} has no tokenizer; put its tokenizer.json beside its weights")
        for note in found.notes:
            progress.say(note)
        model, network = make_model(config, task, found)
        data = load(config, task, found.tokenizer, data_dir, faults, tests)
        recipe, special = recipe_lib.recipe(config), found.tokenizer.special
        (workdir / _SEEDS).mkdir(parents=True, exist_ok=True)
        write_whole(workdir / "config.json", json.dumps(settings, indent=2) + "\n")
        longest, known = int(data.train.lengths().max()), network.config.max_length
        if longest > known:
            progress.say(f"{task.name} has rows of {longest} tokens; the encoder was pre-trained on {known}")
        dev = " + ".join(f"{len(examples):,}" for examples, _ in data.dev.values())
        progress.say(f"{task.name}: {len(data.train.input_ids):,} rows to train on, {dev} examples to evaluate on")
        progress.start(task.name)
        for begin in range(0, len(missing), config.seeds_at_once):
            group = missing[begin : begin + config.seeds_at_once]
            since = time.perf_counter()
            told = _report_steps(progress, group, begin, len(missing))
            try:
                params, losses = seeds_lib.train(model, network, recipe, data.train, special, group, told)
            except seeds_lib.DivergedError as error:
                raise UserError(f"{task.name} from {source.name}: {error}") from error
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
                    "rows_left_out": len(faults.places),
                    "seconds": seconds / len(group),
                }
                write_whole(_path(workdir, seed), json.dumps(done, indent=2) + "\n")
                shown = ", ".join(f"{name} {value:.1f}" for name, value in scores[i].items())
                progress.say(f"{task.name}, seed {seed}: {shown}")
        if faults.places:
            progress.say(faults.summary())
    if tests and (said := _unanswered(task, data_dir, workdir, [seed for seed in seeds if seed not in missing])):
        progress.say(said)
    progress.stop()
    result = summary(task, config, source.name, [_done(workdir, seed) for seed in seeds])
    write_whole(workdir / SCORES, json.dumps(result, indent=2) + "\n")
    return result


def _report_steps(progress: Progress, seeds: Sequence[int], done: int, count: int) -> Callable[[int, int], None]:
    """The function that is called with the number of steps done and their total while `seeds` are trained."""
    names = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"

    def report(step: int, steps: int) -> None:
        progress.update((done + len(seeds) * step / steps) / count, f"{names}, step {step}/{steps}")

    return report


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


def load(
    config: ConfigDict, task: Task, tokenizer: Tokenizer, data_dir: str, faults: BadRows, tests: bool = False
) -> Data:
    """Reads and encodes the splits; those of test sets only with `tests`, and where there are any."""

    def some(examples: list[Any], count: int) -> list[Any]:
        if not count or count >= len(examples):
            return examples
        return [examples[i] for i in np.sort(np.random.default_rng(0).choice(len(examples), count, replace=False))]

    def encoded(examples: list[Any]) -> tuple[list[Any], Rows]:
        return examples, task.encode(examples, tokenizer, config.max_length, train=False)

    train = some(task.read(data_dir, "train", faults), config.examples)
    dev = {split: encoded(some(task.read(data_dir, split, faults), config.dev_examples)) for split in task.dev}
    hidden = _test_sets(task, data_dir) if tests else []
    whole = BadRows(way_out="mend it: a leaderboard wants an answer to every row")
    test = {split: encoded(task.read(data_dir, split, whole)) for split in hidden}
    return Data(task.encode(train, tokenizer, config.max_length, train=True), dev, test)


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


def _test_sets(task: Task, data_dir: str) -> list[str]:
    """Those of the task's that are there."""
    return [split for split in task.test if files.has(data_dir, split, task.suffixes)]


def _unanswered(task: Task, data_dir: str, workdir: Path, done: Sequence[int]) -> str:
    """A sentence about a test set that came after seeds were done; empty where there is none."""
    for split in _test_sets(task, data_dir):
        without = [seed for seed in done if not any(_answers(workdir, seed).glob(f"{task.test[split]}.*"))]
        if without:
            return (
                f"seed {', '.join(map(str, without))}, done before, has not answered {split}; remove "
                f"{workdir / _SEEDS} to have it done again"
            )
    return ""


def _write_answers(task: Task, workdir: Path, seed: int, data: Data, answers: Mapping[str, list[Any]]) -> None:
    folder = _answers(workdir, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, said in answers.items():
        examples, _ = data.dev[split] if split in data.dev else data.test[split]
        task.write(folder / task.test.get(split, split), examples, said)


def _settings(config: ConfigDict, source: Source, task: Task, data_dir: str, strict: bool) -> dict[str, Any]:
    """What a fine-tuning is known by."""
    return {
        **json.loads(config.to_json_best_effort()),
        "strict": strict,
        "init_from": source.name,
        "weights": source.digest,
        "data_dir": data_dir,
        "data": files.digests(data_dir, ("train", *task.dev), task.suffixes),
    }


def _check_same(settings: dict[str, Any], workdir: Path) -> None:
    """Raises UserError where the folder is not this fine-tuning's: seeds of two must not be counted as one's."""
    path = workdir / "config.json"
    done = any((workdir / _SEEDS).glob("*.json"))
    before = read_json(path) if path.exists() else {}
    if (done and not before) or (before and "task" not in before):
        raise UserError(f"{workdir} is not the folder of a fine-tuning, but holds something else; give another folder")
    changed = differences(before, settings)
    fixed = [f"{name}: {text}" for name, text in changed.items() if name not in _FREE]
    if done and fixed:
        raise UserError(f"{workdir} holds another fine-tuning ({'; '.join(fixed)}); give another folder")


def _answers(workdir: Path, seed: int) -> Path:
    return workdir / _ANSWERS / f"seed-{seed}"


def _done(workdir: Path, seed: int) -> dict[str, Any]:
    """What was written when a seed was done."""
    path = _path(workdir, seed)
    found = read_json(path)
    if found.get("seed") != seed or not isinstance(found.get("scores"), dict) or not found["scores"]:
        raise UserError(f"{path} is not what a seed ends with; remove it, and the same command does that seed again")
    return found


def _path(workdir: Path, seed: int) -> Path:
    return workdir / _SEEDS / f"{seed}.json"
