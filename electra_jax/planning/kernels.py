"""Counts the operations of Pallas kernels in the traced program, because XLA does not see inside a kernel.

A kernel's operations are those of its body times the number of programs in its grid. All of them count, padding and
masked lanes included, since they are computed. For `pl.when` and other branches, the longest branch counts in every
program. A `fori_loop` whose bounds depend on the program's place in the grid, as in causal attention, counts with the
mean of its first and last program. Any other loop of unknown length counts as one iteration, and the cost is not
`known`.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from electra_jax.planning import hlo

Signature = tuple[str, tuple[str, ...]]  # a kernel's name, and its result shapes as XLA writes them: f32[8,128]

_ONE = {
    *("add", "sub", "mul", "div", "rem", "max", "min", "clamp", "select_n", "neg", "abs", "sign", "floor", "ceil"),
    *("round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "shift_left", "shift_right_logical"),
    *("shift_right_arithmetic", "integer_pow", "square", "is_finite", "iota", "population_count", "add_any", "rsqrt"),
}
# From the TPU compiler's estimates of chains of exponentials: at most 4.9 operations each on v3 (libtpu 0.0.42.1).
_TRANSCENDENTAL = {"exp": 5, "exp2": 5, "expm1": 5, "log": 5, "log1p": 5, "tanh": 5, "logistic": 5, "erf": 5, "pow": 5}
_REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"}
_LETTERS = {"float": "f", "bfloat": "bf", "int": "s", "uint": "u", "bool": "pred"}


@dataclasses.dataclass(frozen=True)
class KernelCost:
    """Operations of one call of a kernel on one device.

    Attributes:
      flops: FLOPs of matrix products.
      vector: element-wise operations.
      known: whether the trip counts of all loops were known.
    """

    flops: float = 0.0
    vector: float = 0.0
    known: bool = True

    def __add__(self, other: "KernelCost") -> "KernelCost":
        return KernelCost(self.flops + other.flops, self.vector + other.vector, self.known and other.known)

    def __mul__(self, times: float) -> "KernelCost":
        return KernelCost(self.flops * times, self.vector * times, self.known)


def count_kernels(jaxpr: Any) -> dict[Signature, KernelCost]:
    """Counts one call of each Pallas kernel in a `jax.make_jaxpr(...)` or `jax.jit(...).trace(...).jaxpr`.

    A compiled program does not tell kernels with equal signatures apart: the largest cost counts for all of them.
    """
    found: dict[Signature, KernelCost] = {}
    for signature, cost in _calls(jaxpr):
        found[signature] = max(found.get(signature, cost), cost, key=lambda each: each.flops + each.vector)
    return found


def _calls(jaxpr: Any) -> Iterator[tuple[Signature, KernelCost]]:
    for equation in _plain(jaxpr).eqns:
        if equation.primitive.name == "pallas_call":
            # A grid size that is unknown before run time counts as 1.
            sizes = [size if isinstance(size, int) else 1 for size in equation.params["grid_mapping"].grid]
            results = tuple(_shape(each.aval) for each in equation.outvars)
            ends = ([0] * len(sizes), [size - 1 for size in sizes])
            # The mean of the first and the last program: exact where trip counts are linear in a program's indices.
            cost = (_cost(equation.params["jaxpr"], ends[0]) + _cost(equation.params["jaxpr"], ends[1])) * 0.5
            yield (_kernel_name(equation.params), results), cost * math.prod(sizes)
        else:
            for inner in _inner(equation):
                yield from _calls(inner)


def signature(instruction: hlo.Instruction) -> Signature:
    """Returns the signature of a kernel call in a compiled program."""
    name = hlo.base_name(instruction.name)
    if name == "pallas_call":  # XLA's name on GPUs; the kernel's is in JAX's name of the operation
        name = instruction.source.split("/")[-2:][0]
    return name, tuple(hlo.shapes(instruction.result))


def find_cost(
    kernels: Mapping[Signature, KernelCost], instruction: hlo.Instruction
) -> tuple[KernelCost | None, str, str]:
    """Looks up the cost of a kernel call in a compiled program.

    Returns:
      The cost, by `kernels` or else by the call's `pl.CostEstimate`, or None without either; the kernel's name; and
      what is unknown, to be written after the name.
    """
    key = signature(instruction)
    name, cost = f"kernel {key[0]}", kernels.get(key)
    if cost is not None:
        return cost, name, "" if cost.known else ", which has a loop of unknown length"
    stated = _object_after(instruction.attributes, '"cost_estimate":')
    if stated is None:
        return None, name, ", by its bytes alone"
    # As floats, because XLA prints these numbers as strings.
    cost = KernelCost(float(stated.get("flops", 0)), float(stated.get("transcendentals", 0)))
    return cost, name, ", by its cost estimate alone"


def _object_after(text: str, key: str) -> dict[str, Any] | None:
    """Parses the JSON object after the first `key` in a text; None if there is none."""
    _, found, rest = text.partition(key)
    if not found or not rest.startswith("{"):
        return None
    value: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    return value


def _cost(jaxpr: Any, place: Sequence[int]) -> KernelCost:
    """Counts one program of a grid; `place` are its indices."""
    total = KernelCost()
    values: dict[Any, Any] = {}  # the scalars that depend on nothing but `place`
    for equation in _plain(jaxpr).eqns:
        name, inner = equation.primitive.name, _inner(equation)
        read = [each.val if hasattr(each, "val") else values.get(each) for each in equation.invars]
        if name == "program_id":
            values[equation.outvars[0]] = np.int32(place[equation.params["axis"]])
        elif read and all(value is not None for value in read) and not any(map(_size, equation.outvars)):
            found = equation.primitive.bind(*read, **equation.params)
            values.update(zip(equation.outvars, found if equation.primitive.multiple_results else [found], strict=True))
        if name == "dot_general":
            ((contracted, _), _), (left, _) = equation.params["dimension_numbers"], equation.invars
            # 2 x M x N x K: K are the contracted axes, M x N the result, batch axes included.
            length = math.prod(left.aval.shape[axis] for axis in contracted)
            total += KernelCost(flops=2.0 * length * _size(equation.outvars[0]))
        elif name == "scan":
            total += _cost(inner[0], place) * equation.params["length"]
        elif name == "while":
            once, trips = _cost(equation.params["body_jaxpr"], place), _trips(equation, read)
            total += dataclasses.replace(once, known=False) if trips is None else once * trips
        elif name == "cond":
            total += max((_cost(branch, place) for branch in inner), key=lambda cost: cost.flops + cost.vector)
        elif inner:
            for each in inner:
                total += _cost(each, place)
        elif name in _REDUCTIONS:
            # A reduction works on all that it reads, not on its small result.
            total += KernelCost(vector=_size(equation.invars[0]))
        elif name in _ONE or name in _TRANSCENDENTAL:
            total += KernelCost(vector=_TRANSCENDENTAL.get(name, 1) * _size(equation.outvars[0]))
    return total


def _trips(loop: Any, read: Sequence[Any]) -> int | None:
    """Returns the trip count of a `fori_loop`, given the values that it reads; None if they or the loop are unknown."""
    condition = _plain(loop.params["cond_jaxpr"])
    # A `fori_loop` carries its index and the upper bound, and compares them.
    index, upper = read[loop.params["cond_nconsts"] + loop.params["body_nconsts"] :][:2]
    compares = [(each.primitive.name, each.invars) for each in condition.eqns] == [("lt", condition.invars[:2])]
    return max(0, int(upper) - int(index)) if compares and index is not None and upper is not None else None


def _inner(equation: Any) -> list[Any]:
    """Returns the jaxprs in the parameters of an equation."""
    # `cond` has a tuple of branches; other parameters are single jaxprs.
    values = [each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if hasattr(value, "eqns") or hasattr(value, "jaxpr")]


def _plain(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "eqns") else jaxpr.jaxpr


def _size(variable: Any) -> float:
    """Returns the number of elements; 0 for a scalar, which is not computed on the vector unit."""
    shape = variable.aval.shape
    return float(math.prod(shape)) if shape else 0.0


def _shape(aval: Any) -> str:
    # float32 -> f32, bfloat16 -> bf16, int8 -> s8, bool -> pred.
    kind = aval.dtype.name.rstrip("0123456789")
    dtype = _LETTERS[kind] + aval.dtype.name.removeprefix(kind)
    return f"{dtype}[{','.join(map(str, aval.shape))}]"


def _kernel_name(params: dict[str, Any]) -> str:
    """Returns the name given to `pallas_call`, or else that of the kernel's function, as in XLA's instruction."""
    return str(params.get("name") or _plain(params["jaxpr"]).debug_info.func_name)
