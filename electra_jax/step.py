"""The train step: one pure function of (state, batch), every random number of it keyed by the step's number."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from electra_jax import metrics
from electra_jax.modeling.electra import Batch
from electra_jax.objectives import masking
from electra_jax.objectives.spec import Objective

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


def init_state(objective: Objective, optimizer: optax.GradientTransformation, seed: int, length: int) -> TrainState:
    """A fresh state; jit or `jax.eval_shape` it."""
    ids = jnp.zeros((1, length), jnp.int32)
    params = objective.model.init(jax.random.fold_in(jax.random.key(seed), 0), ids, ids, ids)["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def batch_shapes(batch_size: int, length: int, sharding: jax.sharding.Sharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Of a batch, to compile for."""
    shape = jax.ShapeDtypeStruct((batch_size, length), jnp.int32, sharding=sharding)
    return dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids"), shape)


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    grad_accum_steps: int = 1,
) -> TrainStep:
    """The function `train_step(state, batch) -> state, metrics`, not yet jitted.

    Args:
      objective: what it minimises.
      optimizer: from `optim.make`, with its `schedule`.
      schedule: learning rate by step, for the metrics.
      seed: of the run; the step's key is derived from it and the step's number alone.
      grad_accum_steps: parts of the batch, computed one after another for want of memory. The gradient is that of the whole
        batch, dropout aside, whose masks are drawn for each part.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, metrics.Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), state.step)
        grads, loss, measured = gradient(objective, state.params, batch, state.step, key, grad_accum_steps)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        measured = {
            "loss": metrics.scalar(loss),
            **measured,
            "grad_norm": metrics.scalar(optax.tree.norm(grads)),
            "learning_rate": metrics.scalar(schedule(state.step)),
        }
        system, settings = objective.system, objective.settings
        params = optax.apply_updates(state.params, updates)
        params = keep(system.frozen(settings, state.step), state.params, params)
        params = system.begin(settings, params, state.step + 1)
        return TrainState(state.step + 1, params, opt_state), measured

    return train_step


def gradient(
    objective: Objective, params: Any, batch: Batch, step: Array, key: Array, grad_accum_steps: int = 1
) -> tuple[Any, Array, metrics.Metrics]:
    """(gradient, loss, metrics) of a whole batch, computed in `grad_accum_steps` parts."""
    mask_key, dropout_key = jax.random.split(key)
    whole = objective.draw(mask_key, batch, step)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def differentiate(params: Any, part: masking.Masked, key: Array) -> Any:
        return objective.loss(params, whole._replace(masked=part, key=key))

    if grad_accum_steps == 1:
        (loss, measured), grads = differentiate(params, whole.masked, dropout_key)
        return grads, loss, measured

    def add(total: Any, inputs: tuple[masking.Masked, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, differentiate(params, *inputs)), None

    # Every part takes its examples from all over the batch, so that each device keeps its own.
    parts = jax.tree.map(lambda x: x.reshape(-1, grad_accum_steps, *x.shape[1:]).swapaxes(0, 1), whole.masked)
    keys = jax.random.split(dropout_key, grad_accum_steps)
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), dropout_key)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    ((loss, measured), grads), _ = jax.lax.scan(add, nothing, (parts, keys))
    return grads, loss, measured


def keep(frozen: Any, old: Any, new: Any) -> Any:
    """`new`, but for the top-level names of which `frozen` says True: those as in `old`, to the bit."""
    return {
        name: value
        if name not in frozen
        else jax.tree.map(functools.partial(jnp.where, frozen[name]), old[name], value)
        for name, value in new.items()
    }
