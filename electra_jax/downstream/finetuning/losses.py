"""The loss of each kind of task: means over the rows, or tokens, that count."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from electra_jax.downstream.tasks.task import IGNORED

Array = jax.Array
_IMPOSSIBLE_WEIGHT = 0.5  # google-research/electra, configure_finetuning.py, answerable_weight


def _mean(values: Array, weights: Array) -> Array:
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1.0)


def classification(outputs: Any, batch: Any) -> Array:
    """Cross-entropy."""
    return _mean(_cross_entropy(outputs["scores"], batch["target"]), batch["weights"])


def regression(outputs: Any, batch: Any) -> Array:
    """Squared error."""
    return _mean(jnp.square(outputs["scores"][:, 0] - batch["target"]), batch["weights"])


def tagging(outputs: Any, batch: Any) -> Array:
    """Cross-entropy, over the tokens that have a target."""
    counts = (batch["target"] != IGNORED) & (batch["weights"][:, None] > 0)
    return _mean(_cross_entropy(outputs["scores"], batch["target"]), counts.astype(jnp.float32))


def answering(outputs: Any, batch: Any) -> Array:
    """Cross-entropy of start and end, halved together, and of whether there is no answer where that is told."""

    def nll(name: str) -> Array:
        return -jnp.take_along_axis(outputs[f"{name}_logp"], batch[name][:, None], axis=1)[:, 0]

    loss = (nll("start") + nll("end")) / 2
    if "impossible" in outputs:
        truth = batch["impossible"].astype(jnp.float32)
        loss += _IMPOSSIBLE_WEIGHT * optax.sigmoid_binary_cross_entropy(outputs["impossible"], truth)
    return _mean(loss, batch["weights"])


def _cross_entropy(scores: Array, target: Array) -> Array:
    """[...] of scores [..., C]; of what is ignored, that of class 0."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(target, 0))


BY_KIND: dict[str, Callable[[Any, Any], Array]] = {
    "classification": classification,
    "regression": regression,
    "tagging": tagging,
    "answering": answering,
}
