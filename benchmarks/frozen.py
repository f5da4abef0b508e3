"""What an encoder knows without fine-tuning: linear models on its frozen states, by scikit-learn.

A text is represented by the mean of its states. A pair of texts u, v, each encoded alone, is represented by
[u, v, |u - v|, u * v]. Classes are predicted by logistic regression, numbers by ridge regression. Features are scaled
to unit variance on the training set.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import extras
import numpy as np

import electra_jax
from electra_jax.downstream.tasks import glue
from electra_jax.downstream.tasks.sentences import Columns, Example, Sentences
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.loading.networks import load_networks

with extras.needed("pip install '.[downstream]'"):
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

_C = 0.01  # of scikit-learn's regressions, for hundreds of features and thousands of rows
_WORD_ORDER = Sentences(name="word_order", columns=Columns(("sentence",), "label"), labels=("written", "shuffled"))


def scores(
    model: electra_jax.Model,
    data_dir: str,
    word_order: Path,
    tasks: Sequence[str],
    most: Mapping[str, int] | None = None,
) -> dict[str, float]:
    """The main score of each task, in percent, and of `word_order`.

    Args:
      model: the encoder.
      data_dir: the folder with GLUE's folders.
      word_order: the folder that benchmarks/word_order.py wrote.
      tasks: tasks of GLUE.
      most: training examples of a task, where not all of them are read.
    """
    folders = [*((glue.TASKS[name], glue.task_dir(data_dir, name)) for name in tasks), (_WORD_ORDER, str(word_order))]
    return {task.name: _score(model, task, folder, (most or {}).get(task.name)) for task, folder in folders}


def load(run: Path, averaged: int) -> electra_jax.Model:
    """The encoder of a run, with the mean of the parameters of its last checkpoints."""
    networks = load_networks(run, average=averaged)
    assert networks.tokenizer is not None
    return electra_jax.Model(str(run), networks, networks.tokenizer, batch_size=32)


def _score(model: electra_jax.Model, task: Sentences, folder: str, most: int | None) -> float:
    strict = BadRows()
    train, dev = (task.read(folder, split, strict) for split in ("train", task.dev[0]))
    train = train[:most]
    linear = make_pipeline(
        StandardScaler(),
        LogisticRegression(C=_C, max_iter=1000) if task.labels else Ridge(alpha=1 / _C),
    )
    linear.fit(_features(model, train), [example.target for example in train])
    answers = linear.predict(_features(model, dev)).tolist()
    return round(task.score(dev, answers)[task.main_metric], 3)


def _features(model: electra_jax.Model, examples: Sequence[Example]) -> np.ndarray:
    """The features of each example, [N, D] or, of pairs, [N, 4 D]."""
    texts = sorted(set(itertools.chain.from_iterable(example.texts for example in examples)))
    states = dict(zip(texts, model.encode(texts), strict=True))
    first = np.stack([states[example.texts[0]] for example in examples])
    if len(examples[0].texts) == 1:
        return first
    second = np.stack([states[example.texts[1]] for example in examples])
    return np.concatenate([first, second, abs(first - second), first * second], axis=1)
