"""Large contractions: blocks of both operands packed into scratch, register tiles over them.

    parallel piece:                       one block of the result: `tile[0]` rows, `tile[1]` columns
      sums = 0
      for each `tile[2]` of the summed axes:
        pack columns of B  [panels of nr columns][k][nr]
        pack rows of A     [panels of mr rows][k][mr]
        for each panel of B, for each panel of A:
          registers (mr x nr) += A panel x B panel;  sums += registers
      for each row: what follows the contraction (bias, activation, ...), and the stores

Rows, columns and summed axes are flattened, so that a convolution is the same thing with a window
in the reads that packing does. What a panel lacks at the edge is packed as zeros and computed too;
only rows and columns that exist are stored. Packing computes whatever stands between the reads and
the product: widening casts, scales, masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from weft.codegen.cpu import ir
from weft.codegen.cpu.from_region import Lowering
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.scopes import Scope
from weft.codegen.cpu.tiling import AxisTiling, Blocking, Segment, segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, coefficient, constant, linear, simplify
from weft.region.ir import Binary, Read, Reduce, operands

UNROLLED, LANES, SERIAL, PARALLEL = (
    LoopKind.UNROLLED,
    LoopKind.LANES,
    LoopKind.SERIAL,
    LoopKind.PARALLEL,
)


@dataclass(frozen=True)
class Cut:
    """`count` blocks of `extent` that follow one another from `start`."""

    start: int
    count: int
    extent: int


def cuts(size: int, extent: int) -> list[Cut]:
    """Full blocks, then what is left."""
    full, rest = divmod(size, extent)
    found = [Cut(0, full, extent)] if full else []
    return [*found, Cut(full * extent, 1, rest)] if rest else found


@dataclass(frozen=True)
class Side:
    """One operand of the product: the value to pack, its scratch, its panels."""

    value: str
    axes: tuple[str, ...]
    """The flattened axes that panels run across: rows for A, columns for B."""
    scratch: int
    width: int
    """Elements across a panel."""


class BlockedContraction(Lowering):
    """The nest of one contraction kernel; `blocking` says how it is cut."""

    blocking: Blocking

    def routine(self, name: str) -> ir.Routine:
        blocking = self.tiling.blocking
        if blocking is None or self.kernel.roles is None:
            raise InternalError("only a contraction is blocked")
        self.blocking, self.roles = blocking, self.kernel.roles
        self.reduce = self.kernel.let(self.roles.contraction)
        lhs, rhs = self._factors()
        first = len(self.numbers)
        self.a = Side(lhs, self.roles.m, first, blocking.rows)
        self.b = Side(rhs, self.roles.n, first + 1, blocking.columns)
        self.sums = first + 2
        body, pieces = self._pieces()
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), self._scratch(),
            self._violations(),
        )  # fmt: skip

    def _factors(self) -> tuple[str, str]:
        """The two values that are multiplied, the one of the rows first."""
        value = self.reduce.expr.value if isinstance(self.reduce.expr, Reduce) else ""
        made = self.kernel.let(value).expr
        if not isinstance(made, Binary) or made.fn != "mul":
            raise InternalError("the summed value is no product")
        pair = made.lhs, made.rhs
        return pair if self._reads(made.lhs, self.roles.lhs) else pair[::-1]

    def _reads(self, name: str, read: str) -> bool:
        stack = [name]
        while stack:
            current = stack.pop()
            if current == read:
                return True
            stack.extend(operands(self.lets[current]))
        return False

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        block = self.blocking
        rows, columns = _up(block.block_rows, block.rows), _up(block.block_columns, block.columns)
        return (
            (self.lets[self.a.value].dtype, rows * block.depth),
            (self.lets[self.b.value].dtype, columns * block.depth),
            (self.reduce.dtype, rows * columns),
        )

    def _size(self, axes: Sequence[str]) -> int:
        return math.prod(self.kernel.sizes[name] for name in axes)

    # -- pieces ----------------------------------------------------------------------------------

    def _pieces(self) -> tuple[list[ir.Stmt], int]:
        block, body, pieces = self.blocking, list[ir.Stmt](), 0
        rows = cuts(self._size(self.roles.m), block.block_rows)
        columns = cuts(self._size(self.roles.n), block.block_columns)
        for across, along in product(rows, columns):
            total = self._size(self.roles.batch) * across.count * along.count
            body.append(self._piece_loop(across, along, pieces, total))
            pieces += total
        return body, pieces

    def _piece_loop(self, rows: Cut, columns: Cut, first: int, total: int) -> ir.Stmt:
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        number = axis(piece) - first

        def digit(divisor: int, count: int) -> Expr:
            return simplify((number // divisor) % count, ranges)

        row = digit(columns.count, rows.count) * rows.extent + rows.start
        column = digit(1, columns.count) * columns.extent + columns.start
        batch = simplify(number // (rows.count * columns.count), ranges)
        root = Scope(None, kind=PARALLEL)
        root.axes.update(self._unflattened(self.roles.batch, batch))
        self._block(root, row, rows.extent, column, columns.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _unflattened(self, axes: Sequence[str], flat: Expr) -> dict[str, Expr]:
        """Each axis from a flattened index."""
        found, below = {}, 1
        for name in reversed(axes):
            size = self.kernel.sizes[name]
            place = flat if below == 1 else flat // below
            found[name] = place if name == axes[0] else place % size
            below *= size
        return found

    def _block(self, root: Scope, row: Expr, rows: int, column: Expr, columns: int) -> None:
        self._clear(root, rows, columns)
        for cut in cuts(self._size(self.roles.k), self.blocking.depth):
            scope = Scope(root, self._name("kb"), cut.count, SERIAL)
            start = axis(scope.var) * cut.extent + cut.start
            self._pack_side(scope, self.b, column, columns, start, cut.extent)
            self._pack_side(scope, self.a, row, rows, start, cut.extent)
            self._multiply(scope, rows, columns, cut.extent)
            scope.close()
        self._finish_block(root, row, rows, column, columns)

    def _clear(self, root: Scope, rows: int, columns: int) -> None:
        lanes = self.blocking.lanes
        total = _up(rows, self.a.width) * _up(columns, self.b.width)
        loop = Scope(root, self._name("z"), total // lanes, SERIAL)
        inner = Scope(loop, self._name("zl"), lanes, LANES)
        place = axis(loop.var) * lanes + axis(inner.var)
        inner.body += [
            ir.Let("zero", self.reduce.dtype, "const", value=0),
            ir.Store(self.sums, place, "zero", ()),
        ]
        _close(inner, root)

    # -- packing ---------------------------------------------------------------------------------

    def _pack_side(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """All panels of one side: the whole ones in a loop, then the last, filled up with zeros."""
        whole, rest = divmod(extent, side.width)
        if whole:
            panel = Scope(scope, self._name("p"), whole, SERIAL)
            number = axis(panel.var)
            self._panel(panel, side, start + number * side.width, side.width, k, depth, number)
            panel.close()
        if rest:
            number = constant(whole)
            self._panel(scope, side, start + whole * side.width, rest, k, depth, number)
            self._zeros(scope, side, rest, depth, whole)

    def _panel(
        self,
        scope: Scope,
        side: Side,
        start: Expr,
        width: int,
        k: Expr,
        depth: int,
        number: Expr,
    ) -> None:
        """One panel, with lanes along whichever of its two directions the memory runs."""
        lanes = self.blocking.lanes
        base = number * (depth * side.width)
        across = self._runs_along(side)
        if across:
            for cut in segments(width, AxisTiling(1, lanes)):
                loop = Scope(scope, self._name("k"), depth, SERIAL)
                self._pack_step(loop, side, start, cut, axis(loop.var), k, base)
                loop.close()
            return
        for cut in segments(depth, AxisTiling(1, lanes)):
            loop = Scope(scope, self._name("kt"), cut.count, SERIAL)
            deep = Scope(loop, self._name("ku"), cut.unroll, UNROLLED)
            each = Scope(deep, self._name("w"), width, UNROLLED)
            place = axis(loop.var) * cut.extent + axis(deep.var) * cut.lanes + cut.start
            inner = Scope(each, self._name("kl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
            depth_place = place + axis(inner.var)
            self._copy(inner, side, start, axis(each.var), depth_place, k, base)
            _close(inner, scope)

    def _pack_step(
        self, loop: Scope, side: Side, start: Expr, cut: Segment, deep: Expr, k: Expr, base: Expr
    ) -> None:
        """One step along k of a panel whose elements lie side by side in memory."""
        each = Scope(loop, self._name("w"), cut.count * cut.unroll, UNROLLED)
        kind = LANES if cut.lanes > 1 else UNROLLED
        inner = Scope(each, self._name("wl"), cut.lanes, kind)
        place = axis(each.var) * cut.lanes + axis(inner.var) + cut.start
        self._copy(inner, side, start, place, deep, k, base)
        _close(inner, loop)

    def _copy(
        self, inner: Scope, side: Side, start: Expr, place: Expr, deep: Expr, k: Expr, base: Expr
    ) -> None:
        inner.axes.update(self._unflattened(side.axes, start + place))
        inner.axes.update(self._unflattened(self.roles.k, k + deep))
        self._emit(side.value, inner)
        address = base + deep * side.width + place
        inner.body.append(ir.Store(side.scratch, address, side.value, ()))

    def _zeros(self, scope: Scope, side: Side, used: int, depth: int, number: int) -> None:
        loop = Scope(scope, self._name("k"), depth, SERIAL)
        each = Scope(loop, self._name("w"), side.width - used, UNROLLED)
        base = number * depth * side.width + used
        address = axis(loop.var) * side.width + axis(each.var) + base
        each.body += [
            ir.Let("zero", self.lets[side.value].dtype, "const", value=0),
            ir.Store(side.scratch, address, "zero", ()),
        ]
        _close(each, scope)

    def _runs_along(self, side: Side) -> bool:
        """Whether neighbours across a panel are neighbours in memory."""
        read = self.lets[self.roles.lhs if side is self.a else self.roles.rhs].expr
        if not isinstance(read, Read) or not side.axes:
            return False
        address = linear(read.index, self.refs[read.tensor].strides)
        return coefficient(address, side.axes[-1]) == 1

    # -- the product -----------------------------------------------------------------------------

    def _multiply(self, scope: Scope, rows: int, columns: int, depth: int) -> None:
        """Every panel of A with every panel of B; a panel of B stays in the nearest cache."""
        over_b = Scope(scope, self._name("jp"), -(-columns // self.b.width), SERIAL)
        over_a = Scope(over_b, self._name("ip"), -(-rows // self.a.width), SERIAL)
        lanes = self.blocking.lanes
        u, v, lane = self._name("u"), self._name("v"), self._name("l")
        vectors = self.b.width // lanes
        loops = ((u, self.a.width, UNROLLED), (v, vectors, UNROLLED), (lane, lanes, LANES))
        over_a.body.append(ir.Init("tile", self.reduce.dtype, "sum", loops))
        deep = Scope(over_a, self._name("k"), depth, SERIAL)
        self._multiply_step(deep, u, v, lane, axis(over_a.var), axis(over_b.var), depth)
        deep.close()
        width = _up(columns, self.b.width)
        self._add_tile(over_a, u, v, lane, axis(over_a.var), axis(over_b.var), width)
        _close(over_a, scope)

    def _multiply_step(
        self, deep: Scope, u: str, v: str, lane: str, ip: Expr, jp: Expr, depth: int
    ) -> None:
        """One step along k: a column of the A panel times a row of the B panel."""
        lanes, k = self.blocking.lanes, axis(deep.var)
        a_place = ip * (depth * self.a.width) + k * self.a.width
        deep.body.append(ir.LoadRun("a", u, self.a.width, self.a.scratch, a_place))
        b_place = jp * (depth * self.b.width) + k * self.b.width + axis(v) * lanes + axis(lane)
        load = ir.Load("b", self.b.scratch, b_place)
        deep.body.append(_loop(v, self.b.width // lanes, UNROLLED, _loop(lane, lanes, LANES, load)))
        product_of = ir.Let("ab", self.reduce.dtype, "mul", ("a", "b"))
        tile = _loop(lane, lanes, LANES, product_of, ir.Accumulate("tile", "ab"))
        deep.body.append(
            _loop(u, self.a.width, UNROLLED, _loop(v, self.b.width // lanes, UNROLLED, tile))
        )

    def _add_tile(
        self, scope: Scope, u: str, v: str, lane: str, ip: Expr, jp: Expr, width: int
    ) -> None:
        """The registers added to the sums."""
        lanes, dtype = self.blocking.lanes, self.reduce.dtype
        row = ip * self.a.width + axis(u)
        place = row * width + jp * self.b.width + axis(v) * lanes + axis(lane)
        body = (
            ir.Finish("part", ("tile",)),
            ir.Load("before", self.sums, place),
            ir.Let("after", dtype, "add", ("before", "part")),
            ir.Store(self.sums, place, "after", ()),
        )
        inner = _loop(v, self.b.width // lanes, UNROLLED, _loop(lane, lanes, LANES, *body))
        scope.body.append(_loop(u, self.a.width, UNROLLED, inner))

    # -- the rest of the kernel ------------------------------------------------------------------

    def _finish_block(self, root: Scope, row: Expr, rows: int, column: Expr, columns: int) -> None:
        """Row by row: the contraction is read back, and everything after it is computed."""
        width = _up(columns, self.b.width)
        over = Scope(root, self._name("i"), rows, SERIAL)
        over.axes.update(self._unflattened(self.roles.m, row + axis(over.var)))
        for cut in segments(columns, AxisTiling(4, self.blocking.lanes)):
            loop = Scope(over, self._name("j"), cut.count, SERIAL)
            each = Scope(loop, self._name("ju"), cut.unroll, UNROLLED)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(each, self._name("jl"), cut.lanes, kind)
            place = axis(loop.var) * cut.extent + axis(each.var) * cut.lanes + axis(inner.var)
            place = place + cut.start
            inner.axes.update(self._unflattened(self.roles.n, column + place))
            address = axis(over.var) * width + place
            inner.body.append(ir.Load(self.reduce.name, self.sums, address))
            inner.names.add(self.reduce.name)
            self._store(self.kernel.outputs, inner)
            _close(inner, over)
        over.close()


def _up(size: int, step: int) -> int:
    """The size filled up to whole steps."""
    return -(-size // step) * step


def _loop(var: str, count: int, kind: LoopKind, *body: ir.Stmt) -> ir.For:
    return ir.For(var, constant(0), constant(count), 1, kind, body)


def _close(inner: Scope, outer: Scope) -> None:
    """Close the scopes from the inner one up to, and without, the outer one."""
    scope: Scope | None = inner
    while scope is not None and scope is not outer:
        scope.close()
        scope = scope.parent
