"""The step of a config on a mesh: what `train` runs, and what `plan` compiles for devices that are not there.

Compiled ahead of time, a second compilation cannot happen unseen: compiled code refuses other shapes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from electra_jax import optim, step
from electra_jax.config.errors import UserError
from electra_jax.objectives.spec import Objective
from electra_jax.runtime import sharding
from electra_jax.train_config import TrainConfig


@dataclasses.dataclass(frozen=True)
class ShardedStep:
    """A run's computations on a mesh.

    Attributes:
      config: the run.
      objective: its system and model.
      mesh: from `sharding.make_mesh`.
    """

    config: TrainConfig
    objective: Objective
    mesh: Mesh

    @functools.cached_property
    def _optimizer(self) -> Any:
        return optim.make(self.config.optim, *(stage.steps for stage in self.objective.stages))

    @functools.cached_property
    def state(self) -> step.TrainState:
        """The shapes, types and shardings of the state."""
        return sharding.with_shardings(self.mesh, jax.eval_shape(self._init))

    def _init(self) -> step.TrainState:
        config = self.config
        return step.init_state(self.objective, self._optimizer[0], config.seed, config.data.seq_length)

    def fresh_state(self) -> step.TrainState:
        """A fresh state, made where it lies."""
        return self.jit(self._init, out_shardings=sharding.shardings(self.state))()

    def fresh_params(self) -> Any:
        """Fresh parameters on this host, numpy arrays."""
        with jax.default_device(jax.local_devices()[0]):
            return jax.device_get(jax.jit(lambda: self._init().params)())

    def compile(self, length: int) -> jax.stages.Compiled:
        """The train step for sequences of `length`; call it with (state, batch)."""
        options: dict[str, str | bool] = {}
        options.update(option.split("=", 1) for option in self.config.compiler_options.split(",") if option)
        try:
            return self.lower(length).compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if options and "INVALID_ARGUMENT" in str(error):
                raise UserError(f"config.compiler_options={self.config.compiler_options}: {error}") from error
            raise

    def lower(self, length: int) -> jax.stages.Lowered:
        """The train step for sequences of `length`, for the compiler."""
        config, (optimizer, schedule) = self.config, self._optimizer
        shardings, batch = sharding.shardings(self.state), sharding.batch_sharding(self.mesh)
        return self.jit(
            step.make_train_step(self.objective, optimizer, schedule, config.seed, config.grad_accum_steps),
            donate_argnums=0,
            in_shardings=(shardings, batch),
            out_shardings=(shardings, sharding.replicated(self.mesh)),
        ).lower(self.state, step.batch_shapes(config.batch_size, length, batch))

    def jit(self, function: Callable[..., Any], **options: Any) -> Any:
        """`jax.jit` of a function whose states are placed on the mesh (`modeling.layers.shard_batch`)."""

        @functools.wraps(function)
        def on_mesh(*args: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*args)

        return jax.jit(on_mesh, **options)
