"""Fine-tuned models on disk.

A model is an encoder's directory in transformers' format, which `AutoModel` loads, with two more files:

head.safetensors  parameters of the task's head
task.json         the task, its labels, the settings of the fine-tuning, the seed and its scores
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import recipe
from electra_jax.downstream.finetuning.job import Job, Outcome, make_model
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.finetuning.results import Results
from electra_jax.downstream.tasks import registry
from electra_jax.downstream.tasks.task import Task
from electra_jax.loading.huggingface import directory
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import Network, flatten_params, unflatten_params
from electra_jax.runtime.io import new_folder, read_json, write_whole
from electra_jax.runtime.progress import Progress

TASK, HEAD = "task.json", "head.safetensors"
KEEP = ("best", "all", "none")


class Kept(NamedTuple):
    """A fine-tuned model.

    Attributes:
      network: the fine-tuned encoder, without a head.
      head: the parameters of the task's head.
      tokenizer: its tokenizer.
      task: the task.
      config: the settings of the fine-tuning.
      facts: `seed`, `scores` in percent, and `init_from`, the name of the pre-trained model.
    """

    network: Network
    head: Any
    tokenizer: Tokenizer
    task: Task
    config: FinetuneConfig
    facts: dict[str, Any]

    @property
    def model(self) -> Downstream:
        return make_model(self.config, self.task, self.network)

    @property
    def params(self) -> Any:
        """Parameters of `model`."""
        return {**self.network.params, "head": self.head}


def write(folder: Path, job: Job, params: Any, facts: dict[str, Any]) -> None:
    """Writes a fine-tuned model, completely or not at all.

    Args:
      folder: the directory; an existing one is replaced.
      job: the fine-tuning.
      params: the fine-tuned parameters of `job.model`.
      facts: as in `Kept.facts`.

    Raises:
      UserError: tokenizer.json cannot express the tokenizer.
    """
    # Fetched once: both files of weights are written from NumPy arrays.
    params = jax.tree.map(np.asarray, params)
    network = Network(job.model.config, {name: params[name] for name in ("embeddings", "encoder")})
    with new_folder(folder) as partial:
        directory.write(partial, network, None, job.tokenizer, _card(job, facts))
        write_task(partial, job.config, job.task, params["head"], facts)
        if folder.exists():  # last, for the rename at the end of the block, which cannot replace a non-empty folder
            shutil.rmtree(folder)


def write_task(folder: Path, config: FinetuneConfig, task: Task, head: Any, facts: dict[str, Any]) -> None:
    """Writes the two files of a task into the directory of an encoder."""
    directory.save_arrays(flatten_params(head), folder / HEAD)
    shutil.copymode(folder / directory.CARD, folder / HEAD)  # safetensors writes files that only their owner can read
    described = {"config": recipe.to_dict(config), "learned": registry.learned(task), **facts}
    write_whole(folder / TASK, json.dumps(described, indent=2) + "\n")


def read(folder: Path) -> Kept:
    """Reads a fine-tuned model that `write` or `hf_export.export` wrote.

    Raises:
      UserError: a file is missing or damaged.
    """
    described = read_json(folder / TASK)
    try:
        # A model kept by an earlier version lacks its task's later settings.
        config = recipe.resolve(recipe.with_later_settings(described.pop("config")))
        task = registry.restore_task(config.task, described.pop("learned"))
        head = load_file(folder / HEAD)
    except (KeyError, TypeError, OSError, SafetensorError) as error:
        raise UserError(f"{folder} is damaged ({error}); fine-tune again, with another --workdir") from error
    found = directory.read(folder)
    if found.tokenizer is None:
        raise UserError(f"{folder} is damaged (no tokenizer); fine-tune again, with another --workdir")
    return Kept(found.encoder, unflatten_params(head), found.tokenizer, task, config, described)


def scored_on(config: FinetuneConfig) -> str:
    """Returns what the scores of a fine-tuning are measured on."""
    return "half of the development set" if config.task.class_threshold == 0 else "the development set"


def _card(job: Job, facts: dict[str, Any]) -> str:
    scores = ", ".join(f"{name} {value:.1f}" for name, value in facts["scores"].items())
    return f"""\
---
library_name: transformers
tags: [electra_jax]
---

# Encoder fine-tuned on {job.task.name}

Fine-tuned with electra_jax from `{facts["init_from"]}`, seed {facts["seed"]}; on {scored_on(job.config)}: {scores}.
`AutoModel.from_pretrained` loads the encoder alone. The head is in `{HEAD}`: `electra_jax.load` reads both, and
`electra-jax export` writes both for transformers.
"""


class Keeper(NamedTuple):
    """Writer of the models that are to be kept, which also deletes those that no longer are.

    Attributes:
      results: the files of the fine-tuning.
      keep: `best` (the model with the highest main score), `all` or `none`.
      seeds: all seeds of the fine-tuning.
      init_from: the name of the pre-trained network.
      progress: receives a message about each model that cannot be kept.
    """

    results: Results
    keep: str
    seeds: Sequence[int]
    init_from: str
    progress: Progress

    def save(self, job: Job, outcome: Outcome) -> None:
        """Writes the model of a seed if it is to be kept. Call it before the seed's result is written."""
        scores, seed = outcome.result["scores"], outcome.result["seed"]
        if self.keep == "none" or (self.keep == "best" and not self._is_better(job.task, scores, seed)):
            return
        folder = self.results.model_dir(seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(
                folder,
                # The seed's own task has the threshold that was chosen for it.
                job._replace(task=outcome.task),
                outcome.params,
                {"seed": seed, "scores": scores, "init_from": self.init_from},
            )
        except UserError as error:  # no file of transformers can express the tokenizer
            self.progress.say(f"the model of seed {seed} is not kept: {error}")
            return
        if self.keep == "best":  # if killed before `drop` at the last seed, no later call would delete the others
            self.results.drop_models(seed)

    def _is_better(self, task: Task, scores: Mapping[str, float], seed: int) -> bool:
        """True if a seed will be `Results.best`, which is the first seed if scores are equal."""
        best = self.results.best(task, self.seeds)
        if best is None:
            return True
        # Not the order of training: with a lower `config.seed`, earlier seeds are trained later.
        difference = scores[task.main_metric] - self.results.read_seed(best)["scores"][task.main_metric]
        return difference > 0 or (difference == 0 and self.seeds.index(seed) < self.seeds.index(best))

    def drop(self, task: Task) -> None:
        """Deletes models that are not to be kept. Call it after the seed's result is written."""
        if self.keep == "best":
            self.results.drop_models(self.results.best(task, self.seeds))
