"""Between the program in memory and the program on the wire.

In memory extension ops are classes and regions name their results; on the wire extension ops are
custom calls and a region's results are its last instructions. Both directions are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.calls import decode_call, encode_call
from weft.ptir.ir import Function, Instruction, Program, Ref, Region
from weft.ptir.op import Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.streams import drop_default_streams
from weft.ptir.types import TensorType, ValueType


def to_wire(program: Program) -> Program:
    """The program as others know it: contract ops only, region results last."""
    program = drop_default_streams(program)
    regions = tuple(_results_last(region) for region in program.regions)
    return _map_ops(replace(program, regions=regions), lambda i: encode_call(i.op))


def from_wire(program: Program) -> Program:
    """The program as Weft holds it. A malformed call of a known target stays a call, for
    `verify`."""
    return _map_ops(program, _decode)


def _decode(instruction: Instruction) -> Op:
    op = instruction.op
    if not isinstance(op, CustomCall):
        return op
    try:
        return decode_call(op, instruction.output)
    except SpecViolation:
        return op


def _map_ops(program: Program, change: Callable[[Instruction], Op]) -> Program:
    def body_of(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i if (op := change(i)) is i.op else replace(i, op=op) for i in body)

    def function_of(function: Function) -> Function:
        hints = tuple(replace(hint, body=body_of(hint.body)) for hint in function.hints)
        return replace(function, body=body_of(function.body), hints=hints)

    return replace(
        program,
        functions=tuple(map(function_of, program.functions)),
        regions=tuple(replace(r, body=body_of(r.body)) for r in program.regions),
    )


def _results_last(region: Region) -> Region:
    """Append identity instructions where the results are not the last instructions in order."""
    count = len(region.result_ids)
    last = tuple(instruction.id for instruction in region.body[len(region.body) - count :])
    if last == region.result_ids:
        return region
    types: dict[int, ValueType] = dict(zip(region.parameter_ids, region.parameters, strict=True))
    types.update((instruction.id, instruction.output) for instruction in region.body)
    fresh = max(types, default=-1) + 1
    copies = tuple(
        _copy(fresh + offset, value_id, types.get(value_id))
        for offset, value_id in enumerate(region.result_ids)
    )
    ids = tuple(copy.id for copy in copies)
    return replace(region, body=region.body + copies, result_ids=ids)


def _copy(new_id: int, value_id: int, kind: ValueType | None) -> Instruction:
    if not isinstance(kind, TensorType):
        raise UserError(
            f"a region returns %{value_id} of type {kind}, which the wire form can only express "
            "as the last instruction; return its elements instead"
        )
    return Instruction(new_id, BroadcastTo(kind.shape), (Ref(value_id),), kind)


def last_ids(body: tuple[Instruction, ...], count: int) -> tuple[int, ...]:
    """The ids of the last `count` instructions: the results of a region on the wire."""
    return tuple(i.id for i in body[max(0, len(body) - count) :])
