"""How large the values of a program are: what exceeds the limits is named before it is made."""

from __future__ import annotations

from collections.abc import Iterator

from weft.foundation import limits
from weft.foundation.limits import Limits
from weft.ptir.ir import Body, Instruction, Program
from weft.ptir.types import leaves


def check_values(program: Program, bounds: Limits) -> None:
    """Refuse a program without dynamic dims that makes a tensor over the limit."""
    for size, what in _list_oversized(program, bounds):
        limits.check_bytes(size, what, bounds)


def check_results(program: Program, bounds: Limits) -> None:
    """Refuse one that returns a tensor over the limit: it may be larger inside, where no such
    tensor need ever be made."""
    main = program.main
    returned = set(main.result_ids)
    for instruction in main.body:
        if instruction.id in returned:
            size = _largest_result(instruction)
            if size > bounds.tensor_bytes:
                limits.check_bytes(size, _name_value(program, main, instruction), bounds)


def check_memory(size: int, program: Program, bounds: Limits) -> None:
    """Refuse a piece of memory over the limit that something in the program needs."""
    if size > bounds.tensor_bytes:
        named = [what for _, what in _list_oversized(program, bounds)]
        limits.check_bytes(size, named[0] if named else f"a buffer of @{program.entry}", bounds)


def _list_oversized(program: Program, bounds: Limits) -> Iterator[tuple[int, str]]:
    """The values over the limit, in order: bytes, and a name for a message."""
    for body in program.bodies:
        for instruction in body.body:
            size = _largest_result(instruction)
            if size > bounds.tensor_bytes:
                yield size, _name_value(program, body, instruction)


def _largest_result(instruction: Instruction) -> int:
    return max((kind.bytes for kind in leaves(instruction.output)), default=0)


def _name_value(program: Program, body: Body, instruction: Instruction) -> str:
    return f"the result of {program.place(body, instruction)}"
