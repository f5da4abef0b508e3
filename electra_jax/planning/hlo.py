"""Reads a compiled program's text: what one call of it moves between memory and a device, and between devices.

XLA's own cost analysis counts the body of a loop once, however often it runs, and does not tell collectives apart. Here
a body counts as often as it runs. Bytes are counted much as XLA counts them: an instruction reads its operands and
writes its result; a fusion is one instruction, of a slice only the slice is moved, and of an update in place only the
update. What the compiler keeps in a device's own fast memory is not counted.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}  # others end in theirs: f32, u8, s4
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%(\S+) = (.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("copy-done", "opt-barrier", "domain", "add-dependency"),
}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_NOT_IN_MEMORY = "S(1)"  # a layout with this lies in the device's own fast memory


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name, opcode: without the sign before the one, and -start and -done behind the other.
      result: shapes as text.
      operands: names.
      attributes: what follows the operands.
      root: whether it is the computation's result.
    """

    name: str
    opcode: str
    result: str
    operands: list[str]
    attributes: str
    root: bool

    def called(self, how: str) -> str | None:
        found = re.search(rf"\b{how}=%([^\s,)}}]+)", self.attributes)
        return found[1] if found else None

    @property
    def source(self) -> str:
        """The JAX operation that it is from, with modules and functions before it."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


class Moved(NamedTuple):
    """What an instruction moves in one call of the program.

    Attributes:
      opcode, source: of the instruction.
      bytes: in all its turns.
      times: how many these are.
    """

    opcode: str
    source: str
    bytes: float
    times: float


class Collective(NamedTuple):
    """What an instruction sends between devices in one call of the program.

    Attributes:
      kind: as `all-reduce`.
      source: of the instruction.
      bytes: of its result on one device, in all its turns.
      sent: bytes that each device must send for it at the least.
      times: how many turns these are.
      devices: how many take part.
    """

    kind: str
    source: str
    bytes: float
    sent: float
    times: float
    devices: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Of one call of a program on one device."""

    moved: list[Moved]
    collectives: list[Collective]

    @property
    def bytes(self) -> float:
        """Between memory and the device."""
        return sum(each.bytes for each in self.moved)

    @property
    def sent(self) -> float:
        """To other devices, at the least."""
        return sum(each.sent for each in self.collectives)


def traffic(text: str, devices: int) -> Traffic:
    """Reads `compiled.as_text()` of a program on `devices` devices."""
    return _Reader(text, devices).read()


def sizes(shapes: str, anywhere: bool = False) -> list[float]:
    """Bytes of the arrays in a text; 0 for one that does not lie in memory, unless `anywhere`."""
    found = []
    for dtype, dimensions, layout in _ARRAY.findall(shapes):
        digits = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
        counts = anywhere or _NOT_IN_MEMORY not in layout
        found.append(math.prod(int(n) for n in dimensions.split(",") if n) * bits / 8 if counts else 0.0)
    return found


def size(shapes: str, anywhere: bool = False) -> float:
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
            for each in computation.values():
                opcode = each.opcode.removesuffix("-start")
                if each.opcode in _FREE or each.opcode.endswith("-done") or each.opcode in ("while", "call"):
                    continue
                moved.append(Moved(opcode, each.source, self._bytes(each, computation) * times, times))
                if opcode in _COLLECTIVES:
                    collectives.append(self._collective(opcode, each, computation, times))
        return Traffic(moved, collectives)

    def _run(self, name: str, times: float) -> Iterator[tuple[dict[str, Instruction], float]]:
        """The computations that are run one instruction after another, and how often."""
        computation = self._computations.get(name, {})
        yield computation, times
        for each in computation.values():
            if each.opcode == "while":
                condition, body = each.called("condition"), each.called("body")
                assert condition is not None
                assert body is not None
                yield from self._run(body, times * self._trips(each, condition))
            elif each.opcode in ("call", "async-start"):
                yield from self._run(each.called("to_apply") or each.called("calls") or "", times)
            elif each.opcode == "conditional":
                for branch in re.findall(r"%([^\s,)}]+)", each.attributes.partition("branch_computations=")[2]):
                    if branch in self._computations:
                        yield from self._run(branch, times)

    def _trips(self, loop: Instruction, condition: str) -> float:
        """Of a loop that counts: as XLA says, or else the number that its condition compares with."""
        said = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
        if said:
            return int(said[1])
        numbers = [
            int(found[1])
            for each in self._everything(condition)
            if each.opcode == "constant" and (found := re.search(r"^\((\d+)\)", each.attributes))
        ]
        return max(numbers, default=1)

    def _everything(self, name: str) -> Iterator[Instruction]:
        for each in self._computations.get(name, {}).values():
            yield each
            callee = each.called("calls") or each.called("to_apply")
            if callee:
                yield from self._everything(callee)

    def _bytes(self, each: Instruction, computation: dict[str, Instruction]) -> float:
        result = size(each.result)
        operands = [size(computation[name].result) if name in computation else 0.0 for name in each.operands]
        if each.opcode in ("slice", "dynamic-slice", "gather"):
            return 2 * result + sum(operands[1:])
        if each.opcode == "dynamic-update-slice":
            return 2 * operands[1]
        if each.opcode == "scatter":
            return 2 * operands[-1] + sum(operands[1:-1])
        if each.opcode == "copy-start":  # its result: what it copies to, what it copies, and a sign that it has
            return sizes(each.result)[0] + operands[0]
        if each.opcode == "slice-start":  # what it cuts, the slice, and a sign
            return sizes(each.result)[1] + sizes(each.result, anywhere=True)[1] * bool(operands[0])
        if 'custom_call_target="AllocateBuffer"' in each.attributes:
            return 0.0
        if each.opcode == "fusion":
            return self._fused(each, operands, result)
        return sum(operands) + result

    def _fused(self, each: Instruction, operands: list[float], result: float) -> float:
        callee = each.called("calls") or ""
        read = sum(min(whole, self._read(callee, number, whole)) for number, whole in enumerate(operands))
        return read + min(result, self._written(callee, result))

    def _read(self, callee: str, number: int, whole: float) -> float:
        """Bytes that a fusion reads of its operand `number`; of one that is only sliced or updated less than all."""
        inside = self._computations.get(callee, {})
        parameter = next((p for p in inside.values() if p.opcode == "parameter" and _number(p) == number), None)
        if parameter is None:
            return whole
        total, values = 0.0, [parameter.name]
        while values:
            value = values.pop()
            for user in (each for each in inside.values() if value in each.operands):
                if user.opcode == "bitcast":
                    values.append(user.name)
                elif user.opcode in ("slice", "dynamic-slice", "gather") and user.operands[0] == value:
                    total += size(user.result)
                elif user.opcode == "fusion":
                    places = [place for place, name in enumerate(user.operands) if name == value]
                    total += sum(self._read(user.called("calls") or "", place, whole) for place in places)
                elif user.opcode != "dynamic-update-slice" or user.operands[0] != value:
                    return whole  # what is updated lies where the result will
        return total

    def _written(self, callee: str, whole: float) -> float:
        """Bytes that a fusion writes: of what it updates in place the update."""
        inside = self._computations.get(callee, {})
        root = next((each for each in inside.values() if each.root), None)
        return whole if root is None else self._result(root, inside)

    def _result(self, each: Instruction, inside: dict[str, Instruction]) -> float:
        if each.opcode == "tuple":
            return sum(self._result(inside[name], inside) for name in each.operands)
        if each.opcode == "bitcast" and each.operands[0] in inside:
            return min(size(each.result), self._result(inside[each.operands[0]], inside))
        if each.opcode == "dynamic-update-slice":
            return size(inside[each.operands[1]].result)
        if each.opcode == "fusion":
            return self._written(each.called("calls") or "", size(each.result))
        return size(each.result)

    def _collective(
        self, kind: str, each: Instruction, computation: dict[str, Instruction], times: float
    ) -> Collective:
        devices = self._group(each.attributes)
        given = sum(size(computation[name].result, True) for name in each.operands if name in computation)
        result = size(each.result, True) - (given if each.opcode.endswith("-start") and kind != "all-reduce" else 0)
        ring = (devices - 1) / devices
        sent = {
            "all-reduce": 2 * ring * result,
            "all-gather": ring * result,
            "reduce-scatter": ring * given,
            "all-to-all": ring * result,
            "collective-permute": result,
        }[kind]
        return Collective(kind, each.source, result * times, sent * times, times, devices)

    def _group(self, attributes: str) -> int:
        """How many devices exchange among themselves."""
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
    found = re.match(r"\((\d+)\)", parameter.attributes)
    assert found is not None
    return int(found[1])


def _parse(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    root, name, rest = found.groups()
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
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place
    raise ValueError(f"unbalanced brackets in {text[start : start + 80]}")
