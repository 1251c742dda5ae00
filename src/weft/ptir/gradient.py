"""Derivatives of programs, as programs.

    gradient    (x...) -> (results..., d result / d x...)              one scalar result
    vjp         (x..., cotangents...) -> (results..., gradients...)    the adjoint of the derivative
    jvp         (x..., tangents...) -> (results..., tangents...)       the derivative itself

Forward and backward are one program, and each of the three gives an ordinary one: it can be
differentiated again. The rules stand beside the ops (`Op.vjp`); what they have to decide at ties
and kinks is on docs/gradients.md. The derivative itself is the adjoint of the adjoint: a vjp is
linear in its cotangents, so the vjp of it with respect to them is the jvp, and everything that only
the first adjoint needed is dead.

The program may have dynamic dims; a rule that needs one in numbers says so. Random numbers are
drawn once, on the way forward, and keep their streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from weft.foundation.calls import told_outside
from weft.foundation.errors import InternalError, Unimplemented, UserError
from weft.foundation.partitions import SAME, Classes, merged, split_classes
from weft.ptir.autodiff.control_flow import CONTROL, FORWARD_CONTROL
from weft.ptir.autodiff.walk import Calculus, ControlRule, Walk
from weft.ptir.counted_loops import with_counted_loops
from weft.ptir.ir import Function, HintPolicy, Program
from weft.ptir.op import Op
from weft.ptir.passes.edit import with_settled_hints
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.sameness import Sameness, rank_counts
from weft.ptir.slots import is_smooth, result_slots, slots_of
from weft.ptir.streams import assign_streams, drop_default_streams
from weft.ptir.tape import Environment, Workshop
from weft.ptir.term import Term
from weft.ptir.types import TensorType, ValueType
from weft.ptir.verify import verify


@told_outside
def gradient(
    program: Program,
    wrt: int | Sequence[int] = 0,
    *,
    of: int = 0,
    classes: Sequence[Classes] = (),
) -> Program:
    """The program that also returns the gradient of its result number `of`, a float scalar, with
    respect to the parameters `wrt`: all results as before, then one gradient for each. `classes`
    says which parameters differ between ranks."""
    main = _verify_main(program)
    wanted = _parameters(main, wrt)
    if not 0 <= of < len(main.results):
        raise UserError(f"there is no result {of}; @{main.name} has {len(main.results)}")
    kind = main.results[of]
    if not isinstance(kind, TensorType) or kind.shape or not kind.dtype.is_float:
        raise UserError(
            f"a gradient is taken of a float scalar, and result {of} is {kind}; reduce it first, "
            "or use vjp with a cotangent for each result"
        )
    made = _Derivative(program, wanted, [of], classes=classes)
    return made.program([made.tape.literal(1.0, kind.dtype)])


@told_outside
def vjp(
    program: Program,
    wrt: int | Sequence[int],
    *,
    of: int | Sequence[int] | None = None,
    classes: Sequence[Classes] = (),
) -> Program:
    """The program with a cotangent as further parameter for each of the results `of` (default: all
    floats and complex numbers among them), and as further results the cotangents of the parameters
    `wrt`. A result that is a tuple has a cotangent for each of its floats."""
    main = _verify_main(program)
    chosen = (
        range(len(main.results)) if of is None else _chosen_numbers(of, len(main.results), "result")
    )
    if of is not None and not any(is_smooth(main.results[index]) for index in chosen):
        raise UserError("none of the requested results is a float or complex number")
    return _vjp(program, _parameters(main, wrt), chosen, classes=classes).program


def _vjp(
    program: Program,
    wanted: Sequence[int],
    of: Sequence[int],
    control: Mapping[type[Op], ControlRule] = CONTROL,
    classes: Sequence[Classes] = (),
) -> _Adjoint:
    made = _Derivative(program, wanted, of, control, classes)
    seeds = [made.new_parameter(kind) for kind in made.seeded_kinds]
    return _Adjoint(made.program(seeds), made.all_classes)


@told_outside
def jvp(program: Program, wrt: int | Sequence[int], *, classes: Sequence[Classes] = ()) -> Program:
    """The program with a tangent as further parameter for each of the parameters `wrt`, and as
    further results the tangents of its results, as far as they are floats or complex numbers."""
    main = _verify_main(program)
    wanted = _parameters(main, wrt)
    whole = _vjp(program, wanted, range(len(main.results)), FORWARD_CONTROL, classes)
    adjoint = whole.program
    first, count = len(main.parameters), len(adjoint.main.parameters)
    gradients = range(len(main.results), len(adjoint.main.results))
    double = _vjp(adjoint, range(first, count), gradients, classes=whole.classes)
    return _leave_out(double.program, range(first, count), gradients)


# -- the questions asked -------------------------------------------------------------------------


def _verify_main(program: Program) -> Function:
    verify(program)
    return program.main


def _chosen_numbers(given: int | Sequence[int], count: int, what: str) -> list[int]:
    numbers = [given] if isinstance(given, int) else list(given)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise UserError(f"there is no {what} {number!r}; the program has {count}")
    if len(set(numbers)) < len(numbers):
        raise UserError(f"{what} {next(n for n in numbers if numbers.count(n) > 1)} is named twice")
    return numbers


def _parameters(main: Function, wrt: int | Sequence[int]) -> list[int]:
    numbers = _chosen_numbers(wrt, len(main.parameters), "parameter")
    for number in numbers:
        kind = main.parameters[number]
        if not isinstance(kind, TensorType) or not is_smooth(kind):
            raise UserError(
                f"parameter {number} is {kind}; derivatives are taken with respect to tensors of "
                "floats or complex numbers"
            )
    return numbers


# -- the answer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Adjoint:
    """A vjp, and which of its parameters differ between ranks."""

    program: Program
    classes: Sequence[Classes]


class _Derivative:
    """A program on its way forward; `program` appends the way back."""

    def __init__(
        self,
        program: Program,
        wanted: Sequence[int],
        of: Sequence[int],
        control: Mapping[type[Op], ControlRule] = CONTROL,
        classes: Sequence[Classes] = (),
    ) -> None:
        self.control = control
        self.source = assign_streams(with_counted_loops(program))
        self.main = self.source.main
        self.wanted = wanted
        self.shop = Workshop(self.source)
        self.tape = self.shop.function_tape(self.main)
        named = zip(self.main.parameters, self.main.parameter_ids, strict=True)
        self.parameters = [self.tape.parameter(kind, value_id) for kind, value_id in named]
        self.seeded = [
            index in of and is_smooth(kind)
            for index, result in enumerate(self.main.results)
            for kind in _type_elements(result)
        ]
        self.ranks = self._sameness(classes)

    def _sameness(self, classes: Sequence[Classes]) -> Sameness | None:
        """Which ranks have the same values. Where what is differentiated differs between ranks,
        each differentiates its own, and everything counts as its own."""
        if not rank_counts(self.source):
            return None
        found = Sameness(self.source, classes)
        pairs = zip(self._ends(found), self.seeded, strict=True)
        ends = [classes for classes, seeded in pairs if seeded]
        floor = reduce(merged, ends) if ends else SAME
        return Sameness(self.source, classes, floor) if floor else found

    def _ends(self, found: Sameness) -> list[Classes]:
        values = found.bodies[self.main.label]
        return [values[slot] for slot, _ in result_slots(self.main)]

    @property
    def all_classes(self) -> list[Classes]:
        """Those of the parameters, and of the cotangents that follow them."""
        if self.ranks is None:
            return []
        values = self.ranks.bodies[self.main.label]
        own = [
            split_classes(values[slot] for slot, _ in slots_of(value_id, kind))
            for value_id, kind in zip(self.main.parameter_ids, self.main.parameters, strict=True)
        ]
        ends = zip(self._ends(self.ranks), self.seeded, strict=True)
        return own + [classes for classes, seeded in ends if seeded]

    @property
    def seeded_kinds(self) -> list[ValueType]:
        """The types of the cotangents that are given."""
        slots = zip(result_slots(self.main), self.seeded, strict=True)
        return [kind for (_, kind), seeded in slots if seeded]

    def new_parameter(self, kind: ValueType) -> Term:
        if not isinstance(kind, TensorType):
            raise Unimplemented(f"a cotangent of type {kind}", "a result is a tuple in a tuple")
        return self.tape.parameter(kind)

    def program(self, seeds: Sequence[Term]) -> Program:
        walk = Walk(
            Calculus(self.shop, self.control, self.ranks), self.tape, self.main, same_ids=True
        )
        asked = [index in self.wanted for index in range(len(self.parameters))]
        results = walk.forward(self.parameters, asked, self.seeded)
        remaining = iter(seeds)
        found = walk.backward([next(remaining) if seeded else None for seeded in self.seeded])
        gradients = [found[i] or self.tape.zeros(self.main.parameters[i]) for i in self.wanted]
        return _clean_up(self.shop.finished(self.tape, [*results, *gradients]), self.main)


def _type_elements(kind: ValueType) -> Sequence[ValueType]:
    return (kind,) if isinstance(kind, TensorType) else kind.elements


def _clean_up(program: Program, before: Function) -> Program:
    """Without dead and repeated instructions, and with the hints that still hold."""
    log = PassLog()
    try:
        main = with_settled_hints(before, program.main, log)
    except InternalError:
        required = next(h for h in before.hints if h.policy is HintPolicy.REQUIRED)
        raise Unimplemented(
            f"hint {required.id}", "it is Required, and the gradient reads values inside it"
        ) from None
    return drop_default_streams(cse(dce(program.with_main(main), log), log))


def _leave_out(program: Program, parameters: Sequence[int], results: Sequence[int]) -> Program:
    """The program without some results, and with zeros in place of some parameters."""
    source = assign_streams(program)
    before = source.main
    kept = [i for i in range(len(before.results)) if i not in results]
    main = replace(
        before,
        results=tuple(before.results[i] for i in kept),
        result_ids=tuple(before.result_ids[i] for i in kept),
        hints=(),
    )
    source = dce(source.with_main(main))
    main = source.main
    shop = Workshop(source)
    tape = shop.function_tape(main)
    environment = Environment(tape)
    dropped: dict[int, ValueType] = {}
    for index, (value_id, kind) in enumerate(zip(main.parameter_ids, main.parameters, strict=True)):
        if index in parameters:
            dropped[value_id] = kind
        else:
            environment.define(value_id, tape.parameter(kind, value_id))
    for instruction in main.body:
        tape.line = shop.line(main, instruction)
        for value_id in dropped.keys() & instruction.uses:
            # Not before: the sizes of the zeros may be known only from here on.
            environment.define(value_id, tape.zeros(dropped.pop(value_id)))
        environment.replay(instruction, same_id=True)
    return _clean_up(shop.finished(tape, [*map(environment.whole, main.result_ids)]), main)
