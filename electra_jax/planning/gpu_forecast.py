"""Forecasts the step time on NVIDIA GPUs as the sum over all kernels, which run one after another.

The time of a kernel is the larger of its FLOPs at a fraction of the peak and its bytes at a fraction of the bandwidth,
plus the time to launch it. These constants are fitted to eight steps measured on one H100: as those were, the forecasts
are within 8.2% as JAX 0.12 compiles them, and within 9.6% as 0.10 does (docs/reference/measured.md). Other GPUs are
assumed to reach the same fractions of their data sheets. A Pallas kernel also takes the time of its element-wise
operations, counted in the traced program; none has been measured yet.

The time of a collective is the lower bound on the bytes that a device sends, at the bandwidth to the other devices; it
is assumed not to overlap with computation.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from electra_jax.planning import hlo, traffic
from electra_jax.planning.forecast import Forecast
from electra_jax.planning.kernels import KernelCost, Signature, find_cost

PARTS = ("products", "attention", "memory", "collectives", "launches")
# Fitted to the steps in benchmarks/results/h100_steps.json, measured on one H100.
_PRODUCTS, _ATTENTION = 0.66, 0.30  # fractions of the peak
_MEMORY = 0.71  # fraction of the bandwidth
_LAUNCH = 1.25e-6  # seconds
_CUBLAS, _CUDNN = 'custom_call_target="__cublas$', 'custom_call_target="__cudnn$fmha'
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)')


class GpuRates(NamedTuple):
    """Achieved speeds of one GPU.

    Attributes:
      products: FLOP/s of matrix products in bfloat16.
      attention: FLOP/s of attention kernels.
      vector: element-wise operations/s.
      memory: bytes/s between memory and the device.
      interconnect: bytes/s to other devices.
      launch: seconds to launch a kernel.
    """

    products: float
    attention: float
    vector: float
    memory: float
    interconnect: float
    launch: float = _LAUNCH


def rates_of(peak: float, vector: float, bandwidth: float, interconnect: float) -> GpuRates:
    """Derives the achieved speeds of a GPU from its data sheet.

    Args:
      peak: FLOP/s of the tensor cores in bfloat16.
      vector: operations/s of the float32 lanes, where a multiply-add counts as two.
      bandwidth: bytes/s between memory and the device.
      interconnect: bytes/s to other devices.
    """
    # The data sheet counts a multiply-add as two operations; here an element-wise one counts as one.
    return GpuRates(_PRODUCTS * peak, _ATTENTION * peak, vector / 2, _MEMORY * bandwidth, interconnect)


def forecast(program: hlo.Program, devices: int, rates: GpuRates, kernels: Mapping[Signature, KernelCost]) -> Forecast:
    """Forecasts the time of a program on `devices` GPUs.

    Args:
      program: the compiled program.
      devices: number of devices that run it.
      rates: the speeds of one of them.
      kernels: operations per call of its Pallas kernels.
    """
    counter = traffic.Counter(program, devices)

    def time(instruction: hlo.Instruction, computation: hlo.Computation) -> tuple[dict[str, float], str]:
        """Returns the seconds of one execution by part, and the name of a kernel of which too little is known."""
        collective = counter.collective(instruction, computation, 1)
        if collective is not None:
            return {"collectives": collective.sent / rates.interconnect}, ""
        part, computing, name = _compute(program, instruction, computation, rates, kernels)
        moving = counter.bytes(instruction, computation) / rates.memory
        return {part: max(computing, moving), "launches": rates.launch}, name

    def weight(computation: hlo.Computation) -> float:
        counted = filter(traffic.is_counted, computation.values())
        return sum(sum(time(each, computation)[0].values()) for each in counted)

    parts, unestimated = dict.fromkeys(PARTS, 0.0), defaultdict[str, float](float)
    # The longest branch of a conditional, as on TPUs.
    for computation, times in program.executed(weight, longest=True):
        for instruction in filter(traffic.is_counted, computation.values()):
            spent, name = time(instruction, computation)
            for part, seconds in spent.items():
                parts[part] += times * seconds
            if name:
                unestimated[name] += times * spent["attention"]
    return Forecast(parts, sorted(((seconds, name) for name, seconds in unestimated.items()), reverse=True))


def _compute(
    program: hlo.Program,
    instruction: hlo.Instruction,
    computation: hlo.Computation,
    rates: GpuRates,
    kernels: Mapping[Signature, KernelCost],
) -> tuple[str, float, str]:
    """Returns the part that a kernel belongs to, its seconds of computation, and its name if they are uncertain."""
    if instruction.is_kernel:
        cost, name, remark = find_cost(kernels, instruction)
        cost = cost or KernelCost()
        seconds = cost.flops / rates.attention + cost.vector / rates.vector
        return "attention", seconds, f"{name}{remark}" if remark else ""
    if _CUDNN in instruction.attributes:
        return "attention", _attention(instruction) / rates.attention, ""
    flops = _products(program, instruction, computation)
    return ("products" if flops else "memory"), flops / rates.products, ""


def _products(program: hlo.Program, instruction: hlo.Instruction, computation: hlo.Computation) -> float:
    """Counts the FLOPs of the matrix products in an instruction, also inside fusions, which may call cuBLAS.

    Products of float32 count twice: JAX computes them in TF32 by default (docs.jax.dev, "Matmul precision"), at half of
    bfloat16's rate on all of these GPUs (NVIDIA's data sheets).
    """
    body = program.computations.get(instruction.callee)
    if body is not None:
        return sum(_products(program, each, body) for each in body.values())
    contracted = _CONTRACTED.search(instruction.attributes)
    if contracted is None or (instruction.opcode != "dot" and _CUBLAS not in instruction.attributes):
        return 0.0
    # 2 x M x N x K: K are the contracted axes of the left operand, M x N the result.
    operand = computation[instruction.operands[0]].result
    left, passes = hlo.dimensions(operand), 2.0 if operand.startswith("f32[") else 1.0
    length = math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted[1]))
    # cuBLAS also returns its scratch space; `dimensions` reads the first array.
    return passes * 2.0 * length * math.prod(hlo.dimensions(instruction.result))


def _attention(instruction: hlo.Instruction) -> float:
    """Counts the FLOPs of cuDNN's attention: two products over all pairs of positions, five in the backward kernel."""
    found = re.search(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]', instruction.attributes)
    assert found is not None
    keys = int(re.findall(r"\d+", found[1])[-1])  # of [batch, heads, queries, keys]
    products = 5 if "Backward" in instruction.attributes else 2
    return 2.0 * products * keys * math.prod(hlo.dimensions(instruction.result))
