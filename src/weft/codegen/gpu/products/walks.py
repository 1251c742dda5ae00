"""TMA coordinates of convolution operands: how the copy engine goes through windows of an image and
their filters.

    image      places one after the other, one tap of their windows and some channels at a time
    filters    some channels of one tap at a time

Rows, columns and the contracted axes of a tile begin at a number each, whose digits are the axes
that it is made of. What one copy brings never crosses from one tap to the next: channels that are
summed over are padded to whole copies, for which the engine writes zeros into both operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final, TypeAlias

from weft.codegen.gpu.ir.frame import Window
from weft.codegen.gpu.ir.scalar import Scalar, scalar, total
from weft.foundation.index_expr import Expr, coefficient
from weft.foundation.records import dataclass
from weft.memory.ir import MemRef
from weft.region.form import Image, Moved
from weft.region.forms.image import batch_factors, image_number, told_apart

ROW: Final = 128
"""Bytes of a row of a copy, at most."""
Digits: TypeAlias = tuple[tuple[str, int], ...]
"""Axes and their sizes, outermost first."""
Dim: TypeAlias = tuple[int, int, "Step"]
"""Of a tensor map: size, stride, and where a copy begins."""


@dataclass(frozen=True)
class Step:
    """`constant + sum of factor * axis`, and how far each batch axis goes."""

    constant: int
    factors: Digits
    batch: tuple[int, ...] = ()

    def at(self, found: Mapping[str, Scalar], batch: Sequence[Scalar]) -> Scalar:
        terms = [found[name] * factor for name, factor in self.factors]
        terms += [
            index * factor for index, factor in zip(batch, self.batch, strict=False) if factor
        ]
        return total(self.constant, *terms)


@dataclass(frozen=True)
class Counted:
    """A tap whose number depends on a matrix: in matrices of which the batch axis `number` is at f
    windows have the taps `step * t + f`, those below `taps`."""

    tap: str
    number: int
    step: int
    taps: int

    def count(self, batch: Sequence[Scalar]) -> Scalar:
        """How many taps the windows of a matrix have."""
        return (batch[self.number] * -1 + (self.taps + self.step - 1)) // self.step

    @property
    def fewest(self) -> int:
        return self.taps // self.step


def counted_digits(
    number: Scalar, digits: Digits, phases: Sequence[Counted], batch: Sequence[Scalar]
) -> Iterator[tuple[str, Scalar]]:
    """The digits of a number, of which some have as many values as a matrix has taps."""
    counts = {phase.tap: phase.count(batch) for phase in phases}
    rest = number
    for name, size in reversed(digits[1:]):
        count = counts.get(name, scalar(size))
        yield name, rest % count
        rest = rest // count
    yield digits[0][0], rest


@dataclass(frozen=True)
class Walk:
    """A tensor map, and where copies begin in it. `outer` are the digits of the row or column that
    a tile begins at, `inner` those of the contracted axes."""

    outer: Digits
    inner: Digits
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    start: tuple[Step, ...]
    window: Window | None = None
    taps: tuple[Step, ...] = ()
    whole: int = 0
    """Channels of a tap, where they are rows or columns: tiles must not cross from tap to tap."""
    phases: tuple[Counted, ...] = ()
    """Taps of which not every matrix has the same number."""

    def coords(
        self, outer: Scalar, inner: Mapping[str, Scalar], batch: Sequence[Scalar]
    ) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
        """Where a copy begins, and how far its taps are from the places; `inner` are the digits of
        the contracted axes."""
        found = {**dict(self._digits(outer, self.outer)), **inner}
        places = tuple(step.at(found, batch) for step in self.start)
        return places, tuple(step.at(found, batch) for step in self.taps)

    def inner_digits(self, number: Scalar, batch: Sequence[Scalar]) -> dict[str, Scalar]:
        """The digits of a place along the contracted axes."""
        if self.phases:
            return dict(counted_digits(number, self.inner, self.phases, batch))
        return dict(self._digits(number, self.inner))

    def _digits(self, number: Scalar, digits: Digits) -> Iterator[tuple[str, Scalar]]:
        """Of a number. Where two blocks share rows, the second may begin behind the last one: it
        is sent to some place of the image then, for nobody to store."""
        below = prod(size for _, size in digits)
        for place, (name, size) in enumerate(digits):
            below //= size
            digit = number // below if below > 1 else number
            yield name, digit % size if place or self.window else digit


@dataclass(frozen=True)
class Axes:
    """The axes of a contraction by role, outermost first, with their sizes."""

    batch: tuple[str, ...]
    outer: tuple[str, ...]
    """Rows or columns, those of the operand at hand."""
    k: tuple[str, ...]
    sizes: Mapping[str, int]

    def digits(self, names: Sequence[str]) -> Digits:
        return tuple((name, self.sizes[name]) for name in names if self.sizes[name] > 1)

    def factors(self, expr: Expr) -> Digits:
        found = ((name, coefficient(expr, name)) for name in (*self.outer, *self.k))
        return tuple((n, f) for n, f in found if f and self.sizes[n] > 1)

    def along(self, start: int, name: str, factor: int) -> Step:
        """A step along one axis, if it has a name."""
        if name not in self.batch:
            return Step(start, ((name, factor),) if name else ())
        return Step(start, (), tuple(factor * (other == name) for other in self.batch))

    def step(self, expr: Expr) -> Step:
        batch = batch_factors(expr, self.sizes, self.batch)
        return Step(expr.constant, self.factors(expr), batch)


def summed_digits(image: Image, sizes: Mapping[str, int], width: int) -> Digits:
    """The contracted axes of a convolution: taps, then channels, padded to whole copies of `width`
    elements."""
    taps = tuple((name, sizes[name]) for name in image.taps if sizes[name] > 1)
    return (*taps, (image.channels, -(-sizes[image.channels] // width) * width))


def image_walk(
    image: Image, index: Sequence[Expr], ref: MemRef, axes: Axes, width: int
) -> tuple[Walk, int]:
    """How an image is gone through, `width` channels at a time where they are summed over, and the
    offset of its first element."""
    count = image.moved[0].dim
    sizes, strides = ref.shape, ref.strides
    if image.advance:
        index = told_apart(index)
        shared = (axes.sizes[image.moved[-1].place], axes.sizes[image.channels])
        sizes, strides = (*sizes[:-1], *shared), (*strides[:-1], image.advance, strides[-1])
    images = image_number(index[:count], sizes[:count])
    inside = [*reversed(image.moved)]
    places = [axes.along(moved.start, moved.place, moved.step) for moved in inside]
    taps = [_tap(moved, axes) for moved in inside]
    is_summed = image.is_summed
    # What lies behind the channels, if they are not in groups, is nobody's.
    channels = sizes[-1] if index[-1].single_axis is None else axes.sizes[image.channels]
    wide = strides[count - 1] if count else strides[0] * sizes[0]
    return Walk(
        axes.digits(axes.outer),
        summed_digits(image, axes.sizes, width) if is_summed else axes.digits(axes.k),
        (channels, *(moved.size for moved in inside), prod(sizes[:count])),
        (*(strides[moved.dim] for moved in inside), wide),
        (axes.step(index[-1]), *places, axes.step(images)),
        _image_window(inside, axes.sizes),
        tuple(taps),
        0 if is_summed else axes.sizes[image.channels],
        counted(image, axes),
    ), sum(moved.origin * strides[moved.dim] for moved in inside)


def _tap(moved: Moved, axes: Axes) -> Step:
    """How far a tap is from its place: in some phases further than in others."""
    step = axes.along(0, moved.tap, moved.dilation)
    if moved.phase is None or not moved.phase.shift:
        return step
    phase = moved.phase
    return replace(step, batch=tuple(phase.shift * (name == phase.axis) for name in axes.batch))


def counted(image: Image, axes: Axes) -> tuple[Counted, ...]:
    """The taps of an image of which not every phase has the same number."""
    found = ((axis.tap, axis.phase) for axis in image.moved if axis.phase is not None)
    return tuple(
        Counted(tap, axes.batch.index(phase.axis), phase.step, phase.taps)
        for tap, phase in found
        if phase.taps % phase.step and axes.sizes[tap] > 1
    )


def _image_window(moved: Sequence[Moved], sizes: Mapping[str, int]) -> Window:
    """Where windows begin, and how far from the end of the image the last ones do."""
    lower = tuple(axis.start for axis in moved)
    steps = tuple(axis.step for axis in moved)
    last = (
        axis.start + (sizes[axis.place] - 1) * axis.step if axis.place else axis.start
        for axis in moved
    )
    upper = tuple(at + 1 - axis.size for at, axis in zip(last, moved, strict=True))
    return Window(lower, upper, steps)


def filter_walk(image: Image, address: Expr, axes: Axes, width: int) -> Walk:
    """How the filters of a convolution are gone through, `width` channels at a time."""
    channels = image.channels
    outer = [name for name in axes.outer if axes.sizes[name] > 1]
    stride = coefficient(address, outer[-1]) if outer else 0
    size = prod(axes.sizes[name] for name in outer)
    along: Dim = (size, stride or 1, Step(0, (("outer", 1),)))
    depth = coefficient(address, channels) if axes.sizes[channels] > 1 else 1
    inner: Dim = (axes.sizes[channels], depth, Step(0, ((channels, 1),)))
    first, second = (inner, along) if depth == 1 else (along, inner)
    dims = [first, second, *_taps(image, address, axes)]
    phases = {phase for phase, _, _ in _phases(image, address, axes).values()}
    for number, name in enumerate(axes.batch):
        if axes.sizes[name] > 1 and coefficient(address, name) and name not in phases:
            batch = tuple(int(place == number) for place, _ in enumerate(axes.batch))
            dims.append((axes.sizes[name], coefficient(address, name), Step(0, (), batch)))
    return Walk(
        (("outer", size),),
        summed_digits(image, axes.sizes, width),
        tuple(size for size, _, _ in dims),
        tuple(stride for _, stride, _ in dims[1:]),
        tuple(step for _, _, step in dims),
        phases=counted(image, axes),
    )


def _phases(image: Image, address: Expr, axes: Axes) -> dict[str, tuple[str, int, int]]:
    """Taps that filters have in phases: the axis of these, how many there are, and how many taps
    all of them have together. A step of a tap goes as far as all phases."""
    found = {}
    ends = {axis.tap: axis.phase for axis in image.moved if axis.phase is not None}
    for tap in image.taps:
        along, end = coefficient(address, tap), ends.get(tap)
        for name in axes.batch if end is None else (end.axis,):
            size = axes.sizes[name]
            if size > 1 and along and along == size * coefficient(address, name):
                found[tap] = (name, size, end.taps if end else size * axes.sizes[tap])
                break
    return found


def _taps(image: Image, address: Expr, axes: Axes) -> list[Dim]:
    """One dimension of all taps that follow one another, innermost first. Those of filters that
    were turned around begin with the last."""
    dims: list[Dim] = []
    phases = _phases(image, address, axes)
    for name in reversed([name for name in image.taps if axes.sizes[name] > 1]):
        size, stride = axes.sizes[name], coefficient(address, name)
        if name in phases:
            dims.append(_tap_of_phases(name, stride, phases[name], axes))
            continue
        way, stride = (1 if stride >= 0 else -1), abs(stride)
        last = size - 1 if way < 0 else 0
        if dims and not dims[-1][2].batch and stride == dims[-1][1] * dims[-1][0]:
            inner, below, step = dims.pop()
            factors = (*step.factors, (name, way * inner))
            dims.append((inner * size, below, Step(step.constant + last * inner, factors)))
        else:
            dims.append((size, stride, Step(last, ((name, way),))))
    return dims


def _tap_of_phases(tap: str, stride: int, phase: tuple[str, int, int], axes: Axes) -> Dim:
    """The dimension of the taps of all phases together."""
    name, size, taps = phase
    way = 1 if stride >= 0 else -1
    batch = tuple(way * (other == name) for other in axes.batch)
    step = Step(taps - 1 if way < 0 else 0, ((tap, way * size),), batch)
    return taps, abs(stride) // size, step


def turned_back(image: Image, address: Expr, axes: Axes) -> int:
    """How far before the first tap of filters their first element lies: that of the last tap,
    where taps are turned around."""
    phases = _phases(image, address, axes)
    back = 0
    for name in image.taps:
        _, size, taps = phases.get(name, ("", 1, axes.sizes[name]))
        back += (taps - 1) * min(0, coefficient(address, name) // size)
    return back
