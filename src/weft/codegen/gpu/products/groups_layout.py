"""Shared-memory layout of convolutions in groups of few channels, computed from the kernel, its
buffers and the plan.

    places     whole rows of the image of results, or a part of a row: the rows of a block
    image      what the windows of these places reach, 128 bytes an element: pieces of 16 bytes of
               each of the block's groups, permuted by the number of the element
    filters    a row for each result of the block's groups, taps and channels along it
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from weft.codegen.gpu.body.accept import refuse, too_many
from weft.codegen.gpu.ir.scalar import LANES
from weft.codegen.gpu.products.operand import Refusal
from weft.codegen.gpu.products.problem import Problem, Refs, analyse
from weft.codegen.gpu.products.refusals import (
    algorithm_refusals,
    memory_refusals,
    problem_refusals,
)
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.errors import Finding
from weft.foundation.index_expr import coefficient, linear
from weft.foundation.records import dataclass
from weft.plan.completion import false_claims
from weft.plan.group_tiles import DEPTH, KEPT
from weft.plan.ir import MmaPlan
from weft.plan.text import told
from weft.region.form import Image
from weft.region.forms.grouped import BLOCK, PIECE, PITCH, Groups, find_groups
from weft.region.ir import Kernel, Read, problem_of
from weft.target.matrix_atoms import Atom, atom_for
from weft.target.target import Target

RESULTS: Final = (BF16, F16, F32)


@dataclass(frozen=True)
class Elements:
    """Where the elements of an operand lie: by group, and, of the image by image and along each
    axis from `first` on, `sizes` of them; of filters by result, along each axis of taps, and by
    channel."""

    tensor: str
    offset: int
    group: int
    outer: int
    along: tuple[int, ...]
    channel: int = 1
    first: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def bytes_at_once(self, channels: int) -> int:
        """Bytes of it that can be copied at once, a piece of 16 or a part of one; 0 where none
        can."""
        numbers = (self.offset, self.group, self.outer, *self.along, channels)
        shared = math.gcd(PIECE, *numbers) if self.channel == 1 else 0
        return 2 * shared if shared > 1 else 0


@dataclass(frozen=True)
class GroupsLayout:
    """The derived numbers of one kernel."""

    problem: Problem
    groups: Groups
    image: Elements
    filters: Elements
    plan: MmaPlan

    @property
    def atom(self) -> Atom | None:
        problem = self.problem
        return atom_for("sm80", problem.a.dtype, problem.b.dtype, problem.total)

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """Places of a block along each axis."""
        found = self.groups.tile(self.plan.tile[0])
        assert found is not None  # `refusals` has refused the rest
        return found

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return self.groups.extents(self.tile)

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis."""
        return tuple(-(-n // t) for n, t in zip(self.groups.places, self.tile, strict=True))

    @property
    def across(self) -> int:
        """Blocks for the groups of one place."""
        return -(-self.groups.groups // self.groups.together)

    @property
    def grid(self) -> int:
        return self.across * self.groups.images * math.prod(self.counts)

    @property
    def warps(self) -> tuple[int, int]:
        """Along places, and along groups and their results."""
        rows, columns = self.plan.warp_tile
        return -(-self.plan.tile[0] // rows), self.plan.tile[1] // columns

    @property
    def threads(self) -> int:
        return LANES * math.prod(self.warps)

    @property
    def blocks(self) -> tuple[int, int]:
        """Matrix instructions of a warp along places (16 each) and results (8 each)."""
        return self.plan.warp_tile[0] // BLOCK, self.plan.warp_tile[1] // 8

    @property
    def elements(self) -> int:
        """Of the image that a block keeps."""
        return math.prod(self.extents)

    @property
    def zeros(self) -> int:
        """Where a piece of zeros lies behind them."""
        return self.elements * PITCH

    @property
    def filters_offset(self) -> int:
        return self.groups.image_bytes(self.tile)

    @property
    def shared_bytes(self) -> int:
        return self.filters_offset + self.groups.filter_bytes

    def taps(self, piece: int) -> tuple[tuple[int, ...], int]:
        """The tap along each axis and the piece of the group's channels, of a piece of a sum."""
        number, inside = divmod(piece, self.groups.pieces)
        found: list[int] = []
        for size in reversed(self.groups.taps):
            number, tap = divmod(number, size)
            found.insert(0, tap)
        return tuple(found), inside

    def reach(self, taps: Sequence[int]) -> int:
        """How far a tap lies from the first of its window, in elements that a block keeps."""
        far = zip(taps, self.groups.dilations, strict=True)
        return self.element([tap * dilation for tap, dilation in far])

    def element(self, place: Sequence[int]) -> int:
        """The number of an element that a block keeps."""
        number = 0
        for at, extent in zip(place, self.extents, strict=True):
            number = number * extent + at
        return number


def layout_of(kernel: Kernel, refs: Refs, plan: MmaPlan) -> GroupsLayout:
    """The layout of a kernel; raises `Refusal`."""
    found = problem_of(kernel)
    groups = find_groups(kernel, found)
    if groups is None or found is None or found.image is None:
        raise Refusal(
            "NotInGroups", f"{kernel.name} is not a convolution in groups of few channels"
        )
    problem = analyse(kernel, refs, kept=True)
    assert kernel.roles is not None
    sides = (kernel.roles.lhs, kernel.roles.rhs)
    if found.image.side == "rhs":
        problem, sides = problem.swapped(), sides[::-1]
    image, filters = (kernel.let(name).expr for name in sides)
    assert isinstance(image, Read)
    assert isinstance(filters, Read)
    (group,), moved = found.axes.batch, found.image
    return GroupsLayout(
        problem,
        groups,
        _image_elements(image, refs, group, moved),
        _filters(kernel, filters, refs, group, moved),
        plan,
    )


def _image_elements(read: Read, refs: Refs, group: str, image: Image) -> Elements:
    """Where the elements of the image lie."""
    strides = refs[read.tensor].strides
    address = linear(read.index, strides)
    along = tuple(strides[axis.dim] for axis in image.moved)
    if coefficient(address, image.channels) != 1:
        raise Refusal("OperandStride", "the channels of the image are not neighbours")
    inside = sum(
        read.index[axis.dim].constant * stride
        for axis, stride in zip(image.moved, along, strict=True)
    )
    return Elements(
        read.tensor,
        address.constant
        - inside
        + sum(a.origin * s for a, s in zip(image.moved, along, strict=True)),
        coefficient(address, group),
        coefficient(address, image.images[-1]) if image.images else 0,
        along,
        first=tuple(axis.start for axis in image.moved),
        sizes=tuple(axis.size for axis in image.moved),
    )


def _filters(kernel: Kernel, read: Read, refs: Refs, group: str, image: Image) -> Elements:
    """Where those of the filters lie."""
    assert kernel.roles is not None
    address, sizes = linear(read.index, refs[read.tensor].strides), kernel.sizes
    outer = kernel.roles.n if image.side == "lhs" else kernel.roles.m
    wide = [name for name in outer if sizes[name] > 1]
    return Elements(
        read.tensor,
        address.constant,
        coefficient(address, group),
        coefficient(address, wide[-1]) if wide else 0,
        tuple(coefficient(address, a.tap) if a.tap else 0 for a in image.moved),
        coefficient(address, image.channels),
    )


def refusals(layout: GroupsLayout, kernel: Kernel, target: Target) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    yield from problem_refusals(layout.problem, layout.plan, layout.atom, RESULTS, "mma")
    yield from _idle_field_refusals(layout, kernel)
    broken = [*_tile_refusals(layout)]
    yield from broken
    if broken:
        return
    yield from memory_refusals(layout.shared_bytes, target)
    if layout.threads > target.limits.threads_per_block:
        yield refuse("Threads", f"the plan needs {layout.threads} threads")
    yield from too_many(layout.grid)


def _idle_field_refusals(layout: GroupsLayout, kernel: Kernel) -> Iterator[Finding]:
    """Fields that have no effect here are refused, so that nobody believes they have."""
    plan, default = layout.plan, MmaPlan(layout.plan.header, layout.plan.tile)
    for name in (
        "cluster", "swap_ab", "batch", "deferred_epilogue", "consumers", "in_flight",
        "store_buffers", "registers", "stages", "bind", "vectorize", "predicate_tail",
        "layout_hints", "split_k",
    ):  # fmt: skip
        if getattr(plan, name) != getattr(default, name):
            yield refuse("PlanField", f"{told(plan, name)} has no effect in the groups template")
    if plan.roles != "single" or plan.order != "rows":
        yield refuse("PlanField", "groups are multiplied by warps of one role, in rows of tiles")
    if plan.cache != KEPT:
        yield refuse("PlanField", f"{told(plan, 'cache')}: the image is kept, and all filters")
    if plan.operand_layouts not in ((), default.operand_layouts):
        yield refuse("PlanField", f"{told(plan, 'operand_layouts')} have no effect here")
    for why in (*false_claims(kernel, plan), *algorithm_refusals(kernel, plan)):
        yield refuse("PlanField", why)


def _tile_refusals(layout: GroupsLayout) -> Iterator[Finding]:
    plan, groups = layout.plan, layout.groups
    (places, across, depth), (rows, columns) = plan.tile, plan.warp_tile
    if groups.tile(places) is None:
        length = groups.places[-1]
        yield refuse("Tile", f"{places} places are neither rows of {length} nor blocks of one row")
    if across != groups.together * groups.columns or depth != DEPTH:
        wanted = f"{groups.together * groups.columns}x{DEPTH}"
        yield refuse("Tile", f"a block has {wanted} results and elements, not {across}x{depth}")
    if rows % BLOCK or rows < BLOCK or columns != groups.warp_columns:
        wanted = f"{BLOCK} places, and {groups.warp_columns} results"
        yield refuse("Tile", f"a warp takes multiples of {wanted}, not {rows}x{columns}")
