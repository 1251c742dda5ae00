"""Loop nests for ops that no other stage decomposes: scatter, cumulative reductions, sorting.

They are written in the same dialect as kernels. Scatters and running reductions cut their columns
into vectors where there are enough of them; what must happen in order is a serial loop inside a
piece. The proof of each is over a space of its own: the updates of a scatter, the elements of a
running reduction, the rows that are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from weft.codegen.cpu import ir
from weft.codegen.cpu.domain import prove_stores
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.dtypes import F64
from weft.foundation.errors import Finding, InternalError
from weft.foundation.index_expr import Expr, axis, constant, param
from weft.foundation.whole_ops import Fourier, Order, Running, Scatter, WholeOp
from weft.memory.ir import MemRef
from weft.region.ir import Kernel, Place, Tensor
from weft.region.structure import buffers

_VECTORS = 4
"""Vectors of columns that a piece of a scatter takes."""
_SINGLES = 32
"""Columns that it takes where each element has a place of its own."""
_MANY_ELEMENTS = 1 << 12
"""Elements of rows that are transformed one after the other."""
_FUNCTIONS = {"add": "add", "max": "max", "min": "min"}


@dataclass(frozen=True)
class _Columns:
    """Columns from `start` on: `tiles` tiles of `vectors` vectors of `lanes` columns."""

    start: int
    tiles: int
    vectors: int
    lanes: int

    @property
    def extent(self) -> int:
        return self.vectors * self.lanes


def _cut_columns(width: int, lanes: int, vectors: int) -> list[_Columns]:
    """Whole tiles, then the vectors that are left, then the single columns that are left."""
    tiles = width // (lanes * vectors)
    found = [_Columns(0, tiles, vectors, lanes)]
    start = tiles * vectors * lanes
    found.append(_Columns(start, 1, (width - start) // lanes, lanes))
    start += found[1].extent
    found.append(_Columns(start, 1, width - start, 1))
    return [columns for columns in found if columns.tiles * columns.extent]


def _one_at_a_time(columns: _Columns) -> _Columns:
    """The same columns in tiles of one vector."""
    return replace(columns, tiles=columns.tiles * columns.vectors, vectors=1)


def lower_whole(
    kernel: Kernel, tensors: Mapping[str, Tensor], refs: Mapping[str, MemRef], lanes: int, name: str
) -> ir.Routine:
    """The routine of a kernel that carries such an op. Its buffers are `buffers(kernel)`."""
    op = kernel.opaque.op if kernel.opaque is not None else None
    builder = _Builder(kernel, tensors, refs, lanes)
    match op:
        case Scatter():
            return builder.routine(name, *builder.scatter(op))
        case Running():
            return builder.routine(name, *builder.running(op))
        case Order():
            return builder.routine(name, *builder.order(op))
        case Fourier():
            made = builder.routine(name, *builder.fourier(op))
            return replace(made, scratch=((builder.dtype, 2 * op.length),))
    raise InternalError(f"{op!r} is not an op that has a loop nest")


def prove_whole(routine: ir.Routine, op: WholeOp) -> list[Finding]:
    """Every update, element or row is dealt with, once."""
    match op:
        case Scatter():
            sizes = {"a": op.outer, "m": op.count, "w": op.width}
        case Running():
            sizes = {"a": op.outer, "n": op.length, "w": op.width}
        case Order() | Fourier():
            sizes = {"a": op.outer}
        case _:
            raise InternalError(f"{op!r} is not an op that has a loop nest")
    return prove_stores(routine, sizes, op.name)


class _Builder:
    def __init__(
        self,
        kernel: Kernel,
        tensors: Mapping[str, Tensor],
        refs: Mapping[str, MemRef],
        lanes: int,
    ) -> None:
        if kernel.opaque is None:
            raise InternalError(f"kernel {kernel.name} carries no op")
        self.kernel, self.tensors, self.refs = kernel, tensors, refs
        self.names = buffers(kernel)
        self.inputs = [self.names.index(name) for name in kernel.opaque.inputs]
        self.outputs = [self.names.index(output.tensor) for output in kernel.outputs]
        dtype = tensors[kernel.opaque.inputs[0]].dtype
        self.dtype = dtype
        # `lanes` counts numbers of 32 bits; narrower ones are computed in those.
        self.lanes = max(1, lanes * 4 // max(4, dtype.storage_bytes))

    def routine(self, name: str, pieces: int, body: Sequence[ir.Stmt]) -> ir.Routine:
        written = {output.tensor for output in self.kernel.outputs}
        arguments = tuple(
            ir.BufferArg(
                self.tensors[n].dtype,
                max(1, prod(self.tensors[n].shape)),
                n in written,
                self.refs[n].noalias,
            )
            for n in self.names
        )
        return ir.Routine(name, arguments, pieces, tuple(body))

    # -- scatter ---------------------------------------------------------------------------------

    def scatter(self, op: Scatter) -> tuple[int, list[ir.Stmt]]:
        body: list[ir.Stmt] = []
        pieces = 0
        # Where each element has its own place no two columns are stored side by side.
        cut = (1, _SINGLES) if op.each else (self.lanes, _VECTORS)
        for columns in _cut_columns(op.width, *cut):
            count = op.outer * columns.tiles
            var = f"piece_{len(body)}"
            tile = _outer_and_inner(axis(var) - pieces, columns.tiles, op.outer)
            inner = self._updates(op, columns, tile)
            body.append(_make_loop(var, inner, LoopKind.PARALLEL, pieces, pieces + count))
            pieces += count
        return pieces, body

    def _updates(self, op: Scatter, columns: _Columns, tile: tuple[Expr, Expr]) -> list[ir.Stmt]:
        """All updates of a row of outer axes to some columns, in order."""
        outer, at = tile
        update = outer * op.count + axis("m")
        column = _column_index(at, columns)
        element = update * op.width + column
        place = Place("row", "index", op.rows)
        where = (outer * op.rows + param("row")) * op.width + column
        _, index, values = self.inputs
        load = ir.Load("index", index, element if op.each else update)
        inner: list[ir.Stmt] = [load] if op.each else []
        inner.append(ir.Load("update", values, element))
        stored = "update"
        if op.fn != "replace":
            inner.append(ir.Load("old", self.outputs[0], where, places=(place,)))
            inner.append(ir.Let("new", self.dtype, _FUNCTIONS[op.fn], ("old", "update")))
            stored = "new"
        point = (outer, axis("m"), column)
        inner.append(ir.Store(self.outputs[0], where, stored, point, (place,)))
        inner = _tile_body(inner, columns)
        turn = inner if op.each else [load, *inner]
        return [_make_loop("m", turn, LoopKind.SERIAL, 0, op.count)]

    # -- running reductions ----------------------------------------------------------------------

    def running(self, op: Running) -> tuple[int, list[ir.Stmt]]:
        body: list[ir.Stmt] = []
        pieces = 0
        for columns in map(_one_at_a_time, _cut_columns(op.width, self.lanes, 1)):
            count = op.outer * columns.tiles
            var = f"piece_{len(body)}"
            outer, at = _outer_and_inner(axis(var) - pieces, columns.tiles, op.outer)
            inner = self._running_column(op, outer, _column_index(at, columns), columns)
            body.append(_make_loop(var, inner, LoopKind.PARALLEL, pieces, pieces + count))
            pieces += count
        return pieces, body

    def _running_column(
        self, op: Running, outer: Expr, column: Expr, columns: _Columns
    ) -> list[ir.Stmt]:
        """One column, or a vector of them, from the first element to the last."""
        step = axis("n") * -1 + (op.length - 1) if op.reverse else axis("n")
        address = (outer * op.length + step) * op.width + column
        loops = (("l", columns.lanes, LoopKind.LANES),) if columns.lanes > 1 else ()
        adds = op.fn == "sum" and self.dtype.is_float
        wide = F64 if adds else self.dtype
        # Beginning at -0 leaves the first element as it is, whatever its sign.
        start = -0.0 if adds else None
        inner: list[ir.Stmt] = [
            ir.Load("x", self.inputs[0], address),
            ir.Let("wide", wide, "cast", ("x",)),
            ir.Accumulate("acc", "wide"),
            ir.Current("so_far", "acc"),
            ir.Let("rounded", self.dtype, "cast", ("so_far",)),
            ir.Store(self.outputs[0], address, "rounded", (outer, step, column)),
        ]
        turn = _tile_body(inner, columns)
        init = ir.Init("acc", wide, op.fn, loops, start)
        return [init, _make_loop("n", turn, LoopKind.SERIAL, 0, op.length)]

    # -- sorting ---------------------------------------------------------------------------------

    def order(self, op: Order) -> tuple[int, list[ir.Stmt]]:
        """Pieces of as many rows as there are in all but the last; each has memory of its own."""
        body: list[ir.Stmt] = []
        # Not a piece a row: each piece sorts its rows in one memory, which is as large as a row.
        rows = -(-op.outer // op.pieces)
        full = op.outer // rows
        for first, count, height in ((0, full, rows), (full, 1, op.outer - full * rows)):
            if not height or not count:
                continue
            var = f"piece_{len(body)}"
            row = axis(var) * rows + axis("r")
            x, (out, work) = self.inputs[0], self.outputs
            sort = ir.Sort(x, out, work, row, axis(var), op.length, op.count, op.descending)
            inner = _make_loop("r", [sort], LoopKind.SERIAL, 0, height)
            body.append(_make_loop(var, [inner], LoopKind.PARALLEL, first, first + count))
        return full + (full * rows < op.outer), body

    # -- transforms ------------------------------------------------------------------------------

    def fourier(self, op: Fourier) -> tuple[int, list[ir.Stmt]]:
        """A piece for each row, or for as many rows as have some elements together."""
        rows = max(1, _MANY_ELEMENTS // op.length)
        full = op.outer // rows
        body: list[ir.Stmt] = []
        (x, roots), (out,), work = self.inputs, self.outputs, len(self.names)
        for first, count, height in ((0, full, rows), (full, 1, op.outer - full * rows)):
            if not height or not count:
                continue
            var = f"piece_{len(body)}"
            row = axis(var) * rows + axis("r")
            stmt = ir.Fourier(
                x, roots, out, work, row, op.length, self.lanes, op.inverse, op.divided
            )
            inner = _make_loop("r", [stmt], LoopKind.SERIAL, 0, height)
            body.append(_make_loop(var, [inner], LoopKind.PARALLEL, first, first + count))
        return full + (full * rows < op.outer), body


def _outer_and_inner(number: Expr, inner: int, outer: int) -> tuple[Expr, Expr]:
    """A flat number as (outer, inner)."""
    if outer == 1:
        return constant(0), number
    if inner == 1:
        return number, constant(0)
    return number // inner, number % inner


def _column_index(tile: Expr, columns: _Columns) -> Expr:
    """The column of a tile that the loops `v` and `l` stand at."""
    found = tile * columns.extent + columns.start
    found = found + axis("v") * columns.lanes if columns.vectors > 1 else found
    return found + axis("l") if columns.lanes > 1 else found


def _tile_body(body: list[ir.Stmt], columns: _Columns) -> list[ir.Stmt]:
    """The body in the lanes and vectors of a tile of columns."""
    if columns.lanes > 1:
        body = [_make_loop("l", body, LoopKind.LANES, 0, columns.lanes)]
    if columns.vectors > 1:
        kind = LoopKind.UNROLLED if columns.lanes > 1 else LoopKind.SERIAL
        body = [_make_loop("v", body, kind, 0, columns.vectors)]
    return body


def _make_loop(var: str, body: Sequence[ir.Stmt], kind: LoopKind, first: int, last: int) -> ir.For:
    return ir.For(var, constant(first), constant(last), 1, kind, tuple(body))
