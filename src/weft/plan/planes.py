"""Choosing an `MmaPlan` for a convolution in channels-first layout with the pooling behind it
(`region.forms.planes`).

A plan's `tile` is all filters, two lines of 64 columns of sums, and the channels of a step; every
consumer has tiles of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation.records import dataclass
from weft.plan.completion import CACHED
from weft.plan.edges import local_edges
from weft.plan.ir import Header, MmaPlan
from weft.region.forms.planes import (
    COLUMNS,
    DEPTH,
    FILTERS,
    POOL,
    SLICE,
    Planes,
    find_planes,
    width_of,
    windows_of,
)
from weft.region.ir import Kernel, Tensor, epilogue_of
from weft.target.matrix_time import CYCLES_A_SECOND
from weft.target.target import Target

CONSUMERS: Final = 2
_STAGES: Final = 4
_REGISTERS: Final = (24, 240)
_WORD: Final = 2
# 64 × n sums of 16 terms in n / 2 cycles are 32 sums of 64 terms in each, as `AREA_PER_CYCLE` has
# it.
_COLUMNS_A_CYCLE: Final = 2
"""That a matrix instruction of 64 rows makes."""
_START: Final = 5100.0
"""Cycles before the first data arrive, as of other products."""


@dataclass(frozen=True)
class PlanesTile:
    """How a kernel is cut: a tile is a line of results, from one of `windows` columns on."""

    width: int
    lines: int
    """That are loaded for a tile."""
    taps: int
    depth: int
    steps: int
    windows: int
    tiles: int

    @property
    def tile(self) -> tuple[int, int, int]:
        return (FILTERS, POOL * COLUMNS, self.depth)

    def shared_bytes(self, stages: int) -> int:
        filters = self.steps * self.taps * FILTERS * DEPTH * _WORD
        barriers = 8 * (2 * stages + CONSUMERS + 1)
        return filters + stages * self.lines * self.depth * COLUMNS * _WORD + barriers


def tile_of(kernel: Kernel, tensors: Mapping[str, Tensor], found: Planes) -> PlanesTile:
    """How a kernel that is a convolution of planes is cut."""
    sizes, channels = kernel.sizes, kernel.sizes[found.channels]
    width, (down, along) = width_of(kernel, tensors, found), found.taps
    return PlanesTile(
        width,
        sizes[down] + POOL - 1,
        sizes[down] * sizes[along],
        min(DEPTH, -(-channels // SLICE) * SLICE),
        -(-channels // DEPTH),
        windows_of(width),
        sizes.get(found.images, 1) * sizes[found.line] * windows_of(width),
    )


def planes_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> MmaPlan | None:
    """A plan for matrix instructions of warpgroups; None where it is no such convolution."""
    found = find_planes(kernel, tensors) if target.has("wgmma") else None
    if found is None:
        return None
    at, stages = tile_of(kernel, tensors, found), _STAGES
    while stages > 2 and at.shared_bytes(stages) > target.limits.shared_bytes_per_block:
        stages -= 1
    if at.shared_bytes(stages) > target.limits.shared_bytes_per_block:
        return None
    return MmaPlan(
        header,
        at.tile,
        stages=stages,
        warp_tile=at.tile[:2],
        cache=CACHED,
        epilogue=epilogue_of(kernel),
        arch="planes",
        algo_choice={"conv": "implicit_gemm"},
        local_edges=local_edges(kernel),
        order="rows",
        roles="pingpong",
        registers=_REGISTERS,
    )


def planes_seconds(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> float | None:
    """The time of the template, whose units multiply all the time but at its start."""
    found = find_planes(kernel, tensors)
    if found is None:
        return None
    at = tile_of(kernel, tensors, found)
    turns = -(-at.tiles // target.limits.units)
    tile = at.steps * at.taps * (at.depth // SLICE) * POOL * COLUMNS / _COLUMNS_A_CYCLE
    return (_START + turns * tile) / CYCLES_A_SECOND
