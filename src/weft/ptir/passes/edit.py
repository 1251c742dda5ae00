"""Editing a body: what every pass that changes instructions has to respect.

A pass walks a body front to back with an `Editor`: it keeps an instruction, puts others before it,
or forwards its value to another operand, which all later uses then read. Invariants, which `Editor`
and `edit_bodies` hold for every pass:

- a value that is forwarded and the operand that takes its place have exactly the same type;
- the results of a function or region stay plain values; a region with a tuple among its results
  keeps them all, because the wire can only return a tuple as the last instruction;
- the instructions of a `Required` hint are left alone, the values it reads stay, and nothing
  outside starts to read a value that it does not export;
- any other hint is kept if its instructions are all still there, and else dropped with a note;
- a new instruction has the line of the one it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.lines import Place
from weft.ptir.emitter import Emitter
from weft.ptir.ir import (
    Body,
    ElementRef,
    Function,
    HintPolicy,
    HintRegion,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
    ValueKey,
    operand_type,
)
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.passes.log import PassLog
from weft.ptir.term import Term
from weft.ptir.types import UNKNOWN, Symbol, TupleType, ValueType, symbols_of
from weft.ptir.verify import U32_MAX, BodyScope

Lines = dict[ValueKey, str]


@dataclass(frozen=True)
class Protected:
    """What a pass must leave alone in one body."""

    fixed: frozenset[int]
    """Instructions that may not change: those of Required hints."""
    pinned: frozenset[int]
    """Values that must stay a value of their own."""
    private: frozenset[int]
    """Values inside a Required hint that it does not export."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing that a pass must leave alone."""
        return not (self.fixed or self.pinned or self.private)


def protected(body: Body) -> Protected:
    """The protection that the hints and the results of a body ask for."""
    hints = [h for h in getattr(body, "hints", ()) if h.policy is HintPolicy.REQUIRED]
    fixed = {instruction.id for hint in hints for instruction in hint.body}
    exported = {value_id for hint in hints for value_id in hint.exports}
    pinned = fixed | {value_id for hint in hints for value_id in hint.inputs}
    if _returns_tuple(body):
        pinned |= set(body.result_ids)
    return Protected(frozenset(fixed), frozenset(pinned), frozenset(fixed - exported))


def _returns_tuple(body: Body) -> bool:
    """Whether it is a region that returns a tuple, which it must do with its last instructions."""
    return isinstance(body, Region) and any(isinstance(kind, TupleType) for kind in body.results)


def _results_last(body: Body) -> Body:
    """The results after everything else, where nothing else reads them."""
    results = {i.id: i for i in body.body if i.id in body.result_ids}
    others = tuple(i for i in body.body if i.id not in results)
    if any(use in results for i in others for use in i.uses) or len(results) < len(body.results):
        return body
    last = tuple(results[value_id] for value_id in body.result_ids)
    if any(use in results for i in last for use in i.uses):
        return body
    return replace(body, body=others + last)


def fresh_ids(used: Collection[int]) -> Iterator[int]:
    """Ids of new values: above all others while there is room, then in the gaps."""
    top = max(used, default=-1) + 1
    yield from range(top, U32_MAX + 1)
    yield from (value_id for value_id in range(top) if value_id not in used)


class Editor:
    """One body being rebuilt from front to back."""

    def __init__(self, program: Program, body: Body, lines: Lines, outer: Set[Symbol]) -> None:
        self.program = program
        self.body = body
        self.lines = lines
        self.protected = protected(body)
        self.results = frozenset(body.result_ids)
        self.types: dict[int, ValueType] = dict(
            zip(body.parameter_ids, body.parameters, strict=True)
        )
        bound = {symbol for kind in body.parameters for symbol in symbols_of(kind)}
        self.scope = BodyScope(
            program.regions_by_id, bound | outer if isinstance(body, Region) else bound
        )
        self.definitions: dict[int, Instruction] = {}
        self.forwards: dict[int, Operand] = {}
        self.parts: dict[int, tuple[Operand, ...]] = {}
        """Tuples whose elements are read elsewhere."""
        self.ids = fresh_ids({*self.types, *(i.id for i in body.body)})
        self._made: list[Instruction] = []

    # -- looking ---------------------------------------------------------------------------------

    def type_of(self, operand: Operand) -> ValueType:
        return operand_type(operand, self.types)

    def place(self, instruction: Instruction) -> str:
        """The instruction with the user's line."""
        return self.program.place(self.body, instruction)

    def resolved(self, instruction: Instruction) -> Instruction:
        """The instruction with its operands read through the forwards so far."""
        if instruction.id in self.protected.fixed or not (self.forwards or self.parts):
            return instruction
        for operand in instruction.operands:
            if not isinstance(operand, TensorLiteral) and (
                operand.id in self.forwards or operand.id in self.parts
            ):
                break
        else:
            return instruction
        operands = tuple(self.resolve(operand) for operand in instruction.operands)
        if all(a is b for a, b in zip(operands, instruction.operands, strict=True)):
            return instruction
        return replace(instruction, operands=operands)

    def resolve(self, operand: Operand) -> Operand:
        """The operand read through the forwards so far."""
        if isinstance(operand, ElementRef) and operand.id in self.parts:
            return self.parts[operand.id][operand.index]
        if isinstance(operand, TensorLiteral) or operand.id not in self.forwards:
            return operand
        target = self.forwards[operand.id]
        if isinstance(operand, Ref):
            return target
        if not isinstance(target, Ref):
            raise InternalError(f"the tuple %{operand.id} was forwarded to {target}")
        return ElementRef(target.id, operand.index)

    def may_read(self, reader: Instruction, operands: Iterable[Operand]) -> bool:
        """Whether `reader` may read these: it must not be the first to look into a hint."""
        private = self.protected.private
        if not private or reader.id in self.protected.fixed:
            return True
        found = {o.id for o in operands if not isinstance(o, TensorLiteral)} & private
        return found <= set(reader.uses)

    def may_forward(self, instruction: Instruction, target: Operand) -> bool:
        """Whether every use of the instruction may read `target` instead."""
        if instruction.id in self.protected.pinned:
            return False
        if not isinstance(target, Ref) and (
            instruction.id in self.results or isinstance(instruction.output, TupleType)
        ):
            return False
        if not isinstance(target, TensorLiteral) and target.id in self.protected.private:
            return False
        return self.type_of(target) == instruction.output

    # -- changing --------------------------------------------------------------------------------

    def make(self, op: Op, operands: tuple[Operand, ...]) -> Instruction:
        """A new instruction of the inferred type. It joins the body only when it is kept."""
        output = op.result_type([self.type_of(operand) for operand in operands], self.scope)
        if UNKNOWN in symbols_of(output):
            raise SpecViolation(
                "DynamicDimensionMismatch",
                f"{op.mnemonic} would give {output}, whose dims have no name",
            )
        made = Instruction(next(self.ids), op, operands, output)
        self.types[made.id] = output
        return made

    def unmake(self, made: Iterable[Instruction]) -> None:
        """Forget instructions that were made and not kept."""
        for instruction in made:
            del self.types[instruction.id]

    def keep(self, instruction: Instruction) -> None:
        """Append an instruction as it is."""
        self._made.append(instruction)
        self.definitions[instruction.id] = instruction
        self.types[instruction.id] = instruction.output
        if symbols := symbols_of(instruction.output):
            self.scope.bound.update(symbols)

    def forward(self, instruction: Instruction, target: Operand) -> None:
        """Leave the instruction out and let its uses read `target`."""
        self.forwards[instruction.id] = target

    def forward_parts(self, instruction: Instruction, targets: tuple[Operand, ...]) -> None:
        """Let the uses of each element of a tuple read its target."""
        self.parts[instruction.id] = targets

    def is_whole(self, value_id: int) -> bool:
        """Whether a tuple is used as a whole: returned, handed on, or read by a Required hint."""
        return value_id in self._whole

    @cached_property
    def _whole(self) -> frozenset[int]:
        handed = {o.id for i in self.body.body for o in i.operands if isinstance(o, Ref)}
        return frozenset(handed | self.results | self.protected.pinned)

    def inherit(self, new_id: int, old_id: int) -> None:
        """Give a new value the line of the one it was made for."""
        line = self.lines.get((self.body.label, old_id))
        if line is not None:
            self.lines[self.body.label, new_id] = line

    def gather(self, value_id: int, others: Iterable[int]) -> None:
        """Let a value that stands for others lead to their lines besides its own."""
        line, label = self.lines.get((self.body.label, value_id)), self.body.label
        if isinstance(line, Place):
            found = [self.lines.get((label, other)) for other in sorted(others)]
            self.lines[label, value_id] = line.with_beside(found)

    def rebuilt(self) -> Body:
        """The body as it is now; hints are those of before."""
        ids = tuple(self._result(value_id) for value_id in self.body.result_ids)
        made = replace(self.body, body=tuple(self._made), result_ids=ids)
        return _results_last(made) if _returns_tuple(made) else made

    def _result(self, value_id: int) -> int:
        target = self.forwards.get(value_id, Ref(value_id))
        if not isinstance(target, Ref):
            raise InternalError(f"the result %{value_id} was forwarded to {target}")
        return target.id


def edit_bodies(
    program: Program,
    edit: Callable[[Editor], bool],
    log: PassLog,
    settle: Callable[[Function, Function, PassLog], Function] | None = None,
) -> Program:
    """Rebuild every body; `edit` says whether it changed anything. Unchanged: the same program.

    `settle(before, after, log)` decides which hints stay; the default is `with_settled_hints`.
    """
    lines: Lines = dict(program.locations)
    known = replace(program, locations=lines)
    # Regions alone may use them.
    outer = program.function_symbols if program.regions else frozenset()
    bodies: list[Body] = []
    changed = False
    for body in program.bodies:
        editor = Editor(known, body, lines, outer)
        if not edit(editor):
            bodies.append(body)
            continue
        changed = True
        after = editor.rebuilt()
        if isinstance(body, Function) and isinstance(after, Function):
            after = (settle or with_settled_hints)(body, after, log)
        bodies.append(after)
    return with_bodies(program, bodies, lines) if changed else program


def with_bodies(program: Program, bodies: Iterable[Body], lines: Mapping[ValueKey, str]) -> Program:
    """The program with other bodies; what is known of values that are gone is dropped."""
    found = list(bodies)
    alive = {(body.label, i.id) for body in found for i in body.body}
    return replace(
        program,
        functions=tuple(body for body in found if isinstance(body, Function)),
        regions=tuple(body for body in found if isinstance(body, Region)),
        locations={key: line for key, line in lines.items() if key in alive},
        call_fields={key: fields for key, fields in program.call_fields.items() if key in alive},
    )


# -- hints ---------------------------------------------------------------------------------------


def with_settled_hints(before: Function, after: Function, log: PassLog) -> Function:
    """`after` with those hints of `before` that still hold; the others are noted."""
    if not before.hints:
        return after
    bodies = {instruction.id: instruction for instruction in after.body}
    was, now = _readers(before), _readers(after)
    kept = []
    for hint in before.hints:
        problem = _why_changed(hint, bodies) or _why_opened(hint, was, now)
        if not problem:
            kept.append(hint)
        # `Editor` refuses all changes that could break one: that it is broken is a fault of ours.
        elif hint.policy is HintPolicy.REQUIRED:
            raise InternalError(f"a pass broke the Required hint {hint.id}: {problem}")
        else:
            log.note(dropped(hint, before, problem))
    return replace(after, hints=tuple(kept))


def dropped(hint: HintRegion, function: Function, problem: str) -> str:
    """The note about a hint that could not be kept."""
    return f"hint {hint.id} ({hint.kind}, {hint.policy}) of {function.label} dropped: {problem}"


def _why_changed(hint: HintRegion, body: Mapping[int, Instruction]) -> str:
    for instruction in hint.body:
        found = body.get(instruction.id)
        if found is None:
            return f"{instruction.summary} is gone"
        if found != instruction:
            return f"{instruction.summary} is now {found.summary}"
    return ""


def _why_opened(hint: HintRegion, was: Mapping[int, set[int]], now: Mapping[int, set[int]]) -> str:
    inside = {instruction.id for instruction in hint.body}
    for value_id in sorted(inside - set(hint.exports)):
        if now.get(value_id, set()) - inside and not was.get(value_id, set()) - inside:
            return f"%{value_id} is now read outside it"
    return ""


RESULT = -1


def _readers(function: Function) -> dict[int, set[int]]:
    """For every value the instructions that read it; `RESULT` stands for the function's results."""
    readers: dict[int, set[int]] = {value_id: {RESULT} for value_id in function.result_ids}
    for instruction in function.body:
        for value_id in instruction.uses:
            readers.setdefault(value_id, set()).add(instruction.id)
    return readers


class Replacement(Emitter):
    """Makes instructions that join the body of an editor only when they are kept."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.editor = editor
        self.made: list[Instruction] = []

    def terms(self, operands: Iterable[Operand]) -> list[Term]:
        """Operands of the body as terms."""
        return [self.term(operand, self.editor.type_of(operand)) for operand in operands]

    def append(self, op: Op, operands: Sequence[Term]) -> Term:
        made = self.editor.make(op, tuple(map(self.operand, operands)))
        self.made.append(made)
        return self.term(Ref(made.id), made.output)
