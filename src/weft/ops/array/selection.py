"""What an index expression means: `x[1:, None, ..., places]` axis by axis.

    Span    a range along an axis: first element, how many, how far apart
    Point   one position; the axis disappears
    Places  positions that are data; the axes of all places together broadcast to one shape
    New     an axis of size 1 that the tensor does not have

A boolean mask is the places of its true elements, which are read. As in NumPy, points beside places
are places themselves, and the axes of the places stand where the first of them stands, unless
something is between them: then they come first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dims import Dim, Shape
from weft.foundation.dtypes import I1
from weft.foundation.errors import OutOfRange, SizeWanted, SpecViolation, UserError, a_type
from weft.ops.arithmetic import listed
from weft.ops.array.conversion import as_array
from weft.ops.array.reading import read_elements
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

_BOUNDS = "GatherIndexOutOfBounds"


@dataclass(frozen=True)
class Span:
    """`size` elements from `start` on, `step` apart; `step` may be negative."""

    start: int
    size: Dim
    step: int = 1

    @property
    def low(self) -> int:
        """The lowest position."""
        if isinstance(self.size, int) and self.size and self.step < 0:
            return self.start + (self.size - 1) * self.step
        return self.start

    @property
    def extent(self) -> Dim:
        """How many positions lie from the lowest to the highest."""
        if not isinstance(self.size, int) or self.size == 0:
            return self.size
        return (self.size - 1) * abs(self.step) + 1


@dataclass(frozen=True)
class Point:
    """One position."""

    at: int


@dataclass(frozen=True, eq=False)
class Places:
    """Positions as data: a handle, or an array, whose positions are checked already."""

    positions: Handle | NDArray[Any]
    added: bool = False
    """Whether they are positions on an axis of size 1 that the tensor does not have."""


@dataclass(frozen=True)
class New:
    """An axis of size 1."""


Pick: TypeAlias = Span | Point | Places | New


@dataclass(frozen=True)
class Selection:
    """The picks, in order. Each belongs to the next axis of the tensor, unless it adds one."""

    picks: tuple[Pick, ...]

    @property
    def has_places(self) -> bool:
        return any(isinstance(pick, Places) for pick in self.picks)

    @property
    def own(self) -> tuple[Pick, ...]:
        """What is picked of each axis of the tensor."""
        return tuple(pick for pick in self.picks if not adds_axis(pick))


def adds_axis(pick: Pick) -> bool:
    """Whether a pick is about an axis that the tensor does not have."""
    return isinstance(pick, New) or (isinstance(pick, Places) and pick.added)


def parsed(items: Sequence[Any], shape: Shape) -> Selection:
    """The selection that `x[items]` means for an x of this shape. Tensors of integers stand among
    the items as handles."""
    picks: list[Pick] = []
    axis = 0
    for item in _complete([_index_item(item) for item in items], shape):
        found = _pick_entry(item, shape, axis)
        axis += sum(not adds_axis(pick) for pick in found)
        picks += found
    if any(isinstance(pick, Places) for pick in picks):
        picks = [Places(np.asarray(p.at)) if isinstance(p, Point) else p for p in picks]
    return Selection(tuple(picks))


@dataclass(frozen=True)
class Window:
    """What lies from the first to the last position picked of each axis, and what is picked of
    that: so a read at another place has the same `sizes` and `rest`."""

    start: tuple[int, ...]
    sizes: tuple[int, ...]
    rest: tuple[Any, ...]
    """Index expressions of the window, of the kinds that were given."""


def windowed(items: Sequence[Any], shape: tuple[int, ...]) -> Window:
    """The window of an index expression of integers, slices, None, `...`, and anything else for
    positions that are data, which may lie anywhere on their axis."""
    start: list[int] = []
    sizes: list[int] = []
    rest: list[Any] = []
    for item in _complete(items, shape):
        axis = len(sizes)
        if item is None:
            rest.append(None)
            continue
        span, left = Span(0, shape[axis]), item
        if isinstance(item, int):
            span, left = Span(_position_from_front(item, shape[axis], axis, shape), 1), 0
        elif isinstance(item, slice):
            span = _span(item, shape[axis], axis)
            left = slice(None, None, span.step)
        start.append(span.low if span.size else 0)
        sizes.append(int(span.extent))
        rest.append(left)
    return Window(tuple(start), tuple(sizes), tuple(rest))


def _index_item(item: Any) -> Any:
    """An entry of an index expression: None, `...`, a slice, an int, a handle, an array, or a mask
    that is a tensor."""
    if item is None or item is Ellipsis or isinstance(item, slice | Handle):
        return item
    if isinstance(item, bool | np.bool_):
        return np.asarray(bool(item))
    if isinstance(item, Tensor | np.ndarray | list | tuple):
        return _array_item(list(item) if isinstance(item, tuple) else item)
    if hasattr(item, "__index__"):
        return operator.index(item)
    raise UserError(
        f"a tensor cannot be indexed with {a_type(item)}; integers, slices, ..., None, "
        "and tensors of integers or booleans can"
    )


def _array_item(item: Any) -> Any:
    array = item if isinstance(item, Tensor) else as_array(item)
    if isinstance(item, list) and not array.size:
        return array.astype(np.int64)
    if not _is_mask(array) and (isinstance(array, Tensor) or array.dtype.kind not in "iu"):
        raise SpecViolation(
            "DTypeNotSupported",
            f"the index is of dtype {array.dtype}, but integers or booleans are wanted",
            "convert it with astype",
        )
    return array


def _is_mask(item: Any) -> bool:
    return item.dtype is I1 if isinstance(item, Tensor) else item.dtype == np.bool_


def _complete(items: Sequence[Any], shape: Shape) -> list[Any]:
    """The entries with whole axes in place of `...`, or at the end where there is none."""
    dots = [index for index, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise UserError("an index expression holds at most one ...")
    named = sum(map(_axes_named, items))
    if named > len(shape):
        raise OutOfRange(
            _BOUNDS,
            f"{named} axes are indexed, but x {listed(shape)} has {len(shape)}",
            "leave indices out, or add axes with None",
        )
    whole = [slice(None)] * (len(shape) - named)
    at = dots[0] if dots else len(items)
    return [*items[:at], *whole, *items[at + 1 :]]


def _axes_named(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, Tensor | np.ndarray) and _is_mask(item):
        return len(item.shape)
    return 1


def _pick_entry(item: Any, shape: Shape, axis: int) -> list[Pick]:
    """What one entry picks, of the axes from `axis` on."""
    if item is None:
        return [New()]
    if isinstance(item, Tensor | np.ndarray) and _is_mask(item):
        return _from_mask(item, shape, axis)
    size = shape[axis]
    if isinstance(item, int):
        return [Point(_position_from_front(item, size, axis, shape))]
    if isinstance(item, slice):
        return [_span(item, size, axis)]
    if isinstance(item, np.ndarray):
        return [Places(_check_positions(item, size, axis, shape))]
    return [Places(item)]


def _from_mask(mask: Any, shape: Shape, axis: int) -> list[Pick]:
    dims = mask.shape
    for offset, size in enumerate(dims):
        if size not in (shape[axis + offset], 0):
            raise OutOfRange(
                "ShapeMismatch",
                f"the mask {listed(dims)} has size {size} on axis {offset}, but x "
                f"{listed(shape)} has {shape[axis + offset]} there",
                "a mask must have the sizes of the axes that it indexes",
            )
    if isinstance(mask, Tensor):
        mask = read_elements(mask, "the number of elements that a mask selects")
    if not dims:
        return [Places(np.zeros(int(mask), np.int64), added=True)]
    return [Places(places) for places in np.nonzero(mask)]


def _position_from_front(at: int, size: Dim, axis: int, shape: Shape) -> int:
    """A position counted from the front. On a dynamic axis only the run knows the end."""
    if isinstance(size, int) and -size <= at < size:
        return at + size if at < 0 else at
    if not isinstance(size, int) and at >= 0:
        return at
    where = f"axis {axis} of x {listed(shape)}"
    if not isinstance(size, int):
        raise SizeWanted(
            "DynamicDimensionMismatch",
            f"index {at} counts from the end of {where}, which is open",
            "index with a tensor, or trace the function with this dim fixed",
        )
    range_ = f"it has {-size} to {size - 1}" if size else "it has no elements"
    raise OutOfRange(_BOUNDS, f"index {at} is out of range for {where}", range_)


def _check_positions(array: NDArray[Any], size: Dim, axis: int, shape: Shape) -> NDArray[Any]:
    """Positions counted from the front, all in range."""
    wide = array.astype(np.int64)
    if not isinstance(size, int) or not wide.size:
        return wide
    for extreme in (int(wide.min()), int(wide.max())):
        _position_from_front(extreme, size, axis, shape)
    return np.where(wide < 0, wide + size, wide)


def _span(item: slice, size: Dim, axis: int) -> Span:
    if not isinstance(size, int):
        if item == slice(None):
            return Span(0, size)
        raise SizeWanted(
            "DynamicDimensionMismatch",
            f"axis {axis} has the open size {size} and can only be taken whole",
            "slice it outside the traced function, or trace with this dim fixed",
        )
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError) as error:
        raise UserError(f"the slice on axis {axis} is not valid: {error}") from None
    return Span(start, len(range(start, stop, step)), step)
