"""Parses the HLO text of a compiled program: its computations, their instructions, and how often each of them runs.

`traffic` counts the bytes that such a program moves, `vector` its element-wise operations, `forecast` its time.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}  # the names of other types end in their bits: f32, u8, s4
# dtype[dimensions]{layout}; a dtype may have letters after its bits: f8e4m3fn.
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%(\S+) = (.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_FAST = ("S(1)", "S(3)")  # marks layouts in the device's own fast memory: a core's, or the one shared by v4's cores
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("copy-done", "opt-barrier", "domain", "add-dependency"),
}
_KERNELS = ('custom_call_target="tpu_custom_call"', 'custom_call_target="__gpu$xla.gpu.triton"')  # of Pallas
_LOOPS = ("while", "body", "cond", "closed_call", "checkpoint", "rematted_computation", "eval_jaxpr")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

Computation = dict[str, "Instruction"]  # by name, in the order of execution


class Instruction(NamedTuple):
    """An instruction: one line of a computation.

    Attributes:
      name: its name, without the percent sign.
      opcode: its operation; those of asynchronous instructions end in -start or -done.
      result: the result's shapes, as text.
      operands: the operands' names.
      attributes: the text after the operands.
      root: whether it computes the computation's result.
    """

    name: str
    opcode: str
    result: str
    operands: list[str]
    attributes: str
    root: bool

    def called(self, attribute: str) -> str | None:
        """Returns the computation that an attribute such as `calls` or `body` names; None without that attribute."""
        match = re.search(rf"\b{attribute}=%([^\s,)}}]+)", self.attributes)
        return match[1] if match else None

    @property
    def callee(self) -> str:
        """The computation called by a fusion, a call or an asynchronous wrapper; empty for other instructions."""
        return self.called("calls") or self.called("to_apply") or ""

    @property
    def outcome(self) -> str:
        """Shapes of the computed arrays: `result` without the operands and the context of an asynchronous fusion."""
        if self.opcode != "fusion-start":
            return self.result
        # ((operands), results, context) -> results
        inner = self.result[1:-1]
        return inner[_closing(inner, 0) + 1 : inner.rindex(",")]

    @property
    def is_kernel(self) -> bool:
        """True if it calls a Pallas kernel."""
        return any(target in self.attributes for target in _KERNELS)

    @property
    def source(self) -> str:
        """Name of the JAX operation that it was compiled from, preceded by modules and functions; empty if unknown."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""


def sizes(shapes: str, anywhere: bool = False) -> list[float]:
    """Returns the bytes of each array in a text of shapes; 0 for those in fast memory, unless `anywhere`."""
    result = []
    for dtype, dimensions, layout in _ARRAY.findall(shapes):
        digits = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
        counts = anywhere or not any(mark in layout for mark in _FAST)
        result.append(_count(dimensions) * bits / 8 if counts else 0.0)
    return result


def size(shapes: str, anywhere: bool = False) -> float:
    """Returns the bytes of all arrays in a text of shapes together, as `sizes`."""
    return sum(sizes(shapes, anywhere))


def elements(shapes: str) -> int:
    """Returns the number of elements of the largest array in a text of shapes."""
    return max((_count(dimensions) for _, dimensions, _ in _ARRAY.findall(shapes)), default=0)


def _count(dimensions: str) -> int:
    return math.prod(int(n) for n in dimensions.split(",") if n)


def dimensions(text: str) -> list[int]:
    """Returns the dimensions of the first array in a text of shapes."""
    first = _ARRAY.search(text)
    return [int(n) for n in first[2].split(",") if n] if first else []


def shapes(text: str) -> list[str]:
    """Returns the arrays in a text of shapes, without layouts: `f32[8,128]`."""
    return [f"{dtype}[{dimensions}]" for dtype, dimensions, _ in _ARRAY.findall(text)]


def place(source: str) -> str:
    """Returns the module and the direction, forward or backward, from JAX's name of an operation.

    `jit(train_step)/transpose(jvp(Electra.encode))/encoder/while/body/closed_call/layers/ffn_out/dot_general` is
    `encoder/layers/ffn_out, backward`.
    """
    direction = "backward" if "transpose(" in source else "forward" if "jvp(" in source else ""
    # Words with brackets are transformations such as jit(...) and jvp(...); the last word is the operation.
    words = [word for word in source.split("/")[:-1] if "(" not in word and word not in _LOOPS]
    name = "/".join(words) or ("loss and sampling" if direction else "masking and optimizer")
    # A scan writes what its backward pass needs into stacked arrays.
    if "dynamic_update_index_in_dim" in source and direction == "forward":
        return f"{name}, kept for backward"
    return f"{name}, {direction}" if direction else name


def base_name(name: str) -> str:
    """Returns an instruction's name without the number that makes it unique."""
    return re.sub(r"[.\d]+$", "", name)


class Program:
    """A parsed compiled program.

    Attributes:
      computations: the computations by name.
      entry: the name of the entry computation, which a call of the program runs.
      has_kernels: whether it calls Pallas kernels.
    """

    def __init__(self, text: str):
        """Parses `compiled.as_text()`."""
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self.has_kernels = any(target in text for target in _KERNELS)
        current: Computation = {}
        for line in _lines(text):
            begins = _COMPUTATION.match(line)
            if begins:
                current = self.computations[begins[1]] = {}
                if line.startswith("ENTRY"):
                    self.entry = begins[1]
            elif (instruction := _parse(line)) is not None:
                current[instruction.name] = instruction

    def executed(
        self, weight: Callable[[Computation], float] = len, longest: bool = False
    ) -> Iterator[tuple[Computation, float]]:
        """Yields each computation that a call runs, and its number of executions.

        Which branch of a conditional runs is known at run time only: the lightest one counts.

        Args:
          weight: the cost of one execution of a computation, without those that it calls.
          longest: whether the heaviest branch counts instead.
        """
        yield from self._run(self.entry, 1, weight, max if longest else min)

    def _run(
        self, name: str, times: float, weight: Callable[[Computation], float], choose: Any
    ) -> Iterator[tuple[Computation, float]]:
        computation = self.computations.get(name, {})
        yield computation, times
        for instruction in computation.values():
            if instruction.opcode == "while":
                # Without the condition: that of a scan only compares a counter.
                trips = times * self.trips(instruction)
                yield from self._run(instruction.called("body") or "", trips, weight, choose)
            elif instruction.opcode in ("call", "async-start"):
                yield from self._run(instruction.callee, times, weight, choose)
            elif instruction.opcode == "conditional":
                branches = [list(self._run(each, times, weight, choose)) for each in self.branches(instruction)]
                yield from choose(branches, key=lambda branch: sum(n * weight(each) for each, n in branch), default=[])

    def branches(self, conditional: Instruction) -> list[str]:
        """Returns the computations that are the branches of a conditional."""
        listed = conditional.attributes.partition("branch_computations=")[2].partition("}")[0]
        names = re.findall(r"%([^\s,)}]+)", listed)
        names += [name for key in ("true_computation", "false_computation") if (name := conditional.called(key))]
        return [name for name in names if name in self.computations]

    def trips(self, loop: Instruction) -> float:
        """Returns a loop's trip count: XLA's annotation, or else the largest constant in its condition."""
        known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
        if known:
            return int(known[1])
        # A scan counts from 0 to a constant, its length.
        numbers = [
            int(match[1])
            for instruction in self.inside(loop.called("condition") or "")
            if instruction.opcode == "constant" and (match := re.search(r"^\((\d+)\)", instruction.attributes))
        ]
        return max(numbers, default=1)

    def inside(self, name: str) -> Iterator[Instruction]:
        """Yields all instructions of a computation and of those that it calls."""
        for instruction in self.computations.get(name, {}).values():
            yield instruction
            if instruction.callee:
                yield from self.inside(instruction.callee)

    def source(self, instruction: Instruction) -> str:
        """Returns the instruction's source, or that of the last instruction that it calls and whose source is known."""
        inside = reversed(list(self.inside(instruction.callee)))
        return instruction.source or next((each.source for each in inside if each.source), "")


def _lines(text: str) -> Iterator[str]:
    """Yields the program's lines. XLA breaks the line of a Mosaic kernel with metadata; here it is joined again."""
    line = ""
    for part in text.splitlines():
        if not part or part == "}" or part[0].isalpha() or part.startswith(("  ", "%")):
            yield line
            line = part
        else:
            line += part
    yield line


def _parse(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    root, name, rest = match.groups()
    # Several results are a tuple in brackets, with spaces inside; a single one ends at the first space.
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ") - 1
    result, rest = rest[: end + 1], rest[end + 1 :].lstrip()
    opcode, bracket, _ = rest.partition("(")
    start = len(opcode)
    if not bracket:
        return None
    end = _closing(rest, start)
    inner = rest[start + 1 : end]
    operands = re.findall(r"%([^\s,(){}]+)", inner)
    # In the brackets of a constant is its value, of a parameter its number: no operands.
    attributes = rest[start : end + 1] + rest[end + 1 :] if opcode in ("constant", "parameter") else rest[end + 1 :]
    return Instruction(name, opcode, result, operands, attributes, bool(root))


def _closing(text: str, start: int) -> int:
    """Returns the index of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    raise ValueError(f"unbalanced brackets in {text[start : start + 80]}")
