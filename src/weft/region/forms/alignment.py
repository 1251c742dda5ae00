"""Alignment of operand rows: whether TMA can read them."""

from __future__ import annotations

import math
from typing import Final

from weft.foundation.index_expr import Expr

LINE: Final = 16
"""Bytes that rows must begin at multiples of."""
ROW: Final = 128
"""Bytes that rows of copies begin at multiples of: the copy engine reads so many at a time."""


def grain(address: Expr, item: int) -> int:
    """The bytes, those of a copy's row at most, that all rows of an address of elements of `item`
    bytes begin at multiples of; 0 where no elements are neighbours."""
    steps = [factor for _, factor in address.terms]
    if 1 not in steps:
        return 0
    steps.remove(1)
    # Rows begin at sums of multiples of these numbers, and so at multiples of whatever divides all.
    return math.gcd(ROW, *(number * item for number in (*steps, address.constant)))


def is_aligned(address: Expr, item: int) -> bool:
    """Whether an address of elements of `item` bytes has neighbours, and rows at whole lines."""
    return grain(address, item) >= LINE
