"""Convolutions in groups of few channels, whose windows fit in shared memory with their border.

    x[i, p + r - 1, q + s - 1, 8*b + c],  c < 8

Matrix units take 64 channels of an image at once; a group of eight would be lost in padding, and
several groups together would be multiplied with one another's. Instructions of single warps take
16 elements of a sum: two pieces of eight channels, of one tap each or of one between them. A block
keeps the elements that the windows of some places reach, of some groups side by side, and every tap
is read where it lies there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16
from weft.foundation.records import dataclass
from weft.region.form import Problem
from weft.region.forms.multiplied import usual_atom
from weft.region.ir import Kernel, Pattern, Read

PIECE: Final = 8
"""16-bit elements of 16 bytes, which instructions take at once."""
SLOTS: Final = 8
"""Pieces of an element of the image that a block keeps side by side."""
BLOCK: Final = 16
"""Places that one instruction multiplies."""
PITCH: Final = SLOTS * 16
"""Bytes from element to element of the image."""
MOST_BYTES: Final = 100 << 10
"""Of shared memory, so that a unit has two blocks at least."""
MOST_WARPS: Final = 16
"""Of a block."""
_MOST_CHANNELS: Final = 32
"""Of more than half a row of copies, warpgroups are faster behind a copy of the image."""
_MOST_STEPS: Final = 64
"""Steps of a sum, which are written out."""


@dataclass(frozen=True)
class Groups:
    """A convolution in groups: their number, the channels and results of each, the images, and, of
    the axes that windows move over, the places, taps, and how far apart both lie."""

    groups: int
    channels: int
    outputs: int
    images: int
    places: tuple[int, ...]
    taps: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def pieces(self) -> int:
        """Of the channels of a group, the last one perhaps with zeros behind them."""
        return -(-self.channels // PIECE)

    @property
    def depth(self) -> int:
        """Pieces of a sum."""
        return math.prod(self.taps) * self.pieces

    @property
    def turns(self) -> int:
        """Instructions of a sum: each takes two pieces, of which the last may be zeros."""
        return -(-self.depth // 2)

    @property
    def together(self) -> int:
        """Groups that a block keeps side by side."""
        warps = self.columns // self.warp_columns
        return min(self.groups, SLOTS // self.pieces, max(1, MOST_WARPS // warps))

    @property
    def columns(self) -> int:
        """Results of a group, in whole instructions."""
        return -(-self.outputs // 8) * 8

    def tile(self, places: int) -> tuple[int, ...] | None:
        """The places of a block along each axis: whole rows, or a part of one in whole
        instructions; None where so many are neither."""
        *outer, length = self.places
        ones = (1,) * len(outer)
        if places % length == 0:
            rows = places // length
            if rows == 1 or (outer and rows <= outer[-1]):
                return (*ones[1:], rows, length) if outer else (length,)
            return None
        return (*ones, places) if 0 < places < length and places % BLOCK == 0 else None

    def extents(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Elements of the image along each axis that the windows of a tile reach."""
        every = zip(tile, self.taps, self.steps, self.dilations, strict=True)
        return tuple((n - 1) * step + (taps - 1) * far + 1 for n, taps, step, far in every)

    def image_bytes(self, tile: Sequence[int]) -> int:
        """Of the elements that a tile needs, and a piece of zeros."""
        return (math.prod(self.extents(tile)) + 1) * PITCH

    @property
    def in_turns(self) -> bool:
        """Whether filters are loaded for two steps of a sum at once, not for pairs of eight
        results: a warp has one of these only."""
        return self.warp_columns == 8

    @property
    def filter_pieces(self) -> int:
        """Of a row of filters, with zeros at the end."""
        return -(-self.turns // 2) * 4 if self.in_turns else 2 * self.turns

    @property
    def filter_pitch(self) -> int:
        """Bytes from row to row of filters: an odd number of pieces, so that neighbours lie in
        other banks."""
        return (self.filter_pieces + 1) * 16

    @property
    def filter_rows(self) -> int:
        """Rows of the filters of a group, those of the last pair of results included."""
        odd = self.warp_columns // 8 % 2 == 1 and not self.in_turns
        return self.columns + 8 * odd

    @property
    def filter_bytes(self) -> int:
        return self.together * self.filter_rows * self.filter_pitch

    @property
    def warp_columns(self) -> int:
        """Results of a group that a warp takes."""
        if self.columns <= 48:
            return self.columns
        return max(n for n in range(8, 40, 8) if self.columns % n == 0)


def find_groups(kernel: Kernel, problem: Problem | None) -> Groups | None:
    """The groups of a convolution whose windows a block can keep; None where it has none, they have
    many channels, or not every result has an element for each sum."""
    roles = kernel.roles
    if roles is None or problem is None or kernel.pattern is not Pattern.CONV or kernel.params:
        return None
    image, sizes = problem.image, kernel.sizes
    if image is None or not image.is_summed or image.advance or len(problem.axes.batch) != 1:
        return None
    if problem.scattered or any(axis.phase is not None for axis in image.moved):
        return None
    if problem.axes.batch[0] not in roles.batch:
        return None
    if usual_atom(kernel, "sm80") is None or problem.dtype not in (BF16, F16):
        return None
    summed = {name for name in roles.k if sizes[name] > 1}
    if not summed <= {*image.taps, image.channels} or not _stores_sums(kernel):
        return None
    filters = kernel.let(roles.rhs if image.side == "lhs" else roles.lhs).expr
    if not isinstance(filters, Read) or kernel.open_guards(filters):
        return None
    groups, channels = sizes[problem.axes.batch[0]], sizes[image.channels]
    rows, outputs = (problem.m, problem.n)[:: 1 if image.side == "lhs" else -1]
    moved = image.moved
    found = Groups(
        groups,
        channels,
        outputs,
        math.prod(sizes[name] for name in image.images),
        tuple(sizes[axis.place] if axis.place else 1 for axis in moved),
        tuple(sizes[axis.tap] if axis.tap else 1 for axis in moved),
        tuple(axis.step for axis in moved),
        tuple(axis.dilation or 1 for axis in moved),
    )
    whole = found.images * math.prod(found.places) == rows
    return found if whole and _fits_template(found) else None


def _stores_sums(kernel: Kernel) -> bool:
    assert kernel.roles is not None
    sums = {*kernel.let(kernel.roles.contraction).axes}
    return all({*kernel.let(output.value).axes} == sums for output in kernel.outputs)


def _fits_template(found: Groups) -> bool:
    if not 1 < found.channels <= _MOST_CHANNELS or found.turns > _MOST_STEPS:
        return False
    if found.groups < 2 or found.columns // found.warp_columns > MOST_WARPS:
        return False
    if min((found.images, found.outputs, *found.places)) < 1:
        return False
    least = found.tile(min(found.places[-1], BLOCK))
    if least is None:
        return False
    held = found.image_bytes(least) + found.filter_bytes
    return held <= MOST_BYTES
