"""The reference's optimizer, from optax parts."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from electra_jax.config.settings import above, above_up_to, at_least, from_up_to_below, one_of, setting
from electra_jax.runtime import rng

_NOT_DECAYED = ("bias", "scale")  # how the names of biases, and of the scales of layer norms, end


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Adam and its learning rate, with the paper's values (arXiv 2003.10555, appendix A)."""

    learning_rate: float = setting(5e-4, "Peak learning rate.", above_up_to(0, 1))
    warmup_steps: int = setting(10_000, "Steps of linear warm-up.", at_least(0))
    weight_decay: float = setting(0.01, "Decoupled weight decay; not applied to biases and layer norms.", at_least(0))
    b1: float = setting(0.9, "Decay rate of the first moments.", from_up_to_below(0, 1))
    b2: float = setting(0.999, "Decay rate of the second moments.", from_up_to_below(0, 1))
    eps: float = setting(1e-6, "Added to the root of the second moments.", above(0))
    clip_norm: float = setting(1.0, "Global norm that gradients are clipped to.", above(0))
    moments_dtype: str = setting(
        "float32",
        "Precision that both moments are kept in; bfloat16 uses stochastic rounding.",
        one_of("float32", "bfloat16"),
    )


def schedule(peak: float, warmup_steps: Any, steps: Any) -> optax.Schedule:
    """peak x (1 - t / steps) x min(1, t / warmup_steps): the decay also runs during the warm-up.

    google-research/electra, model/optimization.py: polynomial_decay times warm-up.
    """

    def rate(count: Any) -> Any:
        t = jnp.asarray(count, jnp.float32)
        return peak * jnp.maximum(0.0, 1 - t / steps) * jnp.minimum(1.0, t / jnp.maximum(1.0, warmup_steps))

    return rate


def in_stages(settings: OptimConfig, stages: Sequence[int]) -> optax.Schedule:
    """`schedule` restarted at each stage, warm-up included; `stages` are the stages' numbers of steps."""
    schedules = [schedule(settings.learning_rate, settings.warmup_steps, steps) for steps in stages]
    return optax.join_schedules(schedules, list(itertools.accumulate(stages[:-1])))


def scale_by_uncorrected_adam(
    b1: float, b2: float, eps: float, dtype: Any = jnp.float32
) -> optax.GradientTransformation:
    """Adam without bias correction, eps outside the root: m / (sqrt(v) + eps).

    google-research/electra, model/optimization.py, AdamWeightDecayOptimizer; optax.scale_by_adam always corrects.

    Args:
      b1, b2, eps: Adam's parameters.
      dtype: the type to store moments in; they are computed in float32. In bfloat16, second moments use stochastic
        rounding: with b2 = .999 an update is below half a unit in the last place, and would be lost otherwise.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=zeros, nu=zeros)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        old_mu, old_nu = optax.tree.cast((state.mu, state.nu), jnp.float32)
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, old_mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), old_nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        if dtype == jnp.bfloat16:
            mu, nu = optax.tree.cast(mu, dtype), stochastic_round(rng.rounding_key(state.count), nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def stochastic_round(key: jax.Array, tree: Any) -> Any:
    """Rounds a float32 tree to bfloat16, up or down with the probabilities that keep each number's expectation.

    A bfloat16 is the upper half of a float32: this adds 16 random bits to the lower half and truncates.
    """
    leaves, structure = jax.tree.flatten(tree)

    def round_leaf(key: jax.Array, x: jax.Array) -> jax.Array:
        noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + noise
        return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)

    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [round_leaf(key, x) for key, x in zip(keys, leaves, strict=True)])


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: not for biases and layer norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(_NOT_DECAYED), params)


def make(settings: OptimConfig, *stages: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Clipping by global norm, Adam, and decoupled weight decay lr x wd x p.

    Args:
      settings: the run's `config.optim`.
      stages: the number of steps in each stage of the run; the learning rate's schedule restarts at each.

    Returns:
      The optimizer, and the learning rate by step, for logging.
    """
    rate = in_stages(settings, stages)
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        scale_by_uncorrected_adam(settings.b1, settings.b2, settings.eps, jnp.dtype(settings.moments_dtype)),
        optax.add_decayed_weights(settings.weight_decay, decay_mask),
        optax.scale_by_learning_rate(rate),
    ), rate
