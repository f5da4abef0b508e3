"""Optimizer of fine-tuning, with layer-wise learning-rate decay from the head down to the embeddings."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax import optim
from electra_jax.config.settings import Check, above, at_least, from_up_to_below, one_of, setting, within


@dataclasses.dataclass(frozen=True)
class FinetuneOptimConfig:
    """Settings of Adam and its learning rates."""

    learning_rate: float = setting(1e-4, "Peak learning rate (of the head; see layer_decay).", above(0))
    layer_decay: float = setting(
        0.8,
        "Layer-wise learning-rate decay: each layer's rate as a fraction of the rate of the layer above.",
        Check(lambda value: 0 < value <= 1, "more than 0, 1 or less"),
    )
    reference_rates: bool = setting(
        False, "Scale the last layer's rate by layer_decay squared, as the reference's code does, unlike the paper."
    )
    warmup: float = setting(0.1, "Fraction of the steps used for linear warm-up.", within(0, 1))
    weight_decay: float = setting(0.0, "Decoupled weight decay; not applied to biases and layer norms.", at_least(0))
    b1: float = setting(0.9, "Adam's beta1.", from_up_to_below(0, 1))
    b2: float = setting(0.999, "Adam's beta2.", from_up_to_below(0, 1))
    eps: float = setting(1e-6, "Adam's epsilon.", above(0))
    reduction: str = setting(
        "sum",
        "Reduction of the loss over a batch: sum, as in the reference's code, or mean.",
        one_of("sum", "mean"),
    )
    clip_norm: float = setting(1.0, "Gradient clipping by global norm.", above(0))


_BELOW = ("embedding_norm", "project", "relative", "relative_norm")  # the encoder's parameters before its first layer


def rate_factors(params: Any, layers: int, decay: float, reference: bool = False) -> Any:
    """Returns each parameter's learning-rate factor for layer-wise learning-rate decay.

    It is 1 in the head, decay^(n - i) in layer i of n, counted from 0, and decay^(n + 1) in the embeddings. The norm
    after the last layer belongs to that layer. google-research/electra, model/optimization.py, starts one power lower
    than its paper says: its last layer has decay^2 (its issue 51).

    Args:
      params: the parameters of `Downstream`.
      layers: number of encoder layers, n.
      decay: a layer's rate as a fraction of the rate of the layer above.
      reference: whether to start one power lower, as in google-research/electra.

    Returns:
      A tree like `params`; each leaf is a number, or [n, 1, ...] for parameters that are stacked by layer.
    """
    first = 2 if reference else 1  # power of the last layer

    # NumPy and not JAX: inside a compiled step, factors stay constants instead of operations.
    def factor(path: Any, leaf: Any) -> np.ndarray:
        names = [key.key for key in path]
        powers: int | np.ndarray
        if names[0] == "head":
            powers = 0
        elif names[0] == "embeddings" or names[1] in _BELOW:
            powers = layers + first
        elif names[1] == "layers":
            # Layers are stacked along the first axis: [n] -> [n, 1, ...].
            powers = (layers - 1 - np.arange(layers) + first).reshape(-1, *(1 for _ in leaf.shape[1:]))
        else:
            powers = first
        return np.asarray(decay**powers, np.float32)

    return jax.tree_util.tree_map_with_path(factor, params)


def schedule(config: FinetuneOptimConfig, steps: int | jax.Array) -> optax.Schedule:
    """Returns the head's learning-rate schedule. Warm-up may end between two steps, as in the reference."""
    return optim.schedule(config.learning_rate, config.warmup * jnp.asarray(steps, jnp.float32), steps)


def make_optimizer(
    config: FinetuneOptimConfig, params: Any, layers: int, steps: int | jax.Array
) -> optax.GradientTransformation:
    """Makes the optimizer: Adam as in pre-training, with layer-wise learning rates.

    Args:
      config: its settings.
      params: the parameters of `Downstream`.
      layers: number of encoder layers.
      steps: number of training steps; may be traced, so that one compiled step serves fine-tunings of any length.
    """
    factors = rate_factors(params, layers, config.layer_decay, config.reference_rates)
    return optax.chain(
        # First: the norm is that of the raw gradient, before Adam rescales it.
        optax.clip_by_global_norm(config.clip_norm),
        # Without bias correction, as the reference's AdamWeightDecayOptimizer.
        optim.scale_by_uncorrected_adam(config.b1, config.b2, config.eps),
        # Before the layers' factors, which scale weight decay too, as in the reference (AdamWeightDecayOptimizer).
        optax.add_decayed_weights(config.weight_decay, optim.decay_mask),
        optax.stateless(lambda updates, _: jax.tree.map(lambda u, f: u * jnp.asarray(f), updates, factors)),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )
