"""Element programs (epilogues) without ops that cannot change the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.codegen.gpu.ir.element_ops import ElementOp, loose_functions
from weft.codegen.gpu.ir.formats import NARROW
from weft.foundation.dtypes import F32, DType

_POWERS: Final = frozenset({"exp", "exp2"})


def shortened(ops: Sequence[ElementOp], dtype: DType, result: str) -> tuple[ElementOp, ...]:
    """The program without what a result of a dtype does not show."""
    return _without_last_rounding(_with_shares(_loosely(ops, dtype), result), result)


def _loosely(ops: Sequence[ElementOp], result: DType) -> list[ElementOp]:
    """Functions of f32 need not have digits that the result does not show."""
    loose = loose_functions([result])
    return [replace(op, loose=op.dtype is F32 and op.fn in loose) for op in ops]


def _with_shares(ops: Sequence[ElementOp], result: str) -> list[ElementOp]:
    """Loose quotients by one more than a power, `x / (1 + 2^v)`, as functions of x and the power:
    the divisor is one at least, which spares the care that others need."""
    made = {op.name: op for op in ops}
    shares = []
    for op in ops:
        power = _power_below(op, made)
        shares.append(op if power is None else replace(op, fn="share", args=(op.args[0], power)))
    used = {result} | {arg for op in shares for arg in op.args}
    return [op for op in shares if op.name in used]


def _power_below(op: ElementOp, made: Mapping[str, ElementOp]) -> str | None:
    """p, where an op is a loose quotient by `1 + p`, and p a power."""
    below = made.get(op.args[1]) if op.fn == "div" and op.loose else None
    if below is None or below.fn != "add":
        return None
    for one, power in (below.args, below.args[::-1]):
        if one in made and made[one].value == 1.0 and power in made and made[power].fn in _POWERS:
            return power
    return None


def _without_last_rounding(ops: Sequence[ElementOp], result: str) -> tuple[ElementOp, ...]:
    """Storing rounds anyway: the op that makes the stored value need not."""
    used = {arg for op in ops for arg in op.args}
    last = {op.name for op in ops if op.dtype in NARROW} & {result} - used
    return tuple(replace(op, deferred_rounding=True) if op.name in last else op for op in ops)
