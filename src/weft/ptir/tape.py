"""A body under construction whose values are terms, for program transformations.

Instructions are typed where they are appended, so that whatever a tape holds verifies. A tape is
filled from three sources: rules emit ops by name, existing instructions are replayed on other
operands, and control flow is appended with regions that were made before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from weft.foundation.errors import InternalError, SpecViolation
from weft.ptir.emitter import Emitter
from weft.ptir.ir import (
    Body,
    ElementRef,
    Function,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
    ValueKey,
)
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.passes.edit import fresh_ids
from weft.ptir.slots import Slot
from weft.ptir.term import Term
from weft.ptir.types import UNKNOWN, Symbol, TensorType, TupleType, ValueType, symbols_of
from weft.ptir.verify import BodyScope, check_type


def empty_program(name: str) -> Program:
    """A program whose entry function has nothing in it yet."""
    return Program(name, (Function(name, (), (), (), ()),), ())


class Workshop:
    """What the bodies of one program under construction share: its regions, symbols and lines."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.regions: dict[int, Region] = dict(program.regions_by_id)
        self.lines: dict[ValueKey, str] = dict(program.locations)
        self.symbols = set(program.function_symbols)
        self._next_region = max(self.regions, default=-1) + 1

    def function_tape(self, function: Function) -> Tape:
        """A tape for a body in which the values of `function` keep their ids."""
        used = {*function.parameter_ids, *(i.id for i in function.body)}
        return Tape(self, used, set())

    def region_tape(self) -> Tape:
        return Tape(self, (), self.symbols)

    def add_region(self, tape: Tape, results: Sequence[Term]) -> Region:
        """The finished region, under a new id."""
        region_id = self._next_region
        self._next_region += 1
        ids = tuple(map(tape.plain_id, results))
        kinds = tuple(tape.types[value_id] for value_id in ids)
        region = Region(region_id, tuple(tape.parameters), tuple(tape.body), kinds, ids)
        self.regions[region_id] = region
        self._note(region, tape)
        return region

    def adopted(self, program: Program) -> dict[int, int]:
        """The regions of another program, under new ids: from its ids to those here."""
        rename = {region.id: self._next_region + at for at, region in enumerate(program.regions)}
        self._next_region += len(rename)
        for region in program.regions:
            body = tuple(replace(i, op=i.op.with_regions(rename)) for i in region.body)
            self.regions[rename[region.id]] = replace(region, id=rename[region.id], body=body)
        return rename

    def finished(self, tape: Tape, results: Sequence[Term]) -> Program:
        """The program with this tape as its entry function."""
        main = self.program.main
        result_ids = tuple(map(tape.plain_id, results))
        function = Function(
            main.name,
            tuple(tape.parameters),
            tuple(tape.parameter_ids),
            tuple(tape.types[value_id] for value_id in result_ids),
            tuple(tape.body),
            main.hints,
            result_ids,
        )
        self._note(function, tape)
        others = tuple(f for f in self.program.functions if f.name != main.name)
        regions = tuple(self.regions[region_id] for region_id in sorted(self.regions))
        return Program(main.name, (function, *others), regions, self.lines)

    def _note(self, body: Body, tape: Tape) -> None:
        self.lines.update({(body.label, value_id): line for value_id, line in tape.lines.items()})

    def line(self, body: Body, instruction: Instruction) -> str:
        return self.program.locations.get((body.label, instruction.id), "")


class Tape(Emitter):
    """One body being written."""

    def __init__(self, shop: Workshop, used: Collection[int], bound: Iterable[Symbol]) -> None:
        super().__init__()
        self.shop = shop
        self.scope = BodyScope(shop.regions, set(bound))
        self.parameters: list[ValueType] = []
        self.parameter_ids: list[int] = []
        self.body: list[Instruction] = []
        self.types: dict[int, ValueType] = {}
        self.line = ""
        """The user's line that new instructions belong to."""
        self.lines: dict[int, str] = {}
        self._ids = fresh_ids(used)

    # -- values ----------------------------------------------------------------------------------

    def parameter(self, kind: ValueType, value_id: int | None = None) -> Term:
        self.parameters.append(kind)
        self.parameter_ids.append(next(self._ids) if value_id is None else value_id)
        return self._define_value(kind, self.parameter_ids[-1])

    def _define_value(self, kind: ValueType, value_id: int) -> Term:
        self.types[value_id] = kind
        self.scope.bound.update(symbols_of(kind))
        return self.term(Ref(value_id), kind)

    def value(self, value_id: int) -> Term:
        """A parameter or what an instruction made, by its id."""
        return self.term(Ref(value_id), self.types[value_id])

    def zeros(self, kind: ValueType) -> Term:
        if isinstance(kind, TupleType):
            raise InternalError(f"there are no zeros of the tuple type {kind}")
        return self.literal(0, kind.dtype).broadcast_to(kind.shape)

    def plain_id(self, term: Term) -> int:
        """The id of a value that can be returned: elements of tuples and literals are copied."""
        operand = self.operand(term)
        if isinstance(operand, Ref):
            return operand.id
        if isinstance(operand, TensorLiteral):
            copy = self.append(Constant(operand), [])
        else:
            copy = self.append(BroadcastTo(term.shape), [term])
        return self.plain_id(copy)

    # -- instructions ----------------------------------------------------------------------------

    def append(
        self,
        op: Op,
        operands: Sequence[Term],
        output: ValueType | None = None,
        value_id: int | None = None,
    ) -> Term:
        """An op on these operands; `output` gives names to dims that cannot be inferred."""
        if output is None:
            output = op.result_type([term.type for term in operands], self.scope)
            if UNKNOWN in symbols_of(output):
                raise SpecViolation(
                    "DynamicDimensionMismatch",
                    f"{op.mnemonic} would give {output}, whose dims have no name",
                )
            check_type(output)
        if value_id is None:
            value_id = next(self._ids)
        made = Instruction(value_id, op, tuple(map(self.operand, operands)), output)
        self.body.append(made)
        if self.line:
            self.lines[value_id] = self.line
        return self._define_value(output, value_id)

    def tuple_of(self, terms: Sequence[Term]) -> Term:
        """Several values as one."""
        return self.append(MakeTuple(), terms, TupleType(tuple(term.type for term in terms)))


class Environment:
    """The values of a body that is read, as terms of the tape that is written.

    A tuple may exist as its elements only; it is put together where it is used as a whole.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._whole: dict[int, Term] = {}
        self._parts: dict[Slot, Term] = {}
        self._arity: dict[int, int] = {}

    def define(self, value_id: int, term: Term) -> None:
        self._whole[value_id] = term

    def define_parts(self, value_id: int, terms: Sequence[Term]) -> None:
        """A tuple by its elements."""
        self._arity[value_id] = len(terms)
        self._parts.update({(value_id, index): term for index, term in enumerate(terms)})

    def define_slots(self, slots: Mapping[Slot, Term], types: Mapping[int, ValueType]) -> None:
        """Values slot by slot, and of some tuples perhaps not every element."""
        for (value_id, index), term in slots.items():
            kind = types[value_id]
            if index is None or not isinstance(kind, TupleType):
                self._whole[value_id] = term
            else:
                self._arity[value_id] = len(kind.elements)
                self._parts[value_id, index] = term

    def slot(self, slot: Slot) -> Term:
        value_id, index = slot
        if index is None:
            return self.whole(value_id)
        part = self._parts.get(slot)
        return self._whole[value_id][index] if part is None else part

    def whole(self, value_id: int) -> Term:
        if value_id not in self._whole:
            parts = [self._parts[value_id, index] for index in range(self._arity[value_id])]
            self._whole[value_id] = self.tape.tuple_of(parts)
        return self._whole[value_id]

    def __getitem__(self, operand: Operand) -> Term:
        if isinstance(operand, TensorLiteral):
            return self.tape.constant(operand)
        if isinstance(operand, ElementRef):
            return self.slot((operand.id, operand.index))
        return self.whole(operand.id)

    def operands(self, instruction: Instruction) -> tuple[Term, ...]:
        return tuple(self[operand] for operand in instruction.operands)

    def replay(self, instruction: Instruction, *, same_id: bool = False) -> Term:
        """The instruction as it is on the operands of now."""
        made = self.tape.append(
            instruction.op,
            self.operands(instruction),
            instruction.output,
            instruction.id if same_id else None,
        )
        self.define(instruction.id, made)
        return made


def elements(term: Term) -> tuple[Term, ...]:
    """The tensors of a value: itself, or the elements of a tuple."""
    if isinstance(term.type, TensorType):
        return (term,)
    return tuple(term[index] for index in range(len(term.type.elements)))
