"""Loss of each kind of task, as a weighted sum over rows or tokens and the sum of their weights."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from electra_jax import metrics
from electra_jax.downstream.tasks.task import IGNORED, TaskBatch
from electra_jax.metrics import Mean

Array = jax.Array
Outputs = Mapping[str, Array]
_IMPOSSIBLE_WEIGHT = 0.5  # google-research/electra, configure_finetuning.py, answerable_weight


def classification(outputs: Outputs, batch: TaskBatch) -> Mean:
    """Computes the cross-entropy."""
    return metrics.mean(_cross_entropy(outputs["scores"], batch.targets["target"]), batch.weights)


def multilabel(outputs: Outputs, batch: TaskBatch) -> Mean:
    """Computes the binary cross-entropy, averaged over the classes."""
    # The mean over classes, as in torch's BCEWithLogitsLoss, which transformers uses for these tasks.
    loss_BC = optax.sigmoid_binary_cross_entropy(outputs["scores"], batch.targets["target"])
    return metrics.mean(loss_BC.mean(axis=-1), batch.weights)


def regression(outputs: Outputs, batch: TaskBatch) -> Mean:
    """Computes the squared error."""
    return metrics.mean(jnp.square(outputs["scores"][:, 0] - batch.targets["target"]), batch.weights)


def tagging(outputs: Outputs, batch: TaskBatch) -> Mean:
    """Computes the cross-entropy over the tokens that have a target."""
    target_BL = batch.targets["target"]
    # Rows that fill up the batch have weight 0, but repeat the targets of a real row.
    counts_BL = (target_BL != IGNORED) & (batch.weights[:, None] > 0)
    return metrics.mean(_cross_entropy(outputs["scores"], target_BL), counts_BL.astype(jnp.float32))


def answering(outputs: Outputs, batch: TaskBatch) -> Mean:
    """Computes the mean cross-entropy of start and end.

    If the head has a no-answer output (the paper's head in SQuAD 2.0), half of its binary cross-entropy is added.
    """

    def nll(name: str) -> Array:
        # [B, L] -> [B], the log-probability at the true position.
        return -jnp.take_along_axis(outputs[f"{name}_logp"], batch.targets[name][:, None], axis=1)[:, 0]

    loss_B = (nll("start") + nll("end")) / 2
    # Transformers' head has no such output: there, no answer is a span at [CLS].
    if "impossible" in outputs:
        truth_B = batch.targets["impossible"].astype(jnp.float32)
        loss_B += _IMPOSSIBLE_WEIGHT * optax.sigmoid_binary_cross_entropy(outputs["impossible"], truth_B)
    return metrics.mean(loss_B, batch.weights)


def _cross_entropy(scores: Array, target: Array) -> Array:
    """Computes the unreduced cross-entropy, [...], of logits [..., C].

    Ignored targets count as class 0; the caller must mask them.
    """
    loss: Array = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(target, 0))
    return loss


BY_KIND: dict[str, Callable[[Outputs, TaskBatch], Mean]] = {
    "classification": classification,
    "multilabel": multilabel,
    "regression": regression,
    "tagging": tagging,
    "answering": answering,
}
REDUCTIONS: dict[str, Callable[[Mean], Array]] = {"sum": lambda loss: loss.sum, "mean": lambda loss: loss.value}
