"""The train step of a config on a mesh. `train` runs it; `plan` compiles it for devices of another machine.

Steps are compiled ahead of time. Compiled code rejects other shapes, so there is no silent recompilation.
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
    """Returns the XLA compiler options for the train step on a kind of device."""
    given = (option.partition("=") for option in config.compiler_options.split(",") if option)
    # JAX refuses the texts "true" and "false", which XLA_FLAGS has.
    truth = {"true": True, "false": False}
    options: dict[str, str | bool] = {name: truth.get(value.lower(), value) for name, _, value in given}
    if config.profile.at and cudnn_attention.is_nvidia_gpu(device_kind):
        # A profile shows a CUDA graph as one event without a name.
        options.setdefault("xla_gpu_enable_command_buffer", "")
    return options


@dataclasses.dataclass(frozen=True)
class ShardedStep:
    """The train state and the train steps of a run on a mesh.

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
        """The run's schedule; each segment has a train step of its own."""
        return make_segments(self.objective, train_config.phases(self.config))

    @functools.cached_property
    def _optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        rates = [(phase.steps, phase.learning_rate) for phase in train_config.phases(self.config)]
        return optim.make(self.config.optim, *(stage.steps for stage in self.objective.stages), rates=rates)

    @functools.cached_property
    def state(self) -> step.TrainState:
        """Shapes, dtypes and shardings of the train state."""
        return cast(step.TrainState, sharding.with_shardings(self.mesh, jax.eval_shape(self._init)))

    @functools.cached_property
    def _init(self) -> Callable[[], step.TrainState]:
        """Function that makes a fresh state; jitted, so that shapes and values share one trace."""
        config, optimizer = self.config, self._optimizer[0]
        return jax.jit(lambda: step.init_state(self.objective, optimizer, config.seed, config.data.seq_length))

    def fresh_state(self) -> step.TrainState:
        """Makes a fresh state, initialized on the devices that hold it."""
        return cast(step.TrainState, jax.jit(self._init, out_shardings=sharding.shardings(self.state))())

    def fresh_params(self) -> Params:
        """Makes fresh parameters, as NumPy arrays."""
        # Every process computes all of them on one of its devices: `sharding.put_tree` needs them whole.
        with jax.default_device(jax.local_devices()[0]):
            return jax.device_get(jax.jit(lambda: self._init().params)())

    @functools.cached_property
    def gather(self) -> Callable[[Params], Params]:
        """Jitted function: stored parameters -> the parameters that networks read, see `sharding.gather_over_data`."""
        return cast(Callable[[Params], Params], self.jit(self._gather))

    def _gather(self, params: Params) -> Params:
        return sharding.gather_over_data(self.mesh, params, jnp.dtype(self.config.model.dtype))

    def _scatter(self, grads: Params) -> Params:
        """Sums a gradient over the devices; each receives its own shard, in float32.

        Gradients of kernels that are read in bfloat16 are also summed in bfloat16.
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
        """Returns the state that a segment starts from, given the state after the previous segment.

        If the loss is a different one, the gradient norms are reset. At the start of a new stage, its `init_params` are
        applied to the parameters.
        """
        before = [other for other in self.segments if other.stop == segment.start]
        if not before or before[0].loss == segment.loss:
            return state
        # The guard compares a norm with those of the same loss: another loss may have another scale.
        norms = self.jit(guard.no_norms, out_shardings=sharding.replicated(self.mesh))()
        params, init_params = state.params, segment.stage.init_params
        # Phases may split a stage into several segments, of which only the first begins it.
        if init_params is not None and before[0].stage.loss is not segment.stage.loss:
            params = self.jit(init_params, out_shardings=sharding.shardings(self.state.params))(params)
        return step.TrainState(state.step, params, state.opt_state, norms)

    def compile(self, segment: Segment) -> jax.stages.Compiled:
        """Compiles the train step of a segment; call the result with (state, batch).

        Raises:
          UserError: XLA rejects `config.compiler_options`.
        """
        options = compiler_options(self.config, self.mesh.devices.flat[0].device_kind)
        try:
            return cast(jax.stages.Compiled, self.trace(segment).lower().compile(compiler_options=options))
        except jax.errors.JaxRuntimeError as error:
            # XLA's status for an unknown option or an invalid value.
            if options and "INVALID_ARGUMENT" in str(error):
                raise UserError(
                    f"config.compiler_options={self.config.compiler_options} is invalid: {first_line(error)}"
                ) from error
            raise

    def trace(self, segment: Segment) -> jax.stages.Traced:
        """Traces the train step of a segment; the result has its `jaxpr`."""
        config, (optimizer, schedule) = self.config, self._optimizer
        shardings, batch = sharding.shardings(self.state), sharding.batch_sharding(self.mesh)
        # Other programs, such as an evaluation, scan over the layers, which compiles several times faster.
        model = networks.unroll(segment.objective.model, config.model.unroll)
        train_step = step.make_train_step(
            dataclasses.replace(segment.objective, model=model),
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
            donate_argnums=0,  # the new state reuses the memory of the old one
            in_shardings=(shardings, batch),
            out_shardings=(shardings, sharding.replicated(self.mesh)),
        )
        batch_shapes = step.batch_shapes(segment.batch_size, segment.length, batch)
        return cast(jax.stages.Traced, jitted.trace(self.state, batch_shapes))

    def jit(self, function: Callable[..., Any], **options: Any) -> Any:
        """Like `jax.jit`, for a function that reads the current mesh (`modeling.transformer.shard_batch`)."""

        @functools.wraps(function)
        def on_mesh(*args: Any) -> Any:
            # Inside the function, because jax.jit calls it later, when it traces.
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*args)

        return jax.jit(on_mesh, **options)
