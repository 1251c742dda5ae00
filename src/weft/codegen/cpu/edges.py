"""Tiles of a convolution split into the inside of the image, where no bounds check can fail, and
the tiles at its edges.

    unrolled u, lanes l:  load x[i + u + l - 1] if 0 <= r < 56 and 0 <= i + u + l - 1 < 56
                                                                     ->
    if 0 <= r < 56:  if 0 <= i - 1 and i + last - 1 < 56:  load x[i + u + l - 1]
                     else:                                 load ... if 0 <= i + u + l - 1 < 56
    else:            load ... if both

Most tiles are inside, with all places of a window around each element, and that is asked first;
their windows are written out. So are those of tiles that only lines of vectors leave: what lies
beside the image is read, too, where that is in the buffer, and replaced. Two numbers say of all
elements that guards hold, which takes no longer than asking for one of them; without such a
question each vector makes a mask of its own.
Machines with instructions that load some lanes of a vector need none of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import FloorDiv, Guard, axes_of, coefficient

_MOST_STATEMENTS: Final = 32
"""Of a tile, which is written three times."""
_MOST_WRITTEN: Final = 400
"""Statements of a window that is written out once more, for the tiles that are inside with all of
it."""
_MOST_WRITTEN_ACROSS: Final = 300
"""Of one that is written out for the tiles of which vectors reach over an edge, too."""


@dataclass(frozen=True)
class GuardedTile:
    """Unrolled loops and lanes around loads with guards."""

    loop: ir.For
    loops: tuple[ir.For, ...]
    """All of its loops."""
    fixed: tuple[Guard, ...]
    """Guards that are the same for all of its elements."""
    moving: tuple[Guard, ...]
    """Those that move evenly with its loops."""

    def corner(self, guard: Guard, *, last: bool) -> dict[str, int]:
        """Where its loops stand at the element with the least number to look at, or with the
        greatest."""
        found = {}
        for loop in self.loops:
            first, end = loop.start.constant, loop.stop.constant
            final = first + (end - 1 - first) // loop.step * loop.step
            found[loop.var] = final if (coefficient(guard.expr, loop.var) > 0) == last else first
        return found

    def without(self, dropped: tuple[Guard, ...]) -> ir.For:
        """The loop with loads that do not ask for these."""
        return _drop(self.loop, frozenset(dropped))


def window_of(loop: ir.For, around: tuple[ir.Stmt, ...]) -> GuardedTile | None:
    """A counted loop over the few places of a window, with a tile inside, whose guards can be asked
    for together for all of them: as it is written out where they hold. None as for a tile."""
    found = tile_of(loop, around, LoopKind.SERIAL)
    if found is None or not all(each.step == 1 for each in found.loops):
        return None
    turns = (each.stop.constant - each.start.constant for each in _written_out(found.loops))
    written = math.prod(turns) * len(list(ir.walk((loop,))))
    return found if written <= _MOST_WRITTEN else None


def across_edges(window: GuardedTile, buffers: Sequence[ir.BufferArg]) -> GuardedTile:
    """The window with what must hold for its vectors to be read whole, whichever of their lanes are
    inside: the guards that are the same for all lanes, and that all that is read lies in its
    buffer. Without any where some vectors are no neighbours, or it is too long to be written again.
    """
    inner = list(ir.walk((window.loop,)))
    lanes = [loop.var for loop in window.loops if loop.kind is LoopKind.LANES]
    loads = [stmt for stmt, _ in inner if isinstance(stmt, ir.Load) and stmt.guards]
    turns = (each.stop.constant - each.start.constant for each in _written_out(window.loops))
    if len(lanes) != 1 or math.prod(turns) * len(inner) > _MOST_WRITTEN_ACROSS:
        return replace(window, moving=())
    (lane,) = lanes
    names = {loop.var for loop in window.loops}
    rooms = []
    for load in loads:
        room = load.buffer < len(buffers) and not _divides(Guard(load.address, 1), names)
        if coefficient(load.address, lane) != 1 or not room:
            return replace(window, moving=())
        rooms.append(Guard(load.address, buffers[load.buffer].elements))
    shared = [guard for guard in window.moving if lane not in axes_of(guard.expr)]
    if len(shared) == len(window.moving):
        return replace(window, moving=())
    return replace(window, moving=(*shared, *dict.fromkeys(rooms)))


def _written_out(loops: tuple[ir.For, ...]) -> Iterator[ir.For]:
    return (loop for loop in loops if loop.kind is not LoopKind.LANES)


def written_out(loop: ir.For) -> ir.For:
    """The loop, its counted loops written out."""
    body = tuple(written_out(stmt) if isinstance(stmt, ir.For) else stmt for stmt in loop.body)
    kind = LoopKind.UNROLLED if loop.kind is LoopKind.SERIAL else loop.kind
    return replace(loop, kind=kind, body=body)


def tile_of(loop: ir.For, around: tuple[ir.Stmt, ...], *more: LoopKind) -> GuardedTile | None:
    """A loop whose guards can be asked for together; None where none of them moves, or not evenly,
    or what is computed in it is used by others of the statements that it is among. Its loops are
    unrolled or lanes, or of kinds that are named."""
    inner = list(ir.walk((loop,)))
    loops = tuple(stmt for stmt, _ in inner if isinstance(stmt, ir.For))
    if any(
        one.kind not in (LoopKind.UNROLLED, LoopKind.LANES, *more)
        or not (one.start.is_constant and one.stop.is_constant)
        or one.end is not None
        for one in loops
    ):
        return None
    stmts = [stmt for stmt, _ in inner if not isinstance(stmt, ir.For)]
    known = all(isinstance(s, ir.Load | ir.Let | ir.Accumulate | ir.Store) for s in stmts)
    if not known or len(stmts) > _MOST_STATEMENTS:
        return None
    loads = [stmt for stmt in stmts if isinstance(stmt, ir.Load) and stmt.guards]
    guards = dict.fromkeys(guard for load in loads for guard in load.guards)
    names = {one.var for one in loops}
    moving = tuple(guard for guard in guards if names & set(axes_of(guard.expr)))
    if not moving or any(load.places for load in loads):
        return None
    if any(_divides(guard, names) for guard in moving) or _is_used_outside(stmts, around):
        return None
    return GuardedTile(loop, loops, tuple(g for g in guards if g not in moving), moving)


def _divides(guard: Guard, names: set[str]) -> bool:
    terms = (term for term, _ in guard.expr.terms if isinstance(term, FloorDiv))
    return any(names & set(axes_of(term.value)) for term in terms)


def _is_used_outside(stmts: Sequence[ir.Stmt], around: tuple[ir.Stmt, ...]) -> bool:
    """Whether a statement elsewhere has a name that these define."""
    made = {stmt.name for stmt in stmts if isinstance(stmt, ir.Load | ir.Let)}
    own = {id(stmt) for stmt in stmts}
    others = (stmt for stmt, _ in ir.walk(around) if not isinstance(stmt, ir.For))
    return any(made & set(_words(stmt)) for stmt in others if id(stmt) not in own)


def _words(value: Any) -> Iterator[str]:
    """Every name in a statement."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _words(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _words(getattr(value, field.name))


def _drop(loop: ir.For, dropped: frozenset[Guard]) -> ir.For:
    def kept(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return _drop(stmt, dropped)
            case ir.Load():
                return replace(stmt, guards=tuple(g for g in stmt.guards if g not in dropped))
        return stmt

    return replace(loop, body=tuple(kept(stmt) for stmt in loop.body))
