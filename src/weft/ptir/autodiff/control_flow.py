"""Gradients of control flow.

A region and its way back are first made as one body (`Joint`). What the way back reads of the way
forward is then either computed again or kept (`weft.ptir.passes.residuals`); for that the
instruction on the way forward is replaced by one whose regions return the kept values as well. The
way back is an instruction of the same kind:

- `cond`: the same choice between the two ways back. Each branch returns zeros in place of what the
  other one keeps.
- `scan`: one loop over the steps in reverse order. Its carries are the cotangents of the carries.
  A carry that the body returns as it came is not kept at each step.
- `while` has no way back: how often it runs is not known in advance, so neither is the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.foundation.errors import InternalError, Unimplemented
from weft.ptir.autodiff.walk import (
    ControlFlow,
    ControlRule,
    Joint,
    WayBack,
    joint_region,
    refuse_tuples,
)
from weft.ptir.ir import Instruction, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.passes.residuals import KEEPING, Division, Forward, byte_count, divide, in_time
from weft.ptir.slots import Slot, read_slots, result_slots, slot_type, slots_of
from weft.ptir.tape import Environment, Tape, elements
from weft.ptir.term import Cotangents, Term
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType, symbols_of


class Halves:
    """A joint body cut in two: the way forward with what it keeps, and the way back."""

    def __init__(self, flow: ControlFlow, joint: Joint, prices: Mapping[int, int]) -> None:
        self.joint = joint
        self.forward = joint.tape.body[: joint.border]
        self.ends = [c for c in joint.cotangents if c is not None]
        self.backward = _live(joint.tape.body[joint.border :], joint.tape, self.ends)
        self.division = self._divided(flow, prices)
        self.parameter_ids = [_id(joint.tape, term) for term in joint.parameters]
        ids = set(self.parameter_ids)
        self.kept = [slot for slot in self.division.kept if slot[0] not in ids]
        """What the way forward has to hand over."""
        self.read = [slot for slot in self.division.kept if slot[0] in ids]
        """The parameters that the way back reads as well."""

    def _divided(self, flow: ControlFlow, prices: Mapping[int, int]) -> Division:
        joint = self.joint
        before = {*prices, *(i.id for i in self.forward)}
        read = [o for i in self.backward for o in i.operands]
        read += [joint.tape.operand(end) for end in self.ends]
        wanted = [
            slot
            for operand in read
            for slot in read_slots(operand, joint.tape.types)
            if slot[0] in before
        ]
        types = {i: joint.tape.types[i] for i in (*prices, *(f.id for f in self.forward))}
        hidden = _unnameable(self.forward, joint, flow)
        found = divide(
            Forward(types, self.forward, prices, hidden=hidden), wanted, flow.calculus.prices
        )
        if found is None:
            raise Unimplemented(
                f"the way back through {flow.op.mnemonic}",
                "it needs a value that can neither be kept (a tuple, or a size known only inside) "
                "nor computed again",
            )
        return found

    def types(self, slots: Sequence[Slot]) -> list[ValueType]:
        return [slot_type(slot, self.joint.tape.types) for slot in slots]

    def replay_forward(self, tape: Tape) -> tuple[list[Term], list[Term]]:
        """The way forward on another tape, parameters first: its results, and what it keeps."""
        environment = Environment(tape)
        for value_id, term in zip(self.parameter_ids, self.joint.parameters, strict=True):
            environment.define(value_id, tape.parameter(term.type))
        for instruction in self.forward:
            environment.replay(instruction)
        results = [environment[self.joint.tape.operand(term)] for term in self.joint.results]
        return results, [environment.slot(slot) for slot in self.kept]

    def replay_backward(self, tape: Tape, values: Mapping[Slot, Term]) -> list[Term | None]:
        """The way back on another tape, given the values of the slots that it reads and of the
        seeds: the cotangents of the parameters."""
        environment = Environment(tape)
        environment.define_slots(values, self.joint.tape.types)
        ends = [self.joint.tape.operand(end) for end in self.ends]
        last = [end.id for end in ends if not isinstance(end, TensorLiteral)]
        for instruction in in_time(self.backward, self.division.again, last):
            environment.replay(instruction)
        return [
            None if end is None else environment[self.joint.tape.operand(end)]
            for end in self.joint.cotangents
        ]

    @property
    def seeds(self) -> list[Slot]:
        """The parameters of the joint body that hold the cotangents of the results."""
        return [(_id(self.joint.tape, seed), None) for seed in self.joint.seeds]


def _id(tape: Tape, term: Term) -> int:
    operand = tape.operand(term)
    if not isinstance(operand, Ref):
        raise InternalError(f"{operand} is not a parameter")
    return operand.id


def _live(body: Sequence[Instruction], tape: Tape, ends: Sequence[Term]) -> list[Instruction]:
    """The instructions that the ends depend on."""
    operands = [tape.operand(end) for end in ends]
    needed = {operand.id for operand in operands if not isinstance(operand, TensorLiteral)}
    kept = []
    for instruction in reversed(body):
        if instruction.id in needed:
            needed.update(instruction.uses)
            kept.append(instruction)
    return kept[::-1]


def _unnameable(forward: Sequence[Instruction], joint: Joint, flow: ControlFlow) -> set[Slot]:
    """The values whose types mention sizes that are known only inside the region."""
    known: set[Symbol] = set(flow.calculus.shop.symbols)
    for term in joint.parameters:
        known.update(symbols_of(term.type))
    return {
        slot
        for instruction in forward
        for slot, kind in slots_of(instruction.id, instruction.output)
        if not known.issuperset(symbols_of(kind))
    }


def _filled(cotangents: Sequence[Term | None], likes: Sequence[Term]) -> list[Term]:
    """Cotangents with zeros in place of those that are absent."""
    pairs = zip(cotangents, likes, strict=True)
    return [like.like(0) if found is None else found for found, like in pairs]


def _chosen(terms: Sequence[Term | None], flags: Sequence[bool]) -> list[Term | None]:
    return [term for term, chosen in zip(terms, flags, strict=True) if chosen]


def _spread(terms: Sequence[Term], flags: Sequence[bool]) -> list[Term | None]:
    """Terms at the places that the flags mark, and nothing at the others."""
    remaining = iter(terms)
    return [next(remaining) if marked else None for marked in flags]


def _results(flow: ControlFlow, op: Op, operands: Sequence[Term]) -> list[Term]:
    """The results of a control-flow op, each on its own."""
    return list(elements(flow.tape.append(op, operands)))


# -- cond ----------------------------------------------------------------------------------------


def _cond(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    refuse_tuples(flow)
    predicate, *arguments = flow.operands
    wanted = flow.wanted[1:]
    shop = flow.calculus.shop
    branches = [_branch(flow, shop.regions[region_id], wanted) for region_id in flow.op.regions]
    forward = [_forward_branch(flow, branches, index) for index in (0, 1)]
    results = _results(flow, Cond(*(region.id for region in forward)), flow.operands)
    count = len(forward[0].results) - sum(len(branch.kept) for branch in branches)
    primal, kept = results[:count], results[count:]
    likes = [term for term, seeded in zip(primal, flow.seeded, strict=True) if seeded]
    backward = [_backward_branch(flow, branches, index, wanted) for index in (0, 1)]

    def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
        seeds = _filled(_chosen(cotangents, flow.seeded), likes)
        op = Cond(*(region.id for region in backward))
        found = _results(flow, op, [predicate, *arguments, *kept, *seeds])
        return [None, *_spread(found, wanted)]

    return results, way_back


def _branch(flow: ControlFlow, region: Region, wanted: Sequence[bool]) -> Halves:
    joint = joint_region(flow.calculus, region, wanted, flow.seeded)
    # The arguments are at hand where the way back begins.
    return Halves(flow, joint, dict.fromkeys(range(len(joint.parameters)), 0))


def _forward_branch(flow: ControlFlow, branches: Sequence[Halves], chosen: int) -> Region:
    tape = flow.calculus.shop.region_tape()
    results, own = branches[chosen].replay_forward(tape)
    kept: list[Term] = []
    for index, branch in enumerate(branches):
        kept += own if index == chosen else _zeros(tape, branch.types(branch.kept))
    return flow.calculus.shop.add_region(tape, [*results, *kept])


def _zeros(tape: Tape, kinds: Sequence[ValueType]) -> list[Term]:
    return [tape.zeros(kind) for kind in kinds]


def _backward_branch(
    flow: ControlFlow, branches: Sequence[Halves], chosen: int, wanted: Sequence[bool]
) -> Region:
    tape = flow.calculus.shop.region_tape()
    half = branches[chosen]
    arguments = [tape.parameter(term.type) for term in half.joint.parameters]
    values = half.parameter_slots(arguments)
    for index, branch in enumerate(branches):
        kept = [tape.parameter(kind) for kind in branch.types(branch.kept)]
        if index == chosen:
            values.update(zip(branch.kept, kept, strict=True))
    seeds = [tape.parameter(seed.type) for seed in half.joint.seeds]
    values.update(zip(half.seeds, seeds, strict=True))
    found = _chosen(half.replay_backward(tape, values), wanted)
    likes = [term for term, asked in zip(arguments, wanted, strict=True) if asked]
    return flow.calculus.shop.add_region(tape, _filled(found, likes))


# -- scan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loop:
    """A scan and what its way back is about."""

    flow: ControlFlow
    op: Scan
    body: Region
    active: list[bool]
    """Of the parameters of the body: those whose cotangents are computed."""
    outputs: list[bool]
    """Of the stacked outputs: those that have cotangents."""
    constant: list[bool]
    """Of the carries: those that the body returns as they came."""

    @property
    def count(self) -> int:
        return self.op.carry_count


def _scan(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    refuse_tuples(flow)
    loop = _loop(flow)
    half = _loop_halves(loop)
    results = _forward_scan(loop, half)
    primal = results[: len(loop.body.results)]
    stacks = dict(zip(half.kept, results[len(primal) :], strict=True))
    backward = _backward_body(loop, half)

    def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
        return _backward_scan(loop, half, backward, stacks, _filled_ends(loop, primal, cotangents))

    return results, way_back
