"""Slices whose start is known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.foundation.dtypes import SI64
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import TensorLike, as_tensor, listed
from weft.ops.array.creation import asarray
from weft.ops.array.manipulation import stack
from weft.ops.array.operands import given, known, taken
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

__all__ = ["dynamic_slice", "dynamic_update_slice"]


@public
def dynamic_slice(x: TensorLike, starts: Any, sizes: Sequence[int]) -> Tensor:
    """The window of `x` that begins at `starts` and has these sizes. A start is a number or an
    integer scalar for each axis; a negative one counts from the end, and a window that would reach
    beyond `x` is moved inside."""
    values = as_tensor(x)
    wanted = tuple(sizes)
    if len(wanted) != values.ndim:
        raise UserError(f"there are {len(wanted)} sizes for the {values.ndim} axes of x")
    window = taken(values).dynamic_slice(_start_vector(values, starts), sizes=wanted)
    return given(window, values)


@public
def dynamic_update_slice(x: TensorLike, update: TensorLike, starts: Any) -> Tensor:
    """A copy of `x` with the window that begins at `starts` replaced by `update`; the window is
    found as by `dynamic_slice`."""
    values, new = as_tensor(x), as_tensor(update)
    if new.dtype is not values.dtype:
        raise SpecViolation(
            "DTypeMismatch",
            f"x is {values.type} and update {new.type}",
            f"convert it with .astype({values.dtype})",
        )
    if new.ndim != values.ndim:
        raise SpecViolation(
            "RankMismatch",
            f"x {listed(values.shape)} and update {listed(new.shape)} have different ranks",
            "insert axes with None",
        )
    sizes = tuple(known(dim, "a size of update") for dim in new.shape)
    start = _start_vector(values, starts)
    made = taken(values).dynamic_update_slice(taken(new), start, sizes=sizes)
    return given(made, values, new)


def _start_vector(x: Tensor, starts: Any) -> Handle:
    """A start for each axis, as one vector."""
    each = list(starts) if isinstance(starts, list | tuple) else _list_entries(starts)
    if len(each) != x.ndim:
        raise UserError(f"there are {len(each)} starts for the {x.ndim} axes of x")
    scalars = [integer_scalar("a start", start) for start in each]
    vector = stack(scalars) if scalars else asarray([], dtype=SI64)
    sizes = asarray([known(dim, "a size of x") for dim in x.shape], dtype=SI64)
    return taken(where(vector < 0, vector + sizes, vector))


def _list_entries(starts: Any) -> list[Any]:
    vector = asarray(starts)
    return [vector] if not vector.ndim else list(vector)


def integer_scalar(name: str, value: Any) -> Tensor:
    """A number, or a tensor that is one, in si64; messages call it by a name."""
    tensor = asarray(value)
    if tensor.shape or not tensor.dtype.is_integer:
        raise UserError(f"{name} is {tensor.type}; it must be a whole number or integer scalar")
    return tensor.astype(SI64)
