"""Copies of parameters: the wire format returns a parameter of a body through an instruction that
only repeats it.
"""

from __future__ import annotations

from weft.ptir.ir import Body, Instruction, Ref
from weft.ptir.ops.movement import BroadcastTo


def origins(body: Body) -> list[int]:
    """For each result of a body, the value that it is a copy of; itself where it is none."""
    copies = {i.id: i.operands[0] for i in body.body if _is_copy(i)}

    def origin(value_id: int) -> int:
        source = copies.get(value_id)
        while isinstance(source, Ref):
            value_id = source.id
            source = copies.get(value_id)
        return value_id

    return [origin(value_id) for value_id in body.result_ids]


def _is_copy(instruction: Instruction) -> bool:
    """Whether it only repeats its operand. A broadcast to more elements may look like one, and its
    operand then has another type."""
    return isinstance(instruction.op, BroadcastTo) and isinstance(instruction.operands[0], Ref)
