"""Sums over columns, row by row: the operand is read once, in the order in which it lies.

    parallel piece:                          some columns, as many as have room for their totals
      totals = 0
      for each strip of rows:
        part = 0
        for each row of the strip:
          for each column: part += value     (part and totals lie in scratch)
        totals += part
      for each column: what follows the sums, and the stores

Strips keep the chains of additions short, as `strips` does for sums in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import Cut, close, cuts
from weft.codegen.cpu.reductions import Reductions
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import segments
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant, simplify
from weft.region.ir import Let, Reduce

_STRIP: Final = 32
"""Rows that are added up before they join the totals."""


class ColumnSums(Reductions):
    """The nest of one kernel; `tiling.columns` says how it is cut."""

    def routine(self, name: str) -> ir.Routine:
        if self.tiling.columns is None:
            raise InternalError("only sums over columns go row by row")
        self.columns, self.width = self.tiling.columns.axis, self.tiling.columns.width
        self.sums = [let for let in self.kernel.body if isinstance(let.expr, Reduce)]
        self.summed = next(let.expr.axes for let in self.sums if isinstance(let.expr, Reduce))
        gone = {*self.summed, self.columns}
        self.others = tuple(a.name for a in self.kernel.axes if a.name not in gone)
        body, pieces = list[ir.Stmt](), 0
        for cut in cuts(self.kernel.sizes[self.columns], self.width):
            total = self._size(self.others) * cut.count
            body.append(self._piece_loop(cut, pieces, total))
            pieces += total
        scratch = tuple((let.dtype, self.width) for let in self.sums)
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), scratch * 2,
            self._violations(),
        )  # fmt: skip

    def _piece_loop(self, cut: Cut, first: int, total: int) -> ir.Stmt:
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        number = axis(piece) - first
        root = Scope(None, kind=PARALLEL)
        other = simplify(number // cut.count, ranges)
        root.axes.update(self._unflattened(self.others, other))
        start = simplify(number % cut.count, ranges) * cut.extent + cut.start
        self._piece(root, start, cut.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _piece(self, root: Scope, start: Expr, width: int) -> None:
        self._each(root, width, lambda inner, place: self._clear(inner, place, 0))
        for cut in cuts(self._size(self.summed), _STRIP):
            strip = Scope(root, self._name("s"), cut.count, SERIAL)
            self._each(strip, width, lambda inner, place: self._clear(inner, place, 1))
            row = Scope(strip, self._name("k"), cut.extent, SERIAL)
            flat = axis(strip.var) * cut.extent + axis(row.var) + cut.start
            row.axes.update(self._unflattened(self.summed, flat))
            self._each(row, width, lambda inner, place: self._add(inner, place, start))
            row.close()
            self._each(strip, width, self._add_up)
            strip.close()
        self._each(root, width, lambda inner, place: self._finish(inner, place, start))

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
        """The totals of a sum, or what a strip adds to them."""
        return len(self.numbers) + level * len(self.sums) + number

    def _clear(self, inner: Scope, place: Expr, level: int) -> None:
        for number, let in enumerate(self.sums):
            zero = ir.Let(f"zero{number}", let.dtype, "const", value=0)
            inner.body += [zero, ir.Store(self._scratch(number, level), place, zero.name, ())]

    def _add(self, inner: Scope, place: Expr, start: Expr) -> None:
        """A row of values added to what its strip holds."""
        inner.axes[self.columns] = start + place
        for number, let in enumerate(self.sums):
            if isinstance(let.expr, Reduce):
                self._emit(let.expr.value, inner)
                self._increase(inner, number, let, 1, let.expr.value, place)

    def _add_up(self, inner: Scope, place: Expr) -> None:
        for number, let in enumerate(self.sums):
            part = f"part{number}"
            inner.body.append(ir.Load(part, self._scratch(number, 1), place))
            self._increase(inner, number, let, 0, part, place)

    def _increase(
        self, inner: Scope, number: int, let: Let, level: int, value: str, place: Expr
    ) -> None:
        """`scratch[place] += value`."""
        scratch, before, after = self._scratch(number, level), f"before{number}", f"after{number}"
        inner.body += [
            ir.Load(before, scratch, place),
            ir.Let(after, let.dtype, "add", (before, value)),
            ir.Store(scratch, place, after, ()),
        ]

    def _finish(self, inner: Scope, place: Expr, start: Expr) -> None:
        """The totals read back, and everything after them."""
        inner.axes[self.columns] = start + place
        for number, let in enumerate(self.sums):
            inner.body.append(ir.Load(let.name, self._scratch(number, 0), place))
            inner.names.add(let.name)
        for output in self.kernel.outputs:
            self._emit(output.value, inner)
            self._store_value(output, inner)
