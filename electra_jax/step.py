"""The train step: one pure function of (state, batch), every random number of it keyed by the step's number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from electra_jax import metrics
from electra_jax.modeling.electra import Batch, Electra
from electra_jax.objectives import electra

Array = jax.Array


@struct.dataclass
class TrainState:
    """All that a step changes.

    Attributes:
      step: steps done, an int32 scalar.
      params: float32 tree of `Electra`.
      opt_state: of the optimizer.
    """

    step: Array
    params: Any
    opt_state: Any


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, metrics.Metrics]]


def init_state(model: Electra, optimizer: optax.GradientTransformation, seed: int, length: int) -> TrainState:
    """A fresh state; jit or `jax.eval_shape` it."""
    ids = jnp.zeros((1, length), jnp.int32)
    params = model.init(jax.random.fold_in(jax.random.key(seed), 0), ids, ids, ids)["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def make_train_step(
    model: Electra,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    objective: Any,
    seed: int,
) -> TrainStep:
    """The function `train_step(state, batch) -> state, metrics`, not yet jitted.

    Args:
      model: the two networks.
      optimizer: from `optim.make`, with its `schedule`.
      schedule: learning rate by step, for the metrics.
      objective: settings of the loss, `config.objective`.
      seed: of the run; the step's key is derived from it and the step's number alone.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, metrics.Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), state.step)

        def loss_fn(params: Any) -> tuple[Array, metrics.Metrics]:
            return electra.loss(model, params, batch, key, objective, train=True)

        (loss, measured), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        measured = {
            "loss": metrics.scalar(loss),
            **measured,
            "grad_norm": metrics.scalar(optax.tree.norm(grads)),
            "learning_rate": metrics.scalar(schedule(state.step)),
        }
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), measured

    return train_step
