"""Picking, counting and placing by index."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from weft.foundation.dtypes import I1, INDICES, ORDERED, SI64, DType, as_dtype
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
    """An index for each place, replacing its index along one axis. Where the indices have fewer
    places than x, those that x begins with are meant: `block` is how many, on every axis."""

    axis: int
    block: tuple[int, ...] | None = None
    reduce: str = "replace"
    include_self: bool = True


def check_gather(x: Any, indices: Any, axis: Any) -> AlongChecked:
    tensor, places = ensure_tensor("x", x), ensure_tensor("indices", indices)
    ensure_dtype("indices", places, INDICES, "integers (si32 or si64)")
    ensure_rank("indices", places, tensor.ndim, "as x has")
    at = ensure_axis_in_bounds("x", tensor, axis)
    rest = [
        (a, b) for i, (a, b) in enumerate(zip(tensor.shape, places.shape, strict=True)) if i != at
    ]
    if all(a == b for a, b in rest):
        return AlongChecked(at)
    if not all(a == b or (isinstance(a, int) and isinstance(b, int) and b < a) for a, b in rest):
        raise SpecViolation(
            "ShapeMismatch",
            f"indices {listed(places.shape)} have more places than x {listed(tensor.shape)} "
            f"besides axis {at}",
            "all axes but that one must be equal or smaller; broadcast one of them",
        )
    sizes = [ensure_known("x", dim) for dim in tensor.shape]
    block = [ensure_known("indices", dim) for dim in places.shape]
    block[at] = sizes[at]
    return AlongChecked(at, tuple(block))


def _slice_block(x: Handle, checked: AlongChecked) -> Handle:
    if checked.block is None:
        return x
    return x.session.emit("slice", x, starts=(0,) * x.rank, sizes=checked.block)


def capture_gather(s: Session, checked: AlongChecked, x: Handle, indices: Handle) -> Handle:
    return s.emit("gather", _slice_block(x, checked), indices, axis=checked.axis)


@tensor_method
@functional
def gather(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """`x[..., indices[i], ...]` along an axis: each index is from 0 to its size, else the run stops
    with GatherIndexOutOfBounds. On the other axes the indices may be smaller than x; they then
    apply to the first elements."""
    checked = check_gather(x, indices, axis)
    return capture(capture_gather, checked, ensure_tensor("x", x), indices)


SCATTERS = ("replace", "add", "max", "min", "prod", "mean")
_NEUTRAL = {"add": 0, "mean": 0, "prod": 1}


def check_scatter(
    x: Any, indices: Any, updates: Any, axis: Any, reduce: Any, include_self: Any
) -> AlongChecked:
    checked = check_gather(x, indices, axis)
    values = ensure_tensor("updates", updates)
    ensure_same_dtype("x", ensure_tensor("x", x), "updates", values)
    ensure_shape_matches("indices", ensure_tensor("indices", indices), "updates", values)
    ensure_choice("reduce", reduce, SCATTERS)
    return replace(checked, reduce=reduce, include_self=bool(include_self))


def capture_scatter(
    s: Session, checked: AlongChecked, x: Handle, indices: Handle, updates: Handle
) -> Handle:
    if checked.block is not None:
        part = _scatter_along(s, checked, _slice_block(x, checked), indices, updates)
        start = s.literal([0] * x.rank, SI64)
        return s.emit("dynamic_update_slice", x, part, start, sizes=checked.block)
    return _scatter_along(s, checked, x, indices, updates)


def _scatter_along(
    s: Session, checked: AlongChecked, x: Handle, indices: Handle, updates: Handle
) -> Handle:
    axis, reduce = checked.axis, checked.reduce
    counts = None
    if reduce == "mean" or not (checked.include_self or reduce == "replace"):
        ones = s.full(1, SI64, indices.shape)
        none = s.full(0, SI64, x.shape)
        counts = s.emit("scatter_reduce", none, indices, ones, axis=axis, reduce="add")
    if counts is not None and not checked.include_self:
        neutral = s.full(_neutral(reduce, x.dtype), x.dtype, x.shape)
        x = s.select(counts.compare("greater", 0), neutral, x)
    if reduce == "prod":
        return _multiply_updates(s, x, indices, updates, axis)
    known = "add" if reduce == "mean" else reduce
    found = s.emit("scatter_reduce", x, indices, updates, axis=axis, reduce=known)
    return _average_sums(s, found, counts, checked.include_self) if reduce == "mean" else found  # type: ignore[arg-type]


def _neutral(reduce: str, dtype: DType) -> Any:
    """What leaves the other operand as it is."""
    if reduce in _NEUTRAL:
        return _NEUTRAL[reduce]
    if dtype is I1:
        return reduce == "min"
    if dtype.is_float:
        return -math.inf if reduce == "max" else math.inf
    return dtype.lowest if reduce == "max" else dtype.highest


def _average_sums(s: Session, total: Handle, counts: Handle, include_self: bool) -> Handle:
    """Sums divided by how many elements met; integers are rounded down."""
    number = counts + 1 if include_self else s.emit("maximum", counts, 1)
    number = number.cast(total.dtype)
    if total.dtype.is_float or total.dtype.is_complex:
        return total / number
    rest = total.fmod(number)
    low = rest.compare("less", 0).cast(total.dtype) if total.dtype.is_signed else None
    return total / number if low is None else total / number - low


def _multiply_updates(s: Session, x: Handle, indices: Handle, updates: Handle, axis: int) -> Handle:
    """Every element times the updates that name it. No scatter multiplies: each place asks all
    updates of its row, along a new axis, and those for others count as 1."""
    size, count = x.shape[axis], indices.shape[axis]
    wide = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
    row = (*x.shape[:axis], 1, count, *x.shape[axis + 1 :])
    mine = s.iota(indices.dtype, wide, axis)
    named = mine.compare("equal", indices.reshape(row).broadcast_to(wide))
    ones = s.full(1, updates.dtype, wide)
    factors = s.select(named, updates.reshape(row).broadcast_to(wide), ones)
    known = s.iota(indices.dtype, (ensure_known("the axis", size),), 0).take(indices)
    inside = known.compare("equal", indices).reshape(row).broadcast_to(wide)
    factors = s.select(inside, factors, ones)
    return x * s.emit("reduce_prod", factors, axes=(axis + 1,), keepdims=False)


@tensor_method
@functional
def scatter(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int = -1,
    *,
    reduce: str = "replace",
    include_self: bool = True,
) -> Tensor:
    """A copy of x in which every update is combined with the element at its index along an axis: it
    replaces the element, or `reduce` makes it the sum ("add"), the maximum or minimum ("max",
    "min"), the product or the mean of both. Without `include_self`, elements with an update do not
    take part themselves. As for `gather`, the indices may be smaller than x on the other axes."""
    checked = check_scatter(x, indices, updates, axis, reduce, include_self)
    return capture(capture_scatter, checked, ensure_tensor("x", x), indices, updates)


@tensor_method
@functional
def scatter_add(x: Tensor, indices: Tensor, updates: Tensor, axis: int = -1) -> Tensor:
    """A copy of x with every update added at its index along an axis; several updates of one
    element add up."""
    checked = check_scatter(x, indices, updates, axis, "add", True)
    return capture(capture_scatter, checked, ensure_tensor("x", x), indices, updates)
