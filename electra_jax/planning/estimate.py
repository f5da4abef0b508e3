"""Estimates what a train step needs on a TPU slice: memory, FLOPs, traffic, and a lower bound on its time."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import replace
from electra_jax.objectives import registry
from electra_jax.objectives.spec import Objective
from electra_jax.planning import hlo
from electra_jax.planning.flops import devices as device_table
from electra_jax.planning.flops.breakdown import sum_networks
from electra_jax.planning.flops.count import make_objective
from electra_jax.planning.flops.totals import ACCOUNTINGS, count_flops
from electra_jax.planning.slices import slice_of
from electra_jax.runtime import sharding
from electra_jax.sharded_step import ShardedStep
from electra_jax.train_config import TrainConfig

_TOO_LARGE = re.compile(r"total memory required[^(]*\(([\d.]+)([KMG])\) exceeds|Used ([\d.]+)([KMG]) of")
_LETTERS = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
_LOOPS = ("while", "body", "cond", "closed_call", "checkpoint", "rematted_computation")
REMAT = ("none", "dots", "full")  # in ascending order of recomputation


@dataclasses.dataclass(frozen=True)
class Plan:
    """One train step of the run's last segment on one slice.

    FLOPs count all devices together, all bytes but those of `collectives` one device. Fields that default to None are
    None where the compiler failed because the program is too large.

    Attributes:
      settings: `batch_size`, `grad_accum_steps`, `remat`, `unroll`, and the sizes of the mesh's axes.
      topology: the slice, with the number of slices if there are several.
      devices: the number of devices.
      hosts: the number of hosts.
      kind: the kind of device, a key of `devices.TPU_SPECS`.
      fits: whether the program fits into the device's memory.
      memory: bytes by kind, their `total`, and what is `usable`; fewer kinds where the compiler failed.
      flops: of a step: by our accounting (`model`) and by XLA's count before optimization, with scans unrolled (`xla`).
      mfu: the assumed model FLOPs utilization.
      days_at_mfu: days that the run takes at that utilization.
      compile_seconds: compile time on this machine.
      moved: bytes moved between memory and a device in a step.
      collectives: by kind, how many run in a step, bytes of their results, and bytes that a device must send.
      largest: (bytes, name) of the operations that move most, in descending order.
      seconds: lower bounds on the time of a step, by `compute`, `memory` and `interconnect`. The network between
        slices, which is slower than the interconnect, is not included.
      bound: the resource with the largest of these.
      tokens_per_second: throughput at that bound.
      days: days that the run takes at that bound.
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
    collectives: dict[str, dict[str, float]] | None = None
    largest: list[tuple[float, str]] | None = None
    seconds: dict[str, float] | None = None
    bound: str | None = None
    tokens_per_second: float | None = None
    days: float | None = None

    @property
    def step_seconds(self) -> float:
        """Seconds of a step at the bound; infinite where the compiler failed."""
        return max(self.seconds.values()) if self.seconds else math.inf


def estimate(
    config: ConfigDict | TrainConfig | Mapping[str, Any], topology: str, slices: int = 1, mfu: float = 0.4
) -> Plan:
    """Compiles the train step of a config for TPU slices, without TPUs, and estimates memory and time.

    Args:
      config: the run.
      topology: the slice as KIND:SHAPE, for example `v3:4x4`.
      slices: how many such slices.
      mfu: the model FLOPs utilization to estimate days with, in addition to the bound.

    Returns:
      The memory by kind in bytes, FLOPs, traffic, lower bounds in seconds, and days; see `Plan`.

    Raises:
      UserError: libtpu is not installed, the slice does not exist, the config is invalid, or its batch cannot be split
        over the slice.
    """
    config = train_config.resolve(config)
    tpus = slice_of(topology, slices)
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps, tpus)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    objective = make_objective(config)
    run = ShardedStep(config, objective, mesh)
    segment = run.segments[-1]
    kind = device_table.known(tpus[0].device_kind) or tpus[0].device_kind
    if kind not in device_table.TPU_SPECS:
        raise UserError(
            f"--topology={topology} has devices of unknown speed ({kind}): expected one of "
            f"{', '.join(device_table.TPU_SPECS)}"
        )
    specs, peak = device_table.TPU_SPECS[kind], device_table.peak(kind, config.model.dtype)
    assert peak is not None
    step_flops = sum_networks(ACCOUNTINGS["model"](objective, segment.stage, config.batch_size, segment.length))
    run_flops = count_flops(objective, run.segments, config.batch_size, config.steps)["model"]
    plan = Plan(
        settings={
            "batch_size": config.batch_size,
            "grad_accum_steps": config.grad_accum_steps,
            "remat": config.model.remat,
            "unroll": config.model.unroll,
            **mesh.shape,
        },
        topology=topology if slices == 1 else f"{slices} x {topology}",
        devices=len(tpus),
        hosts=len({device.process_index for device in tpus}),
        kind=kind,
        fits=False,
        memory={},
        flops={"model": step_flops, "xla": _xla_flops(config, objective)},
        mfu=mfu,
        days_at_mfu=run_flops / (peak * len(tpus) * mfu) / 86400,
        compile_seconds=math.nan,
    )
    began = time.perf_counter()
    try:
        compiled = run.compile(segment)
    except jax.errors.JaxRuntimeError as error:
        needed = _needed(str(error))
        if needed is None:
            raise
        memory = _of_state(run) | {"temporary": needed}
        memory |= {"total": sum(memory.values()), "usable": specs.memory}
        return dataclasses.replace(plan, memory=memory, compile_seconds=time.perf_counter() - began)
    seconds = time.perf_counter() - began
    memory = _memory(run, compiled) | {"usable": specs.memory}
    traffic = hlo.traffic(compiled.as_text() or "", len(tpus))
    times = {
        "compute": plan.flops["xla"] / (peak * len(tpus)),  # includes rematerialization
        "memory": traffic.bytes / specs.bandwidth,
        "interconnect": traffic.sent / specs.interconnect,
    }
    bound = max(times, key=lambda name: times[name])
    return dataclasses.replace(
        plan,
        fits=memory["total"] <= specs.memory,
        memory=memory,
        compile_seconds=seconds,
        moved=traffic.bytes,
        collectives=_by_kind(traffic.collectives),
        largest=_by_source(traffic.moved),
        seconds=times,
        bound=bound,
        tokens_per_second=config.batch_size * segment.length / times[bound],
        days=run_flops / step_flops * times[bound] / 86400,
    )


def sweep(
    config: ConfigDict | TrainConfig | Mapping[str, Any],
    topology: str,
    slices: int = 1,
    mfu: float = 0.4,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> list[Plan]:
    """Estimates every `remat`, each with the fewest `grad_accum_steps` (powers of two) that fit.

    Args:
      config: the run; its own `grad_accum_steps` and `remat` are ignored.
      topology, slices, mfu: as for `estimate`.
      on_plan: called with each plan.

    Returns:
      All plans, in the order of estimation; `best` picks the fastest.
    """
    config = train_config.resolve(config)
    devices = len(slice_of(topology, slices))
    plans = []
    for remat in REMAT:
        parts = 1
        while config.batch_size % parts == 0:
            candidate = replace(config, grad_accum_steps=parts, model__remat=remat)
            try:
                plans.append(estimate(candidate, topology, slices, mfu))
            except UserError:
                if parts == 1:
                    raise
                break  # too few examples for all devices
            on_plan(plans[-1])
            if plans[-1].fits or parts > devices * config.batch_size:
                break
            parts *= 2
    return plans


def best(plans: Sequence[Plan]) -> Plan | None:
    """The plan that fits and has the shortest step, the first of equals; None if none fits."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: plan.step_seconds, default=None)


def _xla_flops(config: TrainConfig, objective: Objective) -> float:
    """XLA's count for the whole batch, with scans unrolled and no accumulation: XLA counts a loop's body once."""
    unrolled = replace(config, model__unroll=True, grad_accum_steps=1)
    mesh = sharding.make_mesh(sharding.ONE_DEVICE, config.batch_size, 1, jax.local_devices(backend="cpu")[:1])
    vocab_size = objective.model.config.vocab_size
    run = ShardedStep(unrolled, registry.make(unrolled.objective, unrolled.model, unrolled.steps, vocab_size), mesh)
    costs: Any = run.lower(run.segments[-1]).cost_analysis()
    return float(costs["flops"])


def _memory(run: ShardedStep, compiled: Any) -> dict[str, float]:
    """Bytes on one device by kind, and their total."""
    analysis, state = compiled.memory_analysis(), _of_state(run)
    memory = {
        **state,
        "batch and padding": float(analysis.argument_size_in_bytes) - sum(state.values()),
        "results": float(analysis.output_size_in_bytes - analysis.alias_size_in_bytes),
        "temporary": float(analysis.temp_size_in_bytes),
        "program": float(analysis.generated_code_size_in_bytes),
    }
    return memory | {"total": sum(memory.values())}


def _of_state(run: ShardedStep) -> dict[str, float]:
    """Bytes that one device keeps between steps."""

    def share(tree: Any) -> float:
        return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))

    return {"parameters": share(run.state.params), "moments": share(run.state.opt_state)}


def _needed(error: str) -> float | None:
    """The bytes of temporaries in a compiler's out-of-memory error; None for another error.

    The compiler compares the temporaries alone with the device's memory; the state comes on top.
    """
    match = _TOO_LARGE.search(error)
    if not match:
        return None
    number, letter = (match[1], match[2]) if match[1] else (match[3], match[4])
    return float(number) * _LETTERS[letter]


def _by_kind(collectives: Sequence[hlo.Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for collective in collectives:
        total = kinds.setdefault(collective.kind, {"times": 0.0, "bytes": 0.0, "sent": 0.0})
        total["times"] += collective.times
        total["bytes"] += collective.bytes
        total["sent"] += collective.sent
    return kinds


def _by_source(moved: Sequence[hlo.Moved]) -> list[tuple[float, str]]:
    """(bytes, name) by network, direction and operation, in descending order."""
    totals: dict[str, float] = {}
    for instruction in moved:
        name = _name(instruction.source)
        totals[name] = totals.get(name, 0.0) + instruction.bytes
    return sorted(((total, name) for name, total in totals.items() if total), reverse=True)


def _name(source: str) -> str:
    """The module and the direction, forward or backward, from the name that JAX gives an operation.

    `jit(train_step)/transpose(jvp(Electra.encode))/encoder/while/body/closed_call/layers/ffn_out/dot_general` is
    `encoder/layers/ffn_out, backward`.
    """
    direction = "backward" if "transpose(" in source else "forward" if "jvp(" in source else ""
    words = [word for word in source.split("/")[:-1] if "(" not in word and word not in _LOOPS]
    place = "/".join(words) or ("loss and sampling" if direction else "masking and optimizer")
    if "dynamic_update_index_in_dim" in source and direction == "forward":
        return f"{place}, kept for backward"
    return f"{place}, {direction}" if direction else place
