"""Elementwise operations of StableHLO, CHLO and MHLO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    SIGNED,
    UI4,
    UI8,
    UI16,
    UI32,
    UI64,
    DType,
)
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value
from weft.ptir.types import Dim

_SAME_NAME: Final = (
    "tanh", "rsqrt", "sqrt", "floor", "ceil", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "erf", "real", "imag", "conj", "sign", "log", "atan2", "complex",
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
    "power": "pow",
    "remainder": "fmod",
    "maximum": "maximum",
    "minimum": "minimum",
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
_UNSIGNED: Final = {4: UI4, 8: UI8, 16: UI16, 32: UI32, 64: UI64}


def _plain(name: str) -> Lowering:
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
    ordering = at.word("compare_type")
    if ordering == "TOTALORDER" and at.x[0].dtype.is_float:
        at.refuse("PTIR compares floats by value; it has no total order of them")
    direction = _DIRECTIONS[at.word("comparison_direction")]
    return at.b.emit("compare", *at.aligned(at.x), op=direction)


def _select(at: Site) -> Value:
    return at.b.emit("select", *at.aligned(at.x))


def _clamp(at: Site) -> Value:
    low, x, high = at.aligned(at.x)
    return at.b.emit("clamp", x, low, high)


def _logistic(at: Site) -> Value:
    (x,) = at.x
    return 1.0 / (1.0 + at.b.emit("exp", -x))


def _cbrt(at: Site) -> Value:
    (x,) = at.x
    wide = F64 if x.dtype in (F32, F64) else F32
    root = at.b.emit("pow", abs(at.b.cast(x, wide)), at.full(1 / 3, at.b.cast(x, wide)))
    return at.b.emit("copysign", at.b.cast(root, x.dtype), x)


def _round_away(at: Site) -> Value:
    (x,) = at.x
    size = abs(x)
    below = at.b.emit("trunc", size)
    up = at.b.emit("select", size - below >= 0.5, below + 1.0, below)
    return at.b.emit("copysign", up, x)


def _square(at: Site) -> Value:
    return at.x[0] * at.x[0]


def _is_signed_inf(sign: float) -> Lowering:
    return lambda at: at.x[0] == sign * math.inf


# -- bits ----------------------------------------------------------------------------------------


def wrapped(at: Site, x: Value, dtype: DType) -> Value:
    """An integer in another dtype with its low bits kept: casts of PTIR saturate."""
    if x.dtype is dtype:
        return x
    if dtype.lowest <= x.dtype.lowest and x.dtype.highest <= dtype.highest:
        return at.b.cast(x, dtype)
    low = x & ((1 << (dtype.bits - dtype.is_signed)) - 1) if _narrows(x.dtype, dtype) else x
    if not dtype.is_signed:
        return _as_unsigned(at, low, dtype)
    top = (x & _top_bit(x.dtype, dtype)) != 0
    kept = at.b.cast(low, dtype)
    return at.b.emit("select", top, kept + int(dtype.lowest), kept)


def _narrows(source: DType, dtype: DType) -> bool:
    """Whether the bits below the sign are fewer, so that they must be cut off first."""
    return dtype.bits - dtype.is_signed < source.bits - source.is_signed


def _top_bit(source: DType, dtype: DType) -> int:
    bit = 1 << (dtype.bits - 1)
    return bit if bit <= source.highest else int(source.lowest)


def _as_unsigned(at: Site, low: Value, dtype: DType) -> Value:
    """Bits that fit, of which a signed source may have its sign among them."""
    if not low.dtype.is_signed or low.dtype.bits > dtype.bits:
        return at.b.cast(low, dtype)
    negative = low < 0
    positive = at.b.cast(low & int(low.dtype.highest), dtype)
    shift = (1 << dtype.bits) - (1 << (low.dtype.bits - 1))
    return at.b.emit("select", negative, positive + shift, positive)


def _convert(at: Site) -> Value:
    (x,), dtype = at.x, at.result().dtype
    if x.dtype.is_integer and dtype.is_integer:
        return wrapped(at, x, dtype)
    if x.dtype.is_complex and not dtype.is_complex:
        return at.b.cast(at.b.emit("real", x), dtype)
    return at.b.cast(x, dtype)


def _bitcast_convert(at: Site) -> Value:
    (x,), kind = at.x, at.result()
    if x.dtype is kind.dtype:
        return x
    if not (x.dtype.is_integer and kind.dtype.is_integer and x.dtype.bits == kind.dtype.bits):
        at.refuse(f"PTIR has no way to read the bits of {x.dtype} as {kind.dtype}")
    return wrapped(at, x, kind.dtype)


def _shift_left(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    return at.b.emit("shift_left", x, _amount(at, amount))


def _amount(at: Site, amount: Value) -> Value:
    """StableHLO gives 0 for an amount that is negative as well as for one that is too large."""
    if not amount.dtype.is_signed:
        return amount
    most = at.full(amount.dtype.bits, amount) if amount.dtype.bits > 4 else at.full(7, amount)
    return at.b.emit("select", amount < 0, most, amount)


def _shift_right_arithmetic(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    signed = _signed_of(x.dtype)
    moved = at.b.emit(
        "shift_right", wrapped(at, x, signed), wrapped(at, _amount(at, amount), signed)
    )
    return wrapped(at, moved, x.dtype)


def _shift_right_logical(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    unsigned = _unsigned_of(at, x.dtype)
    plain = wrapped(at, _amount(at, amount), unsigned)
    return wrapped(at, at.b.emit("shift_right", wrapped(at, x, unsigned), plain), x.dtype)


def _signed_of(dtype: DType) -> DType:
    return next(d for d in SIGNED if d.bits == dtype.bits) if not dtype.is_signed else dtype


def _unsigned_of(at: Site, dtype: DType) -> DType:
    if not dtype.is_signed:
        return dtype
    if dtype.bits not in _UNSIGNED:
        at.refuse(f"it is not defined for {dtype}")
    return _UNSIGNED[dtype.bits]


def _popcnt(at: Site) -> Value:
    """Bits are added in pairs, then in fours, and so on."""
    (x,) = at.x
    wide = at.b.cast(wrapped(at, x, _unsigned_of(at, x.dtype)), UI64)
    return wrapped(at, _ones(at, wide), x.dtype)


def _ones(at: Site, bits: Value) -> Value:
    for step in range(6):
        shift = 1 << step
        mask = sum(((1 << shift) - 1) << at_bit for at_bit in range(0, 64, 2 * shift))
        bits = (bits & mask) + (at.b.emit("shift_right", bits, at.full(shift, bits)) & mask)
    return bits


def _count_leading_zeros(at: Site) -> Value:
    """The bits below the highest one are set; what is left are the leading zeros."""
    (x,) = at.x
    bits = at.b.cast(wrapped(at, x, _unsigned_of(at, x.dtype)), UI64)
    for step in range(6):
        bits = bits | at.b.emit("shift_right", bits, at.full(1 << step, bits))
    return wrapped(at, x.dtype.bits - _ones(at, bits), x.dtype)


_ROUNDED: Final = {(8, 7): BF16, (5, 10): F16, (8, 23): F32, (11, 52): F64}


def _reduce_precision(at: Site) -> Value:
    (x,) = at.x
    exponent, mantissa = int(at.attr("exponent_bits")), int(at.attr("mantissa_bits"))
    dtype = _ROUNDED.get((exponent, mantissa))
    if dtype is None:
        at.refuse(f"no dtype of PTIR has {exponent} exponent and {mantissa} mantissa bits")
    return x if dtype.bits >= x.dtype.bits else at.b.cast(at.b.cast(x, dtype), x.dtype)


# -- CHLO's forms that broadcast -----------------------------------------------------------------


def _broadcasting(lower: Lowering) -> Lowering:
    """NumPy's rule first: trailing axes line up, and an axis of size 1 is repeated."""

    def lowered(at: Site) -> Value | Sequence[Value]:
        shape = _common(at, [value.shape for value in at.x])
        at.x = [_right_aligned(at, value, shape) for value in at.x]
        return lower(at)

    return lowered


def _common(at: Site, shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    if at.attr("broadcast_dimensions") is not None:
        ranks = {len(shape) for shape in shapes}
        wanted = tuple(range(max(ranks) - min(ranks), max(ranks)))
        if at.ints("broadcast_dimensions") != wanted:
            at.refuse("its broadcast_dimensions are not the trailing ones")
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


def _right_aligned(at: Site, value: Value, shape: tuple[Dim, ...]) -> Value:
    full = at.reshaped(value, (1,) * (len(shape) - value.rank) + value.shape)
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
    "square": _square,
    "is_pos_inf": _is_signed_inf(1.0),
    "is_neg_inf": _is_signed_inf(-1.0),
    "convert": _convert,
    "bitcast_convert": _bitcast_convert,
    "shift_left": _shift_left,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _shift_right_logical,
    "popcnt": _popcnt,
    "count_leading_zeros": _count_leading_zeros,
    "reduce_precision": _reduce_precision,
    **{name: _plain(ptir) for name, ptir in _PLAIN.items()},
}
ELEMENTWISE: Final[Mapping[str, Lowering]] = {
    **_OWN,
    **{f"broadcast_{name}": _broadcasting(lower) for name, lower in _OWN.items()},
}
"""By name without the dialect."""
