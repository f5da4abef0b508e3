"""The train step: a pure function of (state, batch), whose random keys derive from the seed and the step number.

`ShardedStep` has the steps of a config on a mesh: `train` runs them, `plan` compiles them for devices of another
machine. They are compiled ahead of time. Compiled code rejects other shapes, so there is no silent recompilation.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from electra_jax import guard, metrics, optim, train_config
from electra_jax.config.errors import UserError, first_line
from electra_jax.modeling import cudnn_attention
from electra_jax.modeling import electra as networks
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import masking
from electra_jax.objectives.segments import Segment, make_segments
from electra_jax.objectives.spec import Objective, Params, Stage
from electra_jax.runtime import rng, sharding
from electra_jax.train_config import TrainConfig

Array = jax.Array
LESS_MEMORY = (
    "set config.model.remat=dots or full, config.model.unroll=false, a larger config.grad_accum_steps, a smaller "
    "config.batch_size, or spread the parameters over more devices with config.mesh.fsdp"
)
_LESS_FOR_EVALUATION = "use a smaller config.batch_size or more devices"


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


def device_memory() -> int | None:
    """Returns the bytes that JAX may allocate on a device; None if it sets no limit, as on a CPU."""
    return cast(int | None, (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"))


def memory_of(program: jax.stages.Compiled, arguments: int | None = None) -> int:
    """Returns the bytes that a program needs on a device; 0 if XLA does not say.

    Args:
      program: the program.
      arguments: bytes to count in place of those of its arguments.
    """
    size: Any = program.memory_analysis()
    if size is None:
        return 0
    arguments = size.argument_size_in_bytes if arguments is None else arguments
    # Results that take the place of donated arguments need no memory of their own.
    results = size.output_size_in_bytes - size.alias_size_in_bytes
    return int(arguments + results + size.temp_size_in_bytes + size.generated_code_size_in_bytes)


def check_memory(
    state: TrainState, train_steps: Iterable[jax.stages.Compiled], evaluations: Iterable[jax.stages.Compiled]
) -> None:
    """Raises UserError if a program of a run needs more memory than JAX may use on a device.

    A TPU's compiler refuses such programs; a GPU's does not, and they would fail at the first call.
    """
    if (limit := device_memory()) is None:
        return
    kept = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    needs = [("a train step", memory_of(each), LESS_MEMORY) for each in train_steps]
    # The parameters that an evaluation reads may be those of the state, which stays.
    needs += [("an evaluation", memory_of(each, kept), _LESS_FOR_EVALUATION) for each in evaluations]
    for name, size, advice in needs:
        if size > limit:
            sizes = f"{name} needs {size / 2**30:.1f} GiB, and JAX may use {limit / 2**30:.1f}"
            raise UserError(f"the memory of a device is not enough ({sizes}); {advice}")


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

    @property
    def device_kind(self) -> str:
        """JAX's name of the devices."""
        return str(self.mesh.devices.flat[0].device_kind)

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The run's schedule; each segment has a train step of its own."""
        return make_segments(self.objective, train_config.phases(self.config))

    @functools.cached_property
    def _optimizer(self) -> tuple[optax.GradientTransformation, optax.Schedule]:
        rates = [(phase.steps, phase.learning_rate) for phase in train_config.phases(self.config)]
        return optim.make(self.config.optim, *(stage.steps for stage in self.objective.stages), rates=rates)

    @functools.cached_property
    def state(self) -> TrainState:
        """Shapes, dtypes and shardings of the train state."""
        return cast(TrainState, sharding.with_shardings(self.mesh, jax.eval_shape(self._init)))

    @functools.cached_property
    def _init(self) -> Callable[[], TrainState]:
        """Function that makes a fresh state; jitted, so that shapes and values share one trace."""
        config, optimizer = self.config, self._optimizer[0]
        return jax.jit(lambda: init_state(self.objective, optimizer, config.seed, config.data.seq_length))

    def fresh_state(self) -> TrainState:
        """Makes a fresh state, initialized on the devices that hold it."""
        return cast(TrainState, jax.jit(self._init, out_shardings=sharding.shardings(self.state))())

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

    def begin(self, segment: Segment, state: TrainState) -> TrainState:
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
        return TrainState(state.step, params, state.opt_state, norms)

    def compile(self, segment: Segment) -> jax.stages.Compiled:
        """Compiles the train step of a segment; call the result with (state, batch).

        Raises:
          UserError: XLA rejects `config.compiler_options`.
        """
        options = compiler_options(self.config, self.device_kind)
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
        model = networks.unroll(segment.objective.model, config.model.unroll, self.device_kind)
        train_step = make_train_step(
            dataclasses.replace(segment.objective, model=model),
            segment.stage,
            optimizer,
            schedule,
            config.seed,
            config.grad_accum_steps,
            config.guard.spike,
            Placement(self._gather, self._scatter),
        )
        jitted = self.jit(
            train_step,
            donate_argnums=0,  # the new state reuses the memory of the old one
            in_shardings=(shardings, batch),
            out_shardings=(shardings, sharding.replicated(self.mesh)),
        )
        shapes = batch_shapes(segment.batch_size, segment.length, batch)
        return cast(jax.stages.Traced, jitted.trace(self.state, shapes))

    def jit(self, function: Callable[..., Any], **options: Any) -> Any:
        """Like `jax.jit`, for a function that reads the current mesh (`modeling.transformer.shard_batch`)."""

        @functools.wraps(function)
        def on_mesh(*args: Any) -> Any:
            # Inside the function, because jax.jit calls it later, when it traces.
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*args)

        return jax.jit(on_mesh, **options)
