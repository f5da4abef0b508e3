"""Fine-tuning of one encoder on one task with several seeds, from files to scores.

Each seed's result is written when the seed is finished; another call trains only the missing seeds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, one_of
from electra_jax.downstream.finetuning import kept, multi_seed
from electra_jax.downstream.finetuning import recipe as recipe_lib
from electra_jax.downstream.finetuning.job import Job, find_test_splits, load_data, make_model, train_seeds
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.finetuning.results import Results
from electra_jax.downstream.tasks import files, registry, squad_metrics
from electra_jax.downstream.tasks import scores as scores_lib
from electra_jax.downstream.tasks.labels import joined
from electra_jax.downstream.tasks.squad import Answering
from electra_jax.downstream.tasks.task import BadRows, Task
from electra_jax.loading import networks
from electra_jax.loading.networks import Source
from electra_jax.runtime import cuda
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.progress import Progress

_CLASSES_SHOWN = 10


def finetune(
    config: ConfigDict | FinetuneConfig,
    init_from: str | Path,
    data_dir: str | Path,
    workdir: str | Path,
    *,
    step: int | None = None,
    keep: str = "best",
    strict: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fine-tunes an encoder on a downstream task with every seed that is not finished yet.

    Args:
      config: config of the fine-tuning, for example `electra_jax.configs.glue(task="cola")`.
      init_from: a run's work directory, an export, or a Hugging Face directory.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
      workdir: the local folder for scores, answers and models.
      step: step of the checkpoint, if `init_from` is a run; None: the last.
      keep: seeds whose models are kept, for `electra_jax.load`: `best`, `all` or `none`.
      strict: whether a row that cannot be used is an error; otherwise such rows are skipped and counted.
      progress: receives the progress; None: no output.

    Returns:
      The content of `scores.json`: `task`, `metric` (the main score's name), `init_from`, `model` (the best
      seed's model, a folder in `workdir`); `median`, `lowest`, `highest` and `std` of each score over the seeds, in
      percent; and `seeds`, the result of each seed.

    Raises:
      UserError: the config, the network, the files or the work directory cannot be used.
    """
    # A Path takes gs://BUCKET for a local folder named gs:.
    if re.match(r"\w{2,}:/", str(workdir)):
        raise UserError(f"workdir {workdir} is invalid: expected a local folder; fine-tuning does not write to gs://")
    check_value("keep", keep, one_of(*kept.KEEP))
    # Before the source is sought, which may download it from the Hub.
    resolved = recipe_lib.resolve(config)
    source = networks.find_source(Path(init_from), step)
    return finetune_source(resolved, source, str(data_dir), Path(workdir), keep=keep, strict=strict, progress=progress)


def finetune_source(
    config: FinetuneConfig,
    source: Source,
    data_dir: str,
    workdir: Path,
    *,
    keep: str = "none",
    strict: bool = True,
    tests: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Like `finetune`, but takes a source whose network is loaded only if a seed is missing.

    Args:
      config: config of the fine-tuning, from `recipe.resolve`.
      source: the pre-trained network.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
      workdir: the folder for scores, answers and models.
      keep: seeds whose models are kept, one of `kept.KEEP`.
      strict: whether a row that cannot be used is an error.
      tests: whether to answer the test sets that exist.
      progress: receives the progress.

    Returns:
      The content of `scores.json`.
    """
    progress = progress or Progress()
    cuda.check_is_used()
    # Before training, so that scoring does not fail after it.
    scores_lib.require()
    task = registry.make_task(config.task, data_dir)
    results = Results(workdir)
    identity = _identity(config, source, task, data_dir, strict)
    # Before the network is loaded, which takes time.
    results.check_same(identity)
    seeds = range(config.seed, config.seed + config.seeds)
    missing = results.missing(seeds)
    if missing:
        job, bad_rows = _load(config, task, source, data_dir, strict, tests, progress)
        # After `_load`: files that cannot be read leave no work directory behind.
        results.write_config(identity)
        results.drop_partial_models()
        _describe_data(job, progress)
        progress.start(task.name)
        try:
            with compile_cache(config.compile_cache):
                keeper = kept.Keeper(results, keep, seeds, source.name, progress)
                _train_missing(job, keeper, missing, len(bad_rows.problems))
        finally:
            progress.stop()
        if bad_rows.problems:
            progress.say(bad_rows.summary())
    if tests:
        _report_unanswered(results, task, data_dir, [seed for seed in seeds if seed not in missing], progress)
    # Also if nothing was missing: the requested seeds may be fewer than the finished ones.
    return results.summarize(task, source.name, seeds)


def _load(
    config: FinetuneConfig,
    task: Task,
    source: Source,
    data_dir: str,
    strict: bool,
    tests: bool,
    progress: Progress,
) -> tuple[Job, BadRows]:
    """Loads network and data. Returns them as a `Job`, with the skipped rows."""
    pretrained = source.load()
    if pretrained.tokenizer is None:
        raise UserError(f"{source.name} has no tokenizer: expected its tokenizer.json next to its weights")
    for note in pretrained.notes:
        progress.say(note)
    model = make_model(config, task, pretrained.encoder)
    bad_rows = BadRows(strict)
    data = load_data(config, task, pretrained.tokenizer, data_dir, bad_rows, tests)
    return Job(config, task, model, pretrained.encoder, pretrained.tokenizer, data), bad_rows


def _train_missing(job: Job, keeper: kept.Keeper, seeds: Sequence[int], rows_left_out: int) -> None:
    """Trains seeds, `seeds_at_once` at a time, and writes each seed's answers, model and result."""
    results, progress = keeper.results, keeper.progress
    examples = {name: split.examples for name, split in {**job.data.dev, **job.data.test}.items()}
    for done in range(0, len(seeds), job.config.seeds_at_once):
        group = seeds[done : done + job.config.seeds_at_once]
        try:
            outcomes = train_seeds(job, group, _show_steps(progress, group, done, len(seeds)))
        except multi_seed.DivergedError as error:
            raise UserError(f"{job.task.name} from {keeper.init_from}: {error}") from error
        for seed, outcome in zip(group, outcomes, strict=True):
            # `write_seed` comes last, because it marks the seed as finished; only `drop`, which reads it, follows.
            results.write_answers(job.task, seed, examples, outcome.answers)
            keeper.save(job, outcome)
            results.write_seed(seed, {**outcome.result, "rows_left_out": rows_left_out})
            keeper.drop(job.task)
            text = ", ".join(f"{name} {value:.1f}" for name, value in outcome.result["scores"].items())
            # `job.task` is the unfitted task; the seed's threshold is in its result.
            chosen = f", threshold {outcome.result['threshold']:.3g}" if job.task.needs_fit else ""
            progress.say(f"{job.task.name}, seed {seed}: {text}{chosen}")


def _show_steps(progress: Progress, seeds: Sequence[int], done: int, count: int) -> Callable[[int, int], None]:
    """Returns a callback that reports the progress of training `seeds`, after `done` of `count` seeds."""
    label = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"

    def on_step(step: int, steps: int) -> None:
        progress.update((done + len(seeds) * step / steps) / count, f"{label}, step {step}/{steps}")

    return on_step


def _describe_data(job: Job, progress: Progress) -> None:
    name, data = job.task.name, job.data
    # Nothing would fail: rotary and relative positions read any length, and BERT's table may have untrained entries.
    rows = {"train": data.train, **{split: each.rows for split, each in (data.dev | data.test).items()}}
    longest = max(int(each.lengths().max()) for each in rows.values())
    known = job.network.config.longest
    if longest > known:
        progress.say(
            f"{name} has rows of {longest} tokens, but the encoder was pre-trained on {known}; expect less of longer "
            f"rows, or cut them off with --config.max_length={known}"
        )
    labels: tuple[str, ...] = getattr(job.task, "labels", ())
    if name in ("table", "tags") and labels:  # read from the training set, so they reveal a wrong column
        progress.say(f"{name}: {_describe_classes(labels)}")
        spelled: dict[str, list[str]] = {}
        for each in labels:
            spelled.setdefault(" ".join(each.casefold().split()), []).append(each)
        for alike in filter(lambda several: len(several) > 1, spelled.values()):
            progress.say(f"{name}: {' and '.join(map(repr, alike))} are different classes, by spaces or case alone")
    if name == "table" and job.task.kind == "classification" and (label := joined(labels)):
        progress.say(
            f"{name}: {label!r} is taken for a class of its own; where a text has any number of classes, "
            "use --config.task.kind=multilabel"
        )
    dev = " + ".join(f"{len(split.examples):,}" for split in data.dev.values())
    progress.say(f"{name}: {len(data.train.input_ids):,} rows to train on, {dev} examples to evaluate on")
    for split, (examples, _) in data.dev.items():
        if isinstance(job.task, Answering) and (unit := job.task.f1_unit(examples)) is not squad_metrics.WORDS:
            counted = "characters" if unit is squad_metrics.CHARACTERS else "CMRC's units"
            progress.say(f"{name}: F1 on {split} counts {counted} (config.task.f1={job.task.config.f1})")
    for what, numbers in (
        ("examples without text, which are used like others", {split: each.empty for split, each in rows.items()}),
        (f"cut to fit rows of {job.config.max_length} tokens", {split: each.cut for split, each in rows.items()}),
    ):
        if any(numbers.values()):
            counts = ", ".join(f"{number:,} of {split}" for split, number in numbers.items() if number)
            progress.say(f"{name}: {what}: {counts}")


def _describe_classes(labels: Sequence[str]) -> str:
    """Formats the number of classes and the first few of them."""
    shown = ", ".join(map(repr, labels[:_CLASSES_SHOWN])) + ", ..." * (len(labels) > _CLASSES_SHOWN)
    return f"{len(labels)} classes: {shown}"


def _report_unanswered(
    results: Results, task: Task, data_dir: str, finished: Sequence[int], progress: Progress
) -> None:
    """Warns if a test set was added after some seeds had finished."""
    for split in find_test_splits(task, data_dir):
        without = [seed for seed in finished if not results.has_answered(task, seed, split)]
        if without:
            progress.say(
                f"seed {', '.join(map(str, without))} finished before {split} was added, so there are no predictions "
                f"for it; remove {results.seeds_dir} to train again"
            )
            return


def _identity(config: FinetuneConfig, source: Source, task: Task, data_dir: str, strict: bool) -> Mapping[str, Any]:
    """Returns the content of config.json, which identifies a fine-tuning."""
    return {
        **recipe_lib.to_dict(config),
        "strict": strict,
        "init_from": source.name,
        "weights": source.digest,
        "data_dir": data_dir,
        # Test sets are left out: they do not change a score, and may be added later.
        "data": files.split_digests(data_dir, ("train", *task.dev), task.suffixes),
    }
