"""Reports of the collectives in a program: what the ranks of a mesh exchange, in sentences."""

from __future__ import annotations

from weft.ptir.ir import Program, operand_type
from weft.ptir.ops.collective import Collective
from weft.ptir.types import TensorType


def exchanges(program: Program) -> list[str]:
    """A line for each collective: its op, what each rank gives to it, and the user's line that it
    is for."""
    found = []
    for body in program.bodies:
        types = dict(zip(body.parameter_ids, body.parameters, strict=True))
        for instruction in body.body:
            types[instruction.id] = instruction.output
            op = instruction.op
            if isinstance(op, Collective):
                kind = operand_type(instruction.operands[0], types)
                line = getattr(op, "line", "") or program.line(body, instruction)
                found.append(_describe_exchange(op, kind, line))
    return found


def _describe_exchange(op: Collective, kind: object, line: str) -> str:
    fn = f" ({str(op.fn).lower()})" if hasattr(op, "fn") else ""
    static = isinstance(kind, TensorType) and kind.is_static
    size = f"{kind.bytes:,} bytes" if static else "bytes of dynamic dims"  # type: ignore[attr-defined]
    place = f", for {line}" if line else ""
    return f"{op.name}{fn} of {kind}, {size}, in groups of {op.size} ranks{place}"
