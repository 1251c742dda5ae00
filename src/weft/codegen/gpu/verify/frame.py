"""Verification of the declarations of a kernel: sizes, tensor maps, tiles, barriers, tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.dependent_launch import chain_faults, reaches_memory
from weft.codegen.gpu.ir.frame import LARGEST_STEP, MOST_POINTERS, WINDOW_CORNERS
from weft.codegen.gpu.spelling.names import is_free
from weft.foundation.errors import Finding
from weft.target.target import CLUSTERS, Target

FRAME: Final = "KernelFrame"
SHARED: Final = "E2201 SharedMemoryOverrun"
_WARP: Final = 32
_MOST_BLOCKS: Final = (1 << 31) - 1
_MOST_BUFFERS: Final = 256
_MOST_COUNTERS: Final = (1 << 31) - 1
"""What a launch, its parameters and 32-bit numbers have room for."""
_MAP_RANKS: Final = (2, 3, 4, 5)
_LARGEST_BOX: Final = 256
"""Axes of a tensor map, and elements along each that one copy takes."""
_LINE: Final = 16
"""Bytes that addresses and strides of the copy engine are multiples of."""
_BARRIER: Final = 8
"""Bytes of a barrier."""


def frame_findings(kernel: ir.Kernel, target: Target) -> Iterator[Finding]:
    """Everything that is wrong with a frame."""
    place = f"kernel {kernel.name}"
    for code, why in _findings(kernel, target):
        yield Finding(code, place, why)


def _findings(kernel: ir.Kernel, target: Target) -> Iterator[tuple[str, str]]:
    limit = target.limits.threads_per_block
    if not 0 <= kernel.grid <= _MOST_BLOCKS:
        yield FRAME, f"a grid of {kernel.grid} blocks"
    if kernel.threads % _WARP or not _WARP <= kernel.threads <= limit:
        yield FRAME, f"{kernel.threads} threads are not whole warps up to {limit}"
    if kernel.cluster != 1 and (kernel.cluster not in CLUSTERS or not target.has("cluster")):
        yield FRAME, f"a cluster of {kernel.cluster} blocks on {target.name}"
    elif kernel.grid % kernel.cluster:
        yield FRAME, f"{kernel.grid} blocks are not whole clusters of {kernel.cluster}"
    # What a unit has room for, whatever a block uses otherwise: the compiler is asked to leave
    # registers for that many blocks, and cannot for more.
    most = min(
        target.limits.blocks_per_unit,
        target.limits.warps_per_unit * _WARP // max(1, kernel.threads),
    )
    if not 1 <= kernel.resident <= most:
        yield FRAME, f"{kernel.resident} resident blocks of {kernel.threads} threads, over {most}"
    if len(kernel.buffers) > _MOST_BUFFERS:
        yield FRAME, f"{len(kernel.buffers)} buffers, over {_MOST_BUFFERS}"
    yield from ((FRAME, why) for why in _set_problems(kernel))
    for group in (kernel.maps, kernel.tiles, kernel.barriers, kernel.tables):
        names = [found.name for found in group]
        for name in names:
            if not is_free(name):
                yield FRAME, f"{name!r} cannot be a name"
        if len(set(names)) != len(names):
            yield FRAME, f"one name twice among {', '.join(names)}"
    for found in kernel.maps:
        yield from _map_problems(found, len(kernel.buffers))
    for table in kernel.tables:
        if not table.values or not all(-(1 << 31) <= v < 1 << 31 for v in table.values):
            yield FRAME, f"the table {table.name} is empty or has numbers beyond 32 bits"
    yield from _shared_problems(kernel, target)
    yield from ((FRAME, why) for why in _workspace(kernel, target))
    yield from ((FRAME, why) for why in chain_faults(kernel))


def _set_problems(kernel: ir.Kernel) -> Iterator[str]:
    """What is wrong with the sets of buffers that the blocks of a kernel take."""
    if kernel.sets == 1:
        return
    if kernel.sets < 1 or kernel.sets * len(kernel.buffers) > MOST_POINTERS:
        yield f"{kernel.sets} sets of {len(kernel.buffers)} buffers, over {MOST_POINTERS} in all"
    if kernel.maps or kernel.workspace or kernel.reports:
        yield "a kernel of several sets of buffers has maps, a workspace or violations"
    if kernel.cluster > 1:
        yield "the blocks of a cluster take sets of buffers of their own"
    takes = [n for n, found in enumerate(kernel.body) if isinstance(found, ir.TakeSet)]
    # The walk also finds those inside branches and loops: there must be one in all, and it must be
    # one of the outermost.
    every = sum(isinstance(found, ir.TakeSet) for found in ir.walk(kernel.body))
    if kernel.grid and (len(takes), every) != (1, 1):
        yield "a block takes a set of buffers once, and outside of branches and loops"
    elif takes and any(map(reaches_memory, ir.walk(kernel.body[: takes[0]]))):
        yield "memory is touched before a set of buffers is taken"


def _workspace(kernel: ir.Kernel, target: Target) -> Iterator[str]:
    space = kernel.workspace
    if space is not None and not (0 < space.counters <= _MOST_COUNTERS and space.words >= 0):
        yield f"a workspace of {space.counters} counters and {space.words} words"
    if kernel.together and kernel.grid > target.limits.units:
        units = target.limits.units
        yield f"{kernel.grid} blocks wait for one another, and {target.name} runs {units} at once"


def _shared_problems(kernel: ir.Kernel, target: Target) -> Iterator[tuple[str, str]]:
    ranges = [(tile.offset, tile.offset + tile.bytes, tile.name) for tile in kernel.tiles]
    for array in kernel.barriers:
        ranges.append((array.offset, array.offset + _BARRIER * array.count, array.name))
        if array.offset % _BARRIER or array.count < 1 or array.arrivals < 1:
            yield FRAME, f"the barriers {array.name} are not there, or no multiple of 8 bytes in"
    for tile in kernel.tiles:
        # Patterns are made of bits of the address: a tile that begins inside of one would have its
        # rows permuted otherwise than its descriptor says.
        alignment = tile.layout.swizzle.alignment if tile.layout else 4
        if tile.offset % alignment:
            yield (
                FRAME,
                f"the tile {tile.name} begins at {tile.offset}, not a multiple of {alignment}",
            )
    for start, end, name in ranges:
        if not 0 <= start <= end:
            yield FRAME, f"{name} takes the bytes {start}..{end}"
    for (_, end, first), (start, _, second) in pairwise(sorted(ranges)):
        if start < end:
            yield FRAME, f"{first} and {second} overlap in shared memory"
    limit = target.limits.shared_bytes_per_block
    if kernel.shared_bytes > limit:
        yield SHARED, f"{kernel.shared_bytes} bytes of shared memory, over {limit}"


def _map_problems(found: ir.TensorMap, buffers: int) -> Iterator[tuple[str, str]]:
    rank = len(found.sizes)
    if not 0 <= found.buffer < buffers:
        yield FRAME, f"the map {found.name} is of buffer {found.buffer} of {buffers}"
    if found.window is not None:
        wrong = _window_problem(found, found.window)
        if wrong:
            yield FRAME, f"the map {found.name} {wrong}"
            return
    elif rank not in _MAP_RANKS or len(found.strides) != rank - 1 or len(found.box) != rank:
        yield FRAME, f"the map {found.name} has no sizes, strides and box of one rank from 2 to 5"
        return
    if any(size < 1 for size in found.sizes):
        yield FRAME, f"the map {found.name} is of nothing"
    if any(not 1 <= extent <= _LARGEST_BOX for extent in found.box):
        yield FRAME, f"the box of {found.name} is not 1 to {_LARGEST_BOX} elements wide"
    size = found.dtype.storage_bytes
    if any(s < 0 or s * size % _LINE for s in (found.offset, *found.strides)):
        yield FRAME, f"strides and offset of {found.name} are not multiples of {_LINE} bytes"
    if found.box[0] * size > found.swizzle.span or found.box[0] * size % _LINE:
        yield FRAME, f"a row of the box of {found.name} does not fit {found.swizzle.span} bytes"


def _window_problem(found: ir.TensorMap, window: ir.Window) -> str:
    """What is wrong with the windows of an image."""
    rank, moving = len(found.sizes), len(found.sizes) - 2
    if rank not in WINDOW_CORNERS or len(found.strides) != rank - 1 or len(found.box) != 2:
        return "is not an image of rank 3 to 5 whose boxes have channels and places"
    if {len(window.lower), len(window.upper), len(window.steps)} != {moving}:
        return f"has no corners and steps for the {moving} axes that windows move over"
    low, high = WINDOW_CORNERS[rank]
    if any(not low <= corner <= high for corner in (*window.lower, *window.upper)):
        return f"has corners that are not {low} to {high}"
    if any(not 1 <= step <= LARGEST_STEP for step in window.steps):
        return f"has steps that are not 1 to {LARGEST_STEP}"
    sizes = zip(found.sizes[1:], window.lower, window.upper, strict=False)
    if any(size + upper <= lower for size, lower, upper in sizes):
        return "has no place for a window"
    return ""
