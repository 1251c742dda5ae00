"""Choosing random inputs: a range, and for floats a grid on which they are exact."""

from __future__ import annotations

import math

from weft.foundation.dtypes import DType
from weft.testing.choices import Choices
from weft.testing.facts import BITS, Facts, Want, part_dtype

_SPECIAL = 0.12
"""How often floats are sprinkled with NaN, infinities and -0 where those are welcome."""


def invent(choices: Choices, dtype: DType, want: Want) -> Facts | None:
    """Facts that a want accepts; None where no data of this dtype can have them."""
    if dtype.is_float or dtype.is_complex:
        return _invent_floats(choices, dtype, want)
    return _invent_integers(choices, dtype, want) if dtype.is_integer else BITS


def _invent_integers(choices: Choices, dtype: DType, want: Want) -> Facts | None:
    """Mostly small numbers, now and then the whole range of the dtype."""
    lowest, highest = int(dtype.lowest), int(dtype.highest)
    low = math.ceil(max(lowest, want.low))
    high = math.floor(min(highest, want.high))
    if choices.chance(0.75):
        small = choices.choose((1, 3, 7, 15))
        if max(low, -small) <= min(high, small):
            low, high = max(low, -small), min(high, small)
    return Facts(low, high, zeros=True) if low <= high else None


def _invent_floats(choices: Choices, dtype: DType, want: Want) -> Facts | None:
    """Multiples of a power of two: few bits, which stay exact for long, or as many as there are."""
    precision = part_dtype(dtype).precision
    top = float(choices.choose((1, 2, 4, 8)))
    while top <= want.low or -top >= want.high:
        top *= 2
    bits = min(choices.choose((2, 3, 4, precision - 1)), precision - 1)
    low, high = max(want.low, -top), min(want.high, top)
    # What is wanted may lie between two steps of a coarse grid: finer ones follow until one has a
    # number there.
    for used in range(bits, precision + 1):
        step = top / 2**used
        first, last = math.ceil(low / step), math.floor(high / step)
        if first <= last:
            special = want.special and dtype.is_float and choices.chance(_SPECIAL)
            return Facts(first * step, last * step, step, special, zeros=True)
    return None
