"""The form of fused attention: scores, their softmax, and the weighted values.

    s[q, j] = sum_d a[q, d] * b[j, d]            the scores
    x[q, j] = ...                                scales, masks, biases
    m[q] = max_j x,  p = exp(x - m),  l[q] = sum_j p,  w = p / l     or a multiple of it, or 0
    y[q, e] = sum_j w[q, j] * v[j, e]            the mixed values

`find_attention` finds the parts in a kernel; a template computes them block by block, so that
scores and weights never reach memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeAlias

from weft.foundation.dtypes import F32, F64
from weft.region.form import AttentionParts
from weft.region.ir import (
    Binary,
    Cast,
    Const,
    Fold,
    Kernel,
    Let,
    Reduce,
    Select,
    Unary,
    ValueExpr,
    operands,
)


def find_attention(kernel: Kernel) -> AttentionParts | None:
    """The attention that a kernel is; None where it is something else."""
    lets = {let.name: let for let in kernel.body}
    reductions = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    if len(reductions) != 4:
        return None
    scores, top, total, mixed = reductions
    for pair in ((scores, "sum"), (top, "max"), (total, "sum"), (mixed, "sum")):
        if not isinstance(pair[0].expr, Reduce) or pair[0].expr.fn != pair[1]:
            return None
    axes = _attention_axes(scores, top, mixed)
    if axes is None or scores.dtype not in (F32, F64) or len({r.dtype for r in reductions}) > 1:
        return None
    x = top.expr.value if isinstance(top.expr, Reduce) else ""
    shifted = _softmax_of(lets, x, top, total)
    if shifted is None or not _mixes(lets, shifted, total, mixed, axes[1]):
        return None
    if not leads_to(lets, x, scores.name):
        return None
    return AttentionParts(scores.name, x, top.name, total.name, mixed.name, *axes)


_Axes: TypeAlias = tuple[tuple[str, ...], str, str, tuple[str, ...], tuple[str, ...]]


def _attention_axes(scores: Let, top: Let, mixed: Let) -> _Axes | None:
    """Batch, query, key, depth and value axes; one query axis and one key axis."""
    depth = scores.expr.axes if isinstance(scores.expr, Reduce) else ()
    keys = top.expr.axes if isinstance(top.expr, Reduce) else ()
    rows = tuple(name for name in scores.axes if name not in keys)
    value = tuple(name for name in mixed.axes if name not in rows)
    if len(keys) != 1 or not rows or not value or top.axes != rows:
        return None
    if not isinstance(mixed.expr, Reduce) or mixed.expr.axes != keys:
        return None
    return rows[:-1], rows[-1], keys[0], depth, value


def _softmax_of(lets: Mapping[str, Let], x: str, top: Let, total: Let) -> str | None:
    """The exponentials `exp(x - top)` that `total` sums."""
    power = total.expr.value if isinstance(total.expr, Reduce) else ""
    made = lets[power].expr
    shifted = lets[made.x].expr if isinstance(made, Unary) and made.fn == "exp" else None
    return power if shifted == Binary("sub", x, top.name) else None


def _mixes(lets: Mapping[str, Let], power: str, total: Let, mixed: Let, query: str) -> bool:
    """Whether `mixed` sums weights times values, where only the weights know of queries."""
    made = lets[mixed.expr.value].expr if isinstance(mixed.expr, Reduce) else None
    if not isinstance(made, Binary) or made.fn != "mul":
        return False
    sides = [made.lhs, made.rhs]
    weight = Binary("div", power, total.name)
    weights = [name for name in sides if share_of(lets, name, weight, power) is not None]
    others = [name for name in sides if name not in weights]
    return len(weights) == 1 and query not in lets[others[0]].axes


def share_of(lets: Mapping[str, Let], name: str, weight: ValueExpr, power: str) -> str | None:
    """The Let of a weight of which a value is a multiple, by a factor that knows nothing of powers,
    or 0 where something says so: dropout makes of weights what it makes of powers. Weights need not
    be rounded on their way."""
    expr = lets[name].expr
    if expr == weight:
        return name
    match expr:
        case Cast(x=x):
            return share_of(lets, x, weight, power)
        case Select(pred=pred, x=x, y=y) if not leads_to(lets, pred, power):
            sides = [side for side in (x, y) if not _is_zero(lets[side])]
            return share_of(lets, sides[0], weight, power) if len(sides) == 1 else None
        case Binary(fn="mul" | "div" as fn, lhs=lhs, rhs=rhs):
            pairs = [(lhs, rhs), (rhs, lhs)] if fn == "mul" else [(lhs, rhs)]
            for x, factor in pairs:
                if isinstance(lets[factor].expr, Const) or not leads_to(lets, factor, power):
                    return share_of(lets, x, weight, power)
    return None


def _is_zero(let: Let) -> bool:
    return isinstance(let.expr, Const) and let.expr.value == 0


def weight_of(kernel: Kernel, found: AttentionParts) -> tuple[str, str]:
    """The factor of the mixed values that is the weight, and the quotient that it is made of."""
    lets = {let.name: let for let in kernel.body}
    made = kernel.let(found.mixed).expr
    product = kernel.let(made.value).expr if isinstance(made, Reduce) else None
    total = kernel.let(found.total).expr
    assert isinstance(product, Binary)
    assert isinstance(total, Reduce)
    weight = Binary("div", total.value, found.total)
    sides = (product.lhs, product.rhs)
    name = sides[1] if sides[0] == value_side(kernel, found) else sides[0]
    share = share_of(lets, name, weight, total.value)
    assert share is not None
    return name, share


def keeps_weights(kernel: Kernel, found: AttentionParts) -> bool:
    """Whether the weights are the quotients themselves, none dropped."""
    name, share = weight_of(kernel, found)
    return source(kernel, name).name == share


def leads_to(lets: Mapping[str, Let], name: str, goal: str, *, past: Container[str] = ()) -> bool:
    """Whether a value is made of another one, on a way that none of `past` is on."""
    stack, seen = [name], set[str]()
    while stack:
        current = stack.pop()
        if current == goal:
            return True
        if current not in seen and current not in past:
            seen.add(current)
            stack += operands(lets[current])
    return False


def value_side(kernel: Kernel, found: AttentionParts) -> str:
    """The factor of the mixed values that is not the weight."""
    return _mixed_sides(kernel, found)[1]


def weight_side(kernel: Kernel, found: AttentionParts) -> str:
    """The factor of the mixed values that each query has its own of."""
    return _mixed_sides(kernel, found)[0]


def _mixed_sides(kernel: Kernel, found: AttentionParts) -> tuple[str, str]:
    made = kernel.let(found.mixed).expr
    product = kernel.let(made.value).expr if isinstance(made, Reduce) else None
    assert isinstance(product, Binary)
    sides = (product.lhs, product.rhs)
    return sides if found.query in kernel.let(product.lhs).axes else (sides[1], sides[0])


def score_sides(kernel: Kernel, found: AttentionParts) -> tuple[str, str]:
    """The factors of the scores: that of queries, that of keys."""
    made = kernel.let(found.scores).expr
    product = kernel.let(made.value).expr if isinstance(made, Reduce) else None
    assert isinstance(product, Binary)
    sides = (product.lhs, product.rhs)
    return sides if found.query in kernel.let(product.lhs).axes else (sides[1], sides[0])


def source(kernel: Kernel, name: str) -> Let:
    """What a value was before it was converted."""
    let = kernel.let(name)
    while isinstance(let.expr, Cast):
        let = kernel.let(let.expr.x)
    return let
