"""Activity analysis: which values depend on which in a differentiable way.

The influences on a slot are a set of sources, written as the bits of a number; where the sources
are the parameters of a body, bit `i` is parameter `i`. Integers and truth values have none, and
nothing passes an op that has no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from weft.ptir.ir import Body, Instruction, Ref, Region
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.slots import Slot, is_smooth, read_slots, slots_of
from weft.ptir.types import ValueType

Bits: TypeAlias = int


class Dependence:
    """Answers about the bodies of one program; what a region does is found once."""

    def __init__(self, regions: Mapping[int, Region]) -> None:
        self.regions = regions
        self._regions: dict[int, tuple[Bits, ...]] = {}

    def influences(self, body: Body, sources: Sequence[Bits]) -> dict[Slot, Bits]:
        """The influences on every slot of a body, given those on its parameters."""
        found: dict[Slot, Bits] = {}
        types: dict[int, ValueType] = {}
        for value_id, kind, bits in zip(body.parameter_ids, body.parameters, sources, strict=True):
            types[value_id] = kind
            _note_influences(found, value_id, kind, [bits] * len(slots_of(value_id, kind)))
        for instruction in body.body:
            operands = [
                _union(found[slot] for slot in read_slots(operand, types))
                for operand in instruction.operands
            ]
            types[instruction.id] = instruction.output
            results = self.results(instruction.op, operands, instruction.output)
            _note_influences(found, instruction.id, instruction.output, results)
        return found

    def results(self, op: Op, operands: Sequence[Bits], output: ValueType) -> list[Bits]:
        """The influences on each slot of a result, given those on the operands."""
        count = len(slots_of(0, output))
        if not any(operands) or op.no_gradient:
            return [0] * count
        match op:
            case Cond():
                both = zip(*(self.region(region_id) for region_id in op.regions), strict=True)
                found = [_unite_sets(a | b, operands[1:]) for a, b in both]
            case Scan():
                found = self._scan(op, operands)
            case While():
                found = self._while(op, operands)
            case CustomGradient():
                return [_union(operands[op.first_input :])] * count
            case _:
                return [_union(operands)] * count
        return found if len(found) == count else [_union(found)] * count

    def region(self, region_id: int) -> tuple[Bits, ...]:
        """For each result of a region, the parameters that it depends on."""
        open_ids = [region_id]
        while open_ids:
            region = self.regions[open_ids[-1]]
            # Inner regions first, on a list and not by recursion: regions may be nested as deep as
            # the limits allow.
            inner = {child for i in region.body for child in i.op.regions} - self._regions.keys()
            if inner:
                open_ids.extend(inner)
                continue
            self._regions[open_ids.pop()] = self._results_of(region)
        return self._regions[region_id]

    def _results_of(self, region: Region) -> tuple[Bits, ...]:
        found = self.influences(region, [1 << i for i in range(len(region.parameters))])
        types = dict(zip(region.result_ids, region.results, strict=True))
        return tuple(
            _union(found[slot] for slot in read_slots(Ref(value_id), types))
            for value_id in region.result_ids
        )

    def _scan(self, op: Scan, operands: Sequence[Bits]) -> list[Bits]:
        count = op.carry_count
        body = self.region(op.body_region)
        values = list(operands)
        while True:
            now = zip(values[:count], body[:count], strict=True)
            # What a carry depends on after any number of steps: sets only grow, so this ends, after
            # as many rounds as there are carries at most.
            carries = [a | _unite_sets(bits, values) for a, bits in now]
            if carries == values[:count]:
                return carries + [_unite_sets(bits, values) for bits in body[count:]]
            values[:count] = carries

    def _while(self, op: While, operands: Sequence[Bits]) -> list[Bits]:
        cond, body = self.region(op.cond_region)[1:], self.region(op.body_region)
        values = list(operands)
        while True:
            seen = [_unite_sets(bits, values) for bits in cond]
            carries = [a | _unite_sets(bits, seen) for a, bits in zip(values, body, strict=True)]
            if carries == values:
                return [_unite_sets(bits, values) for bits in cond]
            values = carries

    def operands_of(self, instruction: Instruction) -> list[Bits]:
        """For each slot of the result of an instruction, the operands that it depends on."""
        sources = [1 << index for index in range(len(instruction.operands))]
        return self.results(instruction.op, sources, instruction.output)

    def useful(self, body: Body, results: Iterable[Slot]) -> set[Slot]:
        """The slots that these results depend on."""
        types: dict[int, ValueType] = dict(zip(body.parameter_ids, body.parameters, strict=True))
        types.update((i.id, i.output) for i in body.body)
        found = set(results)
        for instruction in reversed(body.body):
            outputs = slots_of(instruction.id, instruction.output)
            if not any(slot in found for slot, _ in outputs):
                continue
            per_slot = zip(outputs, self.operands_of(instruction), strict=True)
            bits = _union(bits for (slot, _), bits in per_slot if slot in found)
            for index, operand in enumerate(instruction.operands):
                if bits >> index & 1:
                    found.update(read_slots(operand, types))
        return found


def _note_influences(
    found: dict[Slot, Bits], value_id: int, kind: ValueType, influences: Sequence[Bits]
) -> None:
    for (slot, part), bits in zip(slots_of(value_id, kind), influences, strict=True):
        found[slot] = bits if is_smooth(part) else 0


def _union(sets: Iterable[Bits]) -> Bits:
    total = 0
    for bits in sets:
        total |= bits
    return total


def _unite_sets(indices: Bits, sets: Sequence[Bits]) -> Bits:
    """The union of the sets at these indices."""
    return _union(bits for index, bits in enumerate(sets) if indices >> index & 1)
