"""vmap of a body: the walk through its instructions, and control flow on the way.

Regions are made batched as they are met, once for each combination of batched parameters. A loop
carries the batch axis for every carry that becomes batched in any step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir.autodiff.custom import backward_program
from weft.ptir.batching.rules import Batching, batches
from weft.ptir.batching.spread import Flags, Spread
from weft.ptir.copies import origins
from weft.ptir.ir import Body, Instruction, Operand, Program, Region
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.slots import Slot, read_slots, slots_of
from weft.ptir.tape import Environment, Tape, Workshop, elements
from weft.ptir.term import Term
from weft.ptir.text import print_program
from weft.ptir.types import Dim, TensorType, TupleType, ValueType


class BatchMaker:
    """What the walks through the bodies of one program share."""

    def __init__(self, shop: Workshop, size: Dim, batched: Callable[..., Program]) -> None:
        self.shop = shop
        self.size = size
        self.batched = batched
        """Makes a program that an instruction brings along one over a batch."""
        self.spread = Spread(shop.program.regions_by_id)
        self._regions: dict[tuple[int, Flags, Flags], Region] = {}

    def region(self, region_id: int, flags: Flags, wanted: Flags) -> int:
        """The id of a region whose marked parameters and results are batched."""
        key = (region_id, flags, wanted)
        if key not in self._regions:
            source = self.shop.program.regions_by_id[region_id]
            tape = self.shop.region_tape()
            walk = BatchWalk(self, tape, source)
            for index, (kind, flag) in enumerate(zip(source.parameters, flags, strict=True)):
                term = tape.parameter(batched_type(kind, self.size) if flag else kind)
                walk.define(index, term, flag)
            self._regions[key] = self.shop.add_region(tape, walk.run(wanted))
        return self._regions[key].id


def batched_type(kind: ValueType, size: Dim, axis: int = 0) -> ValueType:
    """The type of a batch of values of a type."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(batched_type(element, size) for element in kind.elements))
    return kind.with_shape((*kind.shape[:axis], size, *kind.shape[axis:]))


class BatchWalk:
    """One body, written on a tape for a whole batch."""

    def __init__(self, maker: BatchMaker, tape: Tape, body: Body) -> None:
        self.maker = maker
        self.size = maker.size
        self.tape = tape
        self.body = body
        self.environment = Environment(tape)
        self.flags: dict[Slot, bool] = {}
        self.types: dict[int, ValueType] = dict(
            zip(body.parameter_ids, body.parameters, strict=True)
        )
        self.types.update((i.id, i.output) for i in body.body)

    def define(self, value_id: int, term: Term, flag: bool) -> None:
        self.environment.define(value_id, term)
        self._mark(value_id, [flag] * len(slots_of(value_id, self.types[value_id])))

    def _mark(self, value_id: int, flags: Sequence[bool]) -> None:
        slots = [slot for slot, _ in slots_of(value_id, self.types[value_id])]
        self.flags.update(zip(slots, flags, strict=True))

    def run(self, wanted: Sequence[bool]) -> list[Term]:
        """The results; those that are wanted so are batched."""
        for instruction in self.body.body:
            self._instruction_at(instruction)
        named = zip(self.body.result_ids, wanted, strict=True)
        return [self._result(value_id, flag) for value_id, flag in named]

    def _result(self, value_id: int, flag: bool) -> Term:
        term = self.environment.whole(value_id)
        return self._batch_term(term, self._flags(value_id)) if flag else term

    def _flags(self, value_id: int) -> list[bool]:
        return [self.flags[slot] for slot, _ in slots_of(value_id, self.types[value_id])]

    def _batch_term(self, term: Term, flags: Sequence[bool]) -> Term:
        """A value of which every tensor is batched."""
        if all(flags):
            return term
        if isinstance(term.type, TensorType):
            return term.broadcast_to((self.size, *term.shape))
        parts = zip(elements(term), flags, strict=True)
        return self.tape.tuple_of([self._batch_term(part, [flag]) for part, flag in parts])

    # -- instructions ----------------------------------------------------------------------------

    def _instruction_at(self, instruction: Instruction) -> None:
        shop = self.maker.shop
        self.tape.line = shop.line(self.body, instruction)
        try:
            self._instruction(instruction)
        except NoBatch:
            raise
        except (SpecViolation, Unimplemented) as error:
            place = shop.program.place(self.body, instruction)
            raise NoBatch(instruction.op.mnemonic, _reason(error), place) from None

    def _instruction(self, instruction: Instruction) -> None:
        batched = tuple(any(self._slot_flags(operand)) for operand in instruction.operands)
        if not any(batched):
            self.environment.replay(instruction)
            self._mark(instruction.id, [False] * len(slots_of(0, instruction.output)))
            return
        results = self._control(instruction, batched)
        if results is None:
            self.environment.define(instruction.id, self._by_rule(instruction, batched))
        elif isinstance(instruction.output, TupleType):
            self.environment.define_parts(instruction.id, results)
        else:
            self.environment.define(instruction.id, results[0])
        self._mark(instruction.id, self.maker.spread.results(instruction, batched))

    def _slot_flags(self, operand: Operand) -> list[bool]:
        """Which tensors of an operand are batched."""
        slots = read_slots(operand, self.types)
        return [self.flags[slot] for slot in slots] or [False]

    def _by_rule(self, instruction: Instruction, batched: Flags) -> Term:
        op, operands = instruction.op, self.environment.operands(instruction)
        rule = batches.of(op)
        if rule is None:
            raise Unimplemented(f"vmap of {op.mnemonic}", "there is no batching rule for it")
        return rule(Batching(self.tape, self.size, op, operands, batched, instruction.output))

    # -- control flow ----------------------------------------------------------------------------

    def _control(self, instruction: Instruction, batched: Flags) -> list[Term] | None:
        """The results of control flow and of tuples, each on its own; None for other ops."""
        op, operands = instruction.op, instruction.operands
        match op:
            case MakeTuple():
                return list(self.environment.operands(instruction))
            case Cond() if batched[0]:
                return self._choose(op, operands, batched)
            case Cond():
                return self._cond(op, operands, batched)
            case Scan():
                return self._scan(op, operands, batched)
            case While():
                return self._while(op, operands, batched)
            case CustomGradient():
                return self._custom(op, operands)
        return None

    def _arguments(self, operands: Sequence[Operand], flags: Sequence[bool]) -> list[Term]:
        """What is handed to a region: the marked ones batched as a whole."""
        return [
            self._batch_term(self.environment[o], self._slot_flags(o))
            if flag
            else self.environment[o]
            for o, flag in zip(operands, flags, strict=True)
        ]

    def _append(self, op: Op, operands: Sequence[Term]) -> list[Term]:
        return list(elements(self.tape.append(op, operands)))

    def _cond(self, op: Cond, operands: Sequence[Operand], batched: Flags) -> list[Term]:
        wanted = self.maker.spread.branches(op, batched[1:])
        regions = [self.maker.region(r, batched[1:], wanted) for r in op.regions]
        return self._append(Cond(*regions), self._arguments(operands, batched))

    def _choose(self, op: Cond, operands: Sequence[Operand], batched: Flags) -> list[Term]:
        """Both branches, and of each result what the predicate of each value says."""
        predicate = self.environment[operands[0]]
        arguments = self._arguments(operands[1:], batched[1:])
        sides = [self._inline_region(r, arguments, batched[1:]) for r in op.regions]
        return [self._select_rows(predicate, a, b) for a, b in zip(*sides, strict=True)]

    def _inline_region(
        self, region_id: int, arguments: Sequence[Term], batched: Flags
    ) -> list[Term]:
        """The results of a region, written right here."""
        region = self.maker.shop.program.regions_by_id[region_id]
        walk = BatchWalk(self.maker, self.tape, region)
        for index, (term, flag) in enumerate(zip(arguments, batched, strict=True)):
            walk.define(index, term, flag)
        results = walk.run([True] * len(region.results))
        return list(elements(results[0])) if len(results) == 1 else results

    def _select_rows(self, predicate: Term, on_true: Term, on_false: Term) -> Term:
        if not isinstance(on_true.type, TensorType):
            raise Unimplemented(
                "vmap of cond", "its predicate differs within the batch, and a result is a tuple"
            )
        column = predicate.reshape([self.size, *(1 for _ in on_true.shape[1:])])
        return on_true.where(column.broadcast_to(on_true.shape), on_false)

    def _scan(self, op: Scan, operands: Sequence[Operand], batched: Flags) -> list[Term]:
        """Scanned inputs and stacked outputs have the axis of the steps in front of the batch."""
        wanted = self.maker.spread.loop(op, batched)
        count = op.carry_count
        flags = wanted[:count] + batched[count:]
        region = self.maker.region(op.body_region, flags, wanted)
        given = self._arguments(operands, flags)
        for index in range(count, len(given)):
            if flags[index]:
                given[index] = given[index].move_axis(0, 1)
        found = self._append(Scan(region, count, op.scan_output_count), given)
        for index in range(count, len(found)):
            if wanted[index]:
                found[index] = found[index].move_axis(1, 0)
        return found

    def _while(self, op: While, operands: Sequence[Operand], batched: Flags) -> list[Term]:
        flags = self.maker.spread.carries(op, batched)
        if self.maker.spread.predicate(op, flags):
            return self._until_all_end(op, operands)
        cond = self.maker.region(op.cond_region, flags, (False, *flags))
        body = self.maker.region(op.body_region, flags, flags)
        return self._append(While(cond, body), self._arguments(operands, flags))

    def _until_all_end(self, op: While, operands: Sequence[Operand]) -> list[Term]:
        """A loop that ends at different times within the batch goes on as long as any value does;
        what has come to its end stays as it is."""
        shop, count = self.maker.shop, len(operands)
        condition = shop.program.regions_by_id[op.cond_region]
        # The condition is asked again of values that have ended, as long as others go on: it must
        # leave their carries as they are.
        if origins(condition)[1:] != list(range(count)):
            raise Unimplemented(
                "vmap of while", "its condition changes the carries; change them in the body"
            )
        flags = (True,) * count
        kinds = [batched_type(kind, self.size) for kind in condition.parameters]

        def goes_on(walk: BatchWalk, given: Sequence[Term]) -> Term:
            return walk._inline_region(op.cond_region, given, flags)[0]

        def region(results: Callable[[BatchWalk, list[Term]], list[Term]]) -> int:
            tape = shop.region_tape()
            given = [tape.parameter(kind) for kind in kinds]
            walk = BatchWalk(self.maker, tape, condition)
            return shop.add_region(tape, results(walk, given)).id

        def moved(walk: BatchWalk, given: list[Term]) -> list[Term]:
            new = walk._inline_region(op.body_region, given, flags)
            # Once its condition is false, a value keeps its carries, so that the condition stays
            # false.
            going = goes_on(walk, given)
            return [walk._select_rows(going, a, b) for a, b in zip(new, given, strict=True)]

        any_left = region(lambda walk, given: [goes_on(walk, given).reduce_any(axes=[0]), *given])
        return self._append(While(any_left, region(moved)), self._arguments(operands, flags))

    def _custom(self, op: CustomGradient, operands: Sequence[Operand]) -> list[Term]:
        """Everything is batched, and so is what the gradient program takes and gives."""
        wider = self.maker.batched(backward_program(op), self.size)
        given = self._arguments(operands, [True] * len(operands))
        return self._append(replace(op, backward=print_program(wider)), given)


def _reason(error: SpecViolation | Unimplemented) -> str:
    if isinstance(error, SpecViolation):
        return error.why
    own = error.op.startswith("vmap of ")
    return error.reason if own else f"{error.op}: {error.reason}"


class NoBatch(Unimplemented):
    """A program that cannot be batched, with the reason and the place."""

    def __init__(self, mnemonic: str, reason: str, place: str) -> None:
        super().__init__(f"vmap of {mnemonic}", f"{reason}; at {place}")
