"""Rows of a reduction that are read at the same time.

    parallel p in 0..4096:                   parallel p in 0..1024:
      init s over [u, l]                       init s over [r, u, l]
      for i in 0..64:                          for i in 0..64:
        tile u, l:                   ->          unrolled r in 0..4: tile u, l:
          accumulate s <- x[p, i]                  accumulate s <- x[4*p + r, i]
      finish s; store y[p] = s                 unrolled r in 0..4:
                                                 finish s; store y[4*p + r] = s

What is read once and takes few operations waits for the memory. The machine reads ahead of every
place that is read in order, but of each only so far, and not beyond the end of a page: of four rows
it reads more at a time than of one. Every row is added up as before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeGuard

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.prefetch import run_length, work_of
from weft.foundation.index_expr import Expr, axes_of, axis, coefficient, constant, substitute

_ROWS: Final = 4
"""Rows that are read at a time."""
_VECTOR: Final = 64
"""Bytes of the vectors that this is for, ..."""
_HELD: Final = 16
"""... and how many of them may hold sums: half of the registers."""
_LEAST_ROW: Final = 2048
"""Bytes of a row: shorter ones are one stream, whose next rows the machine foresees."""
_LEAST_BUFFER: Final = 1 << 23
"""Bytes of what may still be in a core's caches."""
_LEAST_PIECES: Final = 64
"""Pieces that are left for the threads to share."""
_FEW_OPERATIONS: Final = 8
"""For an element: with more of them the memory does not wait."""
_SIMPLE: Final = (ir.Load, ir.Let, ir.Accumulate, ir.Current, ir.Finish, ir.Store)


def rows_at_once(routine: ir.Routine) -> ir.Routine:
    """The routine with pieces of several rows, where reading them takes longest."""
    if len(routine.body) != 1 or not isinstance(piece := routine.body[0], ir.For):
        return routine
    count, rest = divmod(routine.pieces, _ROWS)
    if count < _LEAST_PIECES or not _is_stream(routine, piece):
        return routine
    row = f"{piece.var}_row"
    number = axis(piece.var) * _ROWS + axis(row)
    body = _jam(piece.body, (row, _ROWS, LoopKind.UNROLLED))
    loops = [_move(replace(piece, stop=constant(count), body=body), {piece.var: number})]
    if rest:
        last = replace(piece, start=constant(count), stop=constant(count + rest))
        loops.append(_move(last, {piece.var: axis(piece.var) + count * (_ROWS - 1)}))
    return replace(routine, pieces=count + rest, body=tuple(loops))


def _is_stream(routine: ir.Routine, piece: ir.For) -> bool:
    """Whether a piece reads a long row once, does little with it, and knows nothing before."""
    before = [stmt for stmt in piece.body if isinstance(stmt, ir.Init)]
    loop, *after = piece.body[len(before) :] or (None,)
    if piece.kind is not LoopKind.PARALLEL or routine.scratch or not _is_serial(loop):
        return False
    if any(map(_is_serial, after)) or not _can_be_jam(loop.body):
        return False
    every = [stmt for stmt, _ in ir.walk(piece.body)]
    if not all(isinstance(stmt, (*_SIMPLE, ir.For, ir.Init)) for stmt in every):
        return False
    writes = any(isinstance(stmt, ir.Store) for stmt, _ in ir.walk(loop.body))
    if writes or work_of(loop) > _FEW_OPERATIONS:
        return False
    innermost = loop
    while inner := next(filter(_is_serial, innermost.body), None):
        innermost = inner
    added = {stmt.acc for stmt, _ in ir.walk(innermost.body) if isinstance(stmt, ir.Accumulate)}
    inits = (stmt for stmt in every if isinstance(stmt, ir.Init) and stmt.acc in added)
    return 0 < _ROWS * sum(map(_vectors, inits)) <= _HELD and _reads_long_rows(routine, piece, loop)


def _is_serial(stmt: ir.Stmt | None) -> TypeGuard[ir.For]:
    return isinstance(stmt, ir.For) and stmt.kind is LoopKind.SERIAL


def _can_be_jam(body: tuple[ir.Stmt, ...]) -> bool:
    """Whether nothing but sums goes from one side of a loop to the other."""
    inner = [stmt for stmt in body if isinstance(stmt, ir.For)]
    if not any(map(_is_serial, inner)):
        return True
    whole = len(inner) + sum(isinstance(stmt, ir.Init) for stmt in body) == len(body)
    return whole and all(_can_be_jam(loop.body) for loop in inner if _is_serial(loop))


def _vectors(init: ir.Init) -> int:
    """Registers that an accumulator takes; all of them where its vectors are not the widest."""
    count = math.prod(n for _, n, kind in init.loops if kind is LoopKind.UNROLLED)
    lanes = math.prod(n for _, n, kind in init.loops if kind is LoopKind.LANES)
    size = lanes * init.dtype.storage_bytes
    return count * size // _VECTOR if size >= _VECTOR else _HELD


def _reads_long_rows(routine: ir.Routine, piece: ir.For, loop: ir.For) -> bool:
    found = False
    for stmt, around in ir.walk((loop,)):
        if not isinstance(stmt, ir.Load):
            continue
        if stmt.guards or stmt.places or stmt.buffer >= len(routine.buffers):
            return False
        if piece.var not in axes_of(stmt.address):
            continue
        serial = [each for each in around if _is_serial(each)]
        tile = tuple(each for each in around if not _is_serial(each))
        arg, run = routine.buffers[stmt.buffer], run_length(stmt.address, tile)
        if run is None or coefficient(stmt.address, serial[-1].var) != run:
            return False
        turns = math.prod((each.stop - each.start).constant for each in serial)
        size = arg.dtype.storage_bytes
        found |= turns * run * size >= _LEAST_ROW and arg.elements * size >= _LEAST_BUFFER
    return found


def _jam(body: tuple[ir.Stmt, ...], rows: tuple[str, int, LoopKind]) -> tuple[ir.Stmt, ...]:
    """The statements for several rows: a loop over these inside of each serial loop."""
    found: list[ir.Stmt] = []
    tile: list[ir.Stmt] = []

    def close() -> None:
        if tile:
            row, count, kind = rows
            found.append(ir.For(row, constant(0), constant(count), 1, kind, tuple(tile)))
            tile.clear()

    for stmt in body:
        match stmt:
            case ir.Init():
                close()
                found.append(replace(stmt, loops=(rows, *stmt.loops)))
            case ir.For(kind=LoopKind.SERIAL):
                close()
                found.append(replace(stmt, body=_jam(stmt.body, rows)))
            case _:
                tile.append(stmt)
    close()
    return tuple(found)


def _move(loop: ir.For, places: Mapping[str, Expr]) -> ir.For:
    """The loop with other pieces in its statements."""

    def move(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return replace(stmt, body=tuple(map(move, stmt.body)))
            case ir.Load():
                return replace(stmt, address=substitute(stmt.address, dict(places)))
            case ir.Let(index=Expr() as index):
                return replace(stmt, index=substitute(index, dict(places)))
            case ir.Store():
                point = tuple(substitute(index, dict(places)) for index in stmt.point)
                return replace(stmt, address=substitute(stmt.address, dict(places)), point=point)
        return stmt

    return replace(loop, body=tuple(map(move, loop.body)))
