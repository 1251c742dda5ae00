"""Softmax by exp2, or with a factor inside its exponential, rewritten in the form exp(y - max y).

    p[q, j] = exp2(c * (x[q, j] - max_j x))    ->    p[q, j] = exp(y[q, j] - max_j y)
                                                     y[q, j] = (c ln 2) * x[q, j]

The same is done for `exp(c * (x - max x))`. The factor of x must be at most 1: then rows in which
a mask sets every element to the lowest number stay finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import log
from typing import Final

from weft.foundation.dtypes import F32, F64
from weft.foundation.records import replace
from weft.region.fitting.joining import live
from weft.region.ir import Binary, Const, Kernel, Let, Reduce, Unary, operands

_RATES: Final = {"exp": 1.0, "exp2": log(2)}
"""The function of x is exp(rate * x)."""
_ROUNDING: Final = 2.0**-23
"""By how much a product of two rounded numbers may miss 1."""


def with_natural_powers(kernel: Kernel) -> Kernel:
    """The kernel with powers of e where it sums powers that are others; as it is where not."""
    lets = {let.name: let for let in kernel.body}
    for total in kernel.body:
        if isinstance(total.expr, Reduce) and total.expr.fn == "sum":
            power = lets[total.expr.value]
            found = _rate_and_difference(lets, power)
            if found is not None:
                return _rewritten(kernel, lets, power, *found)
    return kernel


def _rate_and_difference(lets: Mapping[str, Let], power: Let) -> tuple[float, Let] | None:
    """The rate and the difference of `exp(rate * (x - top))`; None where that is how it is written
    already, or where something else is."""
    if not isinstance(power.expr, Unary) or power.expr.fn not in _RATES:
        return None
    rate, let = _RATES[power.expr.fn], lets[power.expr.x]
    match let.expr:
        case Binary(fn="mul", lhs=lhs, rhs=rhs):
            factor, inner = _number(lets[lhs]), rhs
            if factor is None:
                factor, inner = _number(lets[rhs]), lhs
        case Binary(fn="div", lhs=inner, rhs=rhs):
            divisor = _number(lets[rhs])
            factor = 1 / divisor if divisor else None
        case _:
            factor, inner = 1.0, let.name
    if factor is None or (rate, inner) == (1.0, let.name):
        return None
    rate *= factor
    if not 0 < rate <= 1 + _ROUNDING or power.dtype not in (F32, F64):
        return None
    return rate, lets[inner]


def _number(let: Let) -> float | None:
    made = let.expr.value if isinstance(let.expr, Const) else None
    return float(made) if isinstance(made, int | float) else None


def _rewritten(
    kernel: Kernel, lets: Mapping[str, Let], power: Let, rate: float, difference: Let
) -> Kernel:
    made = difference.expr
    if not isinstance(made, Binary) or made.fn != "sub" or difference.dtype != power.dtype:
        return kernel
    x, top = lets[made.lhs], lets[made.rhs]
    uses = Counter(name for let in kernel.body for name in operands(let))
    uses.update(output.value for output in kernel.outputs)
    largest = top.expr
    # Where somebody else reads the greatest element (or the difference), it must stay as it is.
    if not isinstance(largest, Reduce) or (largest.fn, largest.value) != ("max", x.name):
        return kernel
    if uses[top.name] > 1:
        return kernel
    changed = {power.name: replace(power, expr=Unary("exp", difference.name))}
    after: list[Let] = []
    if abs(rate - 1) > _ROUNDING:
        if uses[difference.name] > 1:
            return kernel
        number = Let(f"{x.name}_rate", x.dtype, (), Const(rate))
        scaled = Let(f"{x.name}_scaled", x.dtype, x.axes, Binary("mul", x.name, number.name))
        after = [number, scaled]
        changed[top.name] = replace(top, expr=replace(largest, value=scaled.name))
        shifted = Binary("sub", scaled.name, top.name)
        changed[difference.name] = replace(difference, expr=shifted)
    if any(let.name in lets for let in after):
        return kernel
    body = [
        each
        for let in kernel.body
        for each in (changed.get(let.name, let), *(after if let is x else ()))
    ]
    return live(replace(kernel, body=tuple(body)))
