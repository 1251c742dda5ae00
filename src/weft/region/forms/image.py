"""Convolution operands of a product (implicit GEMM): windows of an image, forward or in a gradient.

    x[i, 2*p + r - 1, 2*q + s - 1, c]       places (i, p, q), taps (r, s), channels c

Of a convolution the places are rows and taps and channels are summed over; of the gradient of its
filter it is the other way round. A copy engine goes through either, place after place, one tap and
some channels at a time, and writes zeros where a window reaches over the image.

    x[i, p + r, 8*q + c], c < 28            places that share channels: q and c as two dimensions

A copy engine does not mind that neighbours along one dimension overlap. So where places and
channels move over the last dimension of a tensor together, each is thought of as having its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.foundation.index_expr import (
    Axis,
    Expr,
    axes_of,
    axis,
    coefficient,
    constant,
    linear,
    substitute,
)
from weft.region.form import Image, Moved, Phase
from weft.region.forms.runs import longest_run
from weft.region.ir import Kernel, Let, Read, Roles, row_major

_MOST_AXES = 3
"""That windows move over."""


def find_image(kernel: Kernel, side: str, shape: Sequence[int]) -> Image | None:
    """The image that the operand `lhs` or `rhs` is windows of; None where it is none. The channels
    are the last dimension of its shape."""
    roles = kernel.roles
    if roles is None:
        return None
    let = kernel.let(getattr(roles, side))
    if not isinstance(let.expr, Read) or let.expr.places or len(shape) < 2:
        return None
    if kernel.open_guards(let.expr) and let.expr.fill != 0:
        return None
    return _Finder(kernel, roles, side, let, let.expr, shape).image()


@dataclass
class _Finder:
    kernel: Kernel
    roles: Roles
    side: str
    let: Let
    read: Read
    shape: Sequence[int]

    def __post_init__(self) -> None:
        self.sizes = self.kernel.sizes
        single = {name: constant(0) for name, size in self.sizes.items() if size == 1}
        self.index = [substitute(expr, single) for expr in self.read.index]
        guards = self.kernel.open_guards(self.read)
        found = [(substitute(guard.expr, single), guard.size) for guard in guards]
        self.ends = dict(end for guard in found if (end := self._end(*guard)) is not None)
        self.guards = [guard for guard in found if self._end(*guard) is None]
        self.outer = {*(self.roles.m if self.side == "lhs" else self.roles.n)}
        self.elements = math.prod(self.shape)
        self.advance = self._advance()
        if self.advance:
            self.index = told_apart(self.index)
            last = (self.sizes[name] for expr in self.index[-2:] for name in self._names(expr))
            self.shape = (*self.shape[:-1], *last)

    def _advance(self) -> int:
        """How far a place moves over the last dimension together with summed channels; 0 where
        none does."""
        expr = self.index[-1]
        names = self._names(expr)
        places = [name for name in names if name in self.outer]
        channels = [name for name in names if name in self.roles.k]
        one_each = len(expr.terms) == 2 and len(places) == len(channels) == 1
        if not one_each or expr.constant or coefficient(expr, channels[0]) != 1:
            return 0
        if any({*names} & {*self._names(guard)} for guard, _ in self.guards):
            return 0
        return max(0, coefficient(expr, places[0]))

    def _end(self, expr: Expr, size: int) -> tuple[str, tuple[str, int]] | None:
        """The tap of a guard that ends the windows of some phases before others, the axis of the
        phases, and how many taps all of them have together."""
        names = self._names(expr)
        taps = [name for name in names if name in self.roles.k]
        phases = [name for name in names if name in self.roles.batch]
        if len(taps) != 1 or len(phases) != 1 or len(expr.terms) != 2 or expr.constant:
            return None
        (tap,), (phase,) = taps, phases
        step = self.sizes[phase]
        # phase + step * tap < size: the taps of a window of `size` are dealt out to the phases in
        # turn, so that those of the first phases may have one more.
        if coefficient(expr, phase) != 1 or coefficient(expr, tap) != step:
            return None
        # No phase is without a tap, and none has one that the axis has not.
        return (tap, (phase, size)) if step <= size <= step * self.sizes[tap] else None

    def image(self) -> Image | None:
        affine = all(isinstance(term, Axis) for expr in self.index for term, _ in expr.terms)
        channels = self._channels(self.index[-1]) if affine else ""
        if not channels:
            return None
        summed = {*self.roles.k}
        self.is_summed = channels in summed
        self.taps, self.places = (summed, self.outer) if self.is_summed else (self.outer, summed)
        first = next((d for d, e in enumerate(self.index[:-1]) if not self._is_plain(e)), None)
        if first is None or len(self.index) - 1 - first > _MOST_AXES:
            return None
        moved = [self._find_moved(dim) for dim in range(first, len(self.index) - 1)]
        found = [axis for axis in moved if axis is not None]
        images = self._images(first)
        if len(found) < len(moved) or images is None:
            return None
        image = Image(
            self.side, images, tuple(found), channels, self.is_summed, self.elements, self.advance
        )
        return image if self._is_whole(image) else None

    def _channels(self, expr: Expr) -> str:
        """The axis of the channels, beside that of groups of them."""
        names = self._names(expr)
        own = [name for name in names if name not in self.roles.batch]
        positive = all(factor > 0 for _, factor in expr.terms) and expr.constant >= 0
        alone = len(own) == 1 and coefficient(expr, own[0]) == 1
        return own[0] if alone and positive else ""

    def _names(self, expr: Expr) -> list[str]:
        return [term.name for term, _ in expr.terms if isinstance(term, Axis)]

    def _is_plain(self, expr: Expr) -> bool:
        """Whether a dimension is one of whole images: one after the other, perhaps in batches."""
        own = [name for name in self._names(expr) if name in self.places]
        others = {*own, *self.roles.batch}
        whole = expr.constant == 0 and all(factor > 0 for _, factor in expr.terms)
        follow = len(own) <= 1 and all(coefficient(expr, name) == 1 for name in own)
        return whole and follow and others >= {*self._names(expr)} and not self._guard(expr)

    def _guard(self, expr: Expr) -> tuple[int, int] | None:
        """Where a guard of a dimension begins and how long it is."""
        for guard, size in self.guards:
            ahead = expr - guard
            if ahead.is_constant and self._names(guard):
                return ahead.constant, size
        return None

    def _find_moved(self, dim: int) -> Moved | None:
        expr, extent = self.index[dim], self.shape[dim]
        places = [name for name in self._names(expr) if name in self.places]
        taps = [name for name in self._names(expr) if name in self.taps]
        shifts = [name for name in self._names(expr) if name in self.roles.batch]
        named = len(places) + len(taps) + len(shifts)
        if max(len(places), len(taps), len(shifts)) > 1 or named < len(expr.terms):
            return None
        if any(factor <= 0 for _, factor in expr.terms):
            return None
        origin, size = self._guard(expr) or (0, extent)
        if origin < 0 or origin + size > extent:
            return None
        place, tap = next(iter(places), ""), next(iter(taps), "")
        step = coefficient(expr, place) if place else 1
        dilation = coefficient(expr, tap) if tap else 0
        start, phase = expr.constant - origin, self._phase(expr, tap, next(iter(shifts), ""))
        if (shifts or tap in self.ends) and phase is None:
            return None
        return Moved(dim, place, tap, step, dilation, start, size, origin, phase)

    def _phase(self, expr: Expr, tap: str, shift: str) -> Phase | None:
        """The phases of a tap: those that end before others, or begin further on."""
        if not tap or not self.is_summed or not (shift or tap in self.ends):
            return None
        most = self.sizes[tap] * self.sizes.get(shift, 1)
        name, taps = self.ends.get(tap, (shift, most))
        if shift not in ("", name):
            return None
        return Phase(name, self.sizes[name], taps, coefficient(expr, name))

    def _images(self, count: int) -> tuple[str, ...] | None:
        """The axes of places among those of images, if they follow one another."""
        where = image_number(self.index[:count], self.shape[:count])
        names = [name for name in self.sizes if coefficient(where, name) and name in self.places]
        apart, run = longest_run(names, [where], self.sizes)
        follow = not apart and (not run or coefficient(where, run[-1]) == 1)
        return run if follow else None

    def _is_whole(self, image: Image) -> bool:
        """Whether every axis has its place, those of places in the order of the kernel, and no
        guard is left over."""
        present = [name for name in self.sizes if self.sizes[name] > 1 and name in self.let.axes]
        order = {name: number for number, name in enumerate(self.sizes)}
        named = (*image.places, *image.taps, image.channels)
        if len({*named}) < len(named) or {*present} - {*named} - {*self.roles.batch}:
            return False
        if {*self.ends} - {axis.tap for axis in image.moved}:
            return False
        if sorted(image.places, key=order.__getitem__) != list(image.places):
            return False
        guarded = [
            sum((self.index[axis.dim] - guard).is_constant for guard, _ in self.guards)
            for axis in image.moved
        ]
        return max(guarded) <= 1 and sum(guarded) == len(self.guards)


def told_apart(index: Sequence[Expr]) -> list[Expr]:
    """An index whose last dimension is `advance * place + channel`, with a dimension for each."""
    names = {coefficient(index[-1], name): name for name in axes_of(index[-1])}
    return [*index[:-1], axis(names[max(names)]), axis(names[min(names)])]


def image_number(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The number of an image, from its index along the dimensions of images."""
    return linear(tuple(index), row_major(tuple(shape)))


def is_convolution(image: Image) -> bool:
    """Whether an image is read by windows, or not at every place: other reads are matrices."""
    return any((axis.place and axis.tap) or axis.step > 1 for axis in image.moved)


def batch_factors(expr: Expr, sizes: Mapping[str, int], batch: Sequence[str]) -> tuple[int, ...]:
    """How far each batch axis moves an index."""
    return tuple(coefficient(expr, name) if sizes[name] > 1 else 0 for name in batch)
