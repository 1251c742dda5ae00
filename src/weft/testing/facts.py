"""Value facts: what a random program knows about the elements of each of its values, without
computing them.

Two questions decide which op may follow a value:

- *In which range do the elements lie?* Functions are fed arguments inside their domain and away
  from their poles, sums and products stay far below the largest number of the dtype.
- *Are the elements exact?* They are while every one is a whole multiple of `step`, so that every
  correct implementation makes the same bits, in any order of additions and at any precision. Ops
  that jump (comparisons, rounding, sorting, casts to integers) are fed exact values only.

Bounds are rounded outward to three significant bits, which every float dtype has: rounding an
element to its dtype never carries it over a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes

from weft.foundation.dtypes import BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, DType
from weft.ptir.ops.complex_parts import PART

Number = int | float

LIMITS: Final[dict[DType, Number]] = {
    FP8_E4M3: 256.0,
    FP8_E5M2: 2.0**10,
    F16: 2.0**12,
    BF16: 2.0**20,
    F32: 2.0**20,
    F64: 2.0**30,
}
"""How large elements may become: far from overflow, so that no rounding error matters."""


def part_dtype(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; any other dtype itself."""
    return PART.get(dtype, dtype)


def limit(dtype: DType) -> Number:
    """The largest magnitude that a random program gives to elements of this dtype."""
    real = part_dtype(dtype)
    return LIMITS.get(real, real.highest)


@dataclass(frozen=True)
class Facts:
    """Every finite element (for complex values, every part) lies in [low, high]."""

    low: Number
    high: Number
    step: float | None = 1.0
    """The elements are multiples of this; None when they were rounded somewhere. Integers: 1."""
    special: bool = False
    """Whether there may be NaN or infinities."""
    zeros: bool = False
    """Whether all correct implementations agree on the sign of every zero."""

    @property
    def bound(self) -> Number:
        return max(abs(self.low), abs(self.high))

    @property
    def exact(self) -> bool:
        return self.step is not None

    def rounded(self) -> Facts:
        """The same elements after something that rounds."""
        return replace(self, step=None, zeros=False)


@dataclass(frozen=True)
class Want:
    """What an op needs of an operand."""

    low: Number = -math.inf
    high: Number = math.inf
    exact: bool = False
    special: bool = False
    """Whether NaN and infinities are welcome."""
    zeros: bool = False

    def accepts(self, facts: Facts) -> bool:
        return (
            self.low <= facts.low
            and facts.high <= self.high
            and (facts.exact or not self.exact)
            and (self.special or not facts.special)
            and (facts.zeros or not self.zeros)
        )


def within(bound: Number, **more: bool) -> Want:
    """The want for elements of at most this magnitude."""
    return Want(-bound, bound, **more)


ANYTHING: Final = Want(special=True)
EXACT: Final = Want(exact=True, special=True)
BITS: Final = Facts(0, 1, zeros=True)
"""The facts of i1."""


def representable(dtype: DType, bound: Number, step: float) -> bool:
    """Whether a float dtype holds every multiple of `step` up to `bound`."""
    real = part_dtype(dtype)
    return bound <= limit(real) and bound <= step * 2.0**real.precision and step >= smallest(real)


def smallest(dtype: DType) -> float:
    """The smallest positive number of a float dtype."""
    info: Any = ml_dtypes.finfo
    return float(info(dtype.numpy).smallest_subnormal)


def outward(low: Number, high: Number) -> tuple[float, float]:
    """A range of floats with bounds of three significant bits around [low, high]."""
    return -_round_away(-float(low)), _round_away(float(high))


def _round_away(value: float) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(mantissa * 8), exponent - 3)


def settle(
    dtype: DType, low: Number, high: Number, step: float | None, *, special: bool = False
) -> Facts:
    """The facts of a computed value: integers wrap, floats are exact only where they fit."""
    if not (dtype.is_float or dtype.is_complex):
        if dtype.lowest <= low and high <= dtype.highest:
            return Facts(int(low), int(high))
        return anywhere(dtype)
    if step is not None and representable(dtype, max(abs(low), abs(high)), step):
        return Facts(low, high, step, special)
    low, high = outward(low, high)
    return Facts(low, high, None, special)


def anywhere(dtype: DType) -> Facts:
    """The facts of an integer (or i1) about which nothing is known."""
    return Facts(int(dtype.lowest), int(dtype.highest))


def saturated(dtype: DType, facts: Facts) -> Facts:
    """The facts of whole numbers after a cast to an integer dtype or to i1."""
    if not dtype.is_integer:
        return BITS
    lowest, highest = int(dtype.lowest), int(dtype.highest)
    if facts.special:
        return anywhere(dtype)
    low, high = (min(max(math.trunc(v), lowest), highest) for v in (facts.low, facts.high))
    return Facts(low, high)


def join(*several: Facts) -> Facts:
    """The facts of a value whose elements come from any of several values."""
    steps = [facts.step for facts in several]
    return Facts(
        min(facts.low for facts in several),
        max(facts.high for facts in several),
        None if None in steps else min(step for step in steps if step is not None),
        any(facts.special for facts in several),
        all(facts.zeros for facts in several),
    )


def default_accumulator(dtype: DType) -> DType:
    """Where sums over a dtype add up unless an op says otherwise."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def sum_facts(dtype: DType, accum: DType, facts: Facts, count: int) -> Facts:
    """The facts of sums of up to `count` elements, added up in `accum` and stored in `dtype`."""
    low, high = min(facts.low * count, facts.low, 0), max(facts.high * count, facts.high, 0)
    return accumulated(dtype, accum, low, high, facts.step)


def accumulated(dtype: DType, accum: DType, low: Number, high: Number, step: float | None) -> Facts:
    """The facts of something accumulated in `accum` and then cast to `dtype`."""
    inner = settle(accum, low, high, step)
    if not (dtype.is_float or dtype.is_complex):
        return saturated(dtype, inner)
    return settle(dtype, inner.low, inner.high, inner.step)


def product_facts(lhs: Facts, rhs: Facts) -> tuple[Number, Number, float | None]:
    """Range and step of the products of two real values."""
    ends = [a * b for a in (lhs.low, lhs.high) for b in (rhs.low, rhs.high)]
    step = None if lhs.step is None or rhs.step is None else lhs.step * rhs.step
    return min(ends), max(ends), step
