"""Use-def helpers: which instruction defines a value, for patterns that gradients recognise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.scheduling import Barrier

Definitions = Mapping[int, Instruction]
"""The instructions of a body by the ids of their values."""


def definition(operand: Operand, made: Definitions) -> Instruction | None:
    """The instruction whose only result the operand is, behind the barriers of a recomputation."""
    found = made.get(operand.id) if isinstance(operand, Ref) else None
    while found is not None and isinstance(found.op, Barrier):
        operand = found.operands[0]
        found = made.get(operand.id) if isinstance(operand, Ref) else None
    return found


def known_number(operand: Operand, made: Definitions) -> Any:
    """The number that every element is known to be, or None."""
    found = definition(operand, made)
    if found is not None and isinstance(found.op, BroadcastTo):
        operand = found.operands[0]
        found = definition(operand, made)
    if found is not None and isinstance(found.op, Constant):
        operand = found.op.value
    return operand.item() if isinstance(operand, TensorLiteral) and operand.is_splat else None
