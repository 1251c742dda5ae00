"""Choosing an `MmaPlan` for products by scalar FMA instructions on a GPU: the tile that takes the
least time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from weft.plan.completion import CACHED
from weft.plan.edges import local_edges
from weft.plan.ir import Header, MmaPlan
from weft.region.forms.thin_products import is_thin, thin_tile
from weft.region.ir import Kernel, Pattern, epilogue_of
from weft.target import roofline
from weft.target.target import Target

_Tile: TypeAlias = tuple[int, int, int]
_Choices: TypeAlias = Mapping[_Tile, tuple[tuple[int, int], float]]
# f32 on an H200: 4096³ runs at 44 TFLOP/s in 128x128x8, at 39 in 128x128x16; 1000³ at 26 in
# 128x64x16, at 20 in 64x64x16 and at 17 in 128x128x8, which leaves units without a tile.
_TILES: Final[Mapping[int, _Choices]] = {
    4: {
        (128, 128, 8): ((64, 64), 1.0),
        (128, 64, 16): ((32, 32), 0.8),
        (64, 64, 16): ((16, 32), 0.62),
        (32, 32, 16): ((16, 16), 0.5),
    },
    8: {(64, 64, 8): ((16, 32), 1.0), (32, 32, 16): ((16, 16), 0.8)},
}
"""Tiles by the bytes of a sum: the part of each that a warp has, and how fast a unit is with it,
measured, in parts of what it is with the first."""
_SMALL: Final = (32, 32, 8)
"""The most of a tile that leaves registers for whatever else a kernel does; a warp has half of its
rows and columns."""
_LEAST: Final = 8
"""Rows and columns from which tiles pay."""
_FEW: Final = 4096
"""Results under which threads are better used along a long sum."""
_THREADS: Final = 128
"""That share a tile of few rows or columns: each fetches an element of a slice, at least."""
_DEEPER: Final = (3, 4)
"""Slices of rings that a tuner tries."""


def _thin_tile(kernel: Kernel, m: int, n: int, word: int) -> _Choices:
    """The tile for few rows or columns, and many of the others: four warps share the long side.
    Slices of windows are half as deep, since the places of their elements take registers too."""
    is_window = kernel.pattern is Pattern.CONV
    least = _LEAST if is_window else 1
    rows, columns, depth = thin_tile(max(m, least), max(n, least), word)
    if is_window:
        depth = max(depth // 2, _THREADS // min(rows, columns))
    warp = (rows, columns // 4) if m <= n else (rows // 4, columns)
    return {(rows, columns, depth): (warp, 1.0)}


def fma_plan(kernel: Kernel, target: Target, header: Header) -> MmaPlan | None:
    """A plan for tiles; None where rows of threads suit the contraction better."""
    choices, (batch, m, n, _) = _choices(kernel), _matrix_sizes(kernel)
    if not choices:
        return None

    def time(tile: _Tile) -> float:
        """In waves of tiles, the last as slow as a full one."""
        tiles = batch * -(-m // tile[0]) * -(-n // tile[1])
        waves = roofline.waves(tiles, target.limits.units)
        return waves * tile[0] * tile[1] / choices[tile][1]

    tile = min(choices, key=time)
    kind = "conv" if kernel.pattern is Pattern.CONV else "matmul"
    return MmaPlan(
        header,
        tile,
        warp_tile=choices[tile][0],
        cache=CACHED,
        epilogue=epilogue_of(kernel),
        arch="fma",
        algo_choice={kind: "implicit_gemm"},
        local_edges=local_edges(kernel, ring=MmaPlan.stages),
        roles="single",
    )


def fma_plans(kernel: Kernel, first: MmaPlan) -> Iterator[MmaPlan]:
    """Other tiles than those of a first plan, and rings of more slices."""
    for tile, (warp, _) in _choices(kernel).items():
        yield replace(first, tile=tile, warp_tile=warp)
    for stages in _DEEPER:
        yield replace(first, stages=stages, local_edges=local_edges(kernel, ring=stages))


def lighter_fma_plans(first: MmaPlan) -> Iterator[MmaPlan]:
    """Plans whose lanes hold less than those of the first: half of what they hold most of, sums or
    elements on their way; half of both; a small tile."""
    (rows, columns, depth), (warp_rows, warp_columns) = first.tile, first.warp_tile
    shallow = (rows, columns, depth // 2)
    narrow = (warp_rows, warp_columns // 2)
    if rows * columns >= (rows + columns) * depth:
        yield replace(first, warp_tile=narrow)
    else:
        yield replace(first, tile=shallow)
    yield replace(first, tile=shallow, warp_tile=narrow)
    small = (max(_LEAST, min(rows, _SMALL[0])), max(_LEAST, min(columns, _SMALL[1])), _SMALL[2])
    halves = (max(_LEAST, small[0] // 2), max(_LEAST, small[1] // 2))
    yield replace(first, tile=small, warp_tile=halves)


def _choices(kernel: Kernel) -> _Choices:
    batch, m, n, k = _matrix_sizes(kernel)
    assert kernel.roles is not None
    if batch * m * n <= _FEW and k >= _FEW:
        return {}
    word = 8 if kernel.let(kernel.roles.contraction).dtype.bits == 64 else 4
    if is_thin(m, n):
        return _thin_tile(kernel, m, n, word)
    return _TILES[word] if min(m, n) >= _LEAST else {}


def _matrix_sizes(kernel: Kernel) -> tuple[int, ...]:
    """Of the batch, m, n and k."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    every = (roles.batch, roles.m, roles.n, roles.k)
    return tuple(math.prod(sizes[name] for name in axes) for axes in every)
