"""Weights that are small integers times a scale: which integers, of what range, and which bits hold
them.

A number of few bits times a factor of 16 bits is exact in f32, so that rounding the product to the
dtype of the factor is the only rounding that there is: both may be multiplied in that dtype.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import F32, DType
from weft.foundation.index_expr import bounds
from weft.foundation.records import dataclass
from weft.region.ir import AxisIndex, Binary, Cast, Const, Kernel, Let, Read, Select

# Seven bits: exact in bf16, whose numbers have eight, and with the eleven of an f16 factor 18 of
# the 24 that f32 has.
_LARGEST: Final = 128
"""Of small integers."""
_UNKNOWN: Final = (-(1 << 63), 1 << 63)
_COMPARISONS: Final = ("lt", "ge", "eq", "ne", "le", "gt")


@dataclass(frozen=True)
class Scaled:
    """A weight that is an integer plus an `offset`, times a factor of its own dtype, rounded once:
    which, and of what range."""

    integer: str
    factor: str
    low: int
    high: int
    offset: int


def find_scaled(kernel: Kernel, weight: str) -> Scaled | None:
    """What a weight is the product of; None where it is made otherwise. A product of numbers of 16
    bits is exact in f32, so that only its own dtype rounds it."""
    made = kernel.let(weight)
    product = _below(kernel, made, made.dtype)
    if product is None or product.dtype is not F32 or not isinstance(product.expr, Binary):
        return None
    if product.expr.fn != "mul":
        return None
    for one, two in ((0, 1), (1, 0)):
        names = (product.expr.lhs, product.expr.rhs)
        integer, factor = kernel.let(names[one]), _below(kernel, kernel.let(names[two]), F32)
        integer, start = _integer_below(kernel, integer)
        if factor is None or factor.dtype is not made.dtype or not integer.dtype.is_integer:
            continue
        integer, offset = _without_offset(kernel, integer)
        offset += start
        low, high = integer_range(kernel, integer.name)
        if all(abs(end) <= _LARGEST for end in (low, high, low + offset, high + offset)):
            return Scaled(integer.name, factor.name, low, high, offset)
    return None


def _integer_below(kernel: Kernel, let: Let) -> tuple[Let, int]:
    """What a float is made of, and a whole number that is added: both are small where it counts,
    so that floats have them exactly."""
    offset = 0
    while let.dtype.is_float:
        match let.expr:
            case Cast(x=x):
                let = kernel.let(x)
            case Binary(fn="sub" | "add" as fn, lhs=x, rhs=y) if let.dtype is F32:
                number = kernel.let(y).expr
                if not isinstance(number, Const) or isinstance(number.value, complex):
                    break
                if not math.isfinite(number.value) or number.value != int(number.value):
                    break
                offset += int(number.value) if fn == "add" else -int(number.value)
                let = kernel.let(x)
            case _:
                break
    return let, offset


def _without_offset(kernel: Kernel, let: Let) -> tuple[Let, int]:
    """An integer as another one and a constant, as long as nothing on the way is cut or wraps."""
    offset = 0
    while True:
        low, high = integer_range(kernel, let.name)
        match let.expr:
            case Cast(x=x) if kernel.let(x).dtype.is_integer:
                below, step = kernel.let(x), 0
            case Binary(fn="sub" | "add" as fn, lhs=x, rhs=y) if isinstance(
                kernel.let(y).expr, Const
            ):
                number, _ = integer_range(kernel, y)
                below, step = kernel.let(x), number if fn == "add" else -number
            case _:
                return let, offset
        if integer_range(kernel, below.name) != (low - step, high - step):
            return let, offset
        let, offset = below, offset + step


def _below(kernel: Kernel, let: Let, dtype: DType) -> Let | None:
    """What a Let of a dtype is a cast of."""
    return kernel.let(let.expr.x) if isinstance(let.expr, Cast) and let.dtype is dtype else None


def integer_range(
    kernel: Kernel, name: str, places: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """The least and the greatest number that an integer may be, where some axes stand at these
    places."""
    let = kernel.let(name)
    if not let.dtype.is_integer:
        return _UNKNOWN
    whole = (int(let.dtype.lowest), int(let.dtype.highest))
    match let.expr:
        case Const(value=value):
            found = (int(value), int(value)) if isinstance(value, int) else whole
        case AxisIndex(expr=expr):
            at = {name: (place, place) for name, place in (places or {}).items()}
            found = bounds(expr, {**kernel.ranges, **at})
        case Cast(x=x) if kernel.let(x).dtype.is_integer:
            low, high = integer_range(kernel, x, places)
            found = (max(low, whole[0]), min(high, whole[1]))
        case Select(pred=pred, x=x, y=y):
            holds = _known_comparison(kernel, pred, places or {})
            ends = [integer_range(kernel, side, places) for side in (x, y)]
            found = _join_ranges(*ends) if holds is None else ends[0 if holds else 1]
        case Binary(fn=fn, lhs=lhs, rhs=rhs):
            ends = [integer_range(kernel, side, places) for side in (lhs, rhs)]
            found = _combine_ranges(fn, ends[0], ends[1], whole)
        case _:
            found = whole
    return found if whole[0] <= found[0] <= found[1] <= whole[1] else whole


def _join_ranges(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    return min(x[0], y[0]), max(x[1], y[1])


def _combine_ranges(
    fn: str, x: tuple[int, int], y: tuple[int, int], whole: tuple[int, int]
) -> tuple[int, int]:
    """The range of a function of two integers; sums that wrap have any number."""
    positive = x[0] >= 0 and y[0] >= 0
    match fn:
        case "mul":
            ends = [one * two for one in x for two in y]
            return min(ends), max(ends)
        case "add":
            return x[0] + y[0], x[1] + y[1]
        case "sub":
            return x[0] - y[1], x[1] - y[0]
        case "and" if x[0] >= 0 or y[0] >= 0:
            return 0, min(end[1] for end in (x, y) if end[0] >= 0)
        case "shift_right" if positive and y[1] < _LARGEST:
            return x[0] >> y[1], x[1] >> y[0]
    return whole


@dataclass(frozen=True)
class Field:
    """Some bits of a code: which code, from which bit on, and the greatest number."""

    code: str
    shift: int
    mask: int


def find_field(kernel: Kernel, name: str, places: Mapping[str, int]) -> Field | None:
    """The bits of a code that an integer is where some axes stand at these places; None where it is
    computed otherwise."""
    shift, mask = 0, -1
    while True:
        let = kernel.let(name)
        match let.expr:
            case Read() if let.dtype.is_integer and not let.dtype.is_signed:
                mask = int(let.dtype.highest) >> shift if mask < 0 else mask
                return Field(name, shift, mask)
            case Select(pred=pred, x=x, y=y):
                holds = _known_comparison(kernel, pred, places)
                if holds is None:
                    return None
                name = x if holds else y
            case Cast(x=x) if kernel.let(x).dtype.is_integer:
                if integer_range(kernel, x, places) != integer_range(kernel, name, places):
                    return None
                name = x
            case Binary(fn="and" | "shift_right" as fn, lhs=x, rhs=y):
                bits, _ = integer_range(kernel, y)
                if not isinstance(kernel.let(y).expr, Const) or bits < 0:
                    return None
                if fn == "and":
                    # From the number back to the code: a mask before a shift loses the bits that
                    # the shift drops.
                    mask = bits >> shift if mask < 0 else mask & bits >> shift
                else:
                    shift += bits
                name = x
            case _:
                return None


def _known_comparison(kernel: Kernel, name: str, places: Mapping[str, int]) -> bool | None:
    """Whether a comparison holds at these places of some axes; None where that is not known."""
    compared = kernel.let(name).expr
    if not isinstance(compared, Binary) or compared.fn not in _COMPARISONS:
        return None
    x, y = (integer_range(kernel, side, places) for side in (compared.lhs, compared.rhs))
    if x[0] != x[1] or y[0] != y[1]:
        return None
    return bool(getattr(operator, compared.fn)(x[0], y[0]))
