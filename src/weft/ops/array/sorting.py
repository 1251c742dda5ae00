"""Sorting along an axis. NaN is larger than everything else, and equal elements keep their order,
also where they are sorted from large to small."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import SI64
from weft.ops.array.operands import given, taken
from weft.ops.calls import public
from weft.ops.tensor import Tensor, tensor_method

__all__ = ["argsort", "sort"]


@tensor_method
@public
def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The positions that sort the elements along an axis; always stable."""
    value = taken(x)
    at = normalise_axis(axis, value.rank)
    found = value.session.emit(
        "argsort", value, axis=at, descending=bool(descending), output_dtype=SI64
    )
    return given(found)


@tensor_method
@public
def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements along an axis in order; always stable."""
    value = taken(x)
    at = normalise_axis(axis, value.rank)
    return given(value.session.emit("sort", value, axis=at, descending=bool(descending)), x)
