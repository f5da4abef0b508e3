"""The train step: a pure function of (state, batch), whose random keys derive from the seed and the step number."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from electra_jax import guard, metrics
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import masking
from electra_jax.objectives.spec import Objective, Params, Stage
from electra_jax.runtime import rng

Array = jax.Array


@struct.dataclass
class TrainState:
    """The state that a train step updates. Fine-tuning uses it without `grad_norms`.

    Attributes:
      step: the number of steps done, an int32 scalar.
      params: float32 parameters of `Electra`.
      opt_state: the optimizer's state.
      grad_norms: [guard.WINDOW] float32, the gradient norms of the last steps, for `guard.inspect`.
    """

    step: Array
    params: Any
    opt_state: Any
    grad_norms: Any = None


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, metrics.Metrics]]


class Placement(NamedTuple):
    """Conversions between parameters as they are stored and updated and parameters as networks read them.

    Attributes:
      gather: stored parameters -> parameters for the networks; `ShardedStep.gather`.
      scatter: a gradient of those -> a float32 gradient, sharded as the stored parameters are.
    """

    gather: Callable[[Params], Params]
    scatter: Callable[[Params], Params]


IN_PLACE = Placement(lambda params: params, lambda grads: grads)


def init_state(objective: Objective, optimizer: optax.GradientTransformation, seed: int, length: int) -> TrainState:
    """Initializes a state without a forward pass; to be called inside `jax.jit` or `jax.eval_shape`."""
    # One row: the parameters do not depend on the batch size.
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    params = objective.model.lazy_init(rng.stream_key(seed, rng.Stream.INIT), Batch(ids, ids, ids))["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), guard.no_norms())


def batch_shapes(batch_size: int, length: int, sharding: jax.sharding.Sharding) -> Batch:
    """Returns the shapes of a batch, for ahead-of-time compilation."""
    shape = jax.ShapeDtypeStruct((batch_size, length), jnp.int32, sharding=sharding)
    return Batch(shape, shape, shape)


def make_train_step(
    objective: Objective,
    stage: Stage,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    grad_accum_steps: int = 1,
    spike: float = 0.0,
    placement: Placement = IN_PLACE,
) -> TrainStep:
    """Returns the function `train_step(state, batch) -> state, metrics`, not yet jitted.

    An update whose loss or gradient is not finite is skipped; see `guard`.

    Args:
      objective: the run's objective.
      stage: the stage of the objective that the step belongs to.
      optimizer: the optimizer from `optim.make`.
      schedule: the learning-rate schedule, for the metrics.
      seed: the run's seed.
      grad_accum_steps: gradient accumulation: the number of micro-batches, which are computed one after another to save
        memory. The gradient is that of the whole batch, except that each micro-batch draws its own dropout.
      spike: `config.guard.spike`.
      placement: how parameters are sharded between steps.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, metrics.Metrics]:
        # The key depends on the step alone, so a resumed run draws what an uninterrupted one draws.
        key = jax.random.fold_in(rng.stream_key(seed, rng.Stream.STEP), state.step)
        grads, loss, measured = gradient(
            objective, stage, state.params, batch, state.step, key, grad_accum_steps, placement
        )
        # Frozen parameters have no part in the norm, in clipping and in the moments.
        if stage.trainable is not None:
            frozen = {name: optax.tree.zeros_like(grads[name]) for name in grads.keys() - set(stage.trainable)}
            grads = {**grads, **frozen}
        # Before the optimizer clips it: a spike must show.
        norm = optax.tree.norm(grads)
        accepted, norms = guard.inspect(state.grad_norms, state.step, loss, norm, spike)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # Restores frozen parameters: even with zero gradients, weight decay and momentum would change them.
        if stage.trainable is not None:
            params = {name: params[name] if name in stage.trainable else old for name, old in state.params.items()}
        params, opt_state = guard.select(accepted, (params, opt_state), (state.params, state.opt_state))
        return TrainState(state.step + 1, params, opt_state, norms), {
            **guard.finite_only({"loss": metrics.scalar(loss), **measured, "grad_norm": metrics.scalar(norm)}),
            "learning_rate": metrics.scalar(jnp.asarray(schedule(state.step))),
            "skipped_steps": metrics.total(1.0 - accepted.astype(jnp.float32)),
        }

    return train_step


def gradient(
    objective: Objective,
    stage: Stage,
    params: Params,
    batch: Batch,
    step: Array,
    key: Array,
    grad_accum_steps: int = 1,
    placement: Placement = IN_PLACE,
) -> tuple[Params, Array, metrics.Metrics]:
    """Computes (gradient, loss, metrics) of a whole batch, in `grad_accum_steps` micro-batches.

    The parameters are gathered once. The gradient of each micro-batch is scattered, so that their sum is sharded too.
    """
    mask_key, dropout_key = jax.random.split(key)
    # Before the batch is split, so that masks do not depend on `grad_accum_steps`.
    whole = objective.draw(mask_key, batch, step)
    params = placement.gather(params)

    def differentiate(params: Params, part: masking.Masked, key: Array) -> tuple[tuple[Array, metrics.Metrics], Params]:
        def loss_of(params: Params) -> tuple[Array, metrics.Metrics]:
            # The counts remain those of the whole batch, which divide the loss: the parts' losses and gradients add up.
            return objective.loss(stage, params, whole._replace(masked=part, key=key))

        outputs, grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return outputs, placement.scatter(grads)

    if grad_accum_steps == 1:
        (loss, measured), grads = differentiate(params, whole.masked, dropout_key)
        return grads, loss, measured

    def add(total: Any, inputs: tuple[masking.Masked, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, differentiate(params, *inputs)), None

    # Micro-batch i takes the examples i, i + n, i + 2 n, ...: contiguous parts would move examples to other devices.
    # [B, ...] -> [B / n, n, ...] -> [n, B / n, ...]
    parts = jax.tree.map(lambda x: x.reshape(-1, grad_accum_steps, *x.shape[1:]).swapaxes(0, 1), whole.masked)
    keys = jax.random.split(dropout_key, grad_accum_steps)
    # The carry of a scan must have the shapes and dtypes of what each iteration adds to it.
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), dropout_key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    ((loss, measured), grads), _ = jax.lax.scan(add, zeros, (parts, keys))
    return grads, loss, measured
