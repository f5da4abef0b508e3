"""The optimizer of fine-tuning: learning rates that fall from the head down to the embeddings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax import optim


@dataclasses.dataclass(frozen=True)
class Settings:
    """`config.optim` of fine-tuning, hashable.

    Attributes:
      learning_rate: the head's, at the end of the warm-up.
      layer_decay, reference_rates: see `by_layer`.
      warmup: share of the steps.
      weight_decay, b1, b2, eps, clip_norm: as in pre-training.
    """

    learning_rate: float
    layer_decay: float
    reference_rates: bool
    warmup: float
    weight_decay: float
    b1: float
    b2: float
    eps: float
    clip_norm: float


_BELOW = ("embedding_norm", "project")  # of an encoder, before its first layer


def by_layer(params: Any, layers: int, decay: float, reference: bool = False) -> Any:
    """What each parameter's learning rate is multiplied with: 1 for the head, layer i of n decay^(n - i), the
    embeddings decay^(n + 1); i counts from 0.

    The layer norm after the last layer goes with that layer. google-research/electra, model/optimization.py, starts one
    power lower than its paper says: there the last layer has decay^2 (its issue 51).

    Args:
      params: of `Downstream`.
      layers: of its encoder, n.
      decay: a layer's share of the one above.
      reference: whether to do as the reference does.

    Returns:
      A tree like `params` of numbers, of the encoder's layers [n, 1, ...] for what has an axis of layers.
    """
    slip = 1 if reference else 0

    def factor(path: Any, leaf: Any) -> np.ndarray:
        names = [key.key for key in path]
        if names[0] == "head":
            powers: Any = 0
        elif names[0] == "embeddings" or names[1] in _BELOW:
            powers = layers + 1 + slip
        elif names[1] == "layers":
            powers = (layers - np.arange(layers) + slip).reshape(-1, *(1 for _ in leaf.shape[1:]))
        else:
            powers = 1 + slip
        return np.asarray(decay**powers, np.float32)

    return jax.tree_util.tree_map_with_path(factor, params)


def make(settings: Settings, params: Any, layers: int, steps: Any) -> optax.GradientTransformation:
    """The optimizer of pre-training, with a schedule of `steps` and each parameter's rate times its factor.

    Args:
      settings: of it.
      params, layers: as `by_layer` takes them.
      steps: of the run; may be traced, so that one program serves runs of any length.
    """
    factors = by_layer(params, layers, settings.layer_decay, settings.reference_rates)
    rate = optim.schedule(settings.learning_rate, jnp.round(settings.warmup * jnp.asarray(steps, jnp.float32)), steps)
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optim.scale_by_uncorrected_adam(settings.b1, settings.b2, settings.eps),
        optax.add_decayed_weights(settings.weight_decay, optim.decay_mask),
        optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * jnp.asarray(f), updates, factors)),
        optax.scale_by_learning_rate(rate),
    )
