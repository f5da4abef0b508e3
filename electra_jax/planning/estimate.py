"""What a step needs on a slice: memory, FLOPs, traffic, and from these the time that it takes at the least."""

import dataclasses
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import replace
from electra_jax.data import pipeline
from electra_jax.objectives import registry
from electra_jax.planning import hlo
from electra_jax.planning.flops import devices as device_table
from electra_jax.planning.flops.totals import first_steps
from electra_jax.planning.slices import slice_of
from electra_jax.runtime import sharding
from electra_jax.sharded_step import ShardedStep
from electra_jax.train_config import TrainConfig

_TOO_LARGE = re.compile(r"total memory required[^(]*\(([\d.]+)([KMG])\) exceeds|Used ([\d.]+)([KMG]) of")
_LETTERS = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
_LOOPS = ("while", "body", "cond", "closed_call", "checkpoint", "rematted_computation")
REMAT = ("none", "dots", "full")  # from the least computed again to the most


@dataclasses.dataclass(frozen=True)
class Plan:
    """One step on one slice. Bytes and FLOPs of `step` are of all devices together, all other bytes of one device.

    Attributes:
      settings: those that decide: `batch_size`, `grad_accum_steps`, `remat`, `unroll`, and the mesh.
      topology, devices, hosts, kind: of the slice.
      fits: whether the program can be loaded.
      memory: bytes by kind, their `total`, and what is `usable`; not all kinds where the compiler gave up.
      flops: of a step by our count (`model`), by XLA's of the program before it is optimised, scans unrolled (`xla`).
      moved: bytes between memory and a device in a step; None where the compiler gave up, as all that follows.
      collectives: by kind: how many run in a step, bytes of their results, bytes that a device must send.
      largest: what moves most, by the operation it is from: (bytes, name).
      seconds: of a step, at the least: by `compute`, `memory` and `interconnect`; the largest is the bound. The network
        between slices is slower than what `interconnect` reckons with, by how much depends on the place.
      bound: which that is.
      tokens_per_second, days: of the run, at that bound.
      mfu: assumed, and with it `days_at_mfu`.
      compile_seconds: on this machine.
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
        """At the bound; infinite where the compiler gave up."""
        return max(self.seconds.values()) if self.seconds else math.inf


def make(config: TrainConfig, topology: str, slices: int = 1, mfu: float = 0.4) -> Plan:
    """Compiles the step of a config for a slice.

    Raises:
      UserError: the config, or the slice, cannot be; or its batch cannot be split over it.
    """
    there = slice_of(topology, slices)
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps, there)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    prepared = pipeline.settings_of(Path(config.data.input))
    objective = registry.make(
        config.objective, config.model, config.steps, prepared.get("vocab_size", config.data.vocab_size)
    )
    run = ShardedStep(config, objective, mesh)
    length, phases = config.data.seq_length, train_config.phases(config.data, config.steps)
    kind = device_table.known(there[0].device_kind) or there[0].device_kind
    if kind not in device_table.REACH:
        raise UserError(f"--topology={topology} is of {kind}, of which nothing is known here but that it is")
    reach, peak = device_table.REACH[kind], device_table.peak(kind, config.model.dtype)
    assert peak is not None
    step_flops = first_steps(objective, config.batch_size, [(length, 1)], 1)["model"]
    run_flops = first_steps(objective, config.batch_size, phases, config.steps)["model"]
    plan = Plan(
        settings={
            "batch_size": config.batch_size,
            "grad_accum_steps": config.grad_accum_steps,
            "remat": config.model.remat,
            "unroll": config.model.unroll,
            **mesh.shape,
        },
        topology=topology if slices == 1 else f"{slices} x {topology}",
        devices=len(there),
        hosts=len({device.process_index for device in there}),
        kind=kind,
        fits=False,
        memory={},
        flops={"model": step_flops, "xla": _xla_flops(config, objective)},
        mfu=mfu,
        days_at_mfu=run_flops / (peak * len(there) * mfu) / 86400,
        compile_seconds=math.nan,
    )
    began = time.perf_counter()
    try:
        compiled = run.compile(length)
    except jax.errors.JaxRuntimeError as error:
        needed = _needed(str(error))
        if needed is None:
            raise
        memory = _of_state(run) | {"temporary": needed}
        memory |= {"total": sum(memory.values()), "usable": reach.memory}
        return dataclasses.replace(plan, memory=memory, compile_seconds=time.perf_counter() - began)
    seconds = time.perf_counter() - began
    memory = _memory(run, compiled) | {"usable": reach.memory}
    traffic = hlo.traffic(compiled.as_text() or "", len(there))
    times = {
        "compute": plan.flops["xla"] / (peak * len(there)),  # in which is what is computed again
        "memory": traffic.bytes / reach.bandwidth,
        "interconnect": traffic.sent / reach.interconnect,
    }
    bound = max(times, key=lambda name: times[name])
    return dataclasses.replace(
        plan,
        fits=memory["total"] <= reach.memory,
        memory=memory,
        compile_seconds=seconds,
        moved=traffic.bytes,
        collectives=_by_kind(traffic.collectives),
        largest=_by_source(traffic.moved),
        seconds=times,
        bound=bound,
        tokens_per_second=config.batch_size * length / times[bound],
        days=run_flops / step_flops * times[bound] / 86400,
    )


def sweep(config: TrainConfig, topology: str, slices: int = 1, mfu: float = 0.4, say: Any = None) -> list[Plan]:
    """Plans by what is computed again and in how many parts; more parts only until it fits.

    Args:
      config: a run; its own `grad_accum_steps` and `remat` do not count.
      topology, slices, mfu: as `make`.
      say: told each plan.

    Returns:
      What was tried, in that order; `best` of them is the fastest.
    """
    there = len(slice_of(topology, slices))
    plans = []
    for remat in REMAT:
        parts = 1
        while config.batch_size % parts == 0:
            tried = replace(config, grad_accum_steps=parts, model__remat=remat)
            try:
                plans.append(make(tried, topology, slices, mfu))
            except UserError:
                if parts == 1:
                    raise
                break  # no example is left for some device
            if say is not None:
                say(plans[-1])
            if plans[-1].fits or parts > there * config.batch_size:
                break
            parts *= 2
    return plans


def best(plans: Sequence[Plan]) -> Plan | None:
    """The one that fits with the shortest step; of equals the one tried first."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: plan.step_seconds, default=None)


def _xla_flops(config: TrainConfig, objective: Any) -> float:
    """XLA's count for the whole batch, scans unrolled and in one part, since it counts a scan's body once."""
    unrolled = replace(config, model__unroll=True, grad_accum_steps=1)
    here = sharding.make_mesh(sharding.ONE_DEVICE, config.batch_size, 1, jax.local_devices(backend="cpu")[:1])
    system = registry.make(unrolled.objective, unrolled.model, unrolled.steps, objective.model.config.vocab_size)
    return float(ShardedStep(unrolled, system, here).lower(config.data.seq_length).cost_analysis()["flops"])  # type: ignore[index]


def _memory(run: ShardedStep, compiled: Any) -> dict[str, float]:
    """Bytes of one device by kind, and their total."""
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
    """Bytes of what one device keeps between steps."""

    def share(tree: Any) -> float:
        return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)))

    return {"parameters": share(run.state.params), "moments": share(run.state.opt_state)}


def _needed(error: str) -> float | None:
    """Bytes of temporaries that the compiler says are too many; None where it failed for another reason.

    It compares them alone with the memory: the state, and what else stays there, comes on top.
    """
    found = _TOO_LARGE.search(error)
    if not found:
        return None
    number, letter = (found[1], found[2]) if found[1] else (found[3], found[4])
    return float(number) * _LETTERS[letter]


def _by_kind(collectives: Sequence[hlo.Collective]) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for each in collectives:
        total = kinds.setdefault(each.kind, {"times": 0.0, "bytes": 0.0, "sent": 0.0})
        total["times"] += each.times
        total["bytes"] += each.bytes
        total["sent"] += each.sent
    return kinds


def _by_source(moved: Sequence[hlo.Moved]) -> list[tuple[float, str]]:
    """Bytes by the network, the direction and the operation that they are moved for, the largest first."""
    totals: dict[str, float] = {}
    for each in moved:
        name = _name(each.source)
        totals[name] = totals.get(name, 0.0) + each.bytes
    return sorted(((total, name) for name, total in totals.items() if total), reverse=True)


def _name(source: str) -> str:
    """The module, and whether for the loss or its gradient, in the name that JAX gives an operation.

    `jit(train_step)/transpose(jvp(Electra.read))/encoder/while/body/closed_call/layers/ffn_out/dot_general` is
    `encoder/layers/ffn_out, backward`.
    """
    direction = "backward" if "transpose(" in source else "forward" if "jvp(" in source else ""
    words = [word for word in source.split("/")[:-1] if "(" not in word and word not in _LOOPS]
    place = "/".join(words) or ("loss and sampling" if direction else "masking and optimizer")
    if "dynamic_update_index_in_dim" in source and direction == "forward":
        return f"{place}, kept for backward"
    return f"{place}, {direction}" if direction else place
