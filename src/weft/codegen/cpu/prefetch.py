"""Loads that jump from row to row, told to the memory some rows ahead.

    for k in 0..4096:                      for k in 0..4096:
      load x = b0[4096*k + 64*p + u]  ->     prefetch b0[4096*k + 64*p + 65536]
                                             load x = b0[4096*k + 64*p + u]

The machine foresees neighbours by itself, but not steps as long as these. A prefetch is a hint: it
reads nothing, and may lie beyond the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import axes_of, axis, coefficient, constant, substitute

SERIAL, UNROLLED, LANES = LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.LANES
LONG_STEP: Final = 2048
"""Bytes between two rows that are beyond what the machine foresees."""
AHEAD: Final = 8
"""Rows between a prefetch and its load."""
LINE: Final = 64
"""Bytes that come from memory together."""


def prefetched(routine: ir.Routine) -> ir.Routine:
    """The routine with prefetches in its innermost loops over far-apart rows."""
    return replace(routine, body=_in_body(routine, routine.body))


def _in_body(routine: ir.Routine, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    return tuple(_in_loop(routine, s) if isinstance(s, ir.For) else s for s in body)


def _in_loop(routine: ir.Routine, loop: ir.For) -> ir.For:
    body = _in_body(routine, loop.body)
    hints = tuple(_hints(routine, loop)) if loop.kind is SERIAL else ()
    return replace(loop, body=(*dict.fromkeys(hints), *body))


def _hints(routine: ir.Routine, loop: ir.For) -> Iterator[ir.Stmt]:
    for stmt, around in ir.walk(loop.body):
        if not isinstance(stmt, ir.Load) or stmt.guards or stmt.places:
            continue
        if any(found.kind is SERIAL for found in around) or stmt.buffer >= len(routine.buffers):
            continue
        size = routine.dtype_of(stmt.buffer).storage_bytes
        if coefficient(stmt.address, loop.var) * size >= LONG_STEP:
            yield from _of_row(stmt, loop, around, size)


def _of_row(load: ir.Load, loop: ir.For, tile: tuple[ir.For, ...], size: int) -> Iterator[ir.Stmt]:
    """A prefetch for every line of the neighbours that a turn of the loop reads."""
    used = [each for each in tile if each.var in axes_of(load.address)]
    first = substitute(load.address, {each.var: constant(0) for each in used})
    run = 1
    for each in reversed(used):
        if coefficient(load.address, each.var) != run:
            return
        run *= each.stop.constant
    later = substitute(first, {loop.var: axis(loop.var) + AHEAD})
    for line in range(0, run * size, LINE):
        yield ir.Prefetch(load.buffer, later + line // size)
