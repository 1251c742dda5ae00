"""Comparing the programs of several ranks, line by line.

Every rank of a mesh traces its function for itself, and all of them must come to one program. The
lines say all that a program computes, its constants included, and nothing of where it was written:
a function may stand in two places of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.foundation.errors import clipped
from weft.ptir.ir import Body, Instruction, Operand, Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.callback import Callback
from weft.ptir.ops.collective import Collective
from weft.ptir.ops.constant import Constant
from weft.ptir.text.printer import print_attributes, print_literal, print_type

_SHORT = 32
"""Bytes of a constant up to which its elements are written down."""
_LONGEST = 160
_NOWHERE: Mapping[str, Any] = {"line": ""}


@dataclass(frozen=True)
class Line:
    """One thing that a program says."""

    text: str
    """All of it: two lines are equal where they mean the same."""
    told: str
    """The same for a reader, cut short."""


def lines_of(program: Program) -> Iterator[Line]:
    """What a program computes."""
    kinds = program.main.parameters
    names = (*program.input_names, *[""] * len(kinds))
    for number, (kind, name) in enumerate(zip(kinds, names, strict=False)):
        called = f" {name}" if name else ""
        yield _line_of_text(f"argument {number}{called} of type {print_type(kind)}")
    for body in program.bodies:
        yield _line_of_text(f"the start of {body.label}")
        for instruction in body.body:
            yield _instruction(program, body, instruction)
        yield _line_of_text(
            f"the results {', '.join(f'%{i}' for i in body.result_ids)} of {body.label}"
        )


def _line_of_text(text: str) -> Line:
    return Line(text, clipped(text, _LONGEST))


def _instruction(program: Program, body: Body, instruction: Instruction) -> Line:
    op = instruction.op
    place = program.line(body, instruction)
    if isinstance(op, Collective):
        place = getattr(op, "line", "") or place
        op = replace(op, **_NOWHERE)
    elif isinstance(op, Callback):
        # The rest of the name is the process's own.
        op = replace(op, function=op.function.partition(":")[0])
    attributes = _operand_text(op.value) if isinstance(op, Constant) else print_attributes(op)
    operands = ", ".join(map(_operand_text, instruction.operands))
    kind = print_type(instruction.output)
    said = f"{op.mnemonic}({operands}) {{{attributes}}} : {kind}"
    given = ", ".join(filter(None, [operands, attributes]))
    told = clipped(f"{op.mnemonic}({given}) of type {kind}", _LONGEST)
    return Line(f"%{instruction.id} = {said}", f"{told} ({place})" if place else told)


def _operand_text(operand: Operand) -> str:
    if not isinstance(operand, TensorLiteral):
        return str(operand)
    if len(operand.data) <= _SHORT:
        return print_literal(operand)
    return f"{print_type(operand.type)}<{operand.digest.hex()[:32]}>"
