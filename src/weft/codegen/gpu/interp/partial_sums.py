"""Statements on partial sums (split-K), for the lanes of a warp."""

from __future__ import annotations

from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.blocks import WARP, Warp
from weft.codegen.gpu.interp.memory import Array
from weft.codegen.gpu.interp.scalars import Value
from weft.codegen.gpu.interp.workspace import Knowledge, Visitor, Workspace
from weft.codegen.gpu.ir.scalar import Scalar

_LINE_WORDS: Final = 4
"""32-bit words that a thread keeps side by side."""


def keep(statement: ir.KeepSums, warp: Warp, space: Workspace, held: Array) -> None:
    """Store a register array in the workspace."""
    words = np.ascontiguousarray(held.T).view(np.uint32).T
    space.keep(_register_words(statement, warp, held), words, _visitor(warp))


def add(statement: ir.AddSums | ir.GatherSums, warp: Warp, space: Workspace, held: Array) -> None:
    """Add what lies in the workspace to a register array, or make it the sum of all parts."""
    first = _register_words(statement, warp, held)
    if isinstance(statement, ir.AddSums):
        held[...] = _take_words(space, first, warp, held) + held
        return
    held[...] = _take_words(space, first, warp, held)
    for number in range(1, statement.count):
        held[...] = held + _take_words(space, first + number * statement.stride, warp, held)


def _take_words(space: Workspace, places: Array, warp: Warp, held: Array) -> Array:
    words = space.take(places, _visitor(warp))
    return np.ascontiguousarray(words.T).view(held.dtype).T


def _register_words(
    statement: ir.KeepSums | ir.AddSums | ir.GatherSums, warp: Warp, held: Array
) -> Array:
    """The words of every register, by lanes."""
    start, member = (_value_per_lane(warp.value(v)) for v in (statement.start, statement.member))
    word = np.arange(len(held) * (held.itemsize // 4))[:, None]
    # Four words of a thread lie side by side, then those of the next thread: a warp's access is
    # whole lines of memory.
    line = word // _LINE_WORDS * statement.threads + member
    found: Array = start + line * _LINE_WORDS + word % _LINE_WORDS
    return found


def is_first(warp: Warp, member: Scalar) -> bool:
    """Whether a lane of this warp is the one that watches, passes or counts."""
    return bool((_value_per_lane(warp.value(member)) == 0).any())


def released(warp: Warp) -> Knowledge:
    """What a warp hands on; what it does next comes later."""
    return warp.afar | {warp.block.number: warp.block.memory.races.release(warp.warp)}


def _visitor(warp: Warp) -> Visitor:
    block = warp.block
    known = warp.afar | {block.number: block.memory.races.seen[warp.warp].copy()}
    return Visitor(block.number, warp.warp, known)


def _value_per_lane(value: Value) -> Array:
    return np.broadcast_to(np.asarray(value), (WARP,))
