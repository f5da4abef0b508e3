"""Estimates the cost of a train step on TPU slices or GPUs: memory, FLOPs, traffic, time (bounds and a forecast)."""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import above_up_to, check_value, replace, whole
from electra_jax.flops import attention as attention_flops
from electra_jax.flops import devices as device_table
from electra_jax.flops.count import make_objective
from electra_jax.flops.hardware import sum_networks
from electra_jax.flops.totals import ACCOUNTINGS, count_flops
from electra_jax.modeling import cudnn_attention, fused_attention, transformer
from electra_jax.objectives import registry
from electra_jax.objectives.segments import Segment
from electra_jax.objectives.spec import Objective
from electra_jax.planning import gpu_forecast, hlo, traffic
from electra_jax.planning.forecast import Forecast, Rates, forecast
from electra_jax.planning.kernels import KernelCost, Signature, count_kernels
from electra_jax.planning.targets import Target, find_target
from electra_jax.planning.vector import count_vector
from electra_jax.runtime import sharding
from electra_jax.runtime.compile_cache import NONE, compile_cache
from electra_jax.step import ShardedStep
from electra_jax.train_config import TrainConfig

_TOO_LARGE = re.compile(r"total memory required[^(]*\(([\d.]+)([KMG])\) exceeds|Used ([\d.]+)([KMG]) of")
_LETTERS = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
REMAT = ("none", "dots", "full")  # in ascending order of recomputation


@dataclasses.dataclass(frozen=True)
class Plan:
    """Estimates for one train step of the run's most expensive segment, on TPU slices or on the GPUs of a machine.

    FLOPs are those of all devices together; bytes and element-wise operations are those of one device. Fields that
    default to None are None if the compiler failed because the program is too large.

    Attributes:
      settings: `batch_size`, `grad_accum_steps`, `remat`, `unroll`, `attention` (`fused` or `plain`), and the sizes of
        the mesh's axes.
      topology: the slice or the GPUs, with the number of slices if there are several.
      devices: the number of devices.
      hosts: the number of hosts.
      kind: the kind of device, a key of `devices.PEAK_FLOPS`.
      fits: whether the program fits into the device's memory.
      memory: bytes by kind, their `total`, and the `usable` bytes; fewer kinds if the compiler failed.
      flops: FLOPs of a step by both accountings (`model` and `paper`), and by XLA's count before optimization, with
        scans unrolled (`xla`), in which attention counts as what its kernel executes.
      mfu: the assumed model FLOPs utilization.
      days_at_mfu: days that the run takes at that utilization.
      compile_seconds: compilation time on this machine.
      moved: bytes moved between memory and a device in a step; of branches that are chosen at run time, the least.
      vector: element-wise operations of a device in a step, without those inside kernels; the least, too.
      collectives: for each kind, the number executed in a step (`times`), the `bytes` of their results, and the bytes
        that a device must send (`sent`).
      largest: (bytes, name) of the operations in descending order of the bytes that they move.
      seconds: lower bounds on the time of a step, by `compute` (the matrix units), `vector`, `memory` and
        `interconnect`. The network between slices, which is slower than the interconnect, is not included.
      bound: the resource with the largest of these.
      tokens_per_second: throughput at that bound.
      days: days that the run takes at that bound.
      forecast: seconds of a step by part: on TPUs by the compiler's own estimates, on GPUs by the sum over all kernels
        (`planning.forecast`, `planning.gpu_forecast`).
      unestimated: (seconds, name) in descending order: on TPUs of instructions without an estimate by the compiler, on
        GPUs of kernels of which too little is known.
      forecast_seconds: sum of `forecast`, or the bound if that is longer.
      forecast_mfu: the model FLOPs utilization at the forecast.
      forecast_days: days that the run takes at the forecast.
    """

    settings: dict[str, Any]
    topology: str
    devices: int
    hosts: int
    kind: str
    fits: bool
    memory: dict[str, float]
    flops: dict[str, float]
    mfu: float
    days_at_mfu: float
    compile_seconds: float
    moved: float | None = None
    vector: float | None = None
    collectives: dict[str, dict[str, float]] | None = None
    largest: list[tuple[float, str]] | None = None
    seconds: dict[str, float] | None = None
    bound: str | None = None
    tokens_per_second: float | None = None
    days: float | None = None
    forecast: dict[str, float] | None = None
    unestimated: list[tuple[float, str]] | None = None
    forecast_seconds: float | None = None
    forecast_mfu: float | None = None
    forecast_days: float | None = None

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the forecast, or else the bound; infinity if the compiler failed.

        The forecast ranks two programs better than the bounds: `remat` and gradient accumulation change element-wise
        work and the shapes of matrix products, which the bounds hardly reflect.
        """
        if self.forecast_seconds is not None:
            return self.forecast_seconds
        return max(self.seconds.values()) if self.seconds else math.inf


def estimate(
    config: ConfigDict | TrainConfig | Mapping[str, Any], topology: str, slices: int = 1, mfu: float = 0.4
) -> Plan:
    """Compiles the train step of a config for TPU slices or GPUs, without having them, and estimates memory and time.

    Args:
      config: the run.
      topology: a slice as KIND:SHAPE, for example `v3:4x4`, or the GPUs of a machine as KIND:COUNT, `h100:8`.
      slices: number of such slices.
      mfu: the model FLOPs utilization to estimate days with, in addition to the bound.

    Returns:
      Memory by kind in bytes, FLOPs, traffic, lower bounds and a forecast in seconds, and days; see `Plan`.

    Raises:
      UserError: the compiler (libtpu, or JAX's CUDA plugin) is not installed, such devices do not exist, the config is
        invalid, or its batch cannot be split over the devices.
    """
    check_value("slices", slices, whole(1))
    check_value("mfu", mfu, above_up_to(0, 1))
    config = train_config.resolve(config)
    target = find_target(topology, slices)
    # The config's options come last: of equal names, the last one counts.
    options = ",".join(filter(None, (target.options, config.compiler_options)))
    config = replace(config, {"compiler_options": options})
    # Every phase's batch must be split evenly over the mesh, not only the run's.
    sizes = [phase.batch_size for phase in train_config.phases(config)]
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps, target.devices, sizes)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    objective = make_objective(config)
    run = ShardedStep(config, objective, mesh)
    segment = most_expensive(run)
    peak = device_table.peak(target.kind, config.model.dtype)
    assert peak is not None
    peak *= len(target.devices)
    flops = {name: sum_networks(count(*segment.cost, config.optim.name)) for name, count in ACCOUNTINGS.items()}
    run_flops = count_flops(run.segments, config.steps, config.optim.name)
    # The run's length in steps of this segment's cost; a cheaper step is a part of one.
    steps = run_flops["model"] / flops["model"]
    attention, virtual = functools.partial(fused_attention.chosen, length=segment.length), mesh.abstract_mesh
    # XLA counted plain attention; the run may use a kernel, or blocks in local layers.
    device_kind = fused_attention.device_kind(virtual)
    is_unrolled = functools.partial(transformer.is_unrolled, config.model.unroll, device_kind=device_kind)
    xla = _xla_flops(config, objective) + attention_flops.change(
        *segment.cost,
        is_fused=lambda network: attention(network, mesh=virtual) == "fused",
        is_unrolled=is_unrolled,
        is_gpu=cudnn_attention.is_nvidia_gpu(device_kind),
    )
    plan = Plan(
        settings={
            "batch_size": segment.batch_size,
            "grad_accum_steps": config.grad_accum_steps,
            "remat": config.model.remat,
            "unroll": is_unrolled(objective.model.config.encoder),
            "attention": attention(objective.model.config.encoder, mesh=virtual),
            **mesh.shape,
        },
        topology=topology if slices == 1 else f"{slices} x {topology}",
        devices=len(target.devices),
        hosts=target.hosts,
        kind=target.kind,
        fits=False,
        memory={},
        flops=flops | {"xla": xla},
        mfu=mfu,
        days_at_mfu=steps * flops["model"] / (peak * mfu) / 86400,
        compile_seconds=math.nan,
    )
    began = time.perf_counter()
    try:
        with compile_cache(NONE):  # JAX cannot read back programs for devices that it does not have
            compiled = run.compile(segment)
    except jax.errors.JaxRuntimeError as error:
        # A program that is too large is a result; any other failure of the compiler is an error.
        needed = _needed(str(error))
        if needed is None:
            raise
        memory = _of_state(run) | {"temporary": needed}
        memory |= {"total": sum(memory.values()), "usable": target.memory}
        return dataclasses.replace(plan, memory=memory, compile_seconds=time.perf_counter() - began)
    seconds = time.perf_counter() - began
    memory = _memory(run, compiled) | {"usable": target.memory}
    plan = dataclasses.replace(plan, fits=memory["total"] <= target.memory, memory=memory, compile_seconds=seconds)
    program = hlo.Program(compiled.as_text() or "")
    # Traced again only if there are kernels, which XLA cannot see into.
    kernels = count_kernels(run.trace(segment).jaxpr) if program.has_kernels else {}
    return _timed(plan, program, kernels, target, peak, segment.batch_size * segment.length, steps)


def _timed(
    plan: Plan,
    program: hlo.Program,
    kernels: Mapping[Signature, KernelCost],
    target: Target,
    peak: float,
    tokens: int,
    steps: float,
) -> Plan:
    """Completes a plan with times from the compiled program. `peak` is that of all devices, `steps` the run's length in
    steps of this cost."""
    counted = traffic.count_traffic(program, plan.devices)
    vector = count_vector(program, target.packed16)
    times = {
        "compute": plan.flops["xla"] / peak,  # includes rematerialization
        "vector": vector / target.vector,
        "memory": counted.bytes / target.bandwidth,
        "interconnect": counted.sent / target.interconnect,
    }
    bound = max(times, key=lambda name: times[name])
    speeds = (target.vector, target.bandwidth, target.interconnect)
    expected: Forecast | None
    if target.clock is None:
        bfloat16 = device_table.PEAK_FLOPS[plan.kind]["bfloat16"]  # `forecast` slows down products of float32
        expected = gpu_forecast.forecast(program, plan.devices, gpu_forecast.rates_of(bfloat16, *speeds), kernels)
    else:
        expected = forecast(program, plan.devices, Rates(target.clock, peak / plan.devices, *speeds), kernels)
    # No step is faster than the bound, whatever was estimated.
    step = max(expected.seconds, times[bound]) if expected else None
    return dataclasses.replace(
        plan,
        moved=counted.bytes,
        vector=vector,
        collectives=_by_kind(counted.collectives),
        largest=_by_source(counted.moved),
        seconds=times,
        bound=bound,
        tokens_per_second=tokens / times[bound],
        days=steps * times[bound] / 86400,
        forecast=expected.parts if expected else None,
        unestimated=expected.unestimated if expected else None,
        forecast_seconds=step,
        forecast_mfu=plan.flops["model"] / (step * peak) if step else None,
        forecast_days=steps * step / 86400 if step else None,
    )


def most_expensive(run: ShardedStep) -> Segment:
    """Returns the segment whose steps have the most FLOPs, the first of equals."""
    count, optimizer = ACCOUNTINGS["model"], run.config.optim.name
    costs = [sum_networks(count(*segment.cost, optimizer)) for segment in run.segments]
    # Without `key`, equal costs would compare the segments.
    return max(zip(costs, run.segments, strict=True), key=lambda each: each[0])[1]


def sweep(
    config: ConfigDict | TrainConfig | Mapping[str, Any],
    topology: str,
    slices: int = 1,
    mfu: float = 0.4,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> list[Plan]:
    """Estimates each `remat` with the smallest `grad_accum_steps`, a power of two, that fits.

    Args:
      config: the run; its own `grad_accum_steps` and `remat` are ignored.
      topology, slices, mfu: as in `estimate`.
      on_plan: called with each plan.

    Returns:
      All plans, in the order of estimation; `best` picks the fastest.
    """
    config = train_config.resolve(config)
    plans = []
    for remat in REMAT:
        parts = 1
        while config.batch_size % parts == 0:
            candidate = replace(config, {"grad_accum_steps": parts, "model.remat": remat})
            try:
                plans.append(estimate(candidate, topology, slices, mfu))
            except UserError:
                if parts == 1:
                    raise
                break  # too few examples for all devices
            on_plan(plans[-1])
            if plans[-1].fits:
                break
            parts *= 2
    return plans


def best(plans: Sequence[Plan]) -> Plan | None:
    """Returns the plan that fits and has the shortest step, the first of equals; None if none fits."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: plan.step_seconds, default=None)


def _xla_flops(config: TrainConfig, objective: Objective) -> float:
    """Counts FLOPs with XLA for the whole batch, with scans unrolled and no gradient accumulation, because XLA counts a
    loop's body once.

    Attention is plain, because XLA sees no operations inside a kernel.
    """
    unrolled = replace(config, {"model.unroll": "true", "model.attention": "plain", "grad_accum_steps": 1})
    # Lowered for a CPU, whatever the target: the count is that before optimization.
    mesh = sharding.make_mesh(sharding.ONE_DEVICE, config.batch_size, 1, jax.local_devices(backend="cpu")[:1])
    vocab_size = objective.model.config.vocab_size
    run = ShardedStep(unrolled, registry.make(unrolled.objective, unrolled.model, unrolled.steps, vocab_size), mesh)
    costs: Any = run.trace(most_expensive(run)).lower().cost_analysis()
    return float(costs["flops"])


def _memory(run: ShardedStep, compiled: Any) -> dict[str, float]:
    """Returns the bytes on one device by kind, and their total."""
    analysis, state = compiled.memory_analysis(), _of_state(run)
    memory = {
        **state,
        "batch and padding": float(analysis.argument_size_in_bytes) - sum(state.values()),
        # The new state is aliased to the donated one; only the metrics take memory.
        "results": float(analysis.output_size_in_bytes - analysis.alias_size_in_bytes),
        "temporary": float(analysis.temp_size_in_bytes),
        "program": float(analysis.generated_code_size_in_bytes),
    }
    return memory | {"total": sum(memory.values())}


def _of_state(run: ShardedStep) -> dict[str, float]:
    """Returns the bytes that one device keeps between steps, by kind."""

    def share(tree: Any) -> float:
        return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))

    return {"parameters": share(run.state.params), "moments": share(run.state.opt_state)}


def _needed(error: str) -> float | None:
    """Parses the bytes of temporaries from a compiler's out-of-memory error; None for any other error.

    The compiler compares only the temporaries with the device's memory; the state comes on top.
    """
    match = _TOO_LARGE.search(error)
    if not match:
        return None
    number, letter = (match[1], match[2]) if match[1] else (match[3], match[4])
    return float(number) * _LETTERS[letter]


def _by_kind(collectives: Sequence[traffic.Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for collective in collectives:
        total = kinds.setdefault(collective.kind, {"times": 0.0, "bytes": 0.0, "sent": 0.0})
        total["times"] += collective.times
        total["bytes"] += collective.bytes
        total["sent"] += collective.sent
    return kinds


def _by_source(moved: Sequence[traffic.Moved]) -> list[tuple[float, str]]:
    """Sums bytes by network, direction and operation. Returns (bytes, name) in descending order."""
    totals: dict[str, float] = {}
    for instruction in moved:
        name = hlo.place(instruction.source)
        totals[name] = totals.get(name, 0.0) + instruction.bytes
    return sorted(((total, name) for name, total in totals.items() if total), reverse=True)
