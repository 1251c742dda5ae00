"""Prefetch instructions: for loads that jump from row to row, and for rows that a kernel passes
over several times.

    for k in 0..4096:                      for k in 0..4096:
      load x = b0[4096*k + 64*p + u]  ->     prefetch b0[4096*k + 64*p + 65536]
                                             load x = b0[4096*k + 64*p + u]

The machine foresees neighbours by itself, but not steps as long as these. A prefetch is a hint: it
reads nothing, and may lie beyond the buffer.

    parallel p:                         parallel p:
      for i: accumulate m <- x[p, i]      for i: accumulate m <- x[p, i]
      for i: accumulate s <- f(x[p, i])   for i: prefetch x[p + 1, i]; prefetch y[p, i]
      for i: store y[p, i]           ->          accumulate s <- f(x[p, i])
                                          for i: store y[p, i]

The first pass over a row waits for the memory, which is idle while the others compute what is in
the first cache. So the longest of the others asks for the row of the next piece, and what a later
pass is the first to read or to write is asked for in the pass before. The machine does not foresee
either: rows of results begin when a pass does, and rows end where pages end. A thread takes
neighbouring pieces; the last hint of its share is for nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.math import NARROWED
from weft.foundation.index_expr import Expr, axes_of, axis, coefficient, constant, substitute
from weft.region.cost import operations_of

PARALLEL, SERIAL = LoopKind.PARALLEL, LoopKind.SERIAL
UNROLLED, LANES = LoopKind.UNROLLED, LoopKind.LANES
LONG_STEP: Final = 2048
"""Bytes between two rows that are beyond what the machine foresees."""
AHEAD: Final = 8
"""Rows between a prefetch and its load."""
LINE: Final = 64
"""Bytes that come from memory together."""
_ROWS: Final = range(512, 16384 + 1)
"""Bytes of a row: a shorter one is there at once, and of longer ones the first cache does not hold
two with what is made of them."""
_LEAST_BUFFER: Final = 1 << 20
"""Bytes of a buffer whose rows may still be in a core's caches when they are read or written."""


def prefetched(routine: ir.Routine) -> ir.Routine:
    """The routine with prefetches in its innermost loops over far-apart rows."""
    return replace(routine, body=_in_body(routine, routine.body))


def _in_body(routine: ir.Routine, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    return tuple(_in_loop(routine, s) if isinstance(s, ir.For) else s for s in body)


def _in_loop(routine: ir.Routine, loop: ir.For) -> ir.For:
    body = _in_body(routine, loop.body)
    hints = tuple(_hints(routine, loop)) if loop.kind is SERIAL else ()
    if not hints and all(map(operator.is_, body, loop.body)):
        return loop
    return replace(loop, body=(*dict.fromkeys(hints), *body))


def _hints(routine: ir.Routine, loop: ir.For) -> Iterator[ir.Stmt]:
    for stmt, around in _in_one_turn(loop.body):
        if not isinstance(stmt, ir.Load) or stmt.guards or stmt.places:
            continue
        if stmt.buffer >= len(routine.buffers):
            continue
        size = routine.dtype_of(stmt.buffer).storage_bytes
        if coefficient(stmt.address, loop.var) * size >= LONG_STEP:
            yield from _of_row(stmt, loop, around, size)


def _in_one_turn(
    body: tuple[ir.Stmt, ...], around: tuple[ir.For, ...] = ()
) -> Iterator[tuple[ir.Stmt, tuple[ir.For, ...]]]:
    """The statements of a body that are in no counted loop of its own, with the tile's loops around
    them."""
    for stmt in body:
        if not isinstance(stmt, ir.For):
            yield stmt, around
        elif stmt.kind is not SERIAL:
            yield from _in_one_turn(stmt.body, (*around, stmt))


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


@dataclass(frozen=True)
class _Row:
    """Neighbours that a pass goes over: where a turn begins, and the bytes of it."""

    buffer: int
    first: Expr
    run: int
    size: int

    def lines(self, places: Mapping[str, Expr]) -> Iterator[ir.Stmt]:
        """A hint for every line of a turn."""
        first = substitute(self.first, dict(places))
        for line in range(0, self.run, LINE):
            yield ir.Prefetch(self.buffer, first + line // self.size)


def rows_ahead(routine: ir.Routine) -> ir.Routine:
    """The routine with prefetches in the passes over the rows of its pieces."""
    return replace(routine, body=tuple(_in_piece(routine, stmt) for stmt in routine.body))


def _in_piece(routine: ir.Routine, piece: ir.Stmt) -> ir.Stmt:
    if not isinstance(piece, ir.For) or piece.kind is not PARALLEL:
        return piece
    loops = [stmt for stmt in piece.body if isinstance(stmt, ir.For) and stmt.kind is SERIAL]
    hints: dict[str, list[ir.Stmt]] = {loop.var: [] for loop in loops}
    for turns in dict.fromkeys(map(_turns, loops)):
        passes = [loop for loop in loops if _turns(loop) == turns]
        if len(passes) > 1:
            _hint_rows(routine, piece, passes, hints)
    body = tuple(
        replace(stmt, body=(*dict.fromkeys(hints[stmt.var]), *stmt.body))
        if isinstance(stmt, ir.For) and stmt.var in hints
        else stmt
        for stmt in piece.body
    )
    return replace(piece, body=body)


def _hint_rows(
    routine: ir.Routine, piece: ir.For, passes: list[ir.For], hints: dict[str, list[ir.Stmt]]
) -> None:
    """Find the pass in which each row of a piece is asked for."""
    # A pass that computes leaves the memory idle for the longest; of equals the later one, after
    # which the next piece begins.
    longest = max(reversed(passes[1:]), key=work_of)
    touched: set[tuple[int, Expr]] = set()
    for number, each in enumerate(passes):
        for row in _rows(routine, piece, each):
            place = (row.buffer, substitute(row.first, {each.var: axis(passes[0].var)}))
            if place in touched:
                continue
            touched.add(place)
            host, ahead = (passes[number - 1], 0) if number else (longest, 1)
            places = {each.var: axis(host.var), piece.var: axis(piece.var) + ahead}
            hints[host.var] += row.lines(places)


def _turns(loop: ir.For) -> tuple[object, ...]:
    return loop.start, loop.stop, loop.step, loop.end


def work_of(loop: ir.For) -> int:
    """About how many operations a turn takes for an element."""
    lets = (stmt for stmt, _ in ir.walk(loop.body) if isinstance(stmt, ir.Let))
    return sum(operations_of(NARROWED.get(let.fn, let.fn)) for let in lets)


def _rows(routine: ir.Routine, piece: ir.For, loop: ir.For) -> Iterator[_Row]:
    """The rows of a piece's own that a pass reads or writes, from one end to the other."""
    for stmt, around in ir.walk(loop.body):
        if not isinstance(stmt, ir.Load | ir.Store) or stmt.places:
            continue
        if isinstance(stmt, ir.Load) and stmt.guards:
            continue
        inside = any(each.kind is SERIAL for each in around)
        if inside or stmt.buffer >= len(routine.buffers) or piece.var not in axes_of(stmt.address):
            continue
        run = run_length(stmt.address, around)
        if run is None or coefficient(stmt.address, loop.var) != run:
            continue
        arg = routine.buffers[stmt.buffer]
        size = arg.dtype.storage_bytes
        count = loop.stop.constant - loop.start.constant
        if count * run * size in _ROWS and arg.elements * size >= _LEAST_BUFFER:
            first = substitute(stmt.address, {each.var: constant(0) for each in around})
            yield _Row(stmt.buffer, first, run * size, size)


def run_length(address: Expr, tile: tuple[ir.For, ...]) -> int | None:
    """How many neighbours the loops of a tile reach together; None where they are not that."""
    run = 1
    for each in reversed([each for each in tile if each.var in axes_of(address)]):
        if coefficient(address, each.var) != run:
            return None
        run *= each.stop.constant
    return run
