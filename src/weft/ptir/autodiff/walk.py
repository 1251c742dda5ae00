"""The backward walk through a body: instructions are replayed, then each one, from the last to the
first, passes the cotangents of its result on to its operands.

Only what lies between the wanted parameters and the seeded results is asked for its rule. Control
flow has rules of its own (`weft.ptir.autodiff.control_flow`), which replace the instruction on the
way forward by one that also returns what the way back will need. A quotient by `1 + exp(u)` hands
its cotangents past the sum and the exponential (`weft.ptir.autodiff.logistic`), a product of
patches past them (`weft.ptir.autodiff.convolution`), one of the shares of a softmax past these
(`weft.ptir.autodiff.shares`); rows that are a window go back as a whole
(`weft.ptir.autodiff.window`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.foundation.partitions import SAME, Classes, sums
from weft.ptir.autodiff.convolution import Convolution, convolution
from weft.ptir.autodiff.dependence import Dependence
from weft.ptir.autodiff.logistic import Logistic, logistic, pulled_back
from weft.ptir.autodiff.shares import Shares, shares
from weft.ptir.autodiff.window import window
from weft.ptir.ir import Body, ElementRef, Instruction, Operand, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.collective import summed
from weft.ptir.passes.residuals import Prices
from weft.ptir.sameness import Sameness
from weft.ptir.slots import Slot, read_slots, result_slots, slots_of
from weft.ptir.tape import Environment, Tape, Workshop
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType, TupleType, ValueType

WayBack: TypeAlias = Callable[[Sequence[Term | None]], Cotangents]
"""From the cotangents of an instruction's results to those of what it hands them on to."""


@dataclass(frozen=True)
class ControlFlow:
    """A control-flow instruction on its way forward, and what is asked of it."""

    calculus: Calculus
    tape: Tape
    op: Op
    operands: tuple[Term, ...]
    output: ValueType
    wanted: tuple[bool, ...]
    """Operands whose cotangents are asked for."""
    seeded: tuple[bool, ...]
    """Slots of the result that will have cotangents."""
    value_id: int | None
    """The id that the instruction in its place has to take, if any."""


ControlRule: TypeAlias = Callable[[ControlFlow], tuple[list[Term], WayBack]]
"""The results of the instruction that takes its place, and the way back through it."""


class NoGradient(Unimplemented):
    """A gradient that cannot be taken, with the reason and the place."""

    def __init__(self, mnemonic: str, reason: str, place: str) -> None:
        super().__init__(f"the gradient of {mnemonic}", f"{reason}; at {place}")


def _reason(error: SpecViolation | Unimplemented) -> str:
    if isinstance(error, SpecViolation):
        return error.why
    named = error.op.startswith("the gradient of ")
    return error.reason if named else f"{error.op}: {error.reason}"


class Calculus:
    """What the walks through the bodies of one program share."""

    def __init__(
        self,
        shop: Workshop,
        control: Mapping[type[Op], ControlRule],
        ranks: Sameness | None = None,
    ) -> None:
        self.shop = shop
        self.control = control
        self.ranks = ranks
        """Which ranks have the same values; None for a program without collectives."""
        self.dependence = Dependence(shop.regions)
        self.prices = Prices(shop.regions)


@dataclass(frozen=True)
class _Step:
    instruction: Instruction
    sources: tuple[Operand, ...]
    """What the way back leads to: the operands, or what they were made of."""
    way_back: WayBack


class Walk:
    """One body, replayed on a tape and differentiated."""

    def __init__(
        self, calculus: Calculus, tape: Tape, body: Body, *, same_ids: bool = False
    ) -> None:
        self.calculus = calculus
        self.tape = tape
        self.body = body
        self.same_ids = same_ids
        self.environment = Environment(tape)
        self.types: dict[int, ValueType] = dict(
            zip(body.parameter_ids, body.parameters, strict=True)
        )
        self.types.update((i.id, i.output) for i in body.body)
        self.definitions = {i.id: i for i in body.body}
        self.varied: Collection[Slot] = ()
        self.useful: Collection[Slot] = ()
        self.steps: list[_Step] = []
        self.made: dict[int, range] = {}
        """The places on the tape of what each instruction became on the way forward."""
        self.cotangents: dict[Slot, Term] = {}

    # -- the way forward -------------------------------------------------------------------------

    def forward(
        self, parameters: Sequence[Term], wanted: Sequence[bool], seeded: Sequence[bool]
    ) -> list[Term]:
        """Replay the body; its results. `seeded` says which of their slots get cotangents."""
        dependence = self.calculus.dependence
        influences = dependence.influences(self.body, [int(asked) for asked in wanted])
        self.varied = {slot for slot, bits in influences.items() if bits}
        ends = zip(result_slots(self.body), seeded, strict=True)
        self.useful = dependence.useful(self.body, [slot for (slot, _), asked in ends if asked])
        for value_id, term in zip(self.body.parameter_ids, parameters, strict=True):
            self.environment.define(value_id, term)
        for instruction in self.body.body:
            before = len(self.tape.body)
            self._act_at(instruction, partial(self._replay, instruction))
            self.made[instruction.id] = range(before, len(self.tape.body))
        return [self.environment.whole(value_id) for value_id in self.body.result_ids]

    def _replay(self, instruction: Instruction) -> None:
        operands = self.environment.operands(instruction)
        outputs = slots_of(instruction.id, instruction.output)
        seeded = tuple(slot in self.varied and slot in self.useful for slot, _ in outputs)
        rule = self.calculus.control.get(type(instruction.op))
        if rule is None or not any(seeded):
            result = self.environment.replay(instruction, same_id=self.same_ids)
            if any(seeded):
                self.steps.append(self._by_rule(instruction, operands, result))
            return
        wanted = tuple(map(self._is_wanted, instruction.operands))
        op, output = instruction.op, instruction.output
        same = instruction.id if self.same_ids else None
        flow = ControlFlow(self.calculus, self.tape, op, operands, output, wanted, seeded, same)
        results, way_back = rule(flow)
        self.steps.append(_Step(instruction, instruction.operands, way_back))
        if isinstance(output, TupleType):
            self.environment.define_parts(instruction.id, results[: len(outputs)])
        else:
            self.environment.define(instruction.id, results[0])

    def _is_wanted(self, operand: Operand) -> bool:
        return any(slot in self.varied for slot in read_slots(operand, self.types))

    def _by_rule(self, instruction: Instruction, operands: tuple[Term, ...], result: Term) -> _Step:
        form = logistic(instruction, self.definitions)
        if form is not None and self._is_wanted(form.exponent):
            return _Step(instruction, form.sources, self._past_the_divisor(form, result))
        wanted = tuple(map(self._is_wanted, instruction.operands))
        product = convolution(instruction, self.definitions)
        if product is not None and (wanted[0] or product.apart):
            back = self._past_the_patches(product, Pullback(operands, result, (), wanted))
            return _Step(instruction, product.sources, back)
        mixture = shares(instruction, self.definitions, self._is_wanted)
        if mixture is not None:
            at = Pullback(operands, result, (), wanted)
            return _Step(instruction, mixture.sources, self._past_the_shares(mixture, at))
        rows = window(instruction, self.definitions)

        def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
            placed = None if rows is None else rows.placed(operands[0], cotangents[0])
            if placed is not None:
                return placed, None
            classes = self._classes(instruction)
            at = Pullback(operands, result, tuple(cotangents), wanted, classes)
            return instruction.op.vjp(at)

        return _Step(instruction, instruction.operands, way_back)

    def _past_the_divisor(self, form: Logistic, result: Term) -> WayBack:
        divisor, exponent = self.environment[form.divisor], self.environment[form.exponent]

        def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
            (g,) = cotangents
            assert g is not None
            return pulled_back(form, divisor, exponent, result, g)

        return way_back

    def _past_the_patches(self, form: Convolution, at: Pullback) -> WayBack:
        image = self.environment[form.image]

        def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
            return form.pulled_back(image, replace(at, cotangents=tuple(cotangents)))

        return way_back

    def _past_the_shares(self, form: Shares, at: Pullback) -> WayBack:
        def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
            return form.pulled_back(self.environment, replace(at, cotangents=tuple(cotangents)))

        return way_back

    def _act_at(self, instruction: Instruction, action: Callable[[], None]) -> None:
        """Carry out an action; what it refuses to do is said with the place."""
        self.tape.line = self.calculus.shop.line(self.body, instruction)
        try:
            action()
        except NoGradient:
            raise
        except (SpecViolation, Unimplemented) as error:
            place = self.calculus.shop.program.place(self.body, instruction)
            raise NoGradient(instruction.op.mnemonic, _reason(error), place) from None

    # -- the way back ----------------------------------------------------------------------------

    def backward(self, seeds: Sequence[Term | None]) -> list[Term | None]:
        """The cotangents of the parameters, from those of the slots of the results."""
        for index, ((slot, _), seed) in enumerate(zip(result_slots(self.body), seeds, strict=True)):
            if seed is not None:
                self._add(slot, self._seed_of_result(index, slot, seed))
        for step in reversed(self.steps):
            self._act_at(step.instruction, partial(self._pull, step))
        return [self.cotangents.get((value_id, None)) for value_id in self.body.parameter_ids]

    def _pull(self, step: _Step) -> None:
        instruction = step.instruction
        slots = [slot for slot, _ in slots_of(instruction.id, instruction.output)]
        # All that read it stand behind it and have gone back: its cotangent is whole, and nobody
        # needs it again.
        cotangents = [self.cotangents.pop(slot, None) for slot in slots]
        if all(cotangent is None for cotangent in cotangents):
            return
        found = step.way_back(cotangents)
        if len(found) != len(step.sources):
            raise InternalError(f"the gradient rule of {instruction.op.mnemonic} miscounts")
        for index, (operand, cotangent) in enumerate(zip(step.sources, found, strict=True)):
            if cotangent is None or not self._is_wanted(operand):
                continue
            kind = self.environment[operand].type
            if cotangent.type != kind:
                raise InternalError(
                    f"the gradient rule of {instruction.summary} gives {cotangent.type} for an "
                    f"operand of type {kind}"
                )
            self._add(_slot(operand), self._for_all_ranks(step, index, cotangent))

    # -- on several ranks ------------------------------------------------------------------------

    def _classes(self, instruction: Instruction) -> Classes:
        ranks = self.calculus.ranks
        return SAME if ranks is None else ranks.of(self.body, Ref(instruction.id))

    def _for_all_ranks(self, step: _Step, index: int, cotangent: Term) -> Term:
        """What is the same on several ranks, and read by values that are not, has the sum of their
        cotangents as its own."""
        ranks = self.calculus.ranks
        if ranks is None:
            return cotangent
        direct = step.sources is step.instruction.operands
        made = self._classes(step.instruction)
        fine = ranks.read_as(self.body, step.instruction, index) if direct else made
        return self._sum_over_ranks(cotangent, fine, ranks.of(self.body, step.sources[index]))

    def _seed_of_result(self, index: int, slot: Slot, seed: Term) -> Term:
        """The cotangent of a result of a region, which its user takes to differ more than it
        does."""
        ranks = self.calculus.ranks
        taken = None if ranks is None else ranks.results.get(self.body.label)
        if ranks is None or taken is None or len(taken) != len(result_slots(self.body)):
            return seed
        return self._sum_over_ranks(seed, taken[index], ranks.bodies[self.body.label][slot])

    def _sum_over_ranks(self, cotangent: Term, fine: Classes, coarse: Classes) -> Term:
        if fine == coarse or not fine:
            return cotangent
        groups = sums(fine, coarse)
        if groups is None:
            raise Unimplemented("its sum over ranks", "classes of ranks differ in size")
        return summed(cotangent, groups, self.tape.line)

    def _add(self, slot: Slot, cotangent: Term) -> None:
        before = self.cotangents.get(slot)
        self.cotangents[slot] = cotangent if before is None else before + cotangent


def _slot(operand: Operand) -> Slot:
    if isinstance(operand, TensorLiteral):
        raise InternalError("a literal has a cotangent")
    return (operand.id, operand.index if isinstance(operand, ElementRef) else None)


@dataclass(frozen=True)
class Joint:
    """A region followed by its own way back, as one body."""

    tape: Tape
    parameters: list[Term]
    seeds: list[Term]
    """The cotangents of the seeded results, which are parameters too."""
    results: list[Term]
    border: int
    """How many instructions the way forward has."""
    parts: list[frozenset[int]]
    """Instructions of the way forward of which only what leaves each set is kept."""
    cotangents: list[Term | None]
    """Of the parameters."""


def joint_region(
    calculus: Calculus, region: Region, wanted: Sequence[bool], seeded: Sequence[bool]
) -> Joint:
    """A region differentiated: `wanted` parameters, `seeded` slots of results."""
    tape = calculus.shop.region_tape()
    parameters = [tape.parameter(kind) for kind in region.parameters]
    ends = list(zip(result_slots(region), seeded, strict=True))
    seeds = [tape.parameter(kind) for (_, kind), asked in ends if asked]
    walk = Walk(calculus, tape, region)
    results = walk.forward(parameters, wanted, seeded)
    border = len(tape.body)
    remaining = iter(seeds)
    cotangents = walk.backward([next(remaining) if asked else None for _, asked in ends])
    parts = [
        frozenset(tape.body[place].id for value_id in part for place in walk.made.get(value_id, ()))
        for part in region.parts
    ]
    return Joint(tape, parameters, seeds, results, border, parts, cotangents)


def refuse_tuples(flow: ControlFlow) -> None:
    """Cotangents of whole tuples cannot be handed to a region."""
    for term, asked in zip(flow.operands, flow.wanted, strict=True):
        if asked and not isinstance(term.type, TensorType):
            raise Unimplemented(
                f"the tuple {term.type}", "gradients pass only tensors; pass its elements instead"
            )
