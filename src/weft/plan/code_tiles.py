"""Choosing an `MmaPlan` for a product of few rows with weights of few bits: how many columns a
block makes, and how many warps share their sums.

A plan's `tile` is all rows (in eights), the columns of a block, and what its warps take of k in one
step; `warp_tile` has the columns of a warp: warps side by side take the same of k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

from weft.plan.completion import IN_REGISTERS
from weft.plan.edges import local_edges
from weft.plan.ir import Header, MmaPlan
from weft.region.forms.codes import LANES, Codes, find_codes
from weft.region.ir import Kernel, Tensor, epilogue_of
from weft.target import roofline
from weft.target.target import Target

ROWS: Final = 8
"""Rows of x that an instruction takes."""
COLUMNS: Final = 16
"""Columns of the result."""
MOST_SUMS: Final = 64
"""Registers of sums of a thread."""
_RUN: Final = 16
"""Bytes of a run of codes."""
_MOST_REGISTERS: Final = 224
"""Of a thread, by the estimate; a thread has 255."""
_OTHERS: Final = 54
"""Registers for places, and for what is made of codes on its way."""
_WARPS: Final = 4
"""Of a block, where there are many: small blocks leave no unit waiting for the last ones, and 22 us
of 14336x4096 codes of 8 bits became 20.5 by halving them, 26.5 with 16 rows 21.4."""
_MANY_WARPS: Final = 8
"""Of a block, where there are few: more of them bring what a unit needs to be busy."""
_FEW_WARPS: Final = 2
"""Of a block whose threads have as many sums as there is room for, which the warps add up at the
end: 64 rows of 14336x4096 codes of 8 bits took 40.2 us with four, and 37.9 with two."""
_STAGES: Final = {LANES: 3, 2 * LANES: 2}
"""Turns of a ring, by the runs of a column in each. Another one takes room from the cache that x is
read from, and was slower everywhere: 16 rows of 28672x8192 codes of 4 bits 64.6 us instead of 50.9,
one of 14336x4096 codes of 8 bits 19.2 instead of 18.8."""
_TURNS: Final = 2
"""Steps of each warp, at least."""
_BLOCKS: Final = 3
"""Of a unit, from which on wider blocks pay: they read x less often."""
_MUCH: Final = 2
"""Bytes of x that are read for each byte of codes, from which on they do: 16 rows of 14336x4096
codes of 8 bits 21.7 us instead of 26.5, one of 28672x8192 codes of 4 bits 39.8 instead of 40.3."""


def codes_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> MmaPlan | None:
    """A plan for matrix instructions of single warps; None where it is no such product."""
    found = find_codes(kernel, tensors)
    if found is None or not target.has("cp.async"):
        return None
    sizes = kernel.sizes
    rows, columns, batch = (
        math.prod(sizes[name] for name in names)
        for names in (found.rows, found.columns, found.batch)
    )
    high = ROWS * -(-rows // ROWS)
    steps = found.runs(sizes) // LANES
    few = batch * -(-columns // COLUMNS) <= 2 * target.limits.units
    warps = _MANY_WARPS if few else _WARPS
    while warps > 1 and steps < _TURNS * warps:
        warps //= 2
    wide = COLUMNS
    blocks = batch * -(-columns // (2 * COLUMNS))
    held = registers_of(found, high, 2 * COLUMNS)
    read = high * kernel.let(found.other).dtype.storage_bytes * len(found.points)
    much = read >= _MUCH * COLUMNS * _RUN
    if much and held <= _MOST_REGISTERS and blocks >= _BLOCKS * target.limits.units:
        wide = 2 * COLUMNS
    if high * wide >= MOST_SUMS * roofline.WARP:
        warps = min(warps, _FEW_WARPS)
    return MmaPlan(
        header,
        (high, wide, warps * step_of(found)),
        stages=_STAGES[found.together],
        warp_tile=(high, wide),
        cache=IN_REGISTERS,
        epilogue=epilogue_of(kernel),
        arch="codes",
        algo_choice={"matmul": "implicit_gemm"},
        local_edges=local_edges(kernel),
        order="rows",
        roles="single",
    )


def registers_of(found: Codes, rows: int, columns: int) -> int:
    """Of a thread: sums, x, codes, and some more; a unit gives them out in eights."""
    sums, x = rows * columns // roofline.WARP, len(found.points) // 2 * (rows // ROWS)
    needed = sums + x + 8 * columns // COLUMNS + _OTHERS
    return -(-needed // 8) * 8


def step_of(found: Codes) -> int:
    """What a warp takes of k in one step."""
    return LANES * len(found.points)


def codes_plans(first: MmaPlan) -> Iterator[MmaPlan]:
    """Other tiles than those of a first plan: as many columns, or twice as many, by fewer or more
    warps, which may lie side by side."""
    rows, _, depth = first.tile
    for own, beside in product((COLUMNS, 2 * COLUMNS), (1, 4)):
        for length, stages in product((depth // 2, depth, 2 * depth), (2, 3, 4)):
            tile = (rows, own * beside, length)
            yield replace(first, tile=tile, warp_tile=(rows, own), stages=stages)
