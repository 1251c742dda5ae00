"""Sums of windows of single channels over lines of an image: depthwise convolutions.

    y[c, p, q] = sum over k, l of x[c, a p + b k, s q + d l] * w[c, k, l]

A line is what lies side by side in the result. Along it, and mostly across it, too, places of the
result and taps of the window go along one axis of the image; all else is the same for every place
of a plane, or differs from tap to tap alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import F32
from weft.foundation.index_expr import Axis, Expr, axes_of, axis, coefficient, linear
from weft.foundation.records import dataclass
from weft.region.ir import (
    Binary,
    Cast,
    Check,
    Fold,
    Kernel,
    Let,
    Pattern,
    Read,
    Reduce,
    Tensor,
    Words,
    row_major,
)

_LEAST_PLACES: Final = 3
"""Of a line: fewer leave most of a vector empty."""
_MANY_TAPS: Final = 16
"""Taps that pay for turning both image and results, which have their channels last: 3 x 3 on 96
channels of 56 x 56 took 756 us so and 510 with channels in vectors, 5 x 5 on 240 of 28 x 28 328 and
1070."""


@dataclass(frozen=True)
class Slide:
    """An axis of the image along which windows slide."""

    at: int
    """Which axis of the tensor it is."""
    place: str
    tap: str
    """The kernel's axis of taps; empty where windows are one element wide."""
    step: int
    """Elements between neighbouring places."""
    apart: int
    """Elements between neighbouring taps, backwards where negative."""


@dataclass(frozen=True)
class LineWindows:
    """The sum, the factor that slides, and the read that it is, in whatever dtype."""

    total: Let
    factor: Let
    image: Let
    column: Slide
    row: Slide | None

    @property
    def slides(self) -> tuple[Slide, ...]:
        return (self.column,) if self.row is None else (self.row, self.column)


def find_line_windows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> LineWindows | None:
    """The windows of a kernel; None where it sums up something else."""
    plain = not (kernel.params or kernel.stages or kernel.opaque or kernel.roles)
    if kernel.pattern is not Pattern.ROW or not plain:
        return None
    found = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    if len(found) != 1 or any(isinstance(let.expr, Check | Words) for let in kernel.body):
        return None
    (total,) = found
    if not isinstance(total.expr, Reduce) or total.expr.fn != "sum":
        return None
    # Sums of narrow floats round at every step, in order.
    if not total.dtype.is_float or total.dtype.bits < F32.bits:
        return None
    product = kernel.let(total.expr.value).expr
    if not isinstance(product, Binary) or product.fn != "mul":
        return None
    for factor, other in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
        windows = _find_windows(kernel, total, factor, kernel.let(other).axes, tensors)
        if windows is not None:
            every = (kernel.let(output.value) for output in kernel.outputs)
            return windows if all(_places(windows) <= {*let.axes} for let in every) else None
    return None


def _places(windows: LineWindows) -> set[str]:
    return {slide.place for slide in windows.slides}


def _find_windows(
    kernel: Kernel,
    total: Let,
    factor: str,
    filters: Sequence[str],
    tensors: Mapping[str, Tensor],
) -> LineWindows | None:
    let = kernel.let(factor)
    image = kernel.let(let.expr.x) if isinstance(let.expr, Cast) else let
    read = image.expr
    if not isinstance(read, Read) or read.places or not read.index:
        return None
    assert isinstance(total.expr, Reduce)
    taps, line = {*total.expr.axes}, _line_of(kernel, tensors)
    found = (_slide(at, index, taps) for at, index in enumerate(read.index))
    every = [slide for slide in found if slide is not None and slide.place not in filters]
    beside = [slide for slide in every if slide.place == line]
    if not beside and _lies_along(read, line, tensors) and _count_taps(kernel, total) < _MANY_TAPS:
        return None
    column = next(iter(beside or [slide for slide in every[::-1] if slide.tap]), None)
    if column is None or kernel.sizes[column.place] < _LEAST_PLACES:
        return None
    # Lines of windows with neither taps beside nor below one another share nothing.
    row = next((slide for slide in reversed(every) if slide.tap and slide is not column), None)
    if not column.tap and row is None:
        return None
    windows = LineWindows(total, let, image, column, row)
    return windows if _are_apart(read, windows, tensors) else None


def _line_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> str:
    """The axis whose places lie closest together in the results."""
    output = kernel.outputs[0]
    address = linear(output.index, row_major(tensors[output.tensor].shape))
    steps = {each.name: coefficient(address, each.name) for each in kernel.axes if each.size > 1}
    return min((name for name in steps if steps[name] > 0), key=steps.__getitem__, default="")


def _lies_along(read: Read, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether neighbours along an axis are neighbours in memory."""
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    return coefficient(address, name) == 1


def _count_taps(kernel: Kernel, total: Let) -> int:
    assert isinstance(total.expr, Reduce)
    return math.prod(kernel.sizes[name] for name in total.expr.axes)


def _slide(at: int, index: Expr, taps: set[str]) -> Slide | None:
    """The place and the tap that an axis of the image depends on, if on nothing else."""
    names = axes_of(index)
    places, own = names - taps, names & taps
    if len(places) != 1 or len(own) > 1 or not all(isinstance(t, Axis) for t, _ in index.terms):
        return None
    (place,), tap = places, next(iter(own), "")
    step = coefficient(index, place)
    apart = coefficient(index, tap) if tap else 1
    return Slide(at, place, tap, step, apart) if step > 0 else None


def _are_apart(read: Read, windows: LineWindows, tensors: Mapping[str, Tensor]) -> bool:
    """Whether slides have axes of their own, and guards ask for nothing but where they are."""
    own = {slide.at: axes_of(read.index[slide.at]) for slide in windows.slides}
    if sum(map(len, own.values())) != len(frozenset[str]().union(*own.values())):
        return False
    slid = frozenset[str]().union(*own.values())
    if any(axes_of(i) & slid for at, i in enumerate(read.index) if at not in own):
        return False
    for guard in read.guards:
        beside = [at for at, names in own.items() if axes_of(guard.expr) & names]
        if len(beside) > 1 or (beside and not (guard.expr - read.index[beside[0]]).is_constant):
            return False
    return read.tensor in tensors


def moved(expr: Expr, slide: Slide) -> Expr:
    """What an expression has beside the place and the tap of a slide."""
    own = axis(slide.place) * slide.step
    return expr - (own + axis(slide.tap) * slide.apart if slide.tap else own)
