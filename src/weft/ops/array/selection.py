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
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.ops.arithmetic import listed
from weft.ops.array.reading import read
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
    """Positions as data: a tensor, or an array, whose positions are checked already."""

    positions: Tensor | NDArray[Any]

    @property
    def shape(self) -> Shape:
        return self.positions.shape


@dataclass(frozen=True)
class New:
    """An axis of size 1."""


Pick: TypeAlias = Span | Point | Places | New


@dataclass(frozen=True)
class Selection:
    """The picks in order; all but `New` belong to the axes of the tensor, in order."""

    picks: tuple[Pick, ...]

    @property
    def has_places(self) -> bool:
        return any(isinstance(pick, Places) for pick in self.picks)

    @property
    def spans(self) -> tuple[Span | Point | Places, ...]:
        """What is picked of each axis of the tensor."""
        return tuple(pick for pick in self.picks if not isinstance(pick, New))


def parsed(key: Any, shape: Shape) -> Selection:
    """The selection that `x[key]` means for an x of this shape."""
    items = _expanded(key if isinstance(key, tuple) else (key,), shape)
    picks: list[Pick] = []
    axis = 0
    for item in items:
        found = _picked(item, shape, axis)
        picks += found
        axis += sum(not isinstance(pick, New) for pick in found if not _is_added(item))
    if any(isinstance(pick, Places) for pick in picks):
        picks = [Places(np.asarray(p.at)) if isinstance(p, Point) else p for p in picks]
    return Selection(tuple(picks))
