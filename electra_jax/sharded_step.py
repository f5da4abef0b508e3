"""The train step of a config on a mesh. `train` runs it; `plan` compiles it for devices of another machine.

Steps are compiled ahead of time. Compiled code rejects other shapes, so nothing is recompiled unnoticed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from electra_jax import guard, optim, step, train_config
from electra_jax.config.errors import UserError, first_line
from electra_jax.modeling import cudnn_attention
from electra_jax.modeling import electra as networks
from electra_jax.objectives.segments import Segment, make_segments
from electra_jax.objectives.spec import Objective, Params
from electra_jax.runtime import sharding
from electra_jax.train_config import TrainConfig


def compiler_options(config: TrainConfig, device_kind: str) -> dict[str, str | bool]:
    """Options of XLA for the train step on a kind of device."""
    given = (option.partition("=") for option in config.compiler_options.split(",") if option)
    options: dict[str, str | bool] = {name: value for name, _, value in given}
    if config.profile.at and cudnn_attention.is_nvidia_gpu(device_kind):
        options.setdefault("xla_gpu_enable_command_buffer", "")  # a CUDA graph is one event of a profile, without names
    return options


@dataclasses.dataclass(frozen=True)
class ShardedStep:
    """The state and the steps of a run on a mesh.

    Attributes:
      config: the run's config.
      objective: the run's objective.
      mesh: the devices, from `sharding.make_mesh`.
    """

    config: TrainConfig
    objective: Objective
    mesh: Mesh

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The run's schedule; each segment has a step of its own."""
        return make_segments(self.objective.stages, train_config.phases(self.config))

    @functools.cached_property
    def _optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        return optim.make(self.config.optim, *(stage.steps for stage in self.objective.stages))

    @functools.cached_property
    def state(self) -> step.TrainState:
        """The shapes, types and shardings of the state."""
        return cast(step.TrainState, sharding.with_shardings(self.mesh, jax.eval_shape(self._init)))

    @functools.cached_property
    def _init(self) -> Callable[[], step.TrainState]:
        """Makes a fresh state; jitted, so that it is traced once for its shapes and its values."""
        config, optimizer = self.config, self._optimizer[0]
        return jax.jit(lambda: step.init_state(self.objective, optimizer, config.seed, config.data.seq_length))

    def fresh_state(self) -> step.TrainState:
        """A fresh state, initialized on the devices that hold it."""
        return cast(step.TrainState, jax.jit(self._init, out_shardings=sharding.shardings(self.state))())

    def fresh_params(self) -> Params:
        """Fresh parameters as NumPy arrays."""
        with jax.default_device(jax.local_devices()[0]):
            return jax.device_get(jax.jit(lambda: self._init().params)())

    @functools.cached_property
    def gather(self) -> Callable[[Params], Params]:
        """Compiled: the parameters of a state -> those that the networks read, see `sharding.gather_over_data`."""
        return cast(Callable[[Params], Params], self.jit(self._gather))

    def _gather(self, params: Params) -> Params:
        return sharding.gather_over_data(self.mesh, params, jnp.dtype(self.config.model.dtype))

    def _scatter(self, grads: Params) -> Params:
        """Sums a gradient over the devices; each receives its share, in float32.

        Of a kernel that is read in bfloat16, the sum over the devices is in bfloat16, as its gradient is.
        """
        return cast(
            Params,
            jax.tree.map(
                lambda grad, like: jax.lax.with_sharding_constraint(grad.astype(like.dtype), like.sharding),
                grads,
                self.state.params,
            ),
        )

    def begin(self, segment: Segment, state: step.TrainState) -> step.TrainState:
        """The state to start a segment from, given the state after the segment before it.

        Where a new stage begins, the gradient norms of the one before are forgotten, as its loss was another, and the
        stage's `init_params` are applied to the parameters.
        """
        before = [other.stage for other in self.segments if other.stop == segment.start]
        if not before or before[0] is segment.stage:
            return state
        norms = self.jit(guard.no_norms, out_shardings=sharding.replicated(self.mesh))()
        params, init_params = state.params, segment.stage.init_params
        if init_params is not None:
            params = self.jit(init_params, out_shardings=sharding.shardings(self.state.params))(params)
        return step.TrainState(state.step, params, state.opt_state, norms)

    def compile(self, segment: Segment) -> jax.stages.Compiled:
        """The train step of a segment; call it with (state, batch).

        Raises:
          UserError: XLA rejects `config.compiler_options`.
        """
        options = compiler_options(self.config, self.mesh.devices.flat[0].device_kind)
        try:
            return self.lower(segment).compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if options and "INVALID_ARGUMENT" in str(error):
                raise UserError(
                    f"config.compiler_options={self.config.compiler_options} is invalid: {first_line(error)}"
                ) from error
            raise

    def lower(self, segment: Segment) -> jax.stages.Lowered:
        """The train step of a segment, before compilation."""
        return cast(jax.stages.Lowered, self.trace(segment).lower())

    def trace(self, segment: Segment) -> jax.stages.Traced:
        """The train step of a segment as JAX traced it, with its `jaxpr`."""
        config, (optimizer, schedule) = self.config, self._optimizer
        shardings, batch = sharding.shardings(self.state), sharding.batch_sharding(self.mesh)
        model = networks.unroll(self.objective.model, config.model.unroll)
        train_step = step.make_train_step(
            dataclasses.replace(self.objective, model=model),
            segment.stage,
            optimizer,
            schedule,
            config.seed,
            config.grad_accum_steps,
            config.guard.spike,
            step.Placement(self._gather, self._scatter),
        )
        jitted = self.jit(
            train_step,
            donate_argnums=0,
            in_shardings=(shardings, batch),
            out_shardings=(shardings, sharding.replicated(self.mesh)),
        )
        batch_shapes = step.batch_shapes(segment.batch_size, segment.length, batch)
        return cast(jax.stages.Traced, jitted.trace(self.state, batch_shapes))

    def jit(self, function: Callable[..., Any], **options: Any) -> Any:
        """`jax.jit` of a function that reads the mesh (`modeling.transformer.shard_batch`)."""

        @functools.wraps(function)
        def on_mesh(*args: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*args)

        return jax.jit(on_mesh, **options)
