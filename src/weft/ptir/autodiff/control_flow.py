"""Gradients of control flow.

A region and its way back are first made as one body (`Joint`). What the way back reads of the way
forward is then either computed again or kept (`weft.ptir.passes.residuals`); for that the
instruction on the way forward is replaced by one whose regions return the kept values as well. The
way back is an instruction of the same kind:

- `cond`: the same choice between the two ways back. Each branch returns zeros in place of what the
  other one keeps.
- `scan`: one loop over the steps in reverse order. Its carries are the cotangents of the carries.
  A carry that the body returns as it came is not kept at each step. What its steps only add to a
  cotangent is added up after the loop (`loop_sums`).
- `while` has no way back: how often it runs is not known in advance, so neither is the room. One
  that is counted has become a scan before (`weft.ptir.counted_loops`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.min_cut import UNCUTTABLE
from weft.ptir.autodiff.custom import custom_gradient
from weft.ptir.autodiff.loop_sums import LoopSums
from weft.ptir.autodiff.walk import (
    ControlFlow,
    ControlRule,
    Joint,
    WayBack,
    joint_region,
    refuse_tuples,
)
from weft.ptir.copies import origins
from weft.ptir.ir import Instruction, Operand, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.passes.residuals import (
    KEEPING,
    Division,
    Forward,
    byte_count,
    divide_forward,
    in_time,
    with_parts,
)
from weft.ptir.slots import Slot, read_slots, slot_type, slots_of
from weft.ptir.tape import Environment, Tape, elements
from weft.ptir.term import Cotangents, Term
from weft.ptir.types import Symbol, TensorType, ValueType, symbols_of

Item = TypeVar("Item")


class Halves:
    """A joint body cut in two: the way forward, and the way back that reads some of its values."""

    def __init__(self, flow: ControlFlow, joint: Joint, prices: Mapping[Slot, int]) -> None:
        self.joint = joint
        self.types = joint.tape.types
        self.forward = joint.tape.body[: joint.border]
        self.ends = [joint.tape.operand(c) for c in joint.cotangents if c is not None]
        self.backward = _live(joint.tape.body[joint.border :], self.ends)
        division = self._divide_body(flow, prices)
        self.again = division.again
        self.kept = [slot for slot in division.kept if slot not in prices]
        """Values that the way forward has to hand over."""
        self.read = [slot for slot in division.kept if slot in prices]
        """Parameters that the way back reads as well."""

    def _divide_body(self, flow: ControlFlow, prices: Mapping[Slot, int]) -> Division:
        ids = [_id(self.joint.tape, term) for term in self.joint.parameters]
        types = {value_id: self.types[value_id] for value_id in ids}
        types.update((i.id, i.output) for i in self.forward)
        read = [*(o for i in self.backward for o in i.operands), *self.ends]
        wanted = {s for o in read for s in read_slots(o, self.types) if s[0] in types}
        # A size that is known only inside has no name outside, where kept values pass.
        hidden = _unnameable(self.forward, self.joint, flow)
        forward = Forward(types, self.forward, prices, hidden=hidden)
        results = map(self.joint.tape.operand, self.joint.results)
        returned = [o.id for o in results if not isinstance(o, TensorLiteral)]
        marked = with_parts(forward, self.joint.parts, returned, flow.calculus.prices)
        found = divide_forward(marked, wanted, flow.calculus.prices)
        if found is None:
            raise Unimplemented(
                f"the gradient of {flow.op.mnemonic}",
                "it needs a value that can neither be kept (a tuple, or a size known only inside) "
                "nor computed again",
            )
        return found

    def kinds(self, slots: Sequence[Slot]) -> list[ValueType]:
        return [slot_type(slot, self.types) for slot in slots]

    def replay_forward(self, tape: Tape, slots: Sequence[Slot]) -> list[Term]:
        """The way forward on another tape, parameters first: its results, then these values."""
        environment = Environment(tape)
        for term in self.joint.parameters:
            environment.define(_id(self.joint.tape, term), tape.parameter(term.type))
        for instruction in self.forward:
            environment.replay(instruction)
        results = [environment[self.joint.tape.operand(term)] for term in self.joint.results]
        return [*results, *map(environment.slot, slots)]

    def replay_backward(self, tape: Tape, values: Mapping[Slot, Term]) -> list[Term | None]:
        """The way back on another tape, given what it reads and the seeds: the cotangents of the
        parameters."""
        environment = Environment(tape)
        environment.define_slots(values, self.types)
        last = [end.id for end in self.ends if not isinstance(end, TensorLiteral)]
        for instruction in in_time(self.backward, self.again, last):
            environment.replay(instruction)
        return [
            None if end is None else environment[self.joint.tape.operand(end)]
            for end in self.joint.cotangents
        ]

    def seeds(self, terms: Sequence[Term]) -> dict[Slot, Term]:
        """Terms for the parameters that hold the cotangents of the results."""
        ids = (_id(self.joint.tape, seed) for seed in self.joint.seeds)
        return {(value_id, None): term for value_id, term in zip(ids, terms, strict=True)}


def _id(tape: Tape, term: Term) -> int:
    operand = tape.operand(term)
    if not isinstance(operand, Ref):
        raise InternalError(f"{operand} is not a parameter")
    return operand.id


def _live(body: Sequence[Instruction], ends: Sequence[Operand]) -> list[Instruction]:
    """The instructions that the ends depend on."""
    needed = {operand.id for operand in ends if not isinstance(operand, TensorLiteral)}
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


def _fill_with_zeros(cotangents: Sequence[Term | None], likes: Sequence[Term]) -> list[Term]:
    """Cotangents with zeros in place of those that are absent."""
    pairs = zip(cotangents, likes, strict=True)
    return [like.like(0) if found is None else found for found, like in pairs]


def _take_marked(items: Iterable[Item], flags: Iterable[bool]) -> list[Item]:
    """The items that the flags mark; further flags belong to others."""
    return [item for item, marked in zip(items, flags, strict=False) if marked]


def _terms_by_flags(terms: Sequence[Term], flags: Sequence[bool]) -> list[Term | None]:
    """Terms at the places that the flags mark, and nothing at the others."""
    remaining = iter(terms)
    return [next(remaining) if marked else None for marked in flags]


def _append_flow(
    tape: Tape, op: Op, operands: Sequence[Term], value_id: int | None = None
) -> list[Term]:
    """The results of a control-flow op, each on its own."""
    return list(elements(tape.append(op, operands, value_id=value_id)))


# -- cond ----------------------------------------------------------------------------------------


def _cond(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    refuse_tuples(flow)
    predicate, *arguments = flow.operands
    wanted = flow.wanted[1:]
    shop = flow.calculus.shop
    branches = [_branch(flow, shop.regions[region_id], wanted) for region_id in flow.op.regions]
    forward = [_forward_branch(flow, branches, index) for index in (0, 1)]
    op = Cond(*(region.id for region in forward))
    results = _append_flow(flow.tape, op, flow.operands, flow.value_id)
    count = len(results) - sum(len(branch.kept) for branch in branches)
    likes, kept = _take_marked(results[:count], flow.seeded), results[count:]
    backward = [_backward_branch(flow, branches, index, wanted) for index in (0, 1)]

    def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
        seeds = _fill_with_zeros(_take_marked(cotangents, flow.seeded), likes)
        op = Cond(*(region.id for region in backward))
        found = _append_flow(flow.tape, op, [predicate, *arguments, *kept, *seeds])
        return [None, *_terms_by_flags(found, wanted)]

    return results, way_back


def _branch(flow: ControlFlow, region: Region, wanted: Sequence[bool]) -> Halves:
    for kind in region.results:
        if not isinstance(kind, TensorType):
            raise Unimplemented(f"the result {kind} of a region", "return its elements instead")
    joint = joint_region(flow.calculus, region, wanted, flow.seeded)
    # The arguments are at hand where the way back begins.
    return Halves(flow, joint, {slot: 0 for slot, _ in _parameter_slots(joint)})


def _parameter_slots(joint: Joint) -> list[tuple[Slot, ValueType]]:
    return [s for term in joint.parameters for s in slots_of(_id(joint.tape, term), term.type)]


def _forward_branch(flow: ControlFlow, branches: Sequence[Halves], chosen: int) -> Region:
    tape = flow.calculus.shop.region_tape()
    half = branches[chosen]
    found = half.replay_forward(tape, half.kept)
    count = len(found) - len(half.kept)
    kept: list[Term] = []
    for index, branch in enumerate(branches):
        # Both branches return the same types: each has room for what the other one keeps.
        kept += found[count:] if index == chosen else map(tape.zeros, branch.kinds(branch.kept))
    return flow.calculus.shop.add_region(tape, [*found[:count], *kept])


def _backward_branch(
    flow: ControlFlow, branches: Sequence[Halves], chosen: int, wanted: Sequence[bool]
) -> Region:
    tape = flow.calculus.shop.region_tape()
    half = branches[chosen]
    arguments = [tape.parameter(term.type) for term in half.joint.parameters]
    parts = [part for term in arguments for part in elements(term)]
    slots = [slot for slot, _ in _parameter_slots(half.joint)]
    values = dict(zip(slots, parts, strict=True))
    for index, branch in enumerate(branches):
        kept = [tape.parameter(kind) for kind in branch.kinds(branch.kept)]
        if index == chosen:
            values.update(zip(branch.kept, kept, strict=True))
    values.update(half.seeds([tape.parameter(seed.type) for seed in half.joint.seeds]))
    found = _take_marked(half.replay_backward(tape, values), wanted)
    return flow.calculus.shop.add_region(
        tape, _fill_with_zeros(found, _take_marked(arguments, wanted))
    )


# -- scan ----------------------------------------------------------------------------------------


def _scan(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    refuse_tuples(flow)
    return _ScanGradient(flow).both_ways()


class _ScanGradient:
    """A scan that also stacks what its way back reads, and that way back."""

    def __init__(self, flow: ControlFlow) -> None:
        if not isinstance(flow.op, Scan):
            raise InternalError(f"{flow.op.mnemonic} is not a scan")
        self.flow = flow
        self.op = flow.op
        self.count = flow.op.carry_count
        self.shop = flow.calculus.shop
        self.body = self.shop.regions[flow.op.body_region]
        self.constant = _constant_carries(self.body, self.count)
        self.active, self.seeded = self._activity()
        self.half = self._halves()
        carried = [slot for slot in self.half.read if slot[0] < self.count]
        self.stacked = [s for s in carried if not self.constant[s[0]]] + self.half.kept
        """What the loop returns at every step besides its own results."""
        self.constants = sorted({s[0] for s in carried if self.constant[s[0]]})
        """Carries that the way back receives once, because every step has the same."""
        self.slices = [slot for slot in self.half.read if slot[0] >= self.count]
        """Scanned inputs that the way back scans as well."""

    def _activity(self) -> tuple[list[bool], list[bool]]:
        """Which parameters of the body have cotangents that are asked for, and which results have
        cotangents: those of a carry are results of one step and parameters of the next."""
        flow, count, dependence = self.flow, self.count, self.flow.calculus.dependence
        if len(flow.seeded) != len(self.body.results):
            raise _tuple_carry(flow.output)
        bits = dependence.results(self.op, [int(asked) for asked in flow.wanted], flow.output)
        varied = [*map(bool, bits[:count]), *flow.wanted[count:]]
        influences = dependence.region(self.op.body_region)
        seeded = list(flow.seeded)
        # A carry whose cotangent is asked for at the end of a step has one at its beginning, where
        # it is a result of the step before: that may make further carries active, until no more
        # come.
        while True:
            ends = [bits for bits, asked in zip(influences, seeded, strict=True) if asked]
            active = [v and any(e >> p & 1 for e in ends) for p, v in enumerate(varied)]
            grown = [a or s for a, s in zip(active[:count], seeded[:count], strict=True)]
            if grown == seeded[:count]:
                break
            seeded[:count] = grown
        active[:count] = seeded[:count]
        for kind in _take_marked(self.body.parameters, active):
            if not isinstance(kind, TensorType):
                raise _tuple_carry(kind)
        return active, seeded

    def _halves(self) -> Halves:
        named = zip(self.body.results, self.seeded, strict=True)
        flags = [asked for kind, asked in named for _ in slots_of(0, kind)]
        joint = joint_region(self.flow.calculus, self.body, self.active, flags)
        prices = {slot: self._price(slot, kind) for slot, kind in _parameter_slots(joint)}
        return Halves(self.flow, joint, prices)

    def _price(self, slot: Slot, kind: ValueType) -> int:
        """A carry has to be stacked, unless it stays the same; scanned inputs are stacked
        already."""
        if slot[0] >= self.count or self.constant[slot[0]]:
            return 0
        return byte_count(kind) * KEEPING if isinstance(kind, TensorType) else UNCUTTABLE

    def both_ways(self) -> tuple[list[Term], WayBack]:
        tape = self.shop.region_tape()
        region = self.shop.add_region(tape, self.half.replay_forward(tape, self.stacked))
        outputs = self.op.scan_output_count + len(self.stacked)
        op = replace(self.op, body_region=region.id, scan_output_count=outputs)
        results = _append_flow(self.flow.tape, op, self.flow.operands, self.flow.value_id)
        primal, stacks = results[: len(self.body.results)], results[len(self.body.results) :]
        backward = self._backward_body()

        def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
            ends = _fill_with_zeros(
                _take_marked(cotangents, self.seeded), _take_marked(primal, self.seeded)
            )
            return self._backward_scan(backward, stacks, ends)

        return results, way_back

    def _backward_body(self) -> _BackwardBody:
        """(cotangents of carries, constants, then at each step: kept values, slices, cotangents of
        outputs) -> (cotangents of carries, constants, cotangents of slices)."""
        tape = self.shop.region_tape()
        parameters, active = self.body.parameters, self.active
        carries = [tape.parameter(k) for k in _take_marked(parameters[: self.count], active)]
        constants = [tape.parameter(parameters[index]) for index in self.constants]
        values: dict[Slot, Term] = {}
        for index, term in zip(self.constants, constants, strict=True):
            slots = [slot for slot, _ in slots_of(index, term.type)]
            values.update(zip(slots, elements(term), strict=True))
        for slot in (*self.stacked, *self.slices):
            values[slot] = tape.parameter(slot_type(slot, self.half.types))
        seeds = [tape.parameter(seed.type) for seed in self.half.joint.seeds[len(carries) :]]
        values.update(self.half.seeds([*carries, *seeds]))
        # Nothing is read at each step: one scanned input is taken along, which says how many steps
        # there are.
        if len(tape.parameters) == len(carries) + len(constants):
            tape.parameter(parameters[self.count])
        found = _take_marked(self.half.replay_backward(tape, values), active)
        zeros = [tape.zeros(kind) for kind in _take_marked(parameters, active)]
        made = [zero if c is None else c for c, zero in zip(found, zeros, strict=True)]
        return _BackwardBody(tape, carries, constants, made[: len(carries)], made[len(carries) :])

    def _backward_scan(
        self, body: _BackwardBody, stacks: Sequence[Term], ends: Sequence[Term]
    ) -> Cotangents:
        operands, active = self.flow.operands, self.active
        carried = len(body.carries)
        constants = [operands[index] for index in self.constants]
        scanned = [*stacks, *(operands[slot[0]] for slot in self.slices), *ends[carried:]]
        # A loop needs something to count its steps by.
        reversed_ = [term.flipped(0) for term in scanned] or [operands[self.count]]
        region = self.shop.add_region(body.tape, body.results)
        count = carried + len(constants)
        op = Scan(region.id, count, len(body.results) - count)
        found = _append_flow(self.flow.tape, op, [*ends[:carried], *constants, *reversed_])
        # Steps came last to first, and so did what they returned.
        returned = [term.flipped(0) for term in found[count:]]
        totals = body.totals(self.flow.tape, found[:carried], scanned, returned)
        return _terms_by_flags([*totals, *returned[: len(body.slices)]], active)


class _BackwardBody:
    """One step of the way back. What steps only add to the cotangent of a carry is left to be added
    up after the loop."""

    def __init__(
        self,
        tape: Tape,
        carries: Sequence[Term],
        constants: Sequence[Term],
        ends: Sequence[Term],
        slices: Sequence[Term],
    ) -> None:
        self.tape, self.carries, self.slices = tape, carries, slices
        known = len(carries) + len(constants)
        self.scanned = tape.parameter_ids[known:]
        returned = [tape.plain_id(term) for term in slices]
        fixed = frozenset(_id(tape, term) for term in constants)
        sums = LoopSums(tape, [*self.scanned, *returned], fixed)
        pairs = [(tape.plain_id(c), tape.plain_id(e)) for c, e in zip(carries, ends, strict=True)]
        self.added = [sums.added(carry, end) for carry, end in pairs]
        more = sorted(sums.stacked - {*self.scanned, *returned})
        self.returned = [*returned, *more]
        """What comes back stacked: the cotangents of slices, and operands of sums."""
        kept = zip(carries, ends, self.added, strict=True)
        self.results = [
            *(end if added is None else carry for carry, end, added in kept),
            *constants,
            *slices,
            *map(tape.value, more),
        ]

    def totals(
        self, tape: Tape, ends: Sequence[Term], scanned: Sequence[Term], returned: Sequence[Term]
    ) -> list[Term]:
        """The cotangents of the carries, given how the loop ended and everything of all steps."""
        stacks = dict(zip(self.scanned, scanned, strict=False))
        stacks |= dict(zip(self.returned, returned, strict=True))
        found = []
        for end, added in zip(ends, self.added, strict=True):
            total = end
            for step in added or ():
                total = total + step.over_steps(tape, stacks)
            found.append(total)
        return found


def _tuple_carry(kind: ValueType) -> Unimplemented:
    return Unimplemented(f"the carry {kind}", "pass its elements as carries of their own")


def _constant_carries(body: Region, count: int) -> list[bool]:
    """Which carries the body returns as they came."""
    return [origin == index for index, origin in enumerate(origins(body)[:count])]


SCAN_INSTEAD = (
    "write the loop as a scan over a fixed number of steps, with a select for those that come "
    "after the end"
)


def _while(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    raise Unimplemented(
        "the gradient of while",
        "how often the loop runs is not known in advance, so the values that the gradient needs "
        f"cannot be kept; {SCAN_INSTEAD}",
    )


def _tangents_of_while(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    raise Unimplemented(
        "the gradient of while",
        "forward mode is the adjoint of the adjoint, and a loop that runs an unknown number of "
        f"times has no adjoint; {SCAN_INSTEAD}",
    )


CONTROL: Mapping[type[Op], ControlRule] = {
    Cond: _cond,
    Scan: _scan,
    While: _while,
    CustomGradient: custom_gradient,
}
FORWARD_CONTROL: Mapping[type[Op], ControlRule] = {**CONTROL, While: _tangents_of_while}
"""The same on behalf of forward mode, for its refusals to speak of it."""
