"""Inference with fine-tuned models: `Model.predict`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from electra_jax.config.errors import UserError
from electra_jax.downstream import predictions
from electra_jax.downstream.finetuning import kept, results
from electra_jax.downstream.finetuning.kept import Kept
from electra_jax.downstream.tasks.task import Rows
from electra_jax.loading.huggingface.directory import Pretrained
from electra_jax.loading.model import Model
from electra_jax.loading.text_batches import check_sequence, check_texts, length_batches
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream
from electra_jax.runtime.compile_cache import compile_cache_unless_chosen
from electra_jax.runtime.io import read_json

Texts = str | tuple[str, ...]


def find(path: Path) -> Path | None:
    """Returns the folder of a fine-tuned model: `path`, or its best seed's if it is a fine-tuning; None otherwise.

    Raises:
      UserError: `path` is a fine-tuning that kept no model.
    """
    if (path / kept.TASK).is_file():
        return path
    if not (path / results.SCORES).is_file():
        return None
    model = read_json(path / results.SCORES).get("model")
    if not isinstance(model, str):
        raise UserError(f"{path} is a fine-tuning without models; fine-tune with --keep=best, in another --workdir")
    return path / model


class FinetunedModel(Model):
    """A fine-tuned encoder with the head of its task.

    Attributes:
      task: the task.
      labels: the classes or tags, in index order; empty for tasks without any.
      scores: its scores in percent, on the development set, or on half of it if the other half chose a threshold.
      max_length: maximum sequence length, in tokens; longer texts are truncated, or read in windows.
      cut: number of inputs of `predict` that were truncated so far: texts and pairs that are too long, SQuAD questions
        longer than `config.task.query` (64 tokens by default), tagged texts with a word longer than a row.
      empty: number of texts and pairs without any token, which were predicted like others.
    """

    def __init__(self, name: str, model: Kept, batch_size: int = 16):
        super().__init__(name, Pretrained(model.network, None, model.tokenizer), model.tokenizer, batch_size)
        self.task, self.scores = model.task, dict(model.facts["scores"])
        self.labels: tuple[str, ...] = getattr(model.task, "labels", ())
        self.max_length = model.config.max_length
        self.cut = self.empty = 0
        self._batch_size = batch_size
        # `model` is compared by value: models of equal shape share the compiled programs.
        self._module = model.model
        # Once: NumPy arrays as arguments would be copied to the device for every batch.
        self._task_params = jax.device_put(model.params)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; fine-tuned on {self.task.name}>"

    def predict(self, inputs: Texts | Sequence[Texts]) -> Any:
        """Predicts as `Model.predict` documents."""
        names = predictions.texts_of(self.task)
        # For a task on pairs a tuple is one input; for one on single texts it is a sequence of inputs.
        single = isinstance(inputs, str) or (
            len(names) == 2 and isinstance(inputs, tuple) and all(isinstance(part, str) for part in inputs)
        )
        check_sequence(inputs, "inputs", f"{' and '.join(names)}, or a sequence of them")
        given = [inputs] if single else inputs
        texts: list[tuple[str, ...]] = []
        for number, each in enumerate(given):
            check_sequence(each, f"input {number}", f"{' and '.join(names)}; leave it out")
            texts.append(tuple(check_texts(each)))
        wrong = next((each for each in texts if len(each) != len(names)), None)
        if wrong is not None:
            raise UserError(
                f"{self.name} reads {' and '.join(names)}: expected {len(names)} text{'s' * (len(names) > 1)} for each "
                f"prediction, got {len(wrong)}"
            )
        found = self._predict(texts) if texts else []
        return found[0] if single else found

    def _predict(self, texts: Sequence[tuple[str, ...]]) -> list[Any]:
        examples = predictions.make_examples(self.task, texts)
        rows = self.task.encode(examples, self.tokenizer, self.max_length, train=False)
        self.cut += rows.cut
        self.empty += rows.empty
        # Texts without a word to tag have no rows.
        outputs = self._outputs(rows) if rows.input_ids else {"scores": []}
        return predictions.make_predictions(self.task, texts, outputs, rows, examples)

    @compile_cache_unless_chosen()
    def _outputs(self, rows: Rows) -> dict[str, Any]:
        """Maps each output name to an array [rows, ...], or to a list of [tokens, ...] for per-token outputs."""
        lengths = rows.lengths()
        # The paper's head returns at most as many answers as a batch has positions: no batch is shorter than the beam.
        padded = np.maximum(lengths, min(self._module.beam, self.max_length))
        found: dict[str, list[Any]] = {}
        for length, size, numbers in length_batches(padded.tolist(), self.max_length, self._batch_size):
            batch = rows.make_batch(numbers, size, length, self.tokenizer.special)
            for name, values in _apply(
                self._task_params, batch.inputs, batch.targets.get("allowed"), model=self._module
            ).items():
                # Batches are grouped by length, so outputs arrive out of order.
                by_row = found.setdefault(name, [None] * len(lengths))
                for number, value in zip(numbers, np.asarray(values), strict=False):  # other rows fill up the batch
                    by_row[number] = value[: lengths[number]] if self._module.per_token else value
        # Outputs for tokens differ in length from row to row, so they cannot be stacked.
        return {name: values if self._module.per_token else np.stack(values) for name, values in found.items()}


@functools.partial(jax.jit, static_argnames="model")
def _apply(params: Any, inputs: Batch, allowed: Any, *, model: Downstream) -> Any:
    return model.apply({"params": params}, inputs, allowed)
