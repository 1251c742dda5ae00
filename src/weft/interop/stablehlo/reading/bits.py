"""Bits of numbers: conversions that keep them, shifts, counts, and floats as patterns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
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

_UNSIGNED: Final = {4: UI4, 8: UI8, 16: UI16, 32: UI32, 64: UI64}


# -- integers ------------------------------------------------------------------------------------


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


def _shift_left(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    return at.b.emit("shift_left", x, _shift_amount(at, amount))


def _shift_amount(at: Site, amount: Value) -> Value:
    """StableHLO gives 0 for an amount that is negative as well as for one that is too large. What
    is too large is brought down to where it is representable in signed integers too."""
    most = at.full(amount.dtype.bits, amount) if amount.dtype.bits > 4 else at.full(7, amount)
    if not amount.dtype.is_signed:
        return at.b.emit("minimum", amount, most)
    return at.b.emit("select", amount < 0, most, amount)


def _shift_right_arithmetic(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    signed = _signed_of(x.dtype)
    moved = at.b.emit(
        "shift_right", wrapped(at, x, signed), wrapped(at, _shift_amount(at, amount), signed)
    )
    return wrapped(at, moved, x.dtype)


def _shift_right_logical(at: Site) -> Value:
    x, amount = at.aligned(at.x)
    unsigned = _unsigned_of(at, x.dtype)
    plain = wrapped(at, _shift_amount(at, amount), unsigned)
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


# -- floats as patterns --------------------------------------------------------------------------


def _bits_of_number(at: Site, x: Value) -> Value:
    """The bits of numbers as unsigned integers."""
    unsigned = _UNSIGNED[x.dtype.bits]
    if x.dtype.is_float:
        return at.b.emit("bitcast", x, dtype=unsigned)
    return wrapped(at, x, unsigned)


def _number_from_bits(at: Site, pattern: Value, dtype: DType) -> Value:
    """The numbers with these bits."""
    if dtype.is_float:
        return at.b.emit("bitcast", pattern, dtype=dtype)
    return wrapped(at, pattern, dtype)


def total_order(at: Site, x: Value) -> Value:
    """Integers in the order of IEEE 754's totalOrder of floats: -0 before +0, and NaN beyond the
    infinities on the side of its sign."""
    bits = at.b.emit("bitcast", x, dtype=_signed_of(_UNSIGNED[x.dtype.bits]))
    return at.b.emit("select", bits < 0, bits ^ int(bits.dtype.highest), bits)


def _bitcast_convert(at: Site) -> Value:
    """Where widths differ, a last axis counts the narrow elements in a wide one, low bits first."""
    (x,), dtype = at.x, at.result().dtype
    if x.dtype is dtype:
        return x
    if any(d.bits not in _UNSIGNED or d.is_complex for d in (x.dtype, dtype)):
        at.refuse(f"PTIR has no way to read the bits of {x.dtype} as {dtype}")
    bits = _bits_of_number(at, x)
    if x.dtype.bits > dtype.bits:
        bits = _split_bits(at, bits, _UNSIGNED[dtype.bits])
    elif x.dtype.bits < dtype.bits:
        bits = _join_bits(at, bits, _UNSIGNED[dtype.bits])
    return _number_from_bits(at, bits, dtype)


def _split_bits(at: Site, bits: Value, narrow: DType) -> Value:
    mask = (1 << narrow.bits) - 1
    parts = [
        at.b.cast(at.b.emit("shift_right", bits, at.full(low, bits)) & mask, narrow)
        for low in range(0, bits.dtype.bits, narrow.bits)
    ]
    return at.b.concat([part.reshape((*bits.shape, 1)) for part in parts], bits.rank)


def _join_bits(at: Site, bits: Value, wide: DType) -> Value:
    *shape, count = at.static(bits)
    total = at.b.full(shape, 0, wide)
    for number in range(count):
        starts = [0] * len(shape) + [number]
        part = at.sliced(bits, starts, [*shape, 1]).reshape(shape)
        moved = at.full(number * bits.dtype.bits, total)
        total = total | at.b.emit("shift_left", at.b.cast(part, wide), moved)
    return total


class _Format(NamedTuple):
    """How many bits of a float are its exponent and its fraction."""

    exponent: int
    fraction: int


_FORMATS: Final = {
    FP8_E4M3: _Format(4, 3),
    FP8_E5M2: _Format(5, 2),
    F16: _Format(5, 10),
    BF16: _Format(8, 7),
    F32: _Format(8, 23),
    F64: _Format(11, 52),
}


def _reduce_precision(at: Site) -> Value:
    """The fraction rounded to nearest even, then the exponent cut: what is too large becomes
    infinity, what is too small a zero of its sign. NaN needs a bit of fraction; without one it is
    infinity."""
    (x,) = at.x
    own = _FORMATS[x.dtype]
    wanted = _Format(int(at.attr("exponent_bits")), int(at.attr("mantissa_bits")))
    if x.dtype is FP8_E4M3 and wanted.exponent < own.exponent:
        at.refuse(f"{x.dtype} has no infinity for what is too large")
    if wanted.fraction >= own.fraction and wanted.exponent >= own.exponent:
        return x
    bits = _bits_of_number(at, x)
    if wanted.fraction < own.fraction:
        bits = _round_bits(at, bits, own.fraction - wanted.fraction)
    if wanted.exponent < own.exponent:
        bits = _bound_exponent(at, bits, own, wanted.exponent)
    absent = x if wanted.fraction else at.full(math.inf, x)
    return at.b.emit("select", at.b.emit("isnan", x), absent, _number_from_bits(at, bits, x.dtype))


def _round_bits(at: Site, bits: Value, dropped: int) -> Value:
    """Patterns with their last bits rounded off; a carry goes into the exponent, as it should."""
    last = at.b.emit("shift_right", bits, at.full(dropped, bits)) & 1
    near = bits + last + ((1 << (dropped - 1)) - 1)
    every = (1 << bits.dtype.bits) - 1
    return near & (every - ((1 << dropped) - 1))


def _bound_exponent(at: Site, bits: Value, own: _Format, exponent: int) -> Value:
    top = 1 << (bits.dtype.bits - 1)
    bias, reach = (1 << (own.exponent - 1)) - 1, (1 << (exponent - 1)) - 1
    sign = bits & top
    size = bits & (((1 << own.exponent) - 1) << own.fraction)
    infinity = sign | (((1 << own.exponent) - 1) << own.fraction)
    bounded = at.b.emit("select", size > ((bias + reach) << own.fraction), infinity, bits)
    return at.b.emit("select", size <= ((bias - reach) << own.fraction), sign, bounded)


BITS: Final[Mapping[str, Lowering]] = {
    "convert": _convert,
    "bitcast_convert": _bitcast_convert,
    "shift_left": _shift_left,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _shift_right_logical,
    "popcnt": _popcnt,
    "count_leading_zeros": _count_leading_zeros,
    "reduce_precision": _reduce_precision,
}
