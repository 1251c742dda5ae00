"""Statements on parts of sums, for the lanes of a warp."""

from __future__ import annotations

from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.blocks import WARP, Warp
from weft.codegen.gpu.interp.memory import Array
from weft.codegen.gpu.interp.scalars import Value
from weft.codegen.gpu.interp.workspace import Knowledge, Visitor, Workspace
from weft.codegen.gpu.scalar import Scalar

_LINE_WORDS: Final = 4
"""32-bit words that a thread keeps side by side."""


def sums(statement: ir.KeepSums | ir.AddSums, warp: Warp, space: Workspace, held: Array) -> None:
    """Store a register array in the workspace, or add what lies there to it."""
    start, member = (_each(warp.value(v)) for v in (statement.start, statement.member))
    word = np.arange(len(held) * (held.itemsize // 4))[:, None]
    line = word // _LINE_WORDS * statement.threads + member
    places = start + line * _LINE_WORDS + word % _LINE_WORDS
    visitor = Visitor(warp.block.number, warp.warp, _knowledge(warp))
    if isinstance(statement, ir.KeepSums):
        space.keep(places, np.ascontiguousarray(held.T).view(np.uint32).T, visitor)
        return
    found = np.ascontiguousarray(space.take(places, visitor).T).view(held.dtype).T
    held[...] = found if statement.first else found + held


def is_first(warp: Warp, member: Scalar) -> bool:
    """Whether a lane of this warp is the one that watches, passes or counts."""
    return bool((_each(warp.value(member)) == 0).any())


def released(warp: Warp) -> Knowledge:
    """What a warp hands on; what it does next comes later."""
    return warp.afar | {warp.block.number: warp.block.memory.races.release(warp.warp)}


def _knowledge(warp: Warp) -> Knowledge:
    return warp.afar | {warp.block.number: warp.block.memory.races.seen[warp.warp].copy()}


def _each(value: Value) -> Array:
    return np.broadcast_to(np.asarray(value), (WARP,))
