"""Numbers that are all equally likely, and what is decided by them. Every backend makes the same
bits: floats come from bits without rounding, integers from exact products."""

from __future__ import annotations

from typing import Any, Final

from weft.foundation.dims import Shape
from weft.foundation.dtypes import F32, F64, I1, INTEGERS, SI64, UI64, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import broadcasts, listed
from weft.ops.array.creation import asarray
from weft.ops.array.data_types import dtype_named
from weft.ops.array.elementwise import clip, nextafter
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.promotion import DEFAULT_FLOAT, DEFAULT_INTEGER
from weft.ops.random.keys import bits, checked_key, draw, sizes, split, wide_bits
from weft.ops.tensor import Tensor
from weft.ptir.ops.random import SAMPLED

_WORD: Final = 1 << 32
_HALF: Final = 1 << 63


def float_dtype(dtype: Any) -> DType:
    """The dtype to draw: a float; None means the default one."""
    if isinstance(dtype, int):
        raise UserError(f"dtype is {dtype}; several sizes are one shape, such as (2, {dtype})")
    wanted = DEFAULT_FLOAT if dtype is None else dtype_named(dtype)
    if wanted not in SAMPLED:
        raise SpecViolation(
            "DTypeNotSupported",
            f"{wanted} cannot be drawn",
            "use float32, float64, float16 or bfloat16, and convert the result",
        )
    return wanted


def fitting(value: Any, shape: Shape) -> Tensor:
    """A number or tensor that broadcasts to the shape of the result."""
    given = asarray(value)
    if not broadcasts(given.shape, shape):
        raise SpecViolation(
            "BroadcastDimsInvalid",
            f"an argument of shape {listed(given.shape)} does not broadcast to {listed(shape)}",
            "give a larger shape, or an argument for each of its elements",
        )
    return given


@public
def uniform(
    key: Tensor, shape: Any = (), dtype: Any = None, low: Any = 0.0, high: Any = 1.0
) -> Tensor:
    """Floats in [low, high), equally likely. The bounds are numbers, or tensors that broadcast to
    the shape; where `low` is not below `high` the result is `low`."""
    wanted, dims = float_dtype(dtype), sizes("shape", shape)
    unit = draw("philox_uniform", checked_key(key), dims, wanted)
    if isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1):
        return unit
    start, end = (fitting(bound, dims).astype(wanted) for bound in (low, high))
    first, wide = start.astype(F64), unit.astype(F64)
    span = end.astype(F64) - first
    # A backend may add a product before it is rounded. That makes no difference where it is exact,
    # as it is of narrower floats; a quotient is always rounded first.
    part = span / (1.0 / wide) if wanted is F64 else span * wide
    found = (first + part).astype(wanted)
    # Rounding may reach the upper bound, which is not among the results.
    inside = where(found < end, found, nextafter(end, start))
    return where(start < end, inside, start)


def open_uniform(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Floats in (0, 1), symmetric about a half: odd multiples of 2^-p. f32 or f64."""
    precision = dtype.precision
    kind = UI64 if dtype is F64 else F32
    drawn = wide_bits(key, shape) if kind is UI64 else bits(key, shape)
    # p - 1 bits, so that 2 k + 1 has p and becomes a float without rounding: from 1 to 2^p - 1, and
    # as many of them above a half as below.
    top = drawn >> (drawn.dtype.bits - precision + 1)
    return (top * 2 + 1).astype(dtype) * 2.0**-precision


@public
def bernoulli(key: Tensor, p: Any = 0.5, shape: Any = None) -> Tensor:
    """Booleans that are true with probability `p`, a number or a tensor; the shape is that of `p`
    unless it is given."""
    plain = p if isinstance(p, list | tuple) else [p]
    if any(type(each) in (int, float) and not 0 <= each <= 1 for each in plain):
        raise UserError(f"p is {p}; a probability is from 0 to 1, and a shape is given as shape=")
    dims = asarray(p).shape if shape is None else sizes("shape", shape)
    chance = fitting(p, dims)
    wanted = chance.dtype if chance.dtype in (F32, F64) else F32
    return uniform(key, dims, wanted) < chance.astype(wanted)


@public
def randint(key: Tensor, shape: Any, low: Any, high: Any, dtype: Any = None) -> Tensor:
    """Integers from `low` up to, and without, `high`, equally likely. The bounds are whole numbers,
    or integer tensors that broadcast to the shape: those are brought into the range of the dtype,
    and where `low` is not below `high` the result is `low`."""
    wanted = DEFAULT_INTEGER if dtype is None else dtype_named(dtype)
    if wanted not in INTEGERS or wanted is I1:
        raise SpecViolation(
            "DTypeNotSupported", f"{wanted} is not an integer", "use an integer dtype"
        )
    state, dims = checked_key(key), sizes("shape", shape)
    if isinstance(low, int) and isinstance(high, int):
        return _between_numbers(state, dims, low, high, wanted)
    wide = UI64 if wanted is UI64 else SI64
    first, last = (_bound_tensor(bound, dims, wide) for bound in (low, high))
    if wanted.bits <= 32:
        first = clip(first, wanted.lowest, wanted.highest)
        last = clip(last, wanted.lowest, wanted.highest + 1)
    span = _to_unsigned(last) - _to_unsigned(first) if wide is SI64 else last - first
    below = _long(state, dims, span) if wanted.bits > 32 else _short(state, dims, span)
    found = first + (below if wide is UI64 else _to_signed(below))
    return where(first < last, found, first).astype(wanted)


def _between_numbers(key: Tensor, dims: Shape, low: int, high: int, dtype: DType) -> Tensor:
    for name, bound in (("low", low), ("high", high - 1)):
        if isinstance(bound, bool) or not dtype.lowest <= bound <= dtype.highest:
            raise UserError(f"{name} is {bound + (name == 'high')}, which {dtype} cannot hold")
    if low >= high:
        raise UserError(f"low is {low} and high is {high}; low must be below high")
    span = high - low
    if span == 1 << 64:
        found = wide_bits(key, dims)
    elif span <= _WORD:
        found = _short(key, dims, asarray(span, dtype=UI64))
    else:
        found = _long(key, dims, asarray(span, dtype=UI64))
    if dtype is UI64:
        return found + low
    return (_to_signed(found) + low).astype(dtype)


def _bound_tensor(bound: Any, dims: Shape, dtype: DType) -> Tensor:
    given = fitting(bound, dims)
    if not given.dtype.is_integer or given.dtype is I1:
        raise UserError(f"a bound is {given.type}; bounds are whole numbers or integer tensors")
    return given.astype(dtype)


def _short(key: Tensor, dims: Shape, span: Tensor) -> Tensor:
    """Integers below `span`, at most 2^32: 64 random bits times the span, without the last 64."""
    drawn = wide_bits(key, dims)
    # 64 bits in halves a and b: floor((2^32 a + b) span / 2^64), where what b gives below 2^32
    # cannot carry. (a + 1) span is at most 2^64, so nothing overflows. Each number comes up floor
    # or ceil(2^64 / span) times in 2^64.
    return ((drawn >> 32) * span + (((drawn & (_WORD - 1)) * span) >> 32)) >> 32


def _long(key: Tensor, dims: Shape, span: Tensor) -> Tensor:
    """The same for spans of up to 64 bits: 128 random bits times the span, without the last 128."""
    upper, lower = (wide_bits(part, dims) for part in split(key))
    rest = upper * span
    # A sum that wrapped around is less than what was added to: that carry counts 1.
    more = rest + _upper_half(lower, span)
    return _upper_half(upper, span) + (more < rest).astype(UI64)


def _upper_half(x: Tensor, y: Tensor) -> Tensor:
    """The upper 64 bits of the products of 64-bit numbers."""
    mask = _WORD - 1
    (a, b), (c, d) = ((z >> 32, z & mask) for z in (x, y))
    # (2^32 - 1)² + 2^32 - 1 is less than 2^64: no sum of these overflows.
    middle = a * d + ((b * d) >> 32)
    other = b * c + (middle & mask)
    return a * c + (middle >> 32) + (other >> 32)


def _to_signed(x: Tensor) -> Tensor:
    """Unsigned numbers as signed ones with the same bits: a cast alone stops at the largest."""
    low = (x & (_HALF - 1)).astype(SI64)
    return where(x >= _HALF, low + -_HALF, low)


def _to_unsigned(x: Tensor) -> Tensor:
    low = (x & (_HALF - 1)).astype(UI64)
    return where(x < 0, low + _HALF, low)
