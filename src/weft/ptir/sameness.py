"""Rank analysis: which values of a program may differ between the ranks that run it.

Programs with collectives run on every rank of a mesh. The classes of a value (`Classes`) say which
ranks have the same: they are found from the parameters on, instruction by instruction. What is
computed from a value differs where the value does; collectives bring ranks together; a branch or a
loop whose predicate differs splits all that it makes. No type has to say any of this: parameters
are the same everywhere unless `mark_varying` says otherwise, and `assert_same` is checked here.

A value can be taken to differ more than it does, never less: the `floor` of a question splits
everything by some classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.foundation.errors import Finding
from weft.foundation.partitions import SAME, Classes, classes_of, split_classes
from weft.ptir.ir import Body, Instruction, Operand, Program, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.collective import AssertSame, Collective, OfRanks
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.slots import Slot, read_slots, slots_of
from weft.ptir.types import ValueType


def rank_counts(program: Program) -> dict[int, str]:
    """For how many ranks a program is, with the place that says so; several are a mistake."""
    return {
        i.op.rank_count: program.place(body, i)
        for body in program.bodies
        for i in body.body
        if isinstance(i.op, OfRanks)
    }


@dataclass
class Sameness:
    """The classes of all values of a program, given those of its parameters."""

    program: Program
    parameters: Sequence[Classes] = ()
    """Of the entry function; the same everywhere where nothing is said."""
    floor: Classes = SAME
    regions: Mapping[int, Region] = field(init=False)
    bodies: dict[str, dict[Slot, Classes]] = field(default_factory=dict)
    """By body: the classes of its slots."""
    results: dict[str, list[Classes]] = field(default_factory=dict)
    """By region: the classes in which whoever runs it takes its results."""
    around: dict[str, Classes] = field(default_factory=dict)
    """By region: the classes of the choices that lead to it."""

    def __post_init__(self) -> None:
        self.regions = self.program.regions_by_id
        main = self.program.main
        self._body(main, [*self.parameters, *[SAME] * len(main.parameters)], SAME)

    def of(self, body: Body, operand: Operand) -> Classes:
        """The classes of an operand."""
        if isinstance(operand, TensorLiteral):
            return self.floor
        found = self.bodies[body.label]
        exact = (operand.id, getattr(operand, "index", None))
        if exact in found:
            return found[exact]
        return split_classes(c for slot, c in found.items() if slot[0] == operand.id)

    def read_as(self, body: Body, instruction: Instruction, index: int) -> Classes:
        """The classes in which an instruction counts what it reads there."""
        op = instruction.op
        own = self.of(body, instruction.operands[index])
        if isinstance(op, Collective):
            return split_classes([op.given_classes(own), self.floor])
        if isinstance(op, Cond) and index:
            return self._parameter(op.true_region, index - 1)
        if isinstance(op, Scan):
            return self._parameter(op.body_region, index)
        slots = (slot for slot, _ in slots_of(instruction.id, instruction.output))
        return split_classes(self.bodies[body.label][slot] for slot in slots)

    def _parameter(self, region_id: int, index: int) -> Classes:
        region = self.regions[region_id]
        found = self.bodies[region.label]
        return split_classes(found[slot] for slot, _ in slots_of(index, region.parameters[index]))

    # -- going through ---------------------------------------------------------------------------

    def _body(self, body: Body, parameters: Sequence[Classes], around: Classes) -> list[Classes]:
        """Go through a body; the classes of its results."""
        found: dict[Slot, Classes] = {}
        types: dict[int, ValueType] = {}
        before = self.bodies.get(body.label, {})
        # A region may have several users, and is as different as the most different of them.
        self.around[body.label] = split_classes([around, self.around.get(body.label, SAME)])
        self.bodies[body.label] = found
        for value_id, kind, given in zip(
            body.parameter_ids, body.parameters, parameters, strict=False
        ):
            known = (before[slot] for slot, _ in slots_of(value_id, kind) if slot in before)
            classes = split_classes([given, *known])
            types[value_id] = kind
            self._note(found, value_id, kind, [classes])
        for instruction in body.body:
            types[instruction.id] = instruction.output
            operands = [
                split_classes(found[slot] for slot in read_slots(operand, types))
                for operand in instruction.operands
            ]
            results = self._results(instruction.op, operands, around)
            self._note(found, instruction.id, instruction.output, results)
        return [
            split_classes(found[slot] for slot, _ in slots_of(value_id, types[value_id]))
            for value_id in body.result_ids
        ]

    def _note(
        self,
        found: dict[Slot, Classes],
        value_id: int,
        kind: ValueType,
        classes: Sequence[Classes],
    ) -> None:
        slots = slots_of(value_id, kind)
        each = classes if len(classes) == len(slots) else [split_classes(classes)] * len(slots)
        for (slot, _), one in zip(slots, each, strict=True):
            found[slot] = split_classes([one, self.floor])

    def _results(self, op: Op, operands: Sequence[Classes], around: Classes) -> Sequence[Classes]:
        match op:
            case OfRanks():
                return [op.result_classes(operands)]
            case Barrier():
                return operands[:1]  # it waits for the other, and reads nothing of it
            case Cond():
                return self._cond(op, operands, around)
            case Scan():
                return self._scan(op, list(operands), around)
            case While():
                return self._while(op, list(operands), around)
            case _:
                return [split_classes(operands)]

    def _cond(self, op: Cond, operands: Sequence[Classes], around: Classes) -> list[Classes]:
        chosen = operands[0]
        given = [split_classes([classes, chosen]) for classes in operands[1:]]
        here = split_classes([around, chosen])
        both = [self._body(self.regions[region], given, here) for region in op.regions]
        made = [split_classes([*pair, chosen]) for pair in zip(*both, strict=True)]
        self._take_results(op.regions, made)
        return made

    def _scan(self, op: Scan, values: list[Classes], around: Classes) -> list[Classes]:
        region, count = self.regions[op.body_region], op.carry_count
        while True:
            made = self._body(region, values, around)
            carries = [
                split_classes(pair) for pair in zip(values[:count], made[:count], strict=True)
            ]
            if carries == values[:count]:
                found = [*carries, *made[count:]]
                self._take_results(op.regions, found)
                return found
            values[:count] = carries

    def _while(self, op: While, values: list[Classes], around: Classes) -> list[Classes]:
        cond, body = self.regions[op.cond_region], self.regions[op.body_region]
        here = around
        while True:
            chosen, *seen = self._body(cond, values, here)
            inner = split_classes([around, chosen])
            made = self._body(body, [split_classes([c, chosen]) for c in seen], inner)
            carries = [split_classes([*pair, chosen]) for pair in zip(values, made, strict=True)]
            if carries == values and inner == here:
                return [split_classes([classes, chosen]) for classes in seen]
            values, here = carries, inner

    def _take_results(self, regions: Iterable[int], results: list[Classes]) -> None:
        for region in regions:
            self.results[self.regions[region].label] = results


def differences(program: Program) -> Iterator[Finding]:
    """What a program says of its ranks and does not hold."""
    counts = rank_counts(program)
    if len(counts) > 1:
        (first, one), (second, other) = list(counts.items())[:2]
        why = f"one op is for {first} ranks, {other} for {second}"
        yield Finding("MeshMismatch", one, why, "a program is for one mesh")
    if len(counts) != 1:
        return
    found = Sameness(program)
    for body in program.bodies:
        if body.label in found.bodies:
            for instruction in body.body:
                yield from _judge_instruction(found, program, body, instruction)


def _judge_instruction(
    found: Sameness, program: Program, body: Body, instruction: Instruction
) -> Iterator[Finding]:
    op, place = instruction.op, program.place(body, instruction)
    if isinstance(op, AssertSame):
        own, claimed = found.of(body, instruction.operands[0]), classes_of(op.classes)
        pair = apart(own, claimed)
        if pair is not None:
            why = (
                f"the value differs between ranks {pair[0]} and {pair[1]}, but is declared to be "
                "the same"
            )
            yield Finding("RanksDiffer", place, why, "all_reduce it, or say how it is split")
    elif isinstance(op, Collective):
        around = found.around[body.label]
        for row in op.rows_of_ranks if around else ():
            other = next((rank for rank in row if around[rank] != around[row[0]]), None)
            if other is not None:
                why = (
                    f"ranks {row[0]} and {other} take part in {op.name} only under a condition, "
                    "and the condition differs between them"
                )
                hint = "take the collective out of the branch or the loop"
                yield Finding("RanksDiffer", place, why, hint)
                return


def apart(own: Classes, claimed: Classes) -> tuple[int, int] | None:
    """Two ranks of one claimed class whose values may differ."""
    seen: dict[int, int] = {}
    for rank, number in enumerate(own):
        first = seen.setdefault(claimed[rank] if claimed else 0, rank)
        if own[first] != number:
            return first, rank
    return None
