"""Choosing an `MmaPlan` for multiply-adds of single numbers, on a GPU: the largest tile that leaves
no unit without one."""

from __future__ import annotations

import math
from typing import Final

from weft.plan.epilogue import epilogue_names, local_edges
from weft.plan.ir import Header, MmaPlan
from weft.region.ir import Kernel, Pattern
from weft.target.target import Target

_TILES: Final = {
    4: (((128, 128, 8), (32, 64)), ((64, 64, 16), (16, 32)), ((32, 32, 16), (16, 16))),
    8: (((64, 64, 8), (16, 32)), ((32, 32, 16), (16, 16))),
}
"""Tiles, and the part of each that a warp has, by the bytes of a sum; the largest first."""
_THIN: Final = 8
"""Rows or columns under which a tile would be mostly empty."""
_FEW: Final = 4096
"""Results under which threads are better used along a long sum."""


def fma_plan(kernel: Kernel, target: Target, header: Header) -> MmaPlan | None:
    """A plan for tiles; None where rows of threads suit the contraction better."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    batch, m, n, k = (
        math.prod(sizes[a] for a in axes) for axes in (roles.batch, roles.m, roles.n, roles.k)
    )
    if min(m, n) < _THIN or (batch * m * n <= _FEW and k >= _FEW):
        return None
    choices = _TILES[8 if kernel.let(roles.contraction).dtype.bits == 64 else 4]
    tile, warp_tile = next(
        (c for c in choices if _tiles(batch, m, n, c[0]) >= target.limits.units), choices[-1]
    )
    kind = "conv" if kernel.pattern is Pattern.CONV else "matmul"
    return MmaPlan(
        header,
        tile,
        warp_tile=warp_tile,
        epilogue=epilogue_names(kernel),
        arch="fma",
        algo_choice={kind: "implicit_gemm"},
        local_edges=local_edges(kernel),
        roles="single",
    )


def _tiles(batch: int, m: int, n: int, tile: tuple[int, int, int]) -> int:
    return batch * -(-m // tile[0]) * -(-n // tile[1])
