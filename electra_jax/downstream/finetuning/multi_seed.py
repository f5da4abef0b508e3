"""Training of several seeds of one fine-tuning at once: parameters are stacked, [S, ...], and the step is vmapped.

A seed decides the head's initial weights, the order of the rows and dropout. Its result does not depend on how many
seeds are trained with it, except for rounding.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from electra_jax import step as step_lib
from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special
from electra_jax.downstream.finetuning import losses, rates
from electra_jax.downstream.finetuning.rates import FinetuneOptimConfig
from electra_jax.downstream.finetuning.recipe import FinetuneConfig
from electra_jax.downstream.tasks import batches
from electra_jax.downstream.tasks.task import Rows, TaskBatch
from electra_jax.metrics import Mean
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime import rng

Array = jax.Array
State = step_lib.TrainState
Steps = list[tuple[int, list[np.ndarray]]]
_ADVICE = "lower config.optim.learning_rate"
_LAG = 4  # batches whose outputs may be on the device


class DivergedError(UserError):
    """Raised when the loss or the parameters of a seed are not finite."""


def plan_steps(config: FinetuneConfig, rows: Rows, seeds: Sequence[int]) -> Steps:
    """Returns (padded length, [row indices of each seed]) of each step."""
    lengths = rows.lengths()
    sizes = batches.buckets(lengths, config.shortest_bucket)
    steps: Steps = []
    for epoch in range(config.epochs):
        orders = [batches.epoch_batches(lengths, sizes, config.batch_size, seed, epoch) for seed in seeds]
        # Bucket lengths do not depend on the seed, so step i has one length for all seeds.
        steps += [(step[0][0], [numbers for _, numbers in step]) for step in zip(*orders, strict=True)]
    return steps


@functools.partial(jax.jit, static_argnames=("model", "optim"))
def init_states(seeds: Array, pretrained: Any, *, model: Downstream, optim: FinetuneOptimConfig) -> State:
    """Returns the initial states, stacked: pre-trained `embeddings` and `encoder`, and random heads."""
    # Shapes of parameters do not depend on the batch.
    zeros = jnp.zeros((1, 2), jnp.int32)

    def init_state(seed: Array) -> State:
        keys = {name: jax.random.key(seed) for name in ("params", "dropout")}
        variables = model.init(keys, Batch(zeros, zeros, zeros), zeros, zeros[:, 0], True)
        # XLA removes the computation of the random encoder, which is replaced here.
        params = variables["params"] | pretrained
        # The initial state does not depend on `steps`.
        optimizer = rates.make_optimizer(optim, params, model.config.encoder.layers, steps=1)
        return State(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.vmap(init_state)(seeds)


def batch_loss(model: Downstream, params: Any, batch: TaskBatch, key: Array) -> Mean:
    """Computes the loss of a batch as a weighted sum and the sum of weights; `key` is the dropout key."""
    allowed, start = batch.targets.get("allowed"), batch.targets.get("start")
    outputs: Any = model.apply({"params": params}, batch.inputs, allowed, start, True, rngs={"dropout": key})
    return losses.BY_KIND[model.kind](outputs, batch)


@functools.partial(jax.jit, static_argnames=("model", "optim"), donate_argnames="states")
def train_step(
    states: State, seeds: Array, batch: TaskBatch, steps: Array, *, model: Downstream, optim: FinetuneOptimConfig
) -> tuple[State, Array]:
    """Runs one training step of every seed, each on its own batch.

    Compiled once per batch shape; tasks with equal `model` and `optim` share the compiled program.

    Args:
      states: the seeds' states, stacked.
      seeds: [S].
      batch: the seeds' batches, stacked.
      steps: number of steps of the whole fine-tuning, for the learning-rate schedule.
      model: the task's model.
      optim: the optimizer.

    Returns:
      The new states, and the mean losses [S], even if the sum is minimized.
    """

    def step_of_seed(state: State, seed: Array, batch: TaskBatch) -> tuple[State, Array]:
        # From the seed and the step alone, so that dropout does not depend on the seeds that are trained together.
        key = jax.random.fold_in(rng.stream_key(seed, rng.Stream.STEP), state.step)

        def minimized(params: Any) -> tuple[Array, Array]:
            loss = batch_loss(model, params, batch, key)
            # The mean is logged even if the sum is minimized: sums of short batches would not be comparable.
            return losses.REDUCTIONS[optim.reduction](loss), loss.value

        (_, mean), grads = jax.value_and_grad(minimized, has_aux=True)(state.params)
        # Made here because the schedule needs `steps`, which is traced.
        optimizer = rates.make_optimizer(optim, state.params, model.config.encoder.layers, steps)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(state.step + 1, params, opt_state), mean

    return jax.vmap(step_of_seed)(states, seeds, batch)


@functools.partial(jax.jit, static_argnames="model")
def _apply(params: Any, inputs: Batch, allowed: Array | None, *, model: Downstream) -> Any:
    # All seeds read the same rows: only parameters have a leading axis.
    return jax.vmap(lambda params_of_seed: model.apply({"params": params_of_seed}, inputs, allowed))(params)


@jax.jit
def _all_finite(params: Any) -> Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def train(
    model: Downstream,
    network: Network,
    config: FinetuneConfig,
    rows: Rows,
    special: Special,
    seeds: Sequence[int],
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> tuple[Any, np.ndarray]:
    """Fine-tunes a network with all `seeds` at once.

    Args:
      model: the task's model, with the network's encoder.
      network: the pre-trained network.
      config: the fine-tuning.
      rows: the training set.
      special: the tokenizer's special tokens.
      seeds: the seeds.
      on_step: called after each step with (steps done, total steps).

    Returns:
      The parameters, stacked, and the mean losses [S, N] of the N steps.

    Raises:
      DivergedError: a loss or a parameter is not finite.
    """
    plan = plan_steps(config, rows, seeds)
    mesh = _make_mesh(config.batch_size)
    # Training batches are [S, B, ...]: the second axis is sharded.
    replicated, by_row = _sharding(mesh), _sharding(mesh, None, "data")
    # `recipe` refuses seeds that uint32 does not hold.
    keys = jax.device_put(np.asarray(seeds, np.uint32), replicated)
    # An argument, not a constant: fine-tunings of any length share the compiled step.
    steps = jax.device_put(np.float32(len(plan)), replicated)
    pretrained = jax.device_put({name: network.params[name] for name in ("embeddings", "encoder")}, replicated)
    # Placed with the sharding that a step returns: otherwise the second step would compile again.
    states = jax.device_put(init_states(keys, pretrained, model=model, optim=config.optim), replicated)
    values = []
    for number, (length, rows_of_seeds) in enumerate(plan, 1):
        parts = [rows.make_batch(numbers, config.batch_size, length, special) for numbers in rows_of_seeds]
        # [B, ...] of each seed -> [S, B, ...]
        batch = jax.device_put(jax.tree.map(lambda *arrays: np.stack(arrays), *parts), by_row)
        states, loss = train_step(states, keys, batch, steps, model=model, optim=config.optim)
        values.append(loss)  # left on the device: fetching it would stall the host until the step is done
        on_step(number, len(plan))
    # N arrays [S] -> [S, N]
    losses_SN = np.stack(jax.device_get(values), axis=1)
    finite_N = np.isfinite(losses_SN).all(axis=0)
    if not finite_N.all():
        raise DivergedError(f"the loss is not finite from step {int(np.argmin(finite_N))} on; {_ADVICE}")
    # The last loss is finite even if the update after it is not.
    if not jax.device_get(_all_finite(states.params)):
        raise DivergedError(f"the parameters are not finite after the last step; {_ADVICE}")
    return states.params, losses_SN


def predict(
    model: Downstream, params: Any, rows: Rows, special: Special, config: FinetuneConfig
) -> list[dict[str, Any]]:
    """Applies each seed's model to every row.

    Returns:
      For each seed, a dict that maps each output name to an array [rows, ...], or to a list of [tokens, ...], one per
      row, for per-token outputs. Outputs do not depend on the batch size.
    """
    lengths = rows.lengths()
    by_row = _sharding(_make_mesh(config.batch_size), "data")
    sizes = batches.buckets(lengths, config.shortest_bucket)
    numbers_of: list[np.ndarray] = []
    outputs: list[Any] = []  # for each batch, output name -> [S, B, ...]
    for length, numbers in batches.evaluation_batches(lengths, sizes, config.batch_size):
        batch = rows.make_batch(numbers, config.batch_size, length, special)
        inputs, allowed = jax.device_put((batch.inputs, batch.targets.get("allowed")), by_row)
        numbers_of.append(numbers)
        outputs.append(_apply(params, inputs, allowed, model=model))
        # Fetched some batches late: the host pads the next ones while the device computes, and the device need not hold
        # the outputs of all.
        if len(outputs) > _LAG:
            outputs[-_LAG] = jax.device_get(outputs[-_LAG])
    outputs = jax.device_get(outputs)
    # Batches are grouped by length; `order` restores the order of the rows.
    order = np.argsort(np.concatenate(numbers_of))
    count = len(jax.tree.leaves(params)[0])

    def array_of(name: str, seed: int) -> np.ndarray:
        # Without the rows that fill up a batch.
        parts = [part[name][seed, : len(numbers)] for part, numbers in zip(outputs, numbers_of, strict=True)]
        return np.concatenate(parts)[order]

    def list_of(name: str, seed: int) -> list[np.ndarray]:
        parts = [
            part[name][seed, i, : lengths[row]]  # without padding
            for part, numbers in zip(outputs, numbers_of, strict=True)
            for i, row in enumerate(numbers)
        ]
        return [parts[i] for i in order]

    collect = list_of if model.per_token else array_of
    return [{name: collect(name, seed) for name in outputs[0]} for seed in range(count)]


def _make_mesh(batch_size: int) -> jax.sharding.Mesh:
    """Returns a mesh of this process's devices; their number is the largest that divides the batch size."""
    # A sharded axis must be divisible by its devices, so some devices may stay idle.
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    return jax.sharding.Mesh(np.array(devices[:count]), ("data",))


def _sharding(mesh: jax.sharding.Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))
