"""Selects with a constant condition, replaced by the chosen side.

    seed = 0 < 1 ? a : b        ->        seed = a

A state that a program puts together from a seed and an offset is such a choice for each of its
elements, and the other side a read that is never made.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.foundation.functions import COMPARISONS
from weft.foundation.records import replace
from weft.region.fitting.cutting import renamed
from weft.region.fitting.joining import live
from weft.region.ir import AxisIndex, Binary, Const, Kernel, Let, Reduce, Select, Words


def with_known_choices(kernel: Kernel) -> Kernel:
    """The kernel without choices between numbers of no axis whose outcome is known."""
    lets = {let.name: let for let in kernel.body}
    chosen: dict[str, str] = {}
    for let in kernel.body:
        if isinstance(let.expr, Select) and not let.axes:
            truth = _known_truth(lets, let.expr.pred)
            if truth is not None:
                side = let.expr.x if truth else let.expr.y
                chosen[let.name] = chosen.get(side, side)
    if not chosen:
        return kernel
    body = tuple(_with(let, chosen) for let in kernel.body)
    kept = {output.value for output in kernel.outputs}
    return live(replace(kernel, body=body)) if not kept & set(chosen) else kernel


def _with(let: Let, chosen: Mapping[str, str]) -> Let:
    match let.expr:
        case Words(seed=seed, offset=offset, element=element):
            seed, offset = chosen.get(seed, seed), chosen.get(offset, offset)
            return replace(let, expr=Words(seed, offset, element))
        case Reduce(value=value) as expr:
            return replace(let, expr=replace(expr, value=chosen.get(value, value)))
        case expr:
            return replace(let, expr=renamed(expr, chosen))


def _known_truth(lets: Mapping[str, Let], name: str) -> bool | None:
    expr = lets[name].expr
    if not isinstance(expr, Binary) or expr.fn not in COMPARISONS:
        return None
    sides = (_known_integer(lets[expr.lhs]), _known_integer(lets[expr.rhs]))
    if sides[0] is None or sides[1] is None:
        return None
    return bool(COMPARISONS[expr.fn](sides[0], sides[1]))


def _known_integer(let: Let) -> int | None:
    match let.expr:
        case AxisIndex(expr=expr) if expr.is_constant:
            return expr.constant
        case Const(value=value) if isinstance(value, int):
            return value
    return None
