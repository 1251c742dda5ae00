"""Choosing an `MmaPlan` for a convolution in groups of few channels: the number of output
positions per block that takes the least time.

While some blocks of an SM wait for memory, others multiply. A block with more positions reads less
of the image twice, and leaves room for fewer other blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from weft.plan.edges import local_edges
from weft.plan.images import IMAGE
from weft.plan.ir import CacheRead, Header, MmaPlan
from weft.region.form import Problem
from weft.region.forms.grouped import BLOCK, MOST_BYTES, MOST_WARPS, PITCH, Groups, find_groups
from weft.region.ir import Kernel, epilogue_of
from weft.target import roofline
from weft.target.target import Target

DEPTH: Final = 16
"""Elements of a sum that an instruction takes."""
KEPT: Final = (CacheRead("A", IMAGE, "k", False), CacheRead("B", "smem", "k", False))
"""The image is kept with its border, and all filters beside it."""
_MOST_SUMS: Final = 32
"""Registers of sums of a thread: with more, fewer blocks have room."""
_OTHERS: Final = 40
"""Registers beside them, and beside one for each block of places."""
# With these three numbers the tile that is chosen is within 4 % of the best of those that were
# timed on an H200.
_LIFE: Final = 2e-6
"""Seconds of a block that has nothing to do, from its first address to its last store."""
_CACHED: Final = 3.0
"""How much faster than memory the cache is that all blocks share."""
_STEP: Final = 10e-9
"""Seconds of a unit for the instructions of one block of places and one step of the sum, by one of
its four schedulers."""


def group_plan(kernel: Kernel, problem: Problem, target: Target, header: Header) -> MmaPlan | None:
    """A plan for matrix instructions of single warps; None where the convolution has no groups of
    few channels."""
    found = find_groups(kernel, problem)
    if found is None or not target.has("cp.async"):
        return None
    tiles = [*_tile_candidates(found)]
    tile, warp = min(tiles, key=lambda pair: group_seconds(found, pair[0], pair[1], target))
    return MmaPlan(
        header,
        tile,
        warp_tile=warp,
        cache=KEPT,
        epilogue=epilogue_of(kernel),
        arch="groups",
        algo_choice={"conv": "implicit_gemm"},
        local_edges=local_edges(kernel),
        order="rows",
        roles="single",
    )


def group_plans(kernel: Kernel, problem: Problem, first: MmaPlan) -> Iterator[MmaPlan]:
    """Other tiles than those of a first plan."""
    found = find_groups(kernel, problem)
    for tile, warp in _tile_candidates(found) if found is not None else ():
        yield replace(first, tile=tile, warp_tile=warp)


def _tile_candidates(found: Groups) -> Iterator[tuple[tuple[int, int, int], tuple[int, int]]]:
    """Tiles whose elements shared memory holds, and the part of each that a warp has."""
    columns = found.warp_columns
    across = found.together * found.columns
    most = max(1, 2 * _MOST_SUMS // columns)
    for places in _tile_places(found):
        tile = found.tile(places)
        if tile is None:
            continue
        blocks = -(-places // BLOCK)
        down = -(-blocks // most)
        if down > 1 and down * (across // columns) > MOST_WARPS:
            continue
        if found.image_bytes(tile) + found.filter_bytes > MOST_BYTES:
            continue
        yield (places, across, DEPTH), (BLOCK * -(-blocks // down), columns)


def _tile_places(found: Groups) -> Iterator[int]:
    *outer, length = found.places
    rows = outer[-1] if outer else 1
    yield from (length * count for count in range(1, min(rows, 64) + 1))
    yield from range(BLOCK, min(length, 257), BLOCK)


def blocks_at_once(
    found: Groups, tile: tuple[int, int, int], warp: tuple[int, int], target: Target
) -> int:
    """Blocks that a unit has room for."""
    places, columns, limits = found.tile(tile[0]), warp[1], target.limits
    assert places is not None
    warps = -(-tile[0] // warp[0]) * (tile[1] // columns)
    sums = warp[0] * columns // roofline.WARP
    shared = found.image_bytes(places) + found.filter_bytes
    # A unit gives registers out in eights.
    registers = -(-(sums + warp[0] // BLOCK + _OTHERS) // 8) * 8
    room = roofline.blocks_per_unit(limits, shared, registers, warps * roofline.WARP)
    return max(1, min(room, limits.warps_per_unit // warps))


def group_seconds(
    found: Groups, tile: tuple[int, int, int], warp: tuple[int, int], target: Target
) -> float:
    """The time of a tile, without its launch."""
    places = found.tile(tile[0])
    assert places is not None
    limits, columns = target.limits, warp[1]
    blocks = -(-tile[0] // BLOCK)
    room = blocks_at_once(found, tile, warp, target)
    count = found.images * -(-found.groups // found.together)
    count *= math.prod(-(-n // t) for n, t in zip(found.places, places, strict=True))
    share = target.rates.bandwidth / limits.units
    # Elements that several blocks read come from the cache after the first of them.
    read = math.prod(found.extents(places)) * PITCH / _CACHED + tile[0] * tile[1] * 2
    moving = (read + found.filter_bytes / _CACHED) / share
    computing = blocks * (tile[1] // columns) * found.turns * (1 + columns / 16) * _STEP / 4
    at_once = min(room, -(-count // limits.units))
    waves = roofline.waves(count, limits.units * room)
    # Of the first block of a unit nothing hides what takes less.
    return waves * (_LIFE + at_once * max(moving, computing) + min(moving, computing))
