"""Sorting along an axis. NaN is larger than everything else, and equal elements keep their order,
also where they are sorted from large to small."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import SI64
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle
from weft.ops.tensor import tensor_method

__all__ = ["argsort", "sort"]


@tensor_method
@recorded
def argsort(
    x: Handle, /, axis: int = -1, *, descending: bool = False, stable: bool = True
) -> Handle:
    """The positions that sort the elements along an axis; always stable."""
    at = normalise_axis(axis, x.rank)
    return x.argsort(axis=at, descending=bool(descending), output_dtype=SI64)


@tensor_method
@recorded
def sort(x: Handle, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Handle:
    """The elements along an axis in order; always stable."""
    return x.sort(axis=normalise_axis(axis, x.rank), descending=bool(descending))
