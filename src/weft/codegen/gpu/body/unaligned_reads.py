"""Vector reads at unaligned addresses: rows of odd length, slices from an odd index on.

The lines in which such neighbours lie are read whole and shifted together (`LoadAcross`), which
takes two accesses where one by one they would take eight.
"""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import (
    Axis,
    Expr,
    Guard,
    axes_of,
    bounds,
    coefficient,
    linear,
)
from weft.foundation.records import dataclass
from weft.memory.ir import MemRef
from weft.region.ir import Kernel, Read

LINE: Final = 16
"""Bytes of one access."""
_NARROW: Final = 2
"""Bytes of elements that are slow to read one by one."""


@dataclass(frozen=True)
class Run:
    """A read that goes up by one along an axis. Some of its guards hold for all or for none of the
    elements along it, some for those at its beginning; the others are zeros."""

    whole: tuple[Guard, ...]
    beginning: tuple[Guard, ...]


def run_along(read: Read, axis: str | None, kernel: Kernel, ref: MemRef) -> Run | None:
    """What a read does along an axis; None if that is no run."""
    if axis is None or read.places or read.fill or ref.alignment % LINE:
        return None
    kept, ranges = kernel.open_guards(read), kernel.ranges
    beginning = tuple(guard for guard in kept if axis in axes_of(guard.expr))
    steady = all(
        _is_run(guard.expr, axis) and bounds(guard.expr, ranges)[0] >= 0 for guard in beginning
    )
    if not steady or not _is_run(linear(read.index, ref.strides), axis):
        return None
    return Run(tuple(guard for guard in kept if guard not in beginning), beginning)


def _is_run(address: Expr, axis: str) -> bool:
    """Whether an expression goes up by one along an axis."""
    inside = (term for term, _ in address.terms if not isinstance(term, Axis))
    parts = any(axis in axes_of(Expr(0, ((term, 1),))) for term in inside)
    return coefficient(address, axis) == 1 and not parts


def fills_a_line(dtype: DType, count: int) -> bool:
    """Whether so many narrow elements are what one access brings."""
    return dtype.storage_bytes <= _NARROW and count * dtype.storage_bytes == LINE
