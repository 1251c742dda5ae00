"""What the special functions are written in: handles in f64, where every formula here is evaluated.

Narrower floats are converted and their results rounded once, so that they are right to the last bit
but for rare ties. Where a formula holds in a part of its arguments only, it gets harmless ones
elsewhere: what is not chosen must stay finite, or its gradient, which is 0 times it, would be NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.foundation.dtypes import F64
from weft.foundation.errors import SpecViolation
from weft.foundation.lines import user_line
from weft.ops.array.operands import paired
from weft.ops.capture_recipes import captured
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import Tensor


def computed(formula: Callable[..., Handle], *operands: Handle) -> Handle:
    """The formula in f64, its result in the dtype of the operands."""
    dtype = as_float(operands[0].dtype)
    if dtype.is_complex:
        raise SpecViolation(
            "DTypeNotSupported", f"x is {dtype}", "this function is one of real numbers"
        )
    return formula(*[x.cast(F64) for x in operands]).cast(dtype)


def of_pair(formula: Callable[..., Handle], x: Any, y: Any) -> Tensor:
    """A function of two operands, which broadcast."""
    line = user_line()
    found: Tensor = captured(_apply_to_pair, paired(x, y, line), line, formula)
    return found


def _apply_to_pair(x: Handle, y: Handle, formula: Callable[..., Handle]) -> Handle:
    return computed(formula, x, y)


def choose(condition: Handle, yes: Handle | float, no: Handle | float) -> Handle:
    """One of two, where each may be a number."""
    shape, session = condition.shape, condition.session
    both = [x if isinstance(x, Handle) else session.full(x, F64, shape) for x in (yes, no)]
    return condition.select(*both)


def polynomial(coefficients: Sequence[float], x: Handle) -> Handle:
    """The sum of `coefficients[k] * x^k`: linear pairs, then Horner in the square, whose steps wait
    half as often for one another."""
    pairs = [
        x * high + low for low, high in zip(coefficients[::2], coefficients[1::2], strict=False)
    ]
    square = x * x
    result = square * coefficients[-1] if len(coefficients) % 2 else pairs.pop()
    if len(coefficients) % 2:
        result = result + pairs.pop()
    for pair in reversed(pairs):
        result = square * result + pair
    return result


def steps(x: Handle, count: int) -> Handle:
    """`x, x + 1, ...` along a new last axis."""
    wide = (*x.shape, count)
    return x.reshape((*x.shape, 1)).broadcast_to(wide) + x.session.iota(F64, wide, x.rank)


def last(x: Handle) -> list[int]:
    return [x.rank - 1]


def from_whole(x: Handle) -> Handle:
    """How far x is from the nearest whole number."""
    return x - x.round()


def sine(part: Handle) -> Handle:
    """`sin(pi * part)`."""
    return (part * math.pi).sin()
