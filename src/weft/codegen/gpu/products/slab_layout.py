"""Shared-memory layout of convolutions that read their windows from slabs of the image.

    slab    the part of the image that the windows at 8 x 8 places reach: 10 x 10 for 3 x 3 taps
    patch   those 64 places: the rows of one matrix instruction

A copy of a tap of windows, place by place, keeps the copy engine busy for five cycles a place, so
that nine taps take longer than multiplying them with 64 columns. A slab is copied once, as a box,
and read once for every tap: the operand of a tap begins `y * width + x` rows into the slab, and its
groups of eight rows, eight places side by side each, lie a line of the slab apart, or as many lines
as windows move down by. Places beyond the result are multiplied as well and clipped by the copy
engine when it stores.

Shared memory holds a ring of slabs (those of a tile's patches and some channels each) in the place
of A's slots, then B's ring and the rest as in `sm90_layout.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.scalar import Scalar
from weft.codegen.gpu.ir.swizzle import TileLayout
from weft.codegen.gpu.products.problem import Source
from weft.codegen.gpu.products.sm90_layout import ALIGNMENT, Sm90Layout, operand_layout
from weft.codegen.gpu.products.sm90_layout import refusals as sm90_refusals
from weft.codegen.gpu.products.tiles import TileOrder
from weft.codegen.gpu.products.walks import Step, Walk
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.slabs import PATCH, SLABS, patch_reach
from weft.plan.sum_parts import sum_parts
from weft.plan.text import told
from weft.target.target import Target

ATOM: Final = PATCH * PATCH
"""Rows of a matrix instruction."""
_AXES: Final = 2
"""That windows move over."""


@dataclass(frozen=True)
class Slab:
    """The windows of an image, across and down: places, taps, elements from tap to tap, and where
    the first window begins; and how far down they move from place to place."""

    places: tuple[int, int]
    taps: tuple[int, int]
    dilation: tuple[int, int]
    first: tuple[int, int]
    down: int
    images: int

    @property
    def width(self) -> int:
        return patch_reach(1, self.taps[0], self.dilation[0])

    @property
    def height(self) -> int:
        return patch_reach(self.down, self.taps[1], self.dilation[1])

    @property
    def rows(self) -> int:
        return self.width * self.height

    @property
    def across(self) -> int:
        """Patches side by side."""
        return -(-self.places[0] // PATCH)

    @property
    def each(self) -> int:
        """Patches of an image."""
        return self.across * -(-self.places[1] // PATCH)

    @property
    def count(self) -> int:
        return self.images * self.each

    def locate(self, patch: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """The first place of a patch, across and down, and its image. Patches behind the last one
        are of images behind the last: nothing is read or stored there."""
        inside = patch % self.each
        return inside % self.across * PATCH, inside // self.across * PATCH, patch // self.each

    def row(self, across: Scalar, down: Scalar) -> Scalar:
        """The row of a slab at which the operand of a tap begins."""
        return down * (self.dilation[1] * self.width) + across * self.dilation[0]


def slab_of(walk: Walk | None, rows: int) -> Slab | None:
    """What slabs of an image are; None where there are no windows over two axes, at all places
    side by side."""
    if walk is None or walk.window is None or len(walk.taps) != _AXES or walk.phases:
        return None
    across, down = walk.window.steps
    if across != 1 or walk.whole:
        return None
    if any(any(step.batch) for step in (*walk.start, *walk.taps)):
        return None
    outer, inner = dict(walk.outer), dict(walk.inner)
    places = tuple(outer.get(_axis(step), 1) for step in walk.start[1:-1])
    taps = tuple(inner.get(_axis(step), 1) for step in walk.taps)
    dilation = tuple(step.factors[0][1] if step.factors else 1 for step in walk.taps)
    images = walk.sizes[-1]
    if rows != images * places[0] * places[1]:
        return None
    lower = walk.window.lower
    return Slab(
        (places[0], places[1]), (taps[0], taps[1]), (dilation[0], dilation[1]),
        (lower[0], lower[1]), down, images,
    )  # fmt: skip


def _axis(step: Step) -> str:
    return step.factors[0][0] if step.factors else ""


@dataclass(frozen=True)
class SlabLayout(Sm90Layout):
    """The derived numbers of a kernel whose A is slabs of an image."""

    @cached_property
    def slab(self) -> Slab:
        found = slab_of(self.problem.a.walk, self.problem.m)
        assert found is not None  # `refusals` has refused the rest
        return found

    @property
    def patches(self) -> int:
        """Of a tile."""
        return self.tile[0] // ATOM

    @property
    def a(self) -> TileLayout:
        """The slab of one patch."""
        # Eight places of a line of a patch are eight rows of the matrix, and the next line lies a
        # line of the slab further: that is the pitch from one group of eight rows to the next.
        tile, slab = operand_layout(self.problem.a, self.slab.rows, self.tile[2]), self.slab
        return TileLayout(tile.rows, tile.columns, tile.size, tile.swizzle, slab.width * slab.down)

    @property
    def patch_bytes(self) -> int:
        return -(-self.a.bytes // ALIGNMENT) * ALIGNMENT

    @property
    def slab_bytes(self) -> int:
        """Of the slabs of all patches of a tile."""
        return self.patches * self.patch_bytes

    @property
    def slot_bytes(self) -> int:
        return self.b.bytes

    @property
    def channel_steps(self) -> int:
        """Slabs that a tile goes through, one for each copy of channels."""
        return self.k_steps // (self.slab.taps[0] * self.slab.taps[1])

    @property
    def order(self) -> TileOrder:
        rows = -(-self.slab.count // self.patches)
        columns = -(-self.problem.n // self.tile[1])
        return TileOrder(rows, columns, 1, self.plan.order)

    @property
    def b_offset(self) -> int:
        return SLABS * self.slab_bytes

    @property
    def c_offset(self) -> int:
        return self.b_offset + self.plan.stages * self.b.bytes

    @property
    def slab_barriers_offset(self) -> int:
        return super().shared_bytes

    @property
    def shared_bytes(self) -> int:
        return self.slab_barriers_offset + 8 * 2 * SLABS


def refusals(layout: SlabLayout, target: Target) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    plan, problem = layout.plan, layout.problem
    if plan.swap_ab or slab_of(problem.a.walk, problem.m) is None or problem.batches != 1:
        what = "windows over two axes, at every place across, the rows of one product,"
        yield refuse("ImageWindow", f"only {what} are read from slabs of their image")
        return
    fixed = {"roles": "cooperative", "in_flight": 1, "cluster": (1, 1)}
    wrong = [told(plan, name) for name, only in fixed.items() if getattr(plan, name) != only]
    wrong += ["sums in parts"] if sum_parts(plan).count > 1 else []
    for what in wrong:
        yield refuse("PlanField", f"{what} does not go with slabs of an image")
    if plan.tile[0] % ATOM or plan.warp_tile[0] % ATOM:
        yield refuse("Tile", f"patches of an image have {ATOM} rows, tiles whole patches")
        return
    yield from sm90_refusals(layout, target)
    if problem.scattered or problem.folds or problem.numbers or not layout.tma_store:
        yield refuse("OutputForm", "the copy engine stores patches of whole rows, nothing else")
    if not all(_is_of_columns(s) or s == layout.beside for s in problem.sources):
        yield refuse("EpilogueForm", "of what belongs to places, patches take one tensor only")


def _is_of_columns(source: Source) -> bool:
    """Whether a source is the same for all rows."""
    return source.strides.row == 0 and not source.strides.digits
