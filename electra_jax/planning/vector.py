"""Counts the element-wise operations of a compiled program, which run on the vector unit and not on the matrix unit.

Each element-wise operation, also a transcendental function, counts once per element of its result, and a reduction once
per element that it reads. Conversions, broadcasts, logic on masks and data movement are free, and so is everything
inside the kernels of Pallas and cuDNN. The count divided by the rate of the vector unit is a lower bound: a real
exponential or division takes several operations, and a fusion may compute its inputs several times.
"""

from collections.abc import Callable

from electra_jax.planning import hlo

ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "clamp", "compare"),
    *("select", "abs", "negate", "sign", "floor", "ceil", "round-nearest-even", "round-nearest-afz", "is-finite"),
    *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf", "tan", "sine"),
    *("cosine", "sqrt", "rsqrt", "cbrt", "atan2", "and", "or", "xor", "not", "popcnt", "count-leading-zeros"),
    *("shift-left", "shift-right-logical", "shift-right-arithmetic", "iota"),
}
_REDUCTIONS = {"reduce", "reduce-window"}
_ON_MASKS = {"and", "or", "xor", "not", "select"}  # of booleans: done in mask registers


def count_vector(program: hlo.Program, packed16: bool = False) -> float:
    """Counts the element-wise operations of one device in a call of a program.

    Args:
      program: the compiled program.
      packed16: whether the vector unit computes two 16-bit numbers in the place of one 32-bit number.
    """

    def weight(computation: hlo.Computation) -> float:
        return _operations(program, computation, lambda shape: _weight(shape, packed16))

    return sum(times * weight(computation) for computation, times in program.executed(weight))


def _operations(program: hlo.Program, computation: hlo.Computation, weight: Callable[[str], float]) -> float:
    total = 0.0
    for instruction in computation.values():
        # Bodies of loops are not entered: `executed` yields them with their trip counts.
        if instruction.opcode == "fusion":
            total += _operations(program, program.computations.get(instruction.callee, {}), weight)
        elif instruction.opcode in ELEMENTWISE:
            if not (instruction.opcode in _ON_MASKS and instruction.result.startswith("pred[")):
                total += hlo.elements(instruction.result) * weight(instruction.result)
        elif instruction.opcode in _REDUCTIONS:
            # The first operand is the array; an initial value follows.
            read = computation.get(instruction.operands[0])
            total += hlo.elements(read.result) * weight(read.result) if read else 0.0
    return total


def _weight(shape: str, packed16: bool) -> float:
    return 0.5 if packed16 and shape.startswith(("bf16[", "f16[", "s16[", "u16[")) else 1.0
