"""Forecasts the step time on a TPU from the compiler's own estimate for each instruction.

XLA's TPU compiler writes `estimated_cycles` into the backend config of the instructions that it schedules. Their sum,
with a loop's body counted once per iteration, divided by the clock of the device, is a forecast, where the bounds in
`Plan` are limits: it knows the layout, the tiles and the vector work of every fusion. It is still an estimate. It
expects plain element-wise work on arrays in memory to reach 38 to 46% of the bandwidth on the data sheet (libtpu
0.0.42.1: bfloat16 x + 1 of 4096 x 4096 on v2 to v6e and 7x), so a memory-bound step may turn out faster than the
forecast.

The time of instructions without an estimate is modeled:

- a Mosaic (Pallas) kernel: its matrix products at the peak of the matrix unit, and after them its vector operations at
  the rate of the vector unit, both counted in the traced program (`kernels.count_kernels`). A kernel that is not found
  there counts with the `flops` and `transcendentals` of its `pl.CostEstimate`, and one without that with its operands
  and results at the memory's bandwidth. All are named.
- a collective: the lower bound on the bytes that a device sends, at the bandwidth of all its links. A synchronous one
  stops the device; an asynchronous one overlaps with the instructions that the compiler put between its start and its
  end, one collective at a time.
- a copy between memory and the device's fast memory: its bytes at the memory's bandwidth. Asynchronous ones overlap
  like collectives.
- scalar operations and those on few bytes: their bytes at the memory's bandwidth. Those that together take more than
  .1% of the step are named.

The network between slices is not included, nor are hosts that wait for data.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from electra_jax.planning import hlo, traffic
from electra_jax.planning.kernels import KernelCost, Signature, find_cost

PARTS = ("compiler", "kernels", "collectives", "copies", "other")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN = 2**62  # the compiler's "infinite": it has no model of the instruction
_NAMED = 1e-3  # of a step


@dataclasses.dataclass(frozen=True)
class Rates:
    """Speeds of one device.

    Attributes:
      clock: Hz of the compiler's cycles.
      peak: FLOP/s of the matrix unit.
      vector: operations/s of the vector unit.
      bandwidth: bytes/s between memory and the device.
      interconnect: bytes/s to other devices.
    """

    clock: float
    peak: float
    vector: float
    bandwidth: float
    interconnect: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The expected time of one call of a program.

    Attributes:
      parts: seconds by part. On a TPU `compiler` (its cycles), `kernels`, `collectives` and `copies` that the device
        waits for, and `other` instructions without an estimate; on a GPU `gpu_forecast.PARTS`.
      unestimated: (seconds, name) in descending order of the seconds: on a TPU of instructions without the compiler's
        estimate, on a GPU of kernels of which too little is known.
    """

    parts: dict[str, float]
    unestimated: list[tuple[float, str]]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def forecast(
    program: hlo.Program, devices: int, rates: Rates, kernels: Mapping[Signature, KernelCost]
) -> Forecast | None:
    """Forecasts the time of a program on `devices` devices; None if it has no estimates, as on GPUs.

    Args:
      program: the compiled program.
      devices: number of devices that run it.
      rates: the speeds of one of them.
      kernels: operations per call of its Pallas kernels.
    """
    clock = _Clock(program, devices, rates, kernels)
    parts = clock.run(program.entry, 1)
    if not parts["compiler"]:
        return None
    total = sum(parts.values())
    named = [(seconds, name) for name, seconds in clock.unestimated.items() if seconds > _NAMED * total]
    # Kernels are named however short they are: their time is a model's, not the compiler's.
    named += [(seconds, name) for name, seconds in clock.kernels.items() if seconds]
    return Forecast({name: parts[name] for name in PARTS}, sorted(named, reverse=True))


class _Clock:
    """Simulated clock: runs a program's instructions one after another, except asynchronous ones, which overlap."""

    def __init__(
        self, program: hlo.Program, devices: int, rates: Rates, kernels: Mapping[Signature, KernelCost]
    ) -> None:
        self._program, self._rates, self._kernels = program, rates, kernels
        self._counter = traffic.Counter(program, devices)
        self.unestimated: defaultdict[str, float] = defaultdict(float)  # seconds by name
        self.kernels: defaultdict[str, float] = defaultdict(float)  # seconds by name

    def run(self, name: str, times: float) -> Counter[str]:
        """Returns the seconds by part of one run of a computation, which runs `times` times in all."""
        computation = self._program.computations.get(name, {})
        parts: Counter[str] = Counter()
        now = 0.0
        free = {"collectives": 0.0, "copies": 0.0}  # when the links and the copy engine are free again
        ends: dict[str, tuple[float, str]] = {}  # of asynchronous instructions
        for instruction in computation.values():
            opcode = instruction.opcode
            if opcode.endswith("-start"):
                part, seconds = self._in_background(instruction, computation, times)
                # One at a time: it waits for those that started before it.
                free[part] = max(free[part], now) + seconds
                ends[instruction.name] = (free[part], part)
                continue
            if opcode.endswith("-done"):
                # A start in another computation is unknown here; it counts as ended.
                end, part = ends.get(instruction.operands[0], (now, "copies")) if instruction.operands else (now, "")
                spent = Counter({part: max(0.0, end - now)})
            elif opcode == "while":
                trips = self._program.trips(instruction)
                once = self.run(instruction.called("body") or "", times * trips)
                spent = Counter({part: trips * seconds for part, seconds in once.items()})
            elif opcode == "call":
                spent = self.run(instruction.callee, times)
            elif opcode == "conditional":
                # Which branch runs is known at run time only: the longest counts. To compare them, each runs 0 times.
                branches = self._program.branches(instruction)
                longest = max(branches, key=lambda branch: sum(self.run(branch, 0).values()), default="")
                spent = self.run(longest, times)
            else:
                part, seconds = self._one(instruction, computation, times)
                spent = Counter({part: seconds})
            for part, seconds in spent.items():
                parts[part] += seconds
                now += seconds
        return parts

    def _in_background(
        self, instruction: hlo.Instruction, computation: hlo.Computation, times: float
    ) -> tuple[str, float]:
        """Returns the part and the seconds of an asynchronous instruction, as if nothing overlapped with it."""
        if instruction.opcode == "async-start":
            inside = self.run(instruction.callee, times)
            return ("collectives" if inside["collectives"] else "copies"), sum(inside.values())
        wire = self._wire(instruction, computation)
        if wire is not None:
            return "collectives", wire
        return "copies", self._counter.bytes(instruction, computation) / self._rates.bandwidth

    def _one(self, instruction: hlo.Instruction, computation: hlo.Computation, times: float) -> tuple[str, float]:
        """Returns the part and the seconds of a synchronous instruction."""
        if instruction.opcode in hlo.FREE or instruction.opcode == "async-update":
            return "other", 0.0
        wire = self._wire(instruction, computation)
        if wire is not None:
            return "collectives", wire
        if instruction.is_kernel:
            seconds, name = self._kernel(instruction, computation)
            self.kernels[name] += times * seconds
            return "kernels", seconds
        cycles = _CYCLES.search(instruction.attributes)
        if cycles and 0 < int(cycles[1]) < _UNKNOWN:
            return "compiler", int(cycles[1]) / self._rates.clock
        seconds = self._counter.bytes(instruction, computation) / self._rates.bandwidth
        self.unestimated[_name(instruction)] += times * seconds
        return "other", seconds

    def _wire(self, instruction: hlo.Instruction, computation: hlo.Computation) -> float | None:
        """Returns the seconds that a collective occupies the links; None if the instruction is not a collective."""
        # For one execution: `run` multiplies by the trip count.
        collective = self._counter.collective(instruction, computation, 1)
        return None if collective is None else collective.sent / self._rates.interconnect

    def _kernel(self, instruction: hlo.Instruction, computation: hlo.Computation) -> tuple[float, str]:
        cost, name, remark = find_cost(self._kernels, instruction)
        if cost is None:
            return self._counter.bytes(instruction, computation) / self._rates.bandwidth, f"{name}{remark}"
        return cost.flops / self._rates.peak + cost.vector / self._rates.vector, f"{name}{remark}"


def _name(instruction: hlo.Instruction) -> str:
    """Names an instruction by its opcode and the JAX operation that it came from."""
    return f"{instruction.opcode} of {instruction.source.rsplit('/', 1)[-1] or instruction.name}"
