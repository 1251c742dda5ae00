"""Elementwise operations of StableHLO, CHLO and MHLO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from weft.foundation.dtypes import F32, F64, I1
from weft.interop.stablehlo.reading.bits import BITS, total_order
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value
from weft.ptir.types import Dim

_SAME_NAME: Final = (
    "tanh", "rsqrt", "sqrt", "floor", "ceil", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "erf", "conj", "sign", "log", "complex",
)  # fmt: skip
_PLAIN: Final[Mapping[str, str]] = {
    **{name: name for name in _SAME_NAME},
    "negate": "neg",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "sine": "sin",
    "cosine": "cos",
    "round_nearest_even": "round",
    "is_finite": "isfinite",
    "is_inf": "isinf",
    "not": "bitwise_not",
    "subtract": "sub",
    "divide": "div",
    "remainder": "fmod",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "next_after": "nextafter",
}
_ON_BOOLEANS: Final = {"add": "bitwise_or", "multiply": "bitwise_and"}
_DIRECTIONS: Final = {
    "LT": "less",
    "LE": "less_equal",
    "EQ": "equal",
    "GE": "greater_equal",
    "GT": "greater",
    "NE": "not_equal",
}


def _emit_by_name(name: str) -> Lowering:
    return lambda at: at.b.emit(name, *at.aligned(at.x))


def _arithmetic(name: str, stablehlo: str) -> Lowering:
    """On truth values, addition is or and multiplication is and."""

    def lower(at: Site) -> Value:
        chosen = _ON_BOOLEANS[stablehlo] if at.x[0].dtype is I1 else name
        return at.b.emit(chosen, *at.aligned(at.x))

    return lower


def _abs(at: Site) -> Value:
    found = at.b.emit("abs", at.x[0])
    return at.b.emit("real", found) if found.dtype.is_complex else found


def _compare(at: Site) -> Value:
    values = at.aligned(at.x)
    if at.word("compare_type") == "TOTALORDER" and at.x[0].dtype.is_float:
        values = [total_order(at, value) for value in values]
    direction = _DIRECTIONS[at.word("comparison_direction")]
    return at.b.emit("compare", *values, op=direction)


def _select(at: Site) -> Value:
    return at.b.emit("select", *at.aligned(at.x))


def _clamp(at: Site) -> Value:
    low, x, high = at.aligned(at.x)
    return at.b.emit("clamp", x, low, high)


def _logistic(at: Site) -> Value:
    (x,) = at.x
    # In f16 the exponential of 12 overflows, and small results would be lost.
    wide = at.b.cast(x, F32) if x.dtype.bits < 32 else x
    return at.b.cast(1.0 / (1.0 + at.b.emit("exp", -wide)), x.dtype)


def _cbrt(at: Site) -> Value:
    (x,) = at.x
    if x.dtype.is_complex:
        return at.b.emit("pow", x, at.full(1 / 3, x))
    wide = F64 if x.dtype in (F32, F64) else F32
    root = at.b.emit("pow", abs(at.b.cast(x, wide)), at.full(1 / 3, at.b.cast(x, wide)))
    return at.b.emit("copysign", at.b.cast(root, x.dtype), x)


def _round_away(at: Site) -> Value:
    (x,) = at.x
    size = abs(x)
    below = at.b.emit("trunc", size)
    up = at.b.emit("select", size - below >= 0.5, below + 1.0, below)
    return at.b.emit("copysign", up, x)


def _real(at: Site) -> Value:
    (x,) = at.x
    return at.b.emit("real", x) if x.dtype.is_complex else x


def _imag(at: Site) -> Value:
    (x,) = at.x
    return at.b.emit("imag", x) if x.dtype.is_complex else at.full(0.0, x)


def _lower_extreme(name: str, order: str) -> Lowering:
    """Complex numbers are ordered by their real parts, and equal ones by their imaginary parts."""

    def lower(at: Site) -> Value:
        x, y = at.aligned(at.x)
        if not x.dtype.is_complex:
            return at.b.emit(name, x, y)
        (a, b), (c, d) = ([at.b.emit(part, z) for part in ("real", "imag")] for z in (x, y))
        ahead = at.b.emit("compare", a, c, op=order)
        level = at.b.emit("bitwise_and", a == c, at.b.emit("compare", b, d, op=order))
        return at.b.emit("select", at.b.emit("bitwise_or", ahead, level), x, y)

    return lower


def _atan2(at: Site) -> Value:
    """Of complex numbers: `-i log((x + i y) / sqrt(x^2 + y^2))`."""
    y, x = at.aligned(at.x)
    if not x.dtype.is_complex:
        return at.b.emit("atan2", y, x)
    turned = (x + at.full(1j, y) * y) / at.b.emit("sqrt", x * x + y * y)
    return at.full(-1j, x) * at.b.emit("log", turned)


def _lower_power(at: Site) -> Value:
    """An integer to a negative power is 0, but for 1 and -1, whose powers depend on parity alone;
    PTIR has no such powers."""
    base, exponent = at.aligned(at.x)
    known = at.constant(1)
    whole = exponent.dtype.is_integer and exponent.dtype.is_signed
    if not whole or (known is not None and bool((known.array >= 0).all())):
        return at.b.emit("pow", base, exponent)
    negative = exponent < 0
    parity = at.b.emit("bitwise_and", exponent, at.full(1, exponent))
    found = at.b.emit("pow", base, at.b.emit("select", negative, parity, exponent))
    vanishes = at.b.emit("bitwise_and", negative, abs(base) != 1)
    return at.b.emit("select", vanishes, at.full(0, base), found)


def _square(at: Site) -> Value:
    """The real part of a complex square is `(|x| - |y|)(|x| + |y|)`: large parts that cancel do not
    overflow first, and parts that are near each other keep their digits."""
    (z,) = at.x
    if not z.dtype.is_complex:
        return z * z
    x, y = (at.b.emit(part, z) for part in ("real", "imag"))
    wide, high = abs(x), abs(y)
    # A sum that overflows would make NaN of parts that cancel.
    most = at.full(float(np.finfo(x.dtype.numpy).max), x)
    real = (wide - high) * at.b.emit("minimum", wide + high, most)
    return at.b.emit("complex", real, x * y * 2)


def _is_signed_inf(sign: float) -> Lowering:
    return lambda at: at.x[0] == sign * math.inf


# -- CHLO's forms that broadcast -----------------------------------------------------------------


def broadcasting(lower: Lowering) -> Lowering:
    """NumPy's rule first: trailing axes line up, and an axis of size 1 is repeated."""

    def lowered(at: Site) -> Value | Sequence[Value]:
        shape = _common_shape(at, [value.shape for value in at.x])
        at.x = [_right_aligned(at, value, shape) for value in at.x]
        return lower(at)

    return lowered


def _common_shape(at: Site, shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    if at.attr("broadcast_dimensions") is not None:
        ranks = {len(shape) for shape in shapes}
        wanted = tuple(range(max(ranks) - min(ranks), max(ranks)))
        if at.ints("broadcast_dimensions") != wanted:
            at.refuse("its broadcast_dimensions are not the trailing ones")
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


def _right_aligned(at: Site, value: Value, shape: tuple[Dim, ...]) -> Value:
    full = value.reshape((1,) * (len(shape) - value.rank) + value.shape)
    return at.spread(full, shape)


_OWN: Final[Mapping[str, Lowering]] = {
    "add": _arithmetic("add", "add"),
    "multiply": _arithmetic("mul", "multiply"),
    "abs": _abs,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "logistic": _logistic,
    "cbrt": _cbrt,
    "round_nearest_afz": _round_away,
    "real": _real,
    "imag": _imag,
    "maximum": _lower_extreme("maximum", "greater"),
    "minimum": _lower_extreme("minimum", "less"),
    "atan2": _atan2,
    "power": _lower_power,
    "square": _square,
    "is_pos_inf": _is_signed_inf(1.0),
    "is_neg_inf": _is_signed_inf(-1.0),
    **{name: _emit_by_name(ptir) for name, ptir in _PLAIN.items()},
    **BITS,
}
_BROADCASTING: Final = (
    "add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply",
    "next_after", "or", "power", "remainder", "select", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "subtract", "xor",
)  # fmt: skip
"""Operations of which CHLO has a form that broadcasts."""
ELEMENTWISE: Final[Mapping[str, Lowering]] = {
    **_OWN,
    **{f"broadcast_{name}": broadcasting(_OWN[name]) for name in _BROADCASTING},
}
"""By name without the dialect."""
