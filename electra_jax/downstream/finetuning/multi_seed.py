"""Several seeds of one fine-tuning, trained at once: their parameters are stacked, [S, ...], and a step is mapped over.

A seed decides over the head's first weights, the order of the rows and dropout. What it comes to does not depend, but
for rounding, on how many are trained with it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from electra_jax import step as step_lib
from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Special
from electra_jax.downstream.finetuning import losses, rates
from electra_jax.downstream.tasks import batches
from electra_jax.downstream.tasks.task import Rows
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.downstream import Downstream
from electra_jax.modeling.subnetwork import Network
from electra_jax.runtime import rng

Array = jax.Array
State = step_lib.TrainState
_READ = ("input_ids", "token_type_ids", "sequence_ids", "allowed")  # of a batch, by the model


class DivergedError(UserError):
    """Raised where the loss of a seed is no number."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a seed is trained.

    Attributes:
      epochs, batch_size: how often it sees the rows, and how many of them at once.
      shortest_bucket: see `batches.buckets`.
      optim: of the optimizer.
    """

    epochs: int
    batch_size: int
    shortest_bucket: int
    optim: rates.Settings

    def plan(self, rows: Rows, seeds: Sequence[int]) -> list[tuple[int, list[np.ndarray]]]:
        """(length, the rows' numbers for each seed), step by step."""
        lengths = rows.lengths()
        sizes = batches.buckets(lengths, self.shortest_bucket)
        steps = []
        for epoch in range(self.epochs):
            orders = [batches.epoch(lengths, sizes, self.batch_size, seed, epoch) for seed in seeds]
            steps += [(each[0][0], [numbers for _, numbers in each]) for each in zip(*orders, strict=True)]
        return steps


def _inputs(batch: Any) -> tuple[Batch, Any, Any]:
    """The arguments of `Downstream.__call__`."""
    texts = Batch(batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"])
    return texts, batch.get("allowed"), batch.get("start")


@functools.partial(jax.jit, static_argnames=("model", "optim"))
def begin(seeds: Array, given: Any, *, model: Downstream, optim: rates.Settings) -> State:
    """Fresh states, stacked: the `embeddings` and `encoder` that are given, and heads at random."""
    none = jnp.zeros((1, 2), jnp.int32)
    inputs = {**dict.fromkeys(_READ, none), "start": none[:, 0]}

    def one(seed: Array) -> State:
        keys = {name: jax.random.key(seed) for name in ("params", "dropout")}
        params = model.init(keys, *_inputs(inputs), True)["params"] | given
        optimizer = rates.make(optim, params, model.config.encoder.layers, steps=1)
        return State(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.vmap(one)(seeds)


@functools.partial(jax.jit, static_argnames=("model", "optim"), donate_argnames="states")
def train_step(
    states: State, seeds: Array, batch: Any, steps: Array, *, model: Downstream, optim: rates.Settings
) -> tuple[State, Array]:
    """One step, of `steps`, of every seed, on a batch of its own: new states, and the losses [S].

    Compiled for a shape of batches, it serves every task of as many outputs.
    """

    def one(state: State, seed: Array, batch: Any) -> tuple[State, Array]:
        key = jax.random.fold_in(rng.stream_key(seed, rng.Stream.STEP), state.step)

        def loss(params: Any) -> Array:
            outputs = model.apply({"params": params}, *_inputs(batch), True, rngs={"dropout": key})
            return losses.BY_KIND[model.kind](outputs, batch)

        value, grads = jax.value_and_grad(loss)(state.params)
        optimizer = rates.make(optim, state.params, model.config.encoder.layers, steps)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        return State(state.step + 1, params, opt_state), value

    return jax.vmap(one)(states, seeds, batch)


@functools.partial(jax.jit, static_argnames="model")
def _outputs(params: Any, batch: Any, *, model: Downstream) -> Any:
    return jax.vmap(lambda each: model.apply({"params": each}, *_inputs(batch)))(params)


@jax.jit
def _finite(params: Any) -> Array:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def train(
    model: Downstream,
    network: Network,
    recipe: Recipe,
    rows: Rows,
    special: Special,
    seeds: Sequence[int],
    told: Callable[[int, int], None] = lambda step, steps: None,
) -> tuple[Any, np.ndarray]:
    """Fine-tunes a network with each of `seeds`.

    Args:
      model: of the task, with the network's encoder.
      network: what it begins with.
      recipe: how.
      rows: to train on.
      special: of the tokenizer.
      seeds: trained at once.
      told: after each step, how many of how many are done.

    Returns:
      The parameters, stacked, and the losses [S, steps].

    Raises:
      DivergedError: the loss is not finite.
    """
    plan = recipe.plan(rows, seeds)
    mesh = _mesh(recipe.batch_size)
    everywhere, by_row = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (None, "data")))
    keys = jax.device_put(np.asarray(seeds, np.uint32), everywhere)
    steps = jax.device_put(np.float32(len(plan)), everywhere)
    given = jax.device_put({name: network.params[name] for name in ("embeddings", "encoder")}, everywhere)
    # Placed as a step leaves them, or the second step would be compiled for again.
    states = jax.device_put(begin(keys, given, model=model, optim=recipe.optim), everywhere)
    values = []
    for number, (length, chosen) in enumerate(plan, 1):
        parts = [rows.batch(numbers, recipe.batch_size, length, special) for numbers in chosen]
        batch = jax.device_put({name: np.stack([part[name] for part in parts]) for name in parts[0]}, by_row)
        states, loss = train_step(states, keys, batch, steps, model=model, optim=recipe.optim)
        values.append(loss)
        told(number, len(plan))
    measured = np.stack(jax.device_get(values), axis=1)
    if not np.all(np.isfinite(measured)):
        step = int(np.argmin(np.isfinite(measured).all(axis=0)))
        raise DivergedError(f"the loss is no number from step {step} on; give a lower config.optim.learning_rate")
    if not jax.device_get(_finite(states.params)):
        raise DivergedError(
            "the last step left parameters that are no numbers; give a lower config.optim.learning_rate"
        )
    return states.params, measured


def outputs(model: Downstream, params: Any, rows: Rows, special: Special, recipe: Recipe) -> list[dict[str, Any]]:
    """What each seed's model says of every row, whatever the size of the batches: by name, [rows, ...].

    What it says of each token of a row is a list, of [tokens, ...].
    """
    lengths = rows.lengths()
    by_row = NamedSharding(_mesh(recipe.batch_size), PartitionSpec("data"))
    sizes = batches.buckets(lengths, recipe.shortest_bucket)
    found: list[tuple[np.ndarray, Any]] = []
    for length, numbers in batches.in_order(lengths, sizes, recipe.batch_size):
        whole = rows.batch(numbers, recipe.batch_size, length, special)
        batch = jax.device_put({name: whole[name] for name in _READ if name in whole}, by_row)
        found.append((numbers, _outputs(params, batch, model=model)))
    order = np.argsort(np.concatenate([numbers for numbers, _ in found]))
    fetched = jax.device_get([said for _, said in found])
    result = []
    for seed in range(len(jax.tree.leaves(params)[0])):
        said_of: dict[str, Any] = {}
        for name in fetched[0]:
            if model.kind == "tagging":
                ragged = [
                    said[name][seed, i, : lengths[row]]
                    for (numbers, _), said in zip(found, fetched, strict=True)
                    for i, row in enumerate(numbers)
                ]
                said_of[name] = [ragged[i] for i in order]
            else:
                parts = [said[name][seed, : len(numbers)] for (numbers, _), said in zip(found, fetched, strict=True)]
                said_of[name] = np.concatenate(parts)[order]
        result.append(said_of)
    return result


def _mesh(batch_size: int) -> jax.sharding.Mesh:
    """Of as many devices of this process as divide a batch."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    return jax.sharding.Mesh(np.array(devices[:count]), ("data",))
