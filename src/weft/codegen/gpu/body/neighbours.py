"""Vectorisation of accesses: whether elements along an axis are contiguous, so that one access can
take several.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from weft.foundation.index_expr import Axis, Expr, FloorDiv, Guard, axes_of, coefficient


def all_or_none(guard: Guard, axis: str | None, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether a guard holds for all or for none of the elements of a vector along an axis."""
    if axis is None or axis not in axes_of(guard.expr):
        return True
    return guard.size % count == 0 and aligned(guard.expr, axis, count, sizes)


def aligned(address: Expr, axis: str, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether the `count` elements from a multiple of `count` on along an axis are neighbours that
    begin at a multiple of `count` elements."""
    if coefficient(address, axis) != 1 or address.constant % count or sizes[axis] % count:
        return False
    for term, factor in address.terms:
        if isinstance(term, Axis) and (term.name == axis or sizes[term.name] == 1):
            continue
        if isinstance(term, FloorDiv) and axis in axes_of(Expr(0, ((term, 1),))):
            return False
        if factor % count:
            return False
    return True


def same_for(address: Expr, axis: str, count: int) -> int:
    """For how many elements along an axis, from a multiple of that number on, an address is the
    same: a divisor of `count`."""
    for term, _ in address.terms:
        if axis not in axes_of(Expr(0, ((term, 1),))):
            continue
        if not isinstance(term, FloorDiv) or coefficient(term.value, axis) != 1:
            return 1
        others = [
            (t, f) for t, f in term.value.terms if not (isinstance(t, Axis) and t.name == axis)
        ]
        if any(axis in axes_of(Expr(0, ((t, 1),))) for t, _ in others):
            return 1
        count = gcd(count, term.divisor, term.value.constant, *(f for _, f in others))
    return count
