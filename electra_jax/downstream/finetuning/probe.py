"""Probe: a quick fine-tuning during pre-training, which shows early if a run will be poor downstream."""

import dataclasses
import math

from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import multi_seed, recipe
from electra_jax.downstream.finetuning.job import Job, load_data, make_model, train_seeds
from electra_jax.downstream.tasks import registry, scores
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.loading.model import Model
from electra_jax.train_config import ProbeConfig


class Probe:
    """Fine-tuning of one seed on a sample of one task, with the same examples, order and initial head each time."""

    def __init__(self, config: ProbeConfig, max_length: int, tokenizer: Tokenizer):
        """Reads the task's files.

        Args:
          config: the run's settings `config.probe`.
          max_length: maximum sequence length of the run's encoder, in tokens.
          tokenizer: the run's tokenizer.

        Raises:
          UserError: the files cannot be used.
        """
        # Libraries and files are asked for now: a run must not fail at its first probe.
        scores.require()
        settings = recipe.resolve(recipe.make(config.task, "head=paper"))
        self._config = dataclasses.replace(
            settings,
            examples=config.examples,
            dev_examples=config.examples,
            epochs=config.epochs,
            # The recipe's 128 may exceed a small encoder's positions.
            max_length=min(settings.max_length, max_length),
        )
        self._tokenizer = tokenizer
        self._task = registry.make_task(self._config.task, config.data_dir)
        # Training has no --strict, so the advice must not name it.
        self._data = load_data(self._config, self._task, tokenizer, config.data_dir, BadRows(advice="fix it"))

    def __call__(self, step: int, model: Model) -> dict[str, float]:
        """Returns an encoder's scores by `probe_TASK_SCORE`; only a NaN for the main score if fine-tuning diverges."""
        with_head = make_model(self._config, self._task, model.encoder)
        job = Job(self._config, self._task, with_head, model.encoder, self._tokenizer, self._data)
        try:
            # Always seed 0: scores of two steps then differ by the encoder alone.
            (outcome,) = train_seeds(job, [0])
            by_name = outcome.result["scores"]
        except multi_seed.DivergedError:
            # Pre-training goes on: the probe only reports.
            by_name = {self._task.main_metric: math.nan}
        return {f"probe_{self._task.name}_{name}": value for name, value in by_name.items()}
