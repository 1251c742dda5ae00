"""Rematerialisation: cheap values are computed again in the backward part instead of kept.

    before   a program whose first results are a forward part and whose others are made by a
             backward part, as `gradient` and `vjp` give it
    after    the same, but the backward part computes some forward values itself

The forward part is what the first results depend on, and the backward part is the rest. What is
kept and what is computed again is the cheapest mixture by `weft.ptir.passes.residuals`. A part of
the forward instructions can be marked: then only what leaves it is kept, and everything inside is
computed again, matrix products included. Random numbers are always kept.

What is computed again reads the kept values through a `barrier` that waits for the backward part to
come so far; without it, merging equal instructions would undo all of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.foundation.errors import UserError
from weft.ptir.ir import ElementRef, Function, Instruction, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.passes.edit import fresh_ids, with_bodies, with_settled_hints
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.residuals import (
    FREE,
    Division,
    Forward,
    Prices,
    byte_count,
    divide_forward,
    in_time,
    with_parts,
)
from weft.ptir.slots import Slot, read_slots, slot_type, slots_of
from weft.ptir.types import TensorType, ValueType

RULE = "recompute"
_FARTHEST: Final = 1000
"""Instructions among which a value of the backward part is looked for."""


def recompute(
    program: Program,
    results: int,
    parts: Iterable[Collection[int]] = (),
    log: PassLog | None = None,
) -> Program:
    """The program with less to keep between its forward part, which makes the first `results`
    results, and the rest. `parts` are sets of ids of forward instructions of which only what leaves
    the set may be kept. The same program if there is nothing to gain."""
    count = len(program.main.results)
    if not 0 <= results <= count:
        raise UserError(f"the forward part cannot have {results} of {count} results")
    border = _Border(program, results)
    division = border.divided([frozenset(part) for part in parts])
    if not division.again:
        return program
    kept_log = PassLog() if log is None else log
    for instruction in division.again:
        kept_log.fire(RULE, program.place(program.main, instruction))
    return _Rewrite(border, division).program(kept_log)


def kept_bytes(program: Program, results: int) -> int:
    """The bytes of forward values that the backward part reads: what has to be kept between them.
    Parameters, results and constants do not count."""
    border = _Border(program, results)
    free = {*border.at_hand, *border.parameters}
    return sum(byte_count(slot_type(s, border.types)) for s in border.wanted if s not in free)


class _Border:
    """A function seen as a forward and a backward part."""

    def __init__(self, program: Program, results: int) -> None:
        self.program = program
        self.function = program.main
        body = self.function.body
        needed = set(self.function.result_ids[:results])
        for instruction in reversed(body):
            if instruction.id in needed:
                needed.update(instruction.uses)
        self.forward = [i for i in body if i.id in needed]
        self.backward = [i for i in body if i.id not in needed]
        self.types: dict[int, ValueType] = dict(
            zip(self.function.parameter_ids, self.function.parameters, strict=True)
        )
        self.parameters = {slot for i, kind in self.types.items() for slot, _ in slots_of(i, kind)}
        before = {*self.types, *needed}
        self.types.update((i.id, i.output) for i in body)
        self.wanted = {
            slot
            for instruction in self.backward
            for operand in instruction.operands
            for slot in read_slots(operand, self.types)
            if slot[0] in before
        }
        ids = (*self.function.result_ids, *_constants(self.forward))
        self.at_hand = {slot for i in ids for slot, _ in slots_of(i, self.types[i])}
        """Values that take no memory of their own: results, and repeated numbers."""

    def divided(self, parts: Sequence[frozenset[int]]) -> Division:
        prices = Prices(self.program.regions_by_id)
        ids = (*self.function.parameter_ids, *(i.id for i in self.forward))
        forward = Forward(
            {value_id: self.types[value_id] for value_id in ids},
            self.forward,
            dict.fromkeys(self.parameters, 0),
            at_hand=self.at_hand,
        )
        marked = with_parts(forward, parts, self.function.result_ids, prices)
        found = divide_forward(marked, self.wanted, prices)
        return Division([], []) if found is None else found


def _constants(body: Iterable[Instruction]) -> set[int]:
    """The values that are made of literals by instructions that cost nothing."""
    found: set[int] = set()
    for instruction in body:
        if isinstance(instruction.op, FREE) and found.issuperset(instruction.uses):
            found.add(instruction.id)
    return found


@dataclass
class _Rewrite:
    """The body with the instructions that run again in the backward part."""

    border: _Border
    division: Division

    def __post_init__(self) -> None:
        border = self.border
        self.ids = fresh_ids({*border.types})
        self.again = {instruction.id for instruction in self.division.again}
        self.copies: dict[int, int] = {}
        self.barriers: dict[Slot, int] = {}
        self.lines = dict(border.program.locations)
        self.body: list[Instruction] = list(border.forward)
        self.known: set[int] = set()
        """Values that are made of literals, and folded sooner or later."""
        self.last: Operand | None = None
        """The newest value that is computed from parameters."""
        for instruction in border.forward:
            self._note(instruction)
        self.ahead = {*border.function.parameter_ids, *(i.id for i in border.forward)}
        """Values of the forward part. What the backward part makes of these alone tells nothing of
        how far it has come, and may be equal to a forward value."""
        self.so_far: dict[int, tuple[int, Operand]] = {}
        """Values of the backward part that tell how far it has come, numbered as they come."""
        self.readers: dict[int, list[Instruction]] = {}
        for instruction in border.backward:
            for value_id in instruction.uses:
                self.readers.setdefault(value_id, []).append(instruction)
        for instruction in self.division.again:
            for value_id in instruction.uses:
                self.readers.setdefault(value_id, []).append(instruction)

    def program(self, log: PassLog) -> Program:
        border = self.border
        for instruction in in_time(border.backward, self.division.again):
            if instruction.id in self.again:
                self._run_again(instruction)
            else:
                operands = tuple(map(self._copy_of, instruction.operands))
                self.body.append(replace(instruction, operands=operands))
                if not self.ahead.issuperset(instruction.uses):
                    self._note(instruction)
                    self._come_to(instruction)
        before = border.function
        after: Function = with_settled_hints(before, replace(before, body=tuple(self.body)), log)
        others = [f for f in border.program.functions if f.name != before.name]
        return with_bodies(border.program, (after, *others, *border.program.regions), self.lines)

    def _note(self, instruction: Instruction) -> None:
        if self.known.issuperset(instruction.uses) and not instruction.op.random:
            self.known.add(instruction.id)
        else:
            self.last = _first_tensor(instruction) or self.last

    def _come_to(self, instruction: Instruction) -> None:
        value = _first_tensor(instruction)
        if value is not None and instruction.id not in self.known:
            self.so_far[instruction.id] = len(self.so_far), value

    def _run_again(self, instruction: Instruction) -> None:
        waited = self._met_by(instruction) or self.last
        operands = tuple(self._late(operand, waited) for operand in instruction.operands)
        made = self._append(replace(instruction, operands=operands), instruction.id)
        self.copies[instruction.id] = made

    def _append(self, instruction: Instruction, origin: int) -> int:
        """A copy of an instruction under a new id, with the line of what it was made for."""
        value_id = next(self.ids)
        self.body.append(replace(instruction, id=value_id))
        label = self.border.function.label
        line = self.lines.get((label, origin))
        if line is not None:
            self.lines[label, value_id] = line
        return value_id

    def _copy_of(self, operand: Operand) -> Operand:
        """The operand, or the copy of it."""
        if isinstance(operand, TensorLiteral) or operand.id not in self.copies:
            return operand
        copy = self.copies[operand.id]
        return Ref(copy) if isinstance(operand, Ref) else ElementRef(copy, operand.index)

    def _met_by(self, instruction: Instruction) -> Operand | None:
        """The newest value of the backward part that what runs again is computed with: waiting for
        it costs nothing, where waiting for the newest of all would keep kernels apart that read the
        same tensors."""
        newest: tuple[int, Operand] | None = None
        stack, seen = [instruction.id], {instruction.id}
        # Nearest readers first: the value that a copy meets soonest is the one that is there when
        # it is needed.
        while stack and len(seen) < _FARTHEST:
            for reader in self.readers.get(stack.pop(0), ()):
                met = [self.so_far[i] for i in reader.uses if i in self.so_far]
                newest = max([*met, *([newest] if newest else [])], key=_time_met, default=None)
                if not met and reader.id not in seen:
                    seen.add(reader.id)
                    stack.append(reader.id)
        return None if newest is None else newest[1]

    def _late(self, operand: Operand, waited: Operand | None) -> Operand:
        """The operand for an instruction that runs again: a copy, or a kept value behind a
        barrier."""
        if isinstance(operand, TensorLiteral) or operand.id in self.copies:
            return self._copy_of(operand)
        slot = (operand.id, operand.index if isinstance(operand, ElementRef) else None)
        kind = slot_type(slot, self.border.types)
        if not isinstance(kind, TensorType):
            return operand
        if slot not in self.barriers:
            # Where nothing of the backward part tells how far it has come, the barrier waits for
            # its own operand: it still keeps equal instructions from being merged.
            after = operand if waited is None else waited
            waiting = Instruction(0, Barrier(), (operand, after), kind)
            self.barriers[slot] = self._append(waiting, operand.id)
        return Ref(self.barriers[slot])


def _time_met(met: tuple[int, Operand]) -> int:
    return met[0]


def _first_tensor(instruction: Instruction) -> Operand | None:
    """A tensor among the results of an instruction."""
    for slot, kind in slots_of(instruction.id, instruction.output):
        if isinstance(kind, TensorType):
            return Ref(slot[0]) if slot[1] is None else ElementRef(slot[0], slot[1])
    return None
