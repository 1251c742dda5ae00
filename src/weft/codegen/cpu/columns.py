"""Reductions over the rows of a matrix (column sums): the operand is read once, in memory order.

    parallel piece:                          some columns, as many as have room for their totals
      totals = 0
      for each strip of rows:
        part = 0
        for some rows of the strip at a time:
          for each column: part += values    (part and totals lie in scratch)
        totals += part
      for each column: what follows the sums, and the stores

A contraction of a few rows has as many totals for every column, and several rows of its matrix are
taken at a time, for the totals to be read and written less often. Where they are many, and vectors
narrow, a strip of the other factor is packed before: its rows are often pages apart, and take one
another's place in the first cache. Strips keep the chains of additions short, as `strips` does for
sums in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import MANY_LANES, Cut, close, cuts, repeat
from weft.codegen.cpu.prefetch import LINE
from weft.codegen.cpu.reductions import Reductions
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import Segment, segments
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant, simplify
from weft.region.forms.columns import FEW_ROWS
from weft.region.ir import Read, Reduce, operands

_STRIP: Final = 32
"""Rows that are added up before they join the totals."""
_AT_A_TIME: Final = 8
"""Rows that are added up in registers first, where a column has several totals: with four, the
totals of eight rows come from the second cache twice as often, and all takes a twentieth longer."""

_PACKED_LANES: Final = 4
"""Lanes of vectors, at most, with which a packed number has products enough. With 8 and 16 lanes, 6
rows times 1000 x 9000 take 4 and 5 % longer so, and caches have the ways for rows pages apart."""
_SHORT_RUN: Final = 4096
"""Bytes of a row that a piece has, of which the machine foresees few."""


class ColumnSums(Reductions):
    """The nest of one kernel; `tiling.columns` says how it is cut."""

    def routine(self, name: str) -> ir.Routine:
        if self.tiling.columns is None:
            raise InternalError("only sums over columns go row by row")
        self.columns, self.width = self.tiling.columns.axis, self.tiling.columns.width
        self.sums = [let for let in self.kernel.body if isinstance(let.expr, Reduce)]
        self.summed = next(let.expr.axes for let in self.sums if isinstance(let.expr, Reduce))
        self.together = self.kernel.roles.m if self.kernel.roles else ()
        self.rows = self._size(self.together)
        gone = {*self.summed, self.columns, *self.together}
        self.others = tuple(a.name for a in self.kernel.axes if a.name not in gone)
        self.packed = self._packed_factor()
        body, pieces = list[ir.Stmt](), 0
        for cut in cuts(self.kernel.sizes[self.columns], self.width):
            total = self._size(self.others) * cut.count
            body.append(self._piece_loop(cut, pieces, total))
            pieces += total
        scratch = tuple((let.dtype, self.rows * self.width) for let in self.sums) * 2
        if self.packed:
            scratch += ((self.lets[self.packed].dtype, self.rows * _STRIP),)
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), scratch,
            self._violations(),
        )  # fmt: skip

    def _packed_factor(self) -> str:
        """What is multiplied with all columns, where it is worth packing; else nothing."""
        values = [let.expr.value for let in self.sums if isinstance(let.expr, Reduce)]
        lanes = self.tiling.outer(self.columns).lanes
        if len(values) > 1 or self.rows <= FEW_ROWS // 2 or lanes > _PACKED_LANES:
            return ""
        factors = operands(self.lets[values[0]])
        return next((name for name in factors if self.columns not in self.lets[name].axes), "")

    def _piece_loop(self, cut: Cut, first: int, total: int) -> ir.Stmt:
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        number = axis(piece) - first
        root = Scope(None, kind=PARALLEL)
        other = simplify(number // cut.count, ranges)
        root.axes.update(self._unflatten(self.others, other))
        start = simplify(number % cut.count, ranges) * cut.extent + cut.start
        self._piece(root, start, cut.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _piece(self, root: Scope, start: Expr, width: int) -> None:
        totals = self.rows * width
        self._each(root, totals, lambda inner, place: self._clear(inner, place, 0))
        for cut in cuts(self._size(self.summed), _STRIP):
            strip = Scope(root, self._name("s"), cut.count, SERIAL)
            self._each(strip, totals, lambda inner, place: self._clear(inner, place, 1))
            first = axis(strip.var) * cut.extent + cut.start
            if self.packed:
                self._pack(strip, cut.extent, first)
            for some in cuts(cut.extent, 1 if self.rows == 1 else _AT_A_TIME):
                self._some_rows(strip, some, first, start, width)
            self._each(strip, totals, self._add_up)
            strip.close()
        over = Scope(root, self._name("m"), self.rows, SERIAL)
        over.axes.update(self._unflatten(self.together, axis(over.var)))
        base = axis(over.var) * width
        self._each(over, width, lambda inner, place: self._finish(inner, place, start, base))
        over.close()

    def _pack(self, strip: Scope, extent: int, first: Expr) -> None:
        """A strip of the packed factor: what is used together lies side by side."""
        over = Scope(strip, self._name("m"), self.rows, SERIAL)
        over.axes.update(self._unflatten(self.together, axis(over.var)))
        deep = Scope(over, self._name("k"), extent, SERIAL)
        deep.axes.update(self._unflatten(self.summed, first + axis(deep.var)))
        self._emit(self.packed, deep)
        place = axis(deep.var) * self.rows + axis(over.var)
        deep.body.append(ir.Store(self._scratch(0, 2), place, self.packed, ()))
        close(deep, strip)

    def _some_rows(self, strip: Scope, some: Cut, first: Expr, start: Expr, width: int) -> None:
        """A few rows of the operand, added up in registers and then to what their strip holds."""
        row = Scope(strip, self._name("k"), some.count, SERIAL)
        for cut in segments(width, self.tiling.outer(self.columns)):
            loop = Scope(row, self._name("j"), cut.count, SERIAL)
            deep = Scope(loop, self._name("ku"), some.extent, UNROLLED)
            step = axis(row.var) * some.extent + axis(deep.var) + some.start
            flat = first + step
            deep.axes.update(self._unflatten(self.summed, flat))
            over = Scope(deep, self._name("mu"), self.rows, UNROLLED)
            over.axes.update(self._unflatten(self.together, axis(over.var)))
            each = Scope(over, self._name("ju"), cut.unroll, UNROLLED)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(each, self._name("jl"), cut.lanes, kind)
            place = axis(loop.var) * cut.extent + axis(each.var) * cut.lanes + axis(inner.var)
            place = place + cut.start
            inner.axes[self.columns] = start + place
            tile, total = (over, each, inner), axis(over.var) * width + place
            self._foretell(loop, some.extent, flat + some.extent - axis(deep.var), start, cut)
            self._begin(loop, tile, total)
            if self.packed:
                run = self._scratch(0, 2), step * self.rows
                deep.body.append(ir.LoadRun(self.packed, over.var, self.rows, *run))
                over.names.add(self.packed)
            self._add(inner)
            close(inner, loop)
            loop.body.append(_in_tile(tile, *self._store_sums(total)))
            loop.close()
        row.close()

    def _foretell(self, loop: Scope, rows: int, first: Expr, start: Expr, cut: Segment) -> None:
        """The columns of the next rows told to the memory, where a piece has short runs of rows:
        each begins where the machine foresees nothing. Wide vectors ask for so much at a time that
        this takes longer (8 rows times 4096 x 4096 with 16 threads: 0.46 ms, and 0.42 without)."""
        if cut.lanes >= MANY_LANES or self.width * self.sums[0].dtype.storage_bytes > _SHORT_RUN:
            return
        ahead = Scope(loop, self._name("ka"), rows, UNROLLED)
        ahead.axes.update(self._unflatten(self.summed, first + axis(ahead.var)))
        ahead.axes[self.columns] = start + axis(loop.var) * cut.extent + cut.start
        for let in self.kernel.body:
            along = {self.columns, *self.summed} <= set(let.axes)
            if along and isinstance(let.expr, Read) and not let.expr.guards:
                load, size = self._load(let, let.expr, ahead), let.dtype.storage_bytes
                ahead.body += [
                    ir.Prefetch(load.buffer, load.address + at)
                    for at in range(0, cut.extent, LINE // size)
                ]
        ahead.close()

    def _begin(self, loop: Scope, tile: Sequence[Scope], place: Expr) -> None:
        """Registers that hold what the strip holds."""
        loops = tuple((scope.var, scope.count, scope.kind) for scope in tile)
        for number, let in enumerate(self.sums):
            loop.body.append(ir.Init(f"sum{number}", let.dtype, "sum", loops))
            before = ir.Load(f"before{number}", self._scratch(number, 1), place)
            held = ir.Assign(f"sum{number}", f"before{number}")
            loop.body.append(_in_tile(tile, before, held))

    def _add(self, inner: Scope) -> None:
        for number, let in enumerate(self.sums):
            if isinstance(let.expr, Reduce):
                self._emit(let.expr.value, inner)
                inner.body.append(ir.Accumulate(f"sum{number}", let.expr.value))

    def _store_sums(self, place: Expr) -> Iterator[ir.Stmt]:
        """What registers hold, written back."""
        for number in range(len(self.sums)):
            yield ir.Finish(f"after{number}", (f"sum{number}",))
            yield ir.Store(self._scratch(number, 1), place, f"after{number}", ())

    def _each(self, scope: Scope, width: int, body: Callable[[Scope, Expr], None]) -> None:
        """The body for every column of the piece, in vectors."""
        for cut in segments(width, self.tiling.outer(self.columns)):
            loop = Scope(scope, self._name("j"), cut.count, SERIAL)
            each = Scope(loop, self._name("ju"), cut.unroll, UNROLLED)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(each, self._name("jl"), cut.lanes, kind)
            place = axis(loop.var) * cut.extent + axis(each.var) * cut.lanes + axis(inner.var)
            body(inner, place + cut.start)
            close(inner, scope)

    def _scratch(self, number: int, level: int) -> int:
        """The totals of a sum, what a strip adds to them, or the packed factor."""
        return len(self.numbers) + level * len(self.sums) + number

    def _clear(self, inner: Scope, place: Expr, level: int) -> None:
        for number, let in enumerate(self.sums):
            zero = ir.Let(f"zero{number}", let.dtype, "const", value=0)
            inner.body += [zero, ir.Store(self._scratch(number, level), place, zero.name, ())]

    def _add_up(self, inner: Scope, place: Expr) -> None:
        for number, let in enumerate(self.sums):
            part, total, more = f"part{number}", f"total{number}", f"more{number}"
            inner.body += [
                ir.Load(part, self._scratch(number, 1), place),
                ir.Load(total, self._scratch(number, 0), place),
                ir.Let(more, let.dtype, "add", (total, part)),
                ir.Store(self._scratch(number, 0), place, more, ()),
            ]

    def _finish(self, inner: Scope, place: Expr, start: Expr, base: Expr) -> None:
        """The totals read back, and everything after them."""
        inner.axes[self.columns] = start + place
        for number, let in enumerate(self.sums):
            inner.body.append(ir.Load(let.name, self._scratch(number, 0), base + place))
            inner.names.add(let.name)
        for output in self.kernel.outputs:
            self._emit(output.value, inner)
            self._store_value(output, inner)


def _in_tile(tile: Sequence[Scope], *body: ir.Stmt) -> ir.For:
    """Statements in loops over the places of a tile, the last the innermost."""
    outer, *rest = tile
    inside = (_in_tile(rest, *body),) if rest else body
    return repeat(outer.var, outer.count, outer.kind, *inside)
