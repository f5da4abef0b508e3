"""Counts the bytes that a compiled program moves between memory and device, and between devices.

XLA's own cost analysis counts the body of a loop once and does not distinguish collectives. Here a loop's body counts
once per iteration. Bytes are counted much as XLA counts them: an instruction reads its operands and writes its result;
a fusion is one instruction; a slice moves only the slice, and an in-place update only the update. Arrays in a device's
own fast memory do not count, nor does the scratch space of NVIDIA's libraries.
"""

import dataclasses
import math
import re
from typing import NamedTuple

from electra_jax.planning.hlo import COLLECTIVES, FREE, Computation, Instruction, Program, elements, size, sizes
from electra_jax.planning.vector import ELEMENTWISE

_EACH = {*ELEMENTWISE, "bitcast", "convert"}  # each element of the result is computed from one of the operand


class Moved(NamedTuple):
    """Bytes that an instruction moves between memory and device in one call of the program.

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
    """Bytes that a collective sends between devices in one call of the program.

    Attributes:
      kind: for example `all-reduce`.
      source: the instruction's source.
      bytes: bytes of its results on one device, in all its executions.
      sent: lower bound on the bytes that each device sends in all its executions.
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
        """Bytes moved between memory and the device."""
        return sum(instruction.bytes for instruction in self.moved)

    @property
    def sent(self) -> float:
        """Lower bound on the bytes sent to other devices."""
        return sum(collective.sent for collective in self.collectives)


def count_traffic(program: Program, devices: int) -> Traffic:
    """Counts the traffic of a program on `devices` devices."""
    counter = Counter(program, devices)
    # Of a conditional the branch that moves, or sends, the least, so that both are lower bounds.
    moved = [
        Moved(each.opcode.removesuffix("-start"), program.source(each), counter.bytes(each, computation) * times, times)
        for computation, times in program.executed(counter.moved)
        for each in filter(is_counted, computation.values())
    ]
    collectives = [each for run in program.executed(counter.sent) for each in counter.collectives(*run)]
    return Traffic(moved, collectives)


def is_counted(instruction: Instruction) -> bool:
    """Returns True if the instruction does work itself: it neither belongs to another one nor only calls others."""
    return not (
        instruction.opcode in FREE
        or instruction.opcode.endswith("-done")
        or instruction.opcode in ("while", "call", "conditional", "async-start")
    )


class Counter:
    """Byte counts of single instructions of a program on `devices` devices."""

    def __init__(self, program: Program, devices: int):
        self._devices = devices
        self._computations = program.computations

    def moved(self, computation: Computation) -> float:
        """Counts the bytes that one execution moves between memory and the device, without those that it calls."""
        return sum(self.bytes(each, computation) for each in filter(is_counted, computation.values()))

    def sent(self, computation: Computation) -> float:
        """Counts the bytes that one execution sends to other devices, without those that it calls."""
        return sum(each.sent for each in self.collectives(computation, 1))

    def collectives(self, computation: Computation, times: float) -> list[Collective]:
        """Returns the collectives of `times` executions of a computation, without those that it calls."""
        counted = filter(is_counted, computation.values())
        return [found for each in counted if (found := self.collective(each, computation, times)) is not None]

    def bytes(self, instruction: Instruction, computation: Computation) -> float:
        """Counts the bytes that one execution moves between memory and the device."""
        result = size(instruction.outcome) - _scratch(instruction)
        operands = [size(computation[name].result) if name in computation else 0.0 for name in instruction.operands]
        if instruction.opcode in ("slice", "dynamic-slice", "gather"):
            # Reads and writes the slice, however large its operand is, and reads the indices.
            return 2 * result + sum(operands[1:])
        if instruction.opcode == "dynamic-update-slice":
            # In place: the update is read and written, and the target stays where it is.
            return 2 * operands[1]
        if instruction.opcode == "scatter":
            # In place, too, but it reads what it adds to; the operands are the target, the indices and the updates.
            return 2 * min(operands[0], operands[-1]) + sum(operands[1:])
        if instruction.opcode == "copy-start":  # its result: the copy, the original, and a semaphore
            return sizes(instruction.result)[0] + operands[0]
        if instruction.opcode == "slice-start":  # its result: the operand, the slice, and a semaphore
            return sizes(instruction.result)[1] + sizes(instruction.result, anywhere=True)[1] * bool(operands[0])
        # Memory that is reserved and not written.
        if 'custom_call_target="AllocateBuffer"' in instruction.attributes:
            return 0.0
        if instruction.opcode in ("fusion", "fusion-start"):
            return self._fused(instruction, operands, result)
        return sum(operands) + result

    def _fused(self, instruction: Instruction, operands: list[float], result: float) -> float:
        callee = instruction.callee
        # At most the whole: several slices of an operand may overlap.
        read = sum(min(whole, self._read(callee, number, whole)) for number, whole in enumerate(operands))
        return read + min(result, self._written(callee, result))

    def _read(self, callee: str, number: int, whole: float) -> float:
        """Counts the bytes that a fusion reads of operand `number`: below `whole` if it only slices or updates it."""
        inside = self._computations.get(callee, {})
        parameter = next((p for p in inside.values() if p.opcode == "parameter" and _number(p) == number), None)
        if parameter is None:
            return whole
        # Followed through element-wise operations: of their results, too, only what a slice takes is computed.
        total, values, seen = 0.0, [parameter.name], {parameter.name}
        while values:
            value = values.pop()
            count = elements(inside[value].result)
            for user in (instruction for instruction in inside.values() if value in instruction.operands):
                first = user.operands[0] == value
                if user.opcode in _EACH and not user.root and elements(user.result) == count:
                    values += [user.name] if user.name not in seen else []
                    seen.add(user.name)
                elif user.opcode in ("slice", "dynamic-slice", "gather") and first:
                    total += whole * elements(user.result) / count
                elif user.opcode == "scatter" and first:
                    total += whole * elements(inside[user.operands[-1]].result) / count
                elif user.opcode == "fusion":
                    places = [place for place, name in enumerate(user.operands) if name == value]
                    total += sum(self._read(user.callee, place, whole) for place in places)
                elif user.opcode != "dynamic-update-slice" or not first:
                    return whole  # an in-place update does not read its target
        return total

    def _written(self, callee: str, whole: float) -> float:
        """Counts the bytes that a fusion writes: for an in-place update only the update."""
        inside = self._computations.get(callee, {})
        root = next((instruction for instruction in inside.values() if instruction.root), None)
        return whole if root is None else self._result(root, inside)

    def _result(self, instruction: Instruction, inside: Computation) -> float:
        if instruction.opcode == "tuple":
            return sum(self._result(inside[name], inside) for name in instruction.operands)
        if instruction.opcode == "bitcast" and instruction.operands[0] in inside:
            return min(size(instruction.result), self._result(inside[instruction.operands[0]], inside))
        if instruction.opcode == "dynamic-update-slice":
            return size(inside[instruction.operands[1]].result)
        if instruction.opcode == "scatter":
            return min(size(instruction.result), size(inside[instruction.operands[-1]].result))
        if instruction.opcode == "fusion":
            return self._written(instruction.callee, size(instruction.result))
        return size(instruction.result) - _scratch(instruction)

    def collective(self, instruction: Instruction, computation: Computation, times: float) -> Collective | None:
        """Counts the bytes that a collective executed `times` times sends between devices; None if the instruction is
        not a collective.

        The TPU compiler fuses some collectives with the slice that follows. An all-reduce of which only a slice is kept
        is then a reduce-scatter.
        """
        inside = self._computations.get(instruction.callee, {}) if instruction.opcode == "fusion" else {}
        inner = next((each for each in inside.values() if each.opcode in COLLECTIVES), None)
        if inner is not None:
            whole, kept = size(inner.result, True), size(instruction.result, True)
            if inner.opcode == "all-reduce" and kept < whole:
                return self._sent("reduce-scatter", instruction, kept, whole, times, inner.attributes)
            given = sum(size(inside[name].result, True) for name in inner.operands if name in inside)
            return self._sent(inner.opcode, instruction, whole, given, times, inner.attributes)
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            return None
        # Wherever the arrays are: those in fast memory cross the links too.
        given = sum(size(computation[name].result, True) for name in instruction.operands if name in computation)
        both = instruction.opcode.endswith("-start") and kind != "all-reduce"  # the result includes the operands
        result = size(instruction.result, True) - (given if both else 0)
        return self._sent(kind, instruction, result, given, times, instruction.attributes)

    def _sent(
        self, kind: str, instruction: Instruction, result: float, given: float, times: float, attributes: str
    ) -> Collective:
        devices = self._group(attributes)
        # Each of n devices sends n - 1 of n parts; twice in an all-reduce, a reduce-scatter and an all-gather.
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
        """Returns the number of devices in each replica group."""
        # Three notations: {{0,1},{2,3}}; [groups,devices]; axes of a mesh, where 'x':(n)m is a part of m devices.
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
        # Without groups, all devices are one.
        return self._devices


def _number(parameter: Instruction) -> int:
    match = re.match(r"\((\d+)\)", parameter.attributes)
    assert match is not None
    return int(match[1])


def _scratch(instruction: Instruction) -> float:
    """Returns the bytes of a cuBLAS or cuDNN call's scratch space, its last result; most of it is never touched."""
    if not re.search(r'custom_call_target="__cu(?:blas|dnn)', instruction.attributes):
        return 0.0
    last = re.search(r"\b[su]8\[\d+\]\S*\)$", instruction.result)
    return size(last[0]) if last else 0.0
