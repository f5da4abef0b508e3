"""A quick fine-tuning in the course of a pre-training, so that a run that will be poor downstream shows early."""

import math
from typing import Any

from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning import multi_seed, run
from electra_jax.downstream.finetuning import recipe as recipe_lib
from electra_jax.downstream.tasks import registry
from electra_jax.downstream.tasks import scores as scores_lib
from electra_jax.downstream.tasks.task import BadRows
from electra_jax.loading.networks import Pretrained
from electra_jax.modeling.subnetwork import Network


class Probe:
    """One seed on some examples of one task; the same ones, in the same order, from the same head, each time."""

    def __init__(self, settings: Any, max_length: int, tokenizer: Tokenizer):
        """Reads the task's files.

        Args:
          settings: `config.probe`: `task`, of GLUE, `data_dir`, `examples` to train on, and to evaluate on, and
            `epochs`.
          max_length: tokens of the run's sequences.
          tokenizer: of the run.

        Raises:
          UserError: the files cannot be used.
        """
        scores_lib.require()
        self._config = recipe_lib.make({"name": settings.task})
        self._config.update(examples=settings.examples, dev_examples=settings.examples, epochs=settings.epochs)
        self._config.max_length = min(self._config.max_length, max_length)
        self._tokenizer = tokenizer
        self._task = registry.make(self._config.task, settings.data_dir)
        self._data = run.load(self._config, self._task, tokenizer, settings.data_dir, BadRows())

    def __call__(self, network: Network) -> dict[str, float]:
        """The scores of an encoder as it is now, by `probe_TASK_SCORE`."""
        found = Pretrained(network, None, self._tokenizer)
        model, network = run.make_model(self._config, self._task, found)
        recipe, special = recipe_lib.recipe(self._config), self._tokenizer.special
        try:
            params, _ = multi_seed.train(model, network, recipe, self._data.train, special, [0])
            (scores,), _ = run.evaluate(self._task, model, params, recipe, special, self._data)
        except multi_seed.DivergedError:  # which does not stop the run
            scores = {self._task.main: math.nan}
        return {f"probe_{self._task.name}_{name}": value for name, value in scores.items()}
