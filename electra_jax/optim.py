"""The reference's optimizer, from optax parts."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

_NOT_DECAYED = ("bias", "scale")  # names of biases and of layer norms' parameters


def schedule(peak: float, warmup_steps: int, steps: int) -> optax.Schedule:
    """peak x (1 - t / steps) x min(1, t / warmup_steps): the decay also runs during the warm-up.

    google-research/electra, model/optimization.py: polynomial_decay times warm-up.
    """

    def rate(count: Any) -> Any:
        t = jnp.asarray(count, jnp.float32)
        return peak * jnp.maximum(0.0, 1 - t / steps) * jnp.minimum(1.0, t / max(1, warmup_steps))

    return rate


def in_stages(settings: Any, stages: Sequence[int]) -> optax.Schedule:
    """`schedule` begun anew in each stage, with a warm-up of its own; `stages` are their lengths in steps."""
    schedules = [schedule(settings.learning_rate, settings.warmup_steps, steps) for steps in stages]
    return optax.join_schedules(schedules, list(itertools.accumulate(stages[:-1])))


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam without bias correction, eps outside the root: m / (sqrt(v) + eps).

    google-research/electra, model/optimization.py, AdamWeightDecayOptimizer; optax.scale_by_adam always corrects.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=zeros, nu=zeros)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: everywhere but biases and layer norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in _NOT_DECAYED, params)


def make(settings: Any, *stages: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Clip by global norm, Adam, decoupled decay lr x wd x p, learning rate.

    Args:
      settings: `learning_rate`, `warmup_steps`, `weight_decay`, `b1`, `b2`, `eps`, `clip_norm`.
      stages: lengths in steps of the run's stages, or of the whole run.

    Returns:
      The transformation, and the schedule, for logging.
    """
    rate = in_stages(settings, stages)
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        scale_by_uncorrected_adam(settings.b1, settings.b2, settings.eps),
        optax.add_decayed_weights(settings.weight_decay, decay_mask),
        optax.scale_by_learning_rate(rate),
    ), rate
