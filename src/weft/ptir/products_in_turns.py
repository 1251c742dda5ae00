"""Products too large to store (such as the logits of a large vocabulary), computed and used in
chunks of rows.

    logits = x @ w.T                       scan over groups of rows of x and the targets:
    loss = cross_entropy(logits, y)   ->       the rows' logits, their losses, their slopes,
    dx, dw = slopes @ w, slopes.T @ x          rows of dx; dw is added up

Nothing here knows losses. A product is made in turns where all that reads it, and what is made of
it element by element, are numbers of rows and the products of its own gradient: then a turn needs
its rows alone, and what is left over are rows again, or sums over all turns. How ops do with rows
is said by the rules of splitting (`weft.ptir.splitting`), with turns for the ranks of a mesh.

Sums over the turns are kept in the dtype that they are added up in.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import prod

from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation
from weft.foundation.numeric import accumulator_dtype, dot_accumulator_dtype
from weft.ptir.ir import ElementRef, Function, HintPolicy, Instruction, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.control import Scan
from weft.ptir.ops.elementwise import Cast
from weft.ptir.ops.movement import Reshape, Transpose
from weft.ptir.ops.reduction import Reduce
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.passes.edit import with_settled_hints
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.slots import Slot
from weft.ptir.splitting.loop_turns import TURN, Turn, slot_operand
from weft.ptir.splitting.resharding import Part
from weft.ptir.splitting.rules import NotSplit, Splitting, splits
from weft.ptir.tape import Environment, Tape, Workshop, elements
from weft.ptir.term import Term
from weft.ptir.types import TensorType, ValueType

RULE = "in turns"
_FARTHEST = 4
"""How many times as many turns as are wanted, or as few, there may be."""
_MOST_PRODUCTS = 16
"""How many large products of a program are looked at."""


@dataclass(frozen=True)
class TurnSizes:
    """What is made in turns, and how much a turn has of it."""

    least: int
    """Bytes of a product that is worth it."""
    piece: int
    """Bytes of it that a turn makes."""
    summing: int
    """Rows of a turn, at least, where a sum as large as a factor is carried: it is read and written
    in every turn."""


def in_turns(program: Program, sizes: TurnSizes, log: PassLog | None = None) -> Program:
    """The program with large products made in turns where that can be. The program has no dynamic
    dims and no composite ops."""
    told = PassLog() if log is None else log
    source, known = program, None
    for value_id in list(islice(_large_products(program, sizes), _MOST_PRODUCTS)):
        seed = program.main.instructions_by_id.get(value_id)
        if known is None or known.program is not program:
            known = _Known(program)
        found = None if seed is None else _find_loop(known, seed, sizes)
        if found is not None:
            told.fire(RULE, program.place(program.main, found.seed))
            program = _Writing(known, found).program(told)
    return program if program is source else dce(cse(program, told), told)


def _large_products(program: Program, sizes: TurnSizes) -> Iterator[int]:
    main = program.main
    if any(hint.policy is HintPolicy.REQUIRED for hint in main.hints):
        return
    for instruction in main.body:
        op, kind = instruction.op, instruction.output
        if isinstance(op, DotGeneral) and not op.batch_lhs and isinstance(kind, TensorType):
            plain = all(isinstance(operand, Ref) for operand in instruction.operands)
            if plain and kind.is_static and kind.bytes >= sizes.least:
                yield instruction.id


# -- what a turn does ----------------------------------------------------------------------------


@dataclass
class _Loop:
    """A product and what is made of it, as one turn makes it."""

    seed: Instruction
    turn: Turn
    parts: dict[int, Part] = field(default_factory=dict)
    """What a turn makes of values; of a sum over all turns what it adds."""
    inside: set[int] = field(default_factory=set)
    """Values that are made nowhere else."""
    left: list[int] = field(default_factory=list)
    """Those among them that are read after the loop."""

    @property
    def sums(self) -> list[int]:
        return [value_id for value_id in self.left if self.parts[value_id].pending]

    @property
    def stacked(self) -> list[int]:
        return [value_id for value_id in self.left if not self.parts[value_id].pending]


def _find_loop(known: _Known, seed: Instruction, sizes: TurnSizes) -> _Loop | None:
    """The loop of a product; None where it cannot be made in turns, or it would not pay."""
    kind = seed.output
    assert isinstance(kind, TensorType)
    for axis, size in enumerate(kind.static_shape):
        walk = _Walk(known, seed, axis, _choose_turns(size, kind.bytes / sizes.piece))
        loop = walk.loop()
        if loop is not None and loop.sums:
            loop = _Walk(known, seed, axis, _choose_turns(size, walk.rows / sizes.summing)).loop()
        if loop is not None and _saves(loop, kind):
            return loop
    return None


def _choose_turns(size: int, wanted: float) -> int:
    """In how many turns an axis is gone through: a divisor of its size, which is not far from what
    is wanted; 1 where it has none."""
    divisors = [n for n in range(2, size + 1) if size % n == 0]
    # Turns are all of one size: a loop has one body.
    most = _FARTHEST * max(wanted, 1.0)
    enough = [n for n in divisors if wanted <= n <= most]
    fewer = [n for n in divisors if wanted / _FARTHEST <= n < wanted]
    return min(enough) if enough else max(fewer, default=1)


def _saves(loop: _Loop, kind: TensorType) -> bool:
    """Whether what is carried takes much less memory than the product."""
    kept = sum(loop.parts[value_id].term.tensor.bytes for value_id in loop.sums)
    return kept <= kind.bytes // 2


class _Known:
    """What walks through a program ask of it, whatever product they begin at."""

    def __init__(self, program: Program) -> None:
        self.program, main = program, program.main
        self.types: dict[int, ValueType] = dict(
            zip(main.parameter_ids, main.parameters, strict=True)
        ) | {i.id: i.output for i in main.body}
        self.reads = {i.id: _values_read(i) for i in main.body}

    @cached_property
    def origins(self) -> dict[int, int]:
        return _origins(self.program.main)

    def after(self, seed: Instruction) -> set[int]:
        """What is made of a value."""
        found = {seed.id}
        for value_id, read in self.reads.items():
            if not found.isdisjoint(read):
                found.add(value_id)
        return found - {seed.id}

    def before(self, ends: Iterable[int]) -> set[int]:
        """Values, and what they are made of."""
        found = {*ends}
        for value_id, read in reversed(self.reads.items()):
            if value_id in found:
                found.update(read)
        return found


class _Walk:
    """What is made of a product, instruction by instruction, written as one turn."""

    def __init__(self, known: _Known, seed: Instruction, axis: int, count: int) -> None:
        self.known, self.program, self.main = known, known.program, known.program.main
        self.seed, self.axis, self.types = seed, axis, known.types
        kind = seed.output
        assert isinstance(kind, TensorType)
        self.makers = self.main.instructions_by_id
        self.shop = Workshop(self.program)
        tape = Tape(self.shop, (), ())
        self.turn = Turn(tape, count, self.types, self.makers, prod(kind.static_shape) // 2)
        self.parts: dict[int, Part] = {}
        self.after = known.after(seed)
        self.origins = known.origins
        self.factors = {self.origins[operand.id] for operand in _refs(seed)}

    @property
    def rows(self) -> int:
        """How many rows the product has, if those are rows that the axis is part of."""
        op, kind = self.seed.op, self.seed.output
        lhs = self.types[_refs(self.seed)[0].id]
        assert isinstance(op, DotGeneral)
        assert isinstance(kind, TensorType)
        assert isinstance(lhs, TensorType)
        first, shape = lhs.rank - len(op.contract_lhs), kind.static_shape
        return prod(shape[:first] if self.axis < first else shape[first:])

    def loop(self) -> _Loop | None:
        if self.turn.turns < 2:
            return None
        for instruction in self._made_of_product():
            try:
                self._instruction(instruction)
            except (NotSplit, SpecViolation):
                if instruction is self.seed:
                    return None
        large = set(filter(self._is_large, self.parts))
        reads = self.known.reads
        readers = [i for i in self.main.body if not large.isdisjoint(reads[i.id])]
        if any(i.id not in self.parts for i in readers) or large & {*self.main.result_ids}:
            return None
        ends = [self.seed.id, *(i.id for i in readers)]
        inside = self.known.before(ends) & self.parts.keys()
        outer = [i for i in self.main.body if i.id not in inside]
        read = {use for i in outer for use in reads[i.id]} | {*self.main.result_ids}
        left = [i.id for i in self.main.body if i.id in inside and i.id in read]
        if not left or not large <= inside or not large.isdisjoint(left):
            return None
        if not all(map(self._lies_together, left)):
            return None
        return _Loop(self.seed, self.turn, self.parts, inside, left)

    def _made_of_product(self) -> list[Instruction]:
        """What is made of the product and leads to something that reads a large tensor."""
        made = {self.seed.id, *self.after}
        large = {n for n in made if isinstance(k := self.types[n], TensorType) and self._size(k)}
        reads = self.known.reads
        ends = [i.id for i in self.main.body if i.id in made and not large.isdisjoint(reads[i.id])]
        leading = self.known.before([*ends, self.seed.id])
        return [i for i in self.main.body if i.id in made and i.id in leading]

    def _size(self, kind: TensorType) -> bool:
        return self.turn.is_large(kind)

    def _is_large(self, value_id: int) -> bool:
        """Whether a value is large, and a turn has rows of it."""
        kind, part = self.types[value_id], self.parts.get(value_id)
        rows = part is not None and any(part.layout)
        return rows and isinstance(kind, TensorType) and self._size(kind)

    def _lies_together(self, value_id: int) -> bool:
        """Whether the rows of a turn are a piece of the whole, and may be stored."""
        part, kind = self.parts[value_id], self.types[value_id]
        if part.pending:
            return True
        assert isinstance(kind, TensorType)
        axis = next(d for d, axes in enumerate(part.layout) if axes)
        return prod(kind.static_shape[:axis]) == 1

    # -- one instruction -------------------------------------------------------------------------

    def _instruction(self, instruction: Instruction) -> None:
        tape, kind = self.turn.tape, instruction.output
        tape.line = self.program.line(self.main, instruction)
        if not isinstance(kind, TensorType) or instruction.op.random or instruction.op.regions:
            raise NotSplit("there is no rule for it")
        if instruction is self.seed:
            self.parts[instruction.id] = self._product(kind)
            return
        if isinstance(instruction.op, DotGeneral):
            self._check_gradient(instruction)
        parts = tuple(map(self._part, instruction.operands))
        found = self._by_rule(instruction.op, parts, kind)
        if found.pending:
            op, dtype = _added_up(instruction.op, parts[0].term.dtype)
            # A part of a sum that is rounded in every turn would lose what later turns add.
            found = self._by_rule(op, parts, kind.with_dtype(dtype))
        elif not any(found.layout):
            raise NotSplit("it is the same in all turns")
        self.parts[instruction.id] = found

    def _by_rule(self, op: Op, parts: tuple[Part, ...], kind: TensorType) -> Part:
        rule = splits.of(op)
        if rule is None:
            raise NotSplit("there is no rule for it")
        return rule(Splitting(self.turn, op, parts, kind, self.turn.tape.line))

    def _product(self, kind: TensorType) -> Part:
        """The product itself, with rows of the operand that has them."""
        op = self.seed.op
        assert isinstance(op, DotGeneral)
        sides = [self.turn.outside(operand) for operand in self.seed.operands]
        free = [
            (side, d)
            for side, gone in enumerate((op.contract_lhs, op.contract_rhs))
            for d in range(sides[side].term.rank)
            if d not in gone
        ]
        side, d = free[self.axis]
        layout = tuple((TURN,) if at == d else () for at in range(sides[side].term.rank))
        sides[side] = Part(self.turn.cut(sides[side].term, {d: (TURN,)}), layout)
        return self._by_rule(op, tuple(sides), kind)

    def _part(self, operand: object) -> Part:
        """An operand as a turn has it."""
        if isinstance(operand, Ref) and operand.id in self.parts:
            return self.turn.settled(self.parts[operand.id])
        value_id = getattr(operand, "id", None)
        if value_id in self.after or value_id == self.seed.id:
            raise NotSplit("it needs what all turns make")
        return self.turn.outside(operand)  # type: ignore[arg-type]

    def _check_gradient(self, instruction: Instruction) -> None:
        """Products of large tensors are those of the gradient: with the factors of the product."""
        others = [o for o in _refs(instruction) if not self._is_large(o.id)]
        if len(others) != 1 or self.origins[others[0].id] not in self.factors:
            raise NotSplit("it is not a product of the gradient")


def _refs(instruction: Instruction) -> list[Ref]:
    return [operand for operand in instruction.operands if isinstance(operand, Ref)]


def _origins(main: Function) -> dict[int, int]:
    """For each value the first one that it is, but for moved axes, other dtypes and the time when
    it is made: factors may be made once more on the way back."""
    found = {value_id: value_id for value_id in main.parameter_ids}
    known: dict[Hashable, int] = {}
    for instruction in main.body:
        uses, op = tuple(instruction.uses), instruction.op
        if isinstance(op, Transpose | Reshape | Cast | Barrier) and uses:
            found[instruction.id] = found[uses[0]]
        elif op.random or op.regions:
            found[instruction.id] = instruction.id
        else:
            operands = tuple(_rename_operand(operand, found) for operand in instruction.operands)
            found[instruction.id] = known.setdefault((op.same_key, operands), instruction.id)
    return found


def _rename_operand(operand: Operand, names: Mapping[int, int]) -> Hashable:
    match operand:
        case Ref():
            return names[operand.id]
        case ElementRef():
            return names[operand.id], operand.index
        case _:
            return operand


def _values_read(instruction: Instruction) -> list[int]:
    """The values that an instruction reads, and does not only wait for."""
    uses = instruction.uses
    return uses[:1] if isinstance(instruction.op, Barrier) else uses


def _added_up(op: Op, dtype: DType) -> tuple[Op, DType]:
    """A sum whose result is what it is added up in, and that."""
    if not isinstance(op, DotGeneral | Reduce):
        raise NotSplit("it is not a sum that turns add to")
    usual = dot_accumulator_dtype if isinstance(op, DotGeneral) else accumulator_dtype
    wide = op.accum_dtype or usual(dtype)
    if (wide.is_float and wide.bits < 32) or not (wide.is_float or wide.is_integer):
        raise NotSplit("its additions are rounded one after the other")
    return replace(op, accum_dtype=wide, out_dtype=wide), wide


# -- the program ---------------------------------------------------------------------------------


class _Writing:
    """The program with a loop in it."""

    def __init__(self, known: _Known, loop: _Loop) -> None:
        self.known, self.source, self.loop = known, known.program, loop
        self.shop = Workshop(self.source)
        self.tape = self.shop.function_tape(self.source.main)
        self.late: set[int] = set()
        """What comes after the loop."""
        self.environment = Environment(self.tape)

    def program(self, log: PassLog) -> Program:
        main, inside = self.source.main, self.loop.inside
        for value_id, kind in zip(main.parameter_ids, main.parameters, strict=True):
            self.environment.define(value_id, self.tape.parameter(kind, value_id))
        self.late = set(inside)
        for instruction in main.body:
            if not self.late.isdisjoint(instruction.uses):
                self.late.add(instruction.id)
        body = _Body(self.shop, self.loop)
        needed = self.known.before([value_id for value_id, _ in (*body.given, *body.pieces)])
        end = max(n for n, i in enumerate(main.body) if i.id in inside)
        first = [n for n, i in enumerate(main.body) if n < end and i.id not in self.late]
        early = {*first, *(n for n, i in enumerate(main.body) if i.id in needed)}
        for number in sorted(early):
            self._replay(main.body[number])
        self._scan(body)
        self.late = set()
        for value_id in inside.difference(self.loop.left):
            # Barriers may wait for it: they do so for the loop.
            self._define(value_id, self.environment[Ref(self.loop.left[0])])
        for number, instruction in enumerate(main.body):
            if number not in early and instruction.id not in inside:
                self._replay(instruction)
        results = [self.environment[Ref(value_id)] for value_id in main.result_ids]
        made = self.shop.finished(self.tape, results)
        function = with_settled_hints(main, replace(made.main, hints=()), log)
        before = self.source
        return replace(before, locations=made.locations, regions=made.regions).with_main(function)

    def _replay(self, instruction: Instruction) -> None:
        self.tape.line = self.shop.line(self.source.main, instruction)
        if isinstance(instruction.op, Barrier) and not self.late.isdisjoint(instruction.uses):
            # The loop needs it, so it cannot wait for what the loop makes.
            self.environment.define(instruction.id, self.environment[instruction.operands[0]])
        else:
            self.environment.replay(instruction, same_id=True)

    def _scan(self, body: _Body) -> None:
        loop, turn = self.loop, self.loop.turn
        self.tape.line = self.shop.line(self.source.main, loop.seed)
        region = self.shop.add_region(*body.written())
        zeros = [self.tape.zeros(loop.parts[value_id].term.tensor) for value_id in loop.sums]
        given = [self._read_slot(slot) for slot in body.given]
        rows = [self._in_rows(self._read_slot(slot), turn.pieces[slot]) for slot in body.pieces]
        op = Scan(region.id, len(zeros) + len(given), len(loop.stacked))
        made = elements(self.tape.append(op, [*zeros, *given, *rows]))
        for value_id, total in zip(loop.sums, made, strict=False):
            self._define(value_id, total.cast(self._kind(value_id).dtype))
        for value_id, stack in zip(loop.stacked, made[op.carry_count :], strict=True):
            self._define(value_id, stack.reshape(self._kind(value_id).static_shape))

    def _define(self, value_id: int, term: Term) -> None:
        self.environment.define(value_id, term)

    def _kind(self, value_id: int) -> TensorType:
        kind = self.source.main.instructions_by_id[value_id].output
        assert isinstance(kind, TensorType)
        return kind

    def _read_slot(self, slot: Slot) -> Term:
        return self.environment[slot_operand(slot)]

    def _in_rows(self, whole: Term, piece: Term) -> Term:
        """A tensor with the turns along an axis of their own."""
        return whole.reshape((self.loop.turn.turns, *piece.tensor.static_shape))


class _Body:
    """The region of a loop: what its turn writes, and is read."""

    def __init__(self, shop: Workshop, loop: _Loop) -> None:
        self.shop, self.loop = shop, loop
        tape = loop.turn.tape
        needed = {self._id(value_id) for value_id in loop.left}
        self.body: list[Instruction] = []
        for instruction in reversed(tape.body):
            if instruction.id in needed:
                needed.update(instruction.uses)
                self.body.append(instruction)
        self.body.reverse()
        self.given = self._used_slots(loop.turn.given, needed)
        self.pieces = self._used_slots(loop.turn.pieces, needed)

    def _id(self, value_id: int) -> int:
        return _value_id(self.loop.turn.tape, self.loop.parts[value_id].term)

    def _used_slots(self, terms: Mapping[Slot, Term], needed: set[int]) -> list[Slot]:
        tape = self.loop.turn.tape
        return [slot for slot, term in terms.items() if _value_id(tape, term) in needed]

    def written(self) -> tuple[Tape, list[Term]]:
        """The tape of the region, and its results."""
        loop, turn = self.loop, self.loop.turn
        tape = self.shop.region_tape()
        environment = Environment(tape)
        totals = [tape.parameter(loop.parts[value_id].term.type) for value_id in loop.sums]
        kept = [tape.parameter(turn.given[slot].type) for slot in self.given]
        rows = [tape.parameter(turn.pieces[slot].type) for slot in self.pieces]
        known = [*(turn.given[s] for s in self.given), *(turn.pieces[s] for s in self.pieces)]
        for term, own in zip(known, [*kept, *rows], strict=True):
            environment.define(_value_id(turn.tape, term), own)
        for instruction in self.body:
            tape.line = turn.tape.lines.get(instruction.id, "")
            environment.replay(instruction)
        made = {value_id: environment.whole(self._id(value_id)) for value_id in loop.left}
        sums = [t + made[value_id] for t, value_id in zip(totals, loop.sums, strict=True)]
        return tape, [*sums, *kept, *(made[value_id] for value_id in loop.stacked)]


def _value_id(tape: Tape, term: Term) -> int:
    operand = tape.operand(term)
    if isinstance(operand, TensorLiteral):
        raise SpecViolation("TensorExpected", "a literal is not a value of a turn")
    return operand.id
