"""Which values are batched: those that depend on a batched one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from weft.ptir.ir import Body, Instruction, Ref, Region
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.slots import Slot, read_slots, slots_of
from weft.ptir.types import ValueType

Flags: TypeAlias = tuple[bool, ...]


class Spread:
    """Answers about the bodies of one program; what a region does with given flags is found
    once. A tuple inside a region's parameters or results counts as one value."""

    def __init__(self, regions: Mapping[int, Region]) -> None:
        self.regions = regions
        self._found: dict[tuple[int, Flags], Flags] = {}

    def region(self, region_id: int, flags: Flags) -> Flags:
        """Which results of a region are batched, given which parameters are."""
        key = (region_id, flags)
        if key not in self._found:
            region = self.regions[region_id]
            found = self._slots(region, flags)
            types = {i.id: i.output for i in region.body}
            types.update(zip(region.parameter_ids, region.parameters, strict=True))
            self._found[key] = tuple(
                any(found[slot] for slot in read_slots(Ref(value_id), types))
                for value_id in region.result_ids
            )
        return self._found[key]

    def _slots(self, body: Body, flags: Flags) -> dict[Slot, bool]:
        found: dict[Slot, bool] = {}
        types: dict[int, ValueType] = {}
        for value_id, kind, flag in zip(body.parameter_ids, body.parameters, flags, strict=True):
            types[value_id] = kind
            found.update({slot: flag for slot, _ in slots_of(value_id, kind)})
        for instruction in body.body:
            operands = tuple(
                any(found[slot] for slot in read_slots(operand, types))
                for operand in instruction.operands
            )
            types[instruction.id] = instruction.output
            slots = [slot for slot, _ in slots_of(instruction.id, instruction.output)]
            found.update(zip(slots, self.results(instruction, operands), strict=True))
        return found

    def results(self, instruction: Instruction, operands: Flags) -> Flags:
        """Which slots of a result are batched, given which operands are."""
        op = instruction.op
        count = len(slots_of(0, instruction.output))
        match op:
            case MakeTuple():
                return operands
            case Cond() if operands[0]:
                return (True,) * count
            case Cond():
                found = self.branches(op, operands[1:])
            case Scan():
                found = self.loop(op, operands)
            case While():
                found = self.carries(op, operands)
            case _:
                found = (any(operands),) * count
        return found if len(found) == count else (any(found),) * count

    def branches(self, op: Cond, arguments: Flags) -> Flags:
        sides = (self.region(region_id, arguments) for region_id in op.regions)
        return tuple(a or b for a, b in zip(*sides, strict=True))

    def loop(self, op: Scan, operands: Flags) -> Flags:
        """Of the carries, after any number of steps, and of the outputs."""
        flags = operands
        while True:
            found = self.region(op.body_region, flags)
            # A carry that is batched after any step is batched before the next. Flags only ever
            # turn true, so that this ends.
            grown = _either_flag(flags[: op.carry_count], found[: op.carry_count])
            if grown == flags[: op.carry_count]:
                return grown + found[op.carry_count :]
            flags = grown + flags[op.carry_count :]

    def carries(self, op: While, operands: Flags) -> Flags:
        """Of the carries, after any number of steps: all of them where the number differs."""
        flags = operands
        while True:
            # A condition answers the carries as well, and the body reads what it answers.
            seen = _either_flag(flags, self.region(op.cond_region, flags)[1:])
            grown = _either_flag(seen, self.region(op.body_region, seen))
            if grown == flags:
                return tuple(flag or self.predicate(op, grown) for flag in grown)
            flags = grown

    def predicate(self, op: While, flags: Flags) -> bool:
        """Whether the loop ends at different times within the batch."""
        return self.region(op.cond_region, flags)[0]


def _either_flag(left: Sequence[bool], right: Sequence[bool]) -> Flags:
    return tuple(a or b for a, b in zip(left, right, strict=True))
