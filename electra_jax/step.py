"""The train step: a pure function of (state, batch), with random numbers keyed by the seed and the step's number."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from electra_jax import metrics
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import masking
from electra_jax.objectives.spec import Objective, Params, Stage
from electra_jax.runtime import rng

Array = jax.Array


@struct.dataclass
class TrainState:
    """The state that a step updates.

    Attributes:
      step: the number of steps done, an int32 scalar.
      params: float32 parameters of `Electra`.
      opt_state: the optimizer's state.
    """

    step: Array
    params: Any
    opt_state: Any


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, metrics.Metrics]]


def init_state(objective: Objective, optimizer: optax.GradientTransformation, seed: int, length: int) -> TrainState:
    """A fresh state; to be jitted, or given to `jax.eval_shape`."""
    ids = jnp.zeros((1, length), jnp.int32)
    params = objective.model.init(rng.stream_key(seed, rng.Stream.INIT), Batch(ids, ids, ids))["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def batch_shapes(batch_size: int, length: int, sharding: jax.sharding.Sharding) -> Batch:
    """The shapes of a batch, for ahead-of-time compilation."""
    shape = jax.ShapeDtypeStruct((batch_size, length), jnp.int32, sharding=sharding)
    return Batch(shape, shape, shape)


def make_train_step(
    objective: Objective,
    stage: Stage,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    grad_accum_steps: int = 1,
) -> TrainStep:
    """The function `train_step(state, batch) -> state, metrics`, not yet jitted.

    Args:
      objective: the run's objective.
      stage: the stage of the objective that the step belongs to.
      optimizer: the optimizer from `optim.make`.
      schedule: the learning rate by step, for the metrics.
      seed: the run's seed.
      grad_accum_steps: parts that the batch is computed in, one after another, to save memory. The gradient is that of
        the whole batch, except that each part draws its own dropout.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, metrics.Metrics]:
        key = jax.random.fold_in(rng.stream_key(seed, rng.Stream.STEP), state.step)
        grads, loss, measured = gradient(objective, stage, state.params, batch, state.step, key, grad_accum_steps)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        if stage.trainable is not None:
            params = {name: params[name] if name in stage.trainable else old for name, old in state.params.items()}
        return TrainState(state.step + 1, params, opt_state), {
            "loss": metrics.scalar(loss),
            **measured,
            "grad_norm": metrics.scalar(optax.tree.norm(grads)),
            "learning_rate": metrics.scalar(jnp.asarray(schedule(state.step))),
        }

    return train_step


def gradient(
    objective: Objective, stage: Stage, params: Params, batch: Batch, step: Array, key: Array, grad_accum_steps: int = 1
) -> tuple[Params, Array, metrics.Metrics]:
    """(gradient, loss, metrics) of a whole batch, computed in `grad_accum_steps` parts."""
    mask_key, dropout_key = jax.random.split(key)
    whole = objective.draw(mask_key, batch, step)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def differentiate(params: Params, part: masking.Masked, key: Array) -> tuple[Array, metrics.Metrics]:
        return objective.loss(stage, params, whole._replace(masked=part, key=key))

    if grad_accum_steps == 1:
        (loss, measured), grads = differentiate(params, whole.masked, dropout_key)
        return grads, loss, measured

    def add(total: Any, inputs: tuple[masking.Masked, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, differentiate(params, *inputs)), None

    # Each part takes examples from the whole batch, so that no example moves to another device.
    parts = jax.tree.map(lambda x: x.reshape(-1, grad_accum_steps, *x.shape[1:]).swapaxes(0, 1), whole.masked)
    keys = jax.random.split(dropout_key, grad_accum_steps)
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), dropout_key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    ((loss, measured), grads), _ = jax.lax.scan(add, zeros, (parts, keys))
    return grads, loss, measured
