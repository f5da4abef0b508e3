"""A fine-tuning in memory: the task's data, the model, and the training of its seeds."""

import dataclasses
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import multi_seed
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.tasks import files
from electra_jax.downstream.tasks.multilabel import MultiLabel
from electra_jax.downstream.tasks.task import BadRows, Rows, Task
from electra_jax.loading.huggingface import bert
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import Network


class Split(NamedTuple):
    """Examples of a split, and their rows."""

    examples: list[Any]
    rows: Rows


class Data(NamedTuple):
    """Encoded examples of a task.

    Attributes:
      train: the rows to train on.
      dev: the splits to evaluate on, by name.
      test: the splits to answer for a leaderboard, by name.
    """

    train: Rows
    dev: dict[str, Split]
    test: dict[str, Split]


class Job(NamedTuple):
    """A fine-tuning that is loaded and ready to train.

    Attributes:
      config: its settings.
      task: the task.
      model: the task's model.
      network: the pre-trained network.
      tokenizer: its tokenizer.
      data: the task's data.
    """

    config: FinetuneConfig
    task: Task
    model: Downstream
    network: Network
    tokenizer: Tokenizer
    data: Data


class Outcome(NamedTuple):
    """Outcome of training one seed.

    Attributes:
      result: `seed`, `scores`, `losses` by epoch, `steps`, `seconds`; `threshold` of a multi-label task.
      task: the task, with what was chosen on half of the development set.
      answers: its answers by split.
      params: the fine-tuned parameters of the task's model.
    """

    result: dict[str, Any]
    task: Task
    answers: dict[str, list[Any]]
    params: Any


def make_model(config: FinetuneConfig, task: Task, network: Network) -> Downstream:
    """Makes the task's model, with the encoder of a pre-trained network.

    Raises:
      UserError: `config.max_length` exceeds the encoder's position table, or `config.head=bert` and the encoder is not
        a BERT.
    """
    shape = network.config
    if config.head == "bert":
        bert.check(shape)
    if shape.absolute and config.max_length > shape.max_length:
        raise UserError(
            f"config.max_length={config.max_length} is invalid: the pre-trained encoder has {shape.max_length} "
            f"positions; use --config.max_length={shape.max_length}"
        )
    # Dropout is that of the fine-tuning, whatever pre-training used; attention's None follows `dropout`.
    encoder = dataclasses.replace(
        shape.encoder,
        dropout=config.dropout,
        attention_dropout=None,
        dtype=jnp.dtype(config.dtype),
        remat="none",
    )
    # Fine-tuning trains the positions that its rows reach, so a kept model may read as far.
    trained = max(shape.trained_length, config.max_length)
    # Without pre-training's heads: their parameters are neither trained nor kept.
    own = dataclasses.replace(shape, encoder=encoder, heads=(), trained_length=trained)
    # Only the paper's answering head searches with a beam.
    beam = config.task.beam if task.kind == "answering" and config.head == "paper" else 0
    return Downstream(own, task.kind, task.outputs, beam, config.pooling, config.head)


def load_data(
    config: FinetuneConfig, task: Task, tokenizer: Tokenizer, data_dir: str, bad_rows: BadRows, tests: bool = False
) -> Data:
    """Reads and encodes a task's splits.

    Args:
      config: the fine-tuning.
      task: the task.
      tokenizer: the pre-trained network's tokenizer.
      data_dir: the folder with the task's files, or `tfds:NAME/CONFIG`.
      bad_rows: receives the rows of train and dev that cannot be used; a bad row of a test set is always an error.
      tests: whether to read the test sets that exist.
    """

    def encode(examples: list[Any]) -> Split:
        return Split(examples, task.encode(examples, tokenizer, config.max_length, train=False))

    train = _sample(task.read(data_dir, "train", bad_rows), config.examples)
    dev = {split: encode(_sample(task.read(data_dir, split, bad_rows), config.dev_examples)) for split in task.dev}
    small = next((split for split, each in dev.items() if task.needs_fit and len(each.examples) < 2), None)
    if small is not None:
        raise UserError(f"{data_dir}: {small} has one example: class_threshold=0 needs two or more; set a threshold")
    # Even if bad rows of train and dev are skipped: a leaderboard's file may lack no row.
    strict = BadRows(advice="fix it: a leaderboard expects an answer to every row")
    names = find_test_splits(task, data_dir) if tests else []
    test = {split: encode(task.read(data_dir, split, strict)) for split in names}
    # Only rows to train on are augmented (`swapped`) and weighted by class.
    return Data(task.encode(train, tokenizer, config.max_length, train=True), dev, test)


def _sample(examples: list[Any], count: int) -> list[Any]:
    """Returns the same sample of `count` examples each time, in their order; all of them if `count` is 0."""
    if not count or count >= len(examples):
        return examples
    # A fixed seed, not the fine-tuning's: all seeds and all encoders are compared on one sample.
    return [examples[i] for i in np.sort(np.random.default_rng(0).choice(len(examples), count, replace=False))]


def find_test_splits(task: Task, data_dir: str) -> list[str]:
    """Returns the names of the test sets that exist."""
    return [split for split in task.test if files.has_split(data_dir, split, task.suffixes)]


def train_seeds(
    job: Job, seeds: Sequence[int], on_step: Callable[[int, int], None] = lambda step, steps: None
) -> list[Outcome]:
    """Trains and evaluates several seeds at once.

    Args:
      job: the fine-tuning.
      seeds: the seeds.
      on_step: called after each step with (steps done, total steps).

    Raises:
      DivergedError: a loss or a parameter is not finite.
    """
    begin = time.perf_counter()
    params, losses_SN = multi_seed.train(
        job.model, job.network, job.config, job.data.train, job.tokenizer.special, seeds, on_step
    )
    # The seeds share each step, so each counts an equal part.
    seconds = (time.perf_counter() - begin) / len(seeds)
    outcomes = []
    for i, (scores, task, answers) in enumerate(_evaluate(job, params)):
        result = {
            "seed": seeds[i],
            "scores": scores,
            # Every epoch has the same number of steps, so equal parts are epochs.
            "losses": [float(epoch.mean()) for epoch in np.array_split(losses_SN[i], job.config.epochs)],
            "steps": losses_SN.shape[1],
            "seconds": seconds,
            **({"threshold": task.threshold} if isinstance(task, MultiLabel) else {}),
        }
        # [S, ...] -> [...], one seed's parameters.
        outcomes.append(Outcome(result, task, answers, jax.tree.map(operator.itemgetter(i), params)))
    return outcomes


def _evaluate(job: Job, params: Any) -> list[tuple[dict[str, float], Task, dict[str, list[Any]]]]:
    """Returns for each seed its scores, the task with what was chosen for it, and its answers by split."""
    count, fits = len(jax.tree.leaves(params)[0]), job.task.needs_fit
    answers: list[dict[str, list[Any]]] = [{} for _ in range(count)]
    scores: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    tasks = [job.task] * count
    # Development sets come first: test sets are answered with the threshold chosen there.
    for split, (examples, rows) in {**job.data.dev, **job.data.test}.items():
        for i, outputs in enumerate(multi_seed.predict(job.model, params, rows, job.tokenizer.special, job.config)):
            if tasks[i].needs_fit:  # on the first development set
                tasks[i] = tasks[i].fit({name: values[::2] for name, values in outputs.items()}, examples[::2])
            answers[i][split] = tasks[i].answer(outputs, rows, examples)
            if split in job.data.dev:
                # The examples that chose the threshold are not scored. `fits`, because a fitted task needs no fit.
                scored = slice(1, None, 2) if fits else slice(None)
                scores[i][split] = tasks[i].score(examples[scored], answers[i][split][scored])
    return [(job.task.combine(scores[i]), tasks[i], answers[i]) for i in range(count)]
