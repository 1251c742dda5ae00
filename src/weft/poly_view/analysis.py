"""Blocks as the statements of Poly Core, and its questions asked about a whole view."""

from __future__ import annotations

from collections.abc import Mapping

from weft.poly import core
from weft.poly_view.ir import BlockKind, PolyBlock, Scop


def statement(block: PolyBlock, scop: Scop) -> core.Statement:
    """A block as Poly Core sees it."""
    whole = block.kind is BlockKind.OPAQUE or block.selected > 0
    return core.Statement(
        block.name,
        tuple(core.LoopAxis(a.name, a.size, a.reduce) for a in block.axes),
        tuple(core.Read(a.tensor, () if whole else a.map, a.guards) for a in block.accesses),
        block.dtype.storage_bytes,
        tuple((p.name, p.low, p.high) for p in scop.params if p.name in block.params),
        affine=not whole,
        pinned=block.kind is BlockKind.UPDATE,
    )


def input_statement(name: str, scop: Scop) -> core.Statement:
    """An input as a producer: it has axes and reads nothing."""
    dtype, shape = scop.inputs[name]
    axes = tuple(core.LoopAxis(f"i{k}", size) for k, size in enumerate(shape))
    return core.Statement(name, axes, (), dtype.storage_bytes)


def producer(name: str, scop: Scop) -> core.Statement:
    """A tensor, block or input, as a producer."""
    block = scop.by_name.get(name)
    return input_statement(name, scop) if block is None else statement(block, scop)


def can_compute_at(
    scop: Scop, source: str, to: str, tile: Mapping[str, int] | None = None
) -> core.ComputeAt:
    """Whether a tensor may be computed inside a tile of a block that reads it, and its halo."""
    return core.can_compute_at(producer(source, scop), statement(scop.by_name[to], scop), tile)


def min_buffer_for_edge(
    scop: Scop,
    source: str,
    to: str,
    tile: Mapping[str, int] | None = None,
    *,
    limit: int = core.SHARED_BYTES,
) -> core.MinBuffer:
    """The smallest buffer that carries a tensor to a block that reads it."""
    return core.min_buffer_for_edge(
        producer(source, scop), statement(scop.by_name[to], scop), tile, limit=limit
    )


def analyze(scop: Scop, tile: Mapping[str, Mapping[str, int]] | None = None) -> core.Analysis:
    """The facts of Poly Core about all blocks of a view."""
    return core.analyze([statement(block, scop) for block in scop.blocks], tile)


def make_fusable_groups(scop: Scop) -> list[list[str]]:
    """Blocks that may share a kernel."""
    return core.make_fusable_groups([statement(block, scop) for block in scop.blocks])
