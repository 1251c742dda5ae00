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
from weft.foundation.index_expr import Axis, Expr, FloorDiv, axes_of, axis, coefficient, linear
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
    """An axis of the image along which windows slide: its elements `step * place + apart * tap`."""

    place: str
    tap: str
    """The kernel's axis of taps; empty where windows are one element wide."""
    step: int
    """Elements between neighbouring places."""
    apart: int
    """Elements between neighbouring taps, backwards where negative."""

    @property
    def axes(self) -> frozenset[str]:
        return frozenset({self.place, self.tap} - {""})

    def where(self, expr: Expr, along: Expr) -> Expr:
        """An expression in which the element is `along`."""
        place, tap = (coefficient(expr, name) for name in (self.place, self.tap))
        rest = expr - axis(self.place) * place - (axis(self.tap) * tap if self.tap else 0)
        return rest + along * (place // self.step)


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
    address = _address_of(read, tensors)
    every, line = _slides(kernel, total, read, address), _line_of(kernel, tensors)
    if every is None:
        return None
    every = [slide for slide in every if slide.place not in filters]
    beside = [slide for slide in every if slide.place == line]
    if not beside and coefficient(address, line) == 1 and _count_taps(kernel, total) < _MANY_TAPS:
        return None
    column = next(iter(beside or [slide for slide in every if slide.tap]), None)
    if column is None or kernel.sizes[column.place] < _LEAST_PLACES:
        return None
    row = next((slide for slide in every if slide.tap and slide is not column), None)
    windows = LineWindows(total, let, image, column, row)
    return windows if _overlap(kernel, windows) and _are_apart(read, address, windows) else None


def _address_of(read: Read, tensors: Mapping[str, Tensor]) -> Expr:
    return linear(read.index, row_major(tensors[read.tensor].shape))


def _count_taps(kernel: Kernel, total: Let) -> int:
    assert isinstance(total.expr, Reduce)
    return math.prod(kernel.sizes[name] for name in total.expr.axes)


def _slides(kernel: Kernel, total: Let, read: Read, address: Expr) -> list[Slide] | None:
    """The axes of the image along which places go, as indices and guards say them, neighbours in
    memory first; None where they contradict one another."""
    assert isinstance(total.expr, Reduce)
    taps = {*total.expr.axes}
    said = (*read.index, *(guard.expr for guard in read.guards))
    found = dict.fromkeys(slide for expr in said if (slide := _slide(expr, taps)) is not None)
    names = [name for slide in found for name in slide.axes]
    for slide in found:
        stride = coefficient(address, slide.place) // slide.step
        same = coefficient(address, slide.tap) == stride * slide.apart if slide.tap else True
        if stride < 1 or coefficient(address, slide.place) % slide.step or not same:
            return None
    if len(names) != len({*names}):
        return None
    return sorted(found, key=lambda slide: coefficient(address, slide.place) // slide.step)


def _overlap(kernel: Kernel, windows: LineWindows) -> bool:
    """Whether neighbouring windows see the same elements, or have several lines of several taps."""
    sizes = kernel.sizes
    taps = {slide: sizes[slide.tap] if slide.tap else 1 for slide in windows.slides}
    shared = any(abs(slide.apart) * (count - 1) >= slide.step for slide, count in taps.items())
    return shared or (windows.row is not None and windows.column.tap != "")


def _line_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> str:
    """The axis whose places lie closest together in the results."""
    output = kernel.outputs[0]
    address = linear(output.index, row_major(tensors[output.tensor].shape))
    steps = {each.name: coefficient(address, each.name) for each in kernel.axes if each.size > 1}
    return min((name for name in steps if steps[name] > 0), key=steps.__getitem__, default="")


def _slide(expr: Expr, taps: set[str]) -> Slide | None:
    """The place and the tap that an expression depends on, if on nothing else."""
    names = axes_of(expr)
    places, own = names - taps, names & taps
    if len(places) != 1 or len(own) > 1 or not all(isinstance(t, Axis) for t, _ in expr.terms):
        return None
    (place,), tap = places, next(iter(own), "")
    step = coefficient(expr, place)
    return Slide(place, tap, step, coefficient(expr, tap) if tap else 1) if step > 0 else None


def _are_apart(read: Read, address: Expr, windows: LineWindows) -> bool:
    """Whether guards ask for nothing but where an element is, and nothing is divided on the way."""
    for expr in (address, *(guard.expr for guard in read.guards)):
        quotients = [axes_of(term.value) for term, _ in expr.terms if isinstance(term, FloorDiv)]
        slid = frozenset[str]().union(*(slide.axes for slide in windows.slides))
        if any(names & slid for names in quotients):
            return False
    for guard in read.guards:
        beside = [slide for slide in windows.slides if slide.axes & axes_of(guard.expr)]
        if len(beside) > 1 or any(not _is_along(guard.expr, slide) for slide in beside):
            return False
    return True


def _is_along(expr: Expr, slide: Slide) -> bool:
    """Whether an expression moves as the elements of a slide do."""
    steps = [(slide.place, slide.step), *([(slide.tap, slide.apart)] if slide.tap else [])]
    return all(coefficient(expr, name) == step for name, step in steps)
