"""Where the time of a compiled step goes on its device, from a profile of JAX."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from electra_jax.planning import hlo

_PRODUCTS = re.compile(r"gemm|cutlass|cublas|matmul|\bdot|convolution|nvjet|ynn_fusion", re.IGNORECASE)
_ATTENTION = re.compile(r"fmha|flash|sdpa|attention|tpu_custom_call", re.IGNORECASE)
_CONTAINERS = ("while", "call", "conditional")  # what they contain has events of its own
_MOVES = {  # they only move data
    *("copy", "slice", "dynamic-slice", "dynamic-update-slice", "transpose", "concatenate", "pad", "reverse"),
    *("reshape", "bitcast", "parameter", "constant", "tuple", "get-tuple-element"),
}
_LARGEST = 10


class DeviceTime(NamedTuple):
    """Where the time of a step goes.

    Attributes:
      idle: the share of the time in which the device does nothing.
      kinds: shares of the rest: `matrix products`, `attention kernels`, `collectives`, `copies`, `other`.
      places: shares of the rest by module and direction, the ten largest first.
      launches: operations, on a GPU kernels, in a step.
    """

    idle: float
    kinds: dict[str, float]
    places: list[tuple[str, float]]
    launches: float


class _Event(NamedTuple):
    name: str
    begin: float
    end: float


def measure(calls: Callable[[], Any], steps: int, program: str, folder: Path) -> DeviceTime:
    """Profiles calls of a compiled program.

    Args:
      calls: calls the program `steps` times, and returns what it computes.
      steps: the number of calls.
      program: the program's text, `compiled.as_text()`.
      folder: for the profile.
    """
    with jax.profiler.trace(folder):
        jax.block_until_ready(calls())
    (path,) = folder.glob("**/*.xplane.pb")
    parsed = hlo.Program(program)
    return summarize(list(_lines(jax.profiler.ProfileData.from_file(str(path)), parsed)), parsed, steps)


def _lines(profile: Any, program: hlo.Program) -> Iterator[list[_Event]]:
    """The operations of each queue of the devices.

    A TPU has one line of operations among others that sum them up, a GPU one for each stream. The threads of a CPU also
    have events that are no operations. The kernels of a CUDA graph name the graph as their operation.
    """
    names = _instructions(program)
    planes = list(profile.planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            if not devices or line.name == "XLA Ops" or line.name.startswith("Stream"):
                events = []
                for event in line.events:
                    operation = str(dict(event.stats).get("hlo_op", ""))
                    name = event.name if devices and operation not in names else operation
                    if name:
                        events.append(_Event(name, event.start_ns, event.start_ns + event.duration_ns))
                yield events


def _instructions(program: hlo.Program) -> dict[str, hlo.Instruction]:
    """The instructions by their names, and by those of XLA's kernels for GPUs, which have no dots."""
    found = {name: each for body in program.computations.values() for name, each in body.items()}
    return {name.replace(".", "_"): each for name, each in found.items()} | found


def summarize(lines: list[list[_Event]], program: hlo.Program, steps: int = 1) -> DeviceTime:
    """Sums up the operations of the queues of a device; each names an instruction of the program, or a kernel."""
    launches = 0
    instructions = _instructions(program)
    kinds: defaultdict[str, float] = defaultdict(float)
    places: defaultdict[str, float] = defaultdict(float)
    for events in lines:
        for event in events:
            found = instructions.get(event.name)
            if found is not None and found.opcode in _CONTAINERS:
                continue
            launches += 1
            seconds = event.end - event.begin
            kinds[_kind(event.name, found, program)] += seconds
            source = program.source(found) if found is not None else ""
            places[hlo.place(source) if source else event.name] += seconds
    total = sum(kinds.values()) or 1.0
    largest = _shares(places, total)[:_LARGEST]
    return DeviceTime(_idle(lines), dict(_shares(kinds, total)), largest, launches / steps)


def _shares(seconds: dict[str, float], total: float) -> list[tuple[str, float]]:
    """Each name's share of `total`, the largest first."""
    shares = [(name, each / total) for name, each in seconds.items()]
    return sorted(shares, key=lambda share: share[1], reverse=True)


def _kind(name: str, instruction: hlo.Instruction | None, program: hlo.Program) -> str:
    text, moves = name, re.match(r"copy|Memcpy|transpose", name) is not None
    if instruction is not None:
        inside = list(program.inside(instruction.callee))
        text = " ".join([name, *(f"{each.opcode} {each.attributes}" for each in (instruction, *inside))])
        text = re.sub(r"metadata=\{[^}]*\}", "", text)
        # With the place in an array, which is computed.
        parts = inside if instruction.opcode.startswith("fusion") else [instruction]
        moves |= all(each.opcode in _MOVES or each.result.startswith(("s32[]", "pred[]")) for each in parts)
    for kind, pattern in (("attention kernels", _ATTENTION), ("matrix products", _PRODUCTS)):
        if pattern.search(text):
            return kind
    if any(collective in text for collective in hlo.COLLECTIVES):
        return "collectives"
    return "copies" if moves else "other"


def _idle(lines: list[list[_Event]]) -> float:
    """The share of the time from the first event to the last in which no queue has one."""
    spans = sorted((event.begin, event.end) for events in lines for event in events)
    if not spans:
        return 0.0
    busy, end = 0.0, spans[0][0]
    for begin, stop in spans:
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return 1 - busy / (end - spans[0][0])
