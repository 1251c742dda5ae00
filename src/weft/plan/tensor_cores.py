"""Choosing an `MmaPlan` for matrix units: the form of kernel that takes the least time.

On SM90 times come from `target.matrix_tiles`, on SM80 from how two tiles fill the units.
"""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import F32
from weft.plan.contraction import Problem
from weft.plan.epilogue import epilogue_names, local_edges
from weft.plan.ir import CacheRead, Header, MmaPlan, Vectorize
from weft.region.ir import Kernel, Read
from weft.target import roofline
from weft.target.matrix_tiles import K_STEP, Extent, Form, fastest, stages_for
from weft.target.target import Target

LIGHT: Final = frozenset({"bias", "scale", "relu"})
"""Epilogue steps that cost next to nothing."""
_PANEL: Final = 64
"""16-bit elements of a row of 128 bytes, within which shared memory is permuted."""
_SM80_TILES: Final = {(128, 64, 64): (1.0, 2), (128, 128, 32): (1.25, 4)}
"""Tiles of the SM80 template, what they reach of the first, and their stages."""
_ONE_WAVE: Final = "grouped:4"
"""The order of tiles that all run at once: blocks that follow one another ask the second-level
cache together, so that what a few of them share, both ways, is fetched once."""


def sm90_plan(
    kernel: Kernel, problem: Problem, target: Target, header: Header, form: Form | None = None
) -> MmaPlan:
    """A form of the SM90 template: where none is given, the one that is done first."""
    steps = epilogue_names(kernel)
    narrow = kernel.let(kernel.outputs[0].value).dtype is not F32
    light = narrow and set(steps) <= LIGHT
    extent = Extent(problem.batch, problem.m, problem.n, problem.k)
    form = form or fastest(extent, target, light=light)
    # Columns that lie along n are stored in whole panels.
    along = problem.layouts[0] == "col" if form.swap else problem.layouts[1] == "row"
    beside = 4 * form.consumers * _vectors(kernel, swap=form.swap) * form.warp_tile[1]
    return MmaPlan(
        header,
        (form.rows, form.columns, K_STEP),
        stages=stages_for(form, target, beside, _PANEL if along else 1),
        warp_tile=form.warp_tile,
        cache=_cached(),
        epilogue=steps,
        arch="sm90",
        layout_hints={"A_swizzle": True, "B_swizzle": True, "C_stride": "row"},
        algo_choice={"matmul": "implicit_gemm"},
        local_edges=local_edges(kernel),
        order=MmaPlan.order if _has_next_tile(form, extent, target) else _ONE_WAVE,
        operand_layouts=problem.layouts,
        roles=form.roles,
        swap_ab=form.swap,
        # Heavy epilogues cost more inside the next tile than after their own.
        deferred_epilogue=light and form.defers and _has_next_tile(form, extent, target),
        consumers=form.consumers,
        registers=(40, 232) if form.consumers == 2 else (0, 0),
    )


def _has_next_tile(form: Form, extent: Extent, target: Target) -> bool:
    return extent.tiles(form) > target.limits.units


def _vectors(kernel: Kernel, *, swap: bool) -> int:
    """How many tensors the epilogue reads along the columns of tiles, the same for every row."""
    assert kernel.roles is not None
    m, n = ({*kernel.roles.m}, {*kernel.roles.n})
    columns, others = (m, n) if swap else (n, m)
    others |= {*kernel.roles.k}
    reads = [set(let.axes) for let in kernel.body if isinstance(let.expr, Read)]
    return sum(bool(axes & columns) and not axes & others for axes in reads)


def sm80_plan(kernel: Kernel, problem: Problem, target: Target, header: Header) -> MmaPlan:
    """The SM80 form: document 2's tile, or twice its columns where that fills the units too."""
    tile, wide = _SM80_TILES
    if problem.tiles(*wide[:2]) >= 2 * target.limits.units:
        tile = min(_SM80_TILES, key=lambda tile: _sm80_time(tile, problem, target))
    extents = zip("mnk", (problem.m, problem.n, problem.k), tile, strict=True)
    return MmaPlan(
        header,
        tile,
        stages=_SM80_TILES[tile][1],
        bind={"m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x"},
        warp_tile=(64, 64),
        cache=_cached(),
        vectorize=Vectorize("n.i.i", 8),
        predicate_tail=tuple(f"{a}.i.i" for a, size, step in extents if size % step),
        epilogue=epilogue_names(kernel),
        arch="sm80",
        layout_hints={"A_swizzle": True, "B_swizzle": True, "C_stride": "row"},
        algo_choice={"matmul": "implicit_gemm"},
        local_edges=local_edges(kernel),
        operand_layouts=problem.layouts,
        roles="single",
    )


def _sm80_time(tile: tuple[int, int, int], problem: Problem, target: Target) -> float:
    """Waves of tiles, the last as slow as a full one, up to a factor that both tiles share."""
    waves = roofline.waves(problem.tiles(*tile[:2]), target.limits.units)
    return waves * tile[0] * tile[1] / _SM80_TILES[tile][0]


def _cached() -> tuple[CacheRead, CacheRead]:
    return CacheRead("A", "smem", "k.i"), CacheRead("B", "smem", "k.i")
