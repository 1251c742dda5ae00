"""The gradient of `custom_gradient`: the function's own rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from weft.foundation.errors import InternalError, Unimplemented
from weft.ptir.autodiff.walk import ControlFlow, WayBack
from weft.ptir.ir import Program
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.rules import violation
from weft.ptir.slots import is_smooth
from weft.ptir.tape import Environment, elements
from weft.ptir.term import Cotangents, Term
from weft.ptir.text import parse_program
from weft.ptir.types import ValueType
from weft.ptir.verify import verify


@lru_cache(maxsize=256)
def backward_program(op: CustomGradient) -> Program:
    """The program that leads from cotangents of the results to those of the inputs."""
    program = parse_program(op.backward)
    verify(program)
    return program


def custom_gradient(flow: ControlFlow) -> tuple[list[Term], WayBack]:
    """The instruction itself, and the program that it brings as its way back."""
    op = flow.op
    if not isinstance(op, CustomGradient):
        raise InternalError(f"{op.mnemonic} is not a custom gradient")
    last = op.first_input + op.inputs
    if any(flow.wanted[last:]):
        raise Unimplemented(
            "the gradient of custom_gradient",
            "the function that has the rule uses a value that is differentiated and that it does "
            "not take as an argument, so the rule cannot know it; make it an argument",
        )
    result = flow.tape.append(op, flow.operands, flow.output, flow.value_id)
    found = list(elements(result))

    def way_back(cotangents: Sequence[Term | None]) -> Cotangents:
        pairs = zip(cotangents, found, strict=True)
        seeds = [y.like(0) if c is None else c for c, y in pairs if is_smooth(y.type)]
        given = [*flow.operands[op.results : op.first_input], *seeds]
        inputs = flow.operands[op.first_input : last]
        made = _replay_program(flow, backward_program(op), given, [term.type for term in inputs])
        return [*[None] * op.first_input, *made, *[None] * (len(flow.operands) - last)]

    return found, way_back


def _replay_program(
    flow: ControlFlow, program: Program, given: Sequence[Term], wanted: Sequence[ValueType]
) -> list[Term]:
    """The results of the program on these terms."""
    main = program.main
    kinds = tuple(term.type for term in given)
    if main.parameters != kinds or main.results != tuple(wanted):
        raise violation(
            "RegionSignatureMismatch",
            f"the program of a custom gradient takes {_show_types(main.parameters)} and gives "
            f"{_show_types(main.results)}, not {_show_types(kinds)} and {_show_types(wanted)}",
        )
    # Its regions become regions of this program, under numbers of their own.
    rename = flow.calculus.shop.adopted(program)
    environment = Environment(flow.tape)
    for value_id, term in zip(main.parameter_ids, given, strict=True):
        environment.define(value_id, term)
    for instruction in main.body:
        op = instruction.op.with_regions(rename)
        operands = environment.operands(instruction)
        environment.define(instruction.id, flow.tape.append(op, operands, instruction.output))
    return [environment.whole(value_id) for value_id in main.result_ids]


def _show_types(kinds: Sequence[ValueType]) -> str:
    return f"({', '.join(map(str, kinds))})"
