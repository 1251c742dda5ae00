"""Picking, counting and placing by index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import INDICES, ORDERED, DType, as_dtype
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.functional.capture import capture, capture_several
from weft.ops.functional.checks import (
    Checked,
    ensure_axis_in_bounds,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_positive,
    ensure_rank,
    ensure_same_dtype,
    ensure_shape_matches,
    ensure_tensor,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, tensor_method


@dataclass(frozen=True)
class OneHotChecked(Checked):
    """How many classes, where their axis goes, and the dtype of the result."""

    depth: int
    axis: int
    dtype: DType


def check_one_hot(indices: Any, depth: Any, axis: Any, dtype: Any) -> OneHotChecked:
    tensor = ensure_tensor("indices", indices)
    ensure_dtype("indices", tensor, INDICES, "integers (si32 or si64)")
    rank = tensor.ndim + 1
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise SpecViolation(
            "InvalidAttributeValue",
            f"axis {axis!r} is out of range for a result of rank {rank}",
            f"axes run from {-rank} to {rank - 1}",
        )
    return OneHotChecked(ensure_positive("depth", depth), axis % rank, as_dtype(dtype))


def capture_one_hot(s: Session, checked: OneHotChecked, indices: Handle) -> Handle:
    axis = checked.axis
    column = (*indices.shape[:axis], 1, *indices.shape[axis:])
    shape = (*indices.shape[:axis], checked.depth, *indices.shape[axis:])
    wanted = indices.reshape(column).broadcast_to(shape)
    return s.iota(indices.dtype, shape, axis).compare("equal", wanted).cast(checked.dtype)


@functional
def one_hot(indices: Tensor, depth: int, *, axis: int = -1, dtype: DType | str = "f32") -> Tensor:
    """1 at each index along a new axis of size `depth`, 0 elsewhere; an index outside gives 0
    everywhere."""
    checked = check_one_hot(indices, depth, axis, dtype)
    return capture(capture_one_hot, checked, ensure_tensor("indices", indices))


@dataclass(frozen=True)
class TopKChecked(Checked):
    """How many, along which axis, from which end."""

    k: int
    axis: int
    largest: bool


def check_top_k(x: Any, k: Any, axis: Any, largest: Any) -> TopKChecked:
    tensor = ensure_tensor("x", x)
    ensure_dtype("x", tensor, ORDERED, "numbers that have an order")
    at = ensure_axis_in_bounds("x", tensor, axis)
    count = ensure_positive("k", k)
    if count > ensure_known("the axis", tensor.shape[at]):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"k is {count}, but axis {at} of x {listed(tensor.shape)} has {tensor.shape[at]}",
            "ask for fewer",
        )
    return TopKChecked(count, at, bool(largest))


def capture_top_k(s: Session, checked: TopKChecked, x: Handle) -> tuple[Handle, ...]:
    return tuple(s.emit("top_k", x, k=checked.k, axis=checked.axis, largest=checked.largest))


@tensor_method
@functional
def top_k(x: Tensor, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, ...]:
    """The k largest (or smallest) elements along an axis, in order, and their positions. NaN counts
    as largest; of equal elements the first comes first."""
    return capture_several(capture_top_k, check_top_k(x, k, axis, largest), ensure_tensor("x", x))


@dataclass(frozen=True)
class AlongChecked(Checked):
    """An index for each place, replacing its index along one axis."""

    axis: int
    reduce: str = "replace"


def check_gather(x: Any, indices: Any, axis: Any) -> AlongChecked:
    tensor, places = ensure_tensor("x", x), ensure_tensor("indices", indices)
    ensure_dtype("indices", places, INDICES, "integers (si32 or si64)")
    ensure_rank("indices", places, tensor.ndim, "as x has")
    at = ensure_axis_in_bounds("x", tensor, axis)
    rest = [
        (a, b) for i, (a, b) in enumerate(zip(tensor.shape, places.shape, strict=True)) if i != at
    ]
    if any(a != b for a, b in rest):
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(tensor.shape)} and indices {listed(places.shape)} differ besides axis {at}",
            "all axes but that one must be equal; broadcast one of them",
        )
    return AlongChecked(at)


def capture_gather(s: Session, checked: AlongChecked, x: Handle, indices: Handle) -> Handle:
    return s.emit("gather", x, indices, axis=checked.axis)


@tensor_method
@functional
def gather(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """`x[..., indices[i], ...]` along an axis: each index is from 0 to its size, else the run
    stops with GatherIndexOutOfBounds."""
    checked = check_gather(x, indices, axis)
    return capture(capture_gather, checked, ensure_tensor("x", x), indices)


SCATTERS = ("replace", "add", "max", "min")


def check_scatter(x: Any, indices: Any, updates: Any, axis: Any, reduce: Any) -> AlongChecked:
    checked = check_gather(x, indices, axis)
    values = ensure_tensor("updates", updates)
    ensure_same_dtype("x", ensure_tensor("x", x), "updates", values)
    ensure_shape_matches("indices", ensure_tensor("indices", indices), "updates", values)
    return AlongChecked(checked.axis, ensure_choice("reduce", reduce, SCATTERS))


def capture_scatter(
    s: Session, checked: AlongChecked, x: Handle, indices: Handle, updates: Handle
) -> Handle:
    return s.emit("scatter_reduce", x, indices, updates, axis=checked.axis, reduce=checked.reduce)


@tensor_method
@functional
def scatter(
    x: Tensor, indices: Tensor, updates: Tensor, axis: int = -1, *, reduce: str = "replace"
) -> Tensor:
    """A copy of x in which every update is placed at its index along an axis: in the place of the
    element there, added to it, or the larger or smaller of both."""
    checked = check_scatter(x, indices, updates, axis, reduce)
    return capture(capture_scatter, checked, ensure_tensor("x", x), indices, updates)


@tensor_method
@functional
def scatter_add(x: Tensor, indices: Tensor, updates: Tensor, axis: int = -1) -> Tensor:
    """A copy of x with every update added at its index along an axis; several at one place add
    up."""
    checked = check_scatter(x, indices, updates, axis, "add")
    return capture(capture_scatter, checked, ensure_tensor("x", x), indices, updates)
