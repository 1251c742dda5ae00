"""An `MmaPlan` for Winograd's algorithm on a CPU. No heuristic chooses it: its results are less
accurate than those of a plain sum (`codegen.cpu.winograd` has the bound), so a user must ask for
it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from weft.plan.blocks import SCRATCH_BYTES, even_blocks, register_block
from weft.plan.ir import CacheRead, MmaPlan, Vectorize
from weft.region.form import Convolution, Windows
from weft.region.forms.winograd import NO_CONVOLUTION, STEP
from weft.region.ir import Kernel, form_of
from weft.target.target import Target

ALGORITHM: Final = "winograd_3x3"
POINTS: Final = 16
"""Products that take the place of the 36 of 2 x 2 results."""
_TILES: Final = (72, 48, 24, 12)
"""Tiles of a block, about: as many as memory of the thread holds."""
_CHANNELS: Final = 64
_COLUMNS: Final = 64
"""Channels and columns of a block, about."""


def windows_of(kernel: Kernel) -> Windows | str:
    """The windows of a convolution, or why Winograd's algorithm is none for the kernel."""
    form = form_of(kernel)
    return form.windows if isinstance(form, Convolution) else NO_CONVOLUTION


def winograd_plan(kernel: Kernel, first: MmaPlan, target: Target) -> MmaPlan:
    """The plan with Winograd's algorithm in the place of its own, in blocks of a few tiles whose
    transforms, with those of the window, stay in a cache."""
    assert kernel.roles is not None
    windows = windows_of(kernel)
    assert isinstance(windows, Windows)
    lanes = target.lanes(kernel.let(kernel.roles.contraction).dtype)
    n = math.prod(kernel.sizes[a] for a in kernel.roles.n)
    channels = math.prod(kernel.sizes[a] for a in windows.channels)
    tiles = math.prod(kernel.sizes[a] for a in kernel.roles.m) // STEP**2
    registers = register_block(target, lanes, tiles, n)
    blocks = (even_blocks(n, _COLUMNS, registers[1]), even_blocks(channels, _CHANNELS, 1))
    sizes = [(even_blocks(tiles, most, registers[0]), *blocks) for most in _TILES]
    # Sixteen points of tiles, windows and products each: four ninths of the products of 3 × 3
    # windows for 16 / 4 and 16 / 9 of the elements, which pays while all of it stays near.
    fitting = [tile for tile in sizes if _scratch_bytes(kernel, tile, registers) <= SCRATCH_BYTES]
    return replace(
        first,
        tile=fitting[0] if fitting else sizes[-1],
        warp_tile=registers,
        cache=tuple(CacheRead(side, "packed", "k", pingpong=False) for side in "AB"),
        vectorize=Vectorize("n.i.i", lanes),
        algo_choice={"conv": ALGORITHM},
    )


def scratch_elements(
    tile: tuple[int, int, int], registers: tuple[int, int], channels: int
) -> tuple[int, ...]:
    """Of transformed tiles, transformed windows, their products, and one panel of tiles before it
    is turned."""
    (tiles, columns, depth), (mr, nr) = tile, registers
    rows, width, deep = -(-tiles // mr) * mr, -(-columns // nr) * nr, min(depth, channels)
    sizes = (rows * deep, deep * width, rows * width, mr * deep)
    return tuple(POINTS * size for size in sizes)


def winograd_refusal(kernel: Kernel, plan: MmaPlan) -> str | None:
    """Why a kernel cannot be computed so; None where it can."""
    windows = windows_of(kernel)
    if isinstance(windows, str):
        return f"algo_choice.conv={ALGORITHM}: {windows}"
    if {cached.tensor for cached in plan.cache} != {"A", "B"} or kernel.roles is None:
        return f"algo_choice.conv={ALGORITHM} works on packed A and B"
    size = _scratch_bytes(kernel, plan.tile, plan.warp_tile)
    if size > SCRATCH_BYTES:
        shown = "x".join(map(str, plan.tile))
        return f"transforms of tile {shown} take {size:,} bytes; {SCRATCH_BYTES:,} is the most"
    return None


def _scratch_bytes(kernel: Kernel, tile: tuple[int, int, int], registers: tuple[int, int]) -> int:
    windows = windows_of(kernel)
    assert kernel.roles is not None
    assert isinstance(windows, Windows)
    channels = math.prod(kernel.sizes[a] for a in windows.channels)
    item = kernel.let(kernel.roles.contraction).dtype.storage_bytes
    return sum(scratch_elements(tile, registers, channels)) * item
