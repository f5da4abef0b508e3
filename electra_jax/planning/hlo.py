"""Reads the text of a compiled program and counts the bytes it moves between memory and device, and between devices.

XLA's own cost analysis counts the body of a loop once and does not distinguish collectives. Here a loop's body counts
as often as it runs. Bytes are counted much as XLA counts them: an instruction reads its operands and writes its result;
a fusion is one instruction; a slice moves only the slice, and an in-place update only the update. What the compiler
keeps in a device's own fast memory does not count.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}  # the names of other types end in their bits: f32, u8, s4
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%(\S+) = (.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("copy-done", "opt-barrier", "domain", "add-dependency"),
}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_NOT_IN_MEMORY = "S(1)"  # marks layouts in the device's own fast memory


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name: its name, without the percent sign.
      opcode: its operation; asynchronous ones end in -start or -done.
      result: the result's shapes, as text.
      operands: the operands' names.
      attributes: the text after the operands.
      root: whether it is the computation's result.
    """

    name: str
    opcode: str
    result: str
    operands: list[str]
    attributes: str
    root: bool

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute names, for example `calls` or `body`."""
        match = re.search(rf"\b{attribute}=%([^\s,)}}]+)", self.attributes)
        return match[1] if match else None

    @property
    def source(self) -> str:
        """The name of the JAX operation that it was compiled from, preceded by modules and functions."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""


class Moved(NamedTuple):
    """What an instruction moves between memory and device in one call of the program.

    Attributes:
      opcode: the instruction's opcode.
      source: the instruction's source.
      bytes: bytes in all its executions.
      times: the number of executions.
    """

    opcode: str
    source: str
    bytes: float
    times: float


class Collective(NamedTuple):
    """What a collective sends between devices in one call of the program.

    Attributes:
      kind: for example `all-reduce`.
      source: the instruction's source.
      bytes: bytes of its results on one device, in all its executions.
      sent: the least bytes that each device must send for it.
      times: the number of executions.
      devices: the number of devices that take part.
    """

    kind: str
    source: str
    bytes: float
    sent: float
    times: float
    devices: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The traffic of one device in one call of a program."""

    moved: list[Moved]
    collectives: list[Collective]

    @property
    def bytes(self) -> float:
        """Bytes between memory and the device."""
        return sum(instruction.bytes for instruction in self.moved)

    @property
    def sent(self) -> float:
        """The least bytes sent to other devices."""
        return sum(collective.sent for collective in self.collectives)


def traffic(text: str, devices: int) -> Traffic:
    """The traffic of a program on `devices` devices, from `compiled.as_text()`."""
    return _Reader(text, devices).read()


def sizes(shapes: str, anywhere: bool = False) -> list[float]:
    """Bytes of the arrays in a text of shapes; 0 for those in the device's fast memory, unless `anywhere`."""
    result = []
    for dtype, dimensions, layout in _ARRAY.findall(shapes):
        digits = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
        counts = anywhere or _NOT_IN_MEMORY not in layout
        result.append(math.prod(int(n) for n in dimensions.split(",") if n) * bits / 8 if counts else 0.0)
    return result


def size(shapes: str, anywhere: bool = False) -> float:
    """Bytes of all arrays in a text of shapes."""
    return sum(sizes(shapes, anywhere))


class _Reader:
    def __init__(self, text: str, devices: int):
        self._devices = devices
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            begins = _COMPUTATION.match(line)
            if begins:
                current = self._computations[begins[1]] = {}
                if line.startswith("ENTRY"):
                    self._entry = begins[1]
            elif (instruction := _parse(line)) is not None:
                current[instruction.name] = instruction

    def read(self) -> Traffic:
        moved: list[Moved] = []
        collectives: list[Collective] = []
        for computation, times in self._run(self._entry, 1):
            for instruction in computation.values():
                opcode = instruction.opcode.removesuffix("-start")
                if (
                    instruction.opcode in _FREE
                    or instruction.opcode.endswith("-done")
                    or instruction.opcode in ("while", "call")
                ):
                    continue
                moved.append(Moved(opcode, instruction.source, self._bytes(instruction, computation) * times, times))
                if opcode in _COLLECTIVES:
                    collectives.append(self._collective(opcode, instruction, computation, times))
        return Traffic(moved, collectives)

    def _run(self, name: str, times: float) -> Iterator[tuple[dict[str, Instruction], float]]:
        """The computations that run from `name` on, each with the number of its executions."""
        computation = self._computations.get(name, {})
        yield computation, times
        for instruction in computation.values():
            if instruction.opcode == "while":
                condition, body = instruction.called("condition"), instruction.called("body")
                assert condition is not None
                assert body is not None
                yield from self._run(body, times * self._trips(instruction, condition))
            elif instruction.opcode in ("call", "async-start"):
                yield from self._run(instruction.called("to_apply") or instruction.called("calls") or "", times)
            elif instruction.opcode == "conditional":
                for branch in re.findall(r"%([^\s,)}]+)", instruction.attributes.partition("branch_computations=")[2]):
                    if branch in self._computations:
                        yield from self._run(branch, times)

    def _trips(self, loop: Instruction, condition: str) -> float:
        """A loop's trip count: XLA's annotation, or else the largest constant in its condition."""
        known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
        if known:
            return int(known[1])
        numbers = [
            int(match[1])
            for instruction in self._instructions(condition)
            if instruction.opcode == "constant" and (match := re.search(r"^\((\d+)\)", instruction.attributes))
        ]
        return max(numbers, default=1)

    def _instructions(self, name: str) -> Iterator[Instruction]:
        """All instructions of a computation and of those it calls."""
        for instruction in self._computations.get(name, {}).values():
            yield instruction
            callee = instruction.called("calls") or instruction.called("to_apply")
            if callee:
                yield from self._instructions(callee)

    def _bytes(self, instruction: Instruction, computation: dict[str, Instruction]) -> float:
        result = size(instruction.result)
        operands = [size(computation[name].result) if name in computation else 0.0 for name in instruction.operands]
        if instruction.opcode in ("slice", "dynamic-slice", "gather"):
            return 2 * result + sum(operands[1:])
        if instruction.opcode == "dynamic-update-slice":
            return 2 * operands[1]
        if instruction.opcode == "scatter":
            return 2 * operands[-1] + sum(operands[1:-1])
        if instruction.opcode == "copy-start":  # its result: the copy, the original, and a semaphore
            return sizes(instruction.result)[0] + operands[0]
        if instruction.opcode == "slice-start":  # its result: the operand, the slice, and a semaphore
            return sizes(instruction.result)[1] + sizes(instruction.result, anywhere=True)[1] * bool(operands[0])
        if 'custom_call_target="AllocateBuffer"' in instruction.attributes:
            return 0.0
        if instruction.opcode == "fusion":
            return self._fused(instruction, operands, result)
        return sum(operands) + result

    def _fused(self, instruction: Instruction, operands: list[float], result: float) -> float:
        callee = instruction.called("calls") or ""
        read = sum(min(whole, self._read(callee, number, whole)) for number, whole in enumerate(operands))
        return read + min(result, self._written(callee, result))

    def _read(self, callee: str, number: int, whole: float) -> float:
        """Bytes that a fusion reads of its operand `number`: less than `whole` if it only slices or updates it."""
        inside = self._computations.get(callee, {})
        parameter = next((p for p in inside.values() if p.opcode == "parameter" and _number(p) == number), None)
        if parameter is None:
            return whole
        total, values = 0.0, [parameter.name]
        while values:
            value = values.pop()
            for user in (instruction for instruction in inside.values() if value in instruction.operands):
                if user.opcode == "bitcast":
                    values.append(user.name)
                elif user.opcode in ("slice", "dynamic-slice", "gather") and user.operands[0] == value:
                    total += size(user.result)
                elif user.opcode == "fusion":
                    places = [place for place, name in enumerate(user.operands) if name == value]
                    total += sum(self._read(user.called("calls") or "", place, whole) for place in places)
                elif user.opcode != "dynamic-update-slice" or user.operands[0] != value:
                    return whole  # an in-place update does not read its target
        return total

    def _written(self, callee: str, whole: float) -> float:
        """Bytes that a fusion writes: for an in-place update only the update."""
        inside = self._computations.get(callee, {})
        root = next((instruction for instruction in inside.values() if instruction.root), None)
        return whole if root is None else self._result(root, inside)

    def _result(self, instruction: Instruction, inside: dict[str, Instruction]) -> float:
        if instruction.opcode == "tuple":
            return sum(self._result(inside[name], inside) for name in instruction.operands)
        if instruction.opcode == "bitcast" and instruction.operands[0] in inside:
            return min(size(instruction.result), self._result(inside[instruction.operands[0]], inside))
        if instruction.opcode == "dynamic-update-slice":
            return size(inside[instruction.operands[1]].result)
        if instruction.opcode == "fusion":
            return self._written(instruction.called("calls") or "", size(instruction.result))
        return size(instruction.result)

    def _collective(
        self, kind: str, instruction: Instruction, computation: dict[str, Instruction], times: float
    ) -> Collective:
        devices = self._group(instruction.attributes)
        given = sum(size(computation[name].result, True) for name in instruction.operands if name in computation)
        result = size(instruction.result, True) - (
            given if instruction.opcode.endswith("-start") and kind != "all-reduce" else 0
        )
        ring = (devices - 1) / devices
        sent = {
            "all-reduce": 2 * ring * result,
            "all-gather": ring * result,
            "reduce-scatter": ring * given,
            "all-to-all": ring * result,
            "collective-permute": result,
        }[kind]
        return Collective(kind, instruction.source, result * times, sent * times, times, devices)

    def _group(self, attributes: str) -> int:
        """The number of devices in each group that communicates."""
        listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
        if listed:
            return len(listed[1].split(","))
        tiled = re.search(r"replica_groups=\[\d+,(\d+)\]", attributes)
        if tiled:
            return int(tiled[1])
        named = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes)
        if named:
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
            axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
            return math.prod(int(part or sizes[axis]) for axis, part in axes)
        return self._devices


def _number(parameter: Instruction) -> int:
    match = re.match(r"\((\d+)\)", parameter.attributes)
    assert match is not None
    return int(match[1])


def _parse(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    root, name, rest = match.groups()
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ") - 1
    result, rest = rest[: end + 1], rest[end + 1 :].lstrip()
    opcode, bracket, _ = rest.partition("(")
    start = len(opcode)
    if not bracket:
        return None
    end = _closing(rest, start)
    inner = rest[start + 1 : end]
    operands = re.findall(r"%([^\s,(){}]+)", inner)
    attributes = rest[start : end + 1] + rest[end + 1 :] if opcode in ("constant", "parameter") else rest[end + 1 :]
    return Instruction(name, opcode, result, operands, attributes, bool(root))


def _closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    raise ValueError(f"unbalanced brackets in {text[start : start + 80]}")
