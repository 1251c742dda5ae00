"""Large matrix products: both operands are packed into scratch in blocks that fit a cache, and
register tiles run over them.

    parallel piece:                       one block of the result: `tile[0]` rows, `tile[1]` columns
      for each `tile[2]` of the summed axes:
        pack columns of B  [panels of nr columns][k][nr]
        pack rows of A     [panels of mr rows][k][mr]
        for each panel of B, for each panel of A:
          registers (mr x nr) += A panel x B panel;  sums += registers, or = for the first
      for each row: what follows the contraction (bias, activation, ...), and the stores

With wide vectors a block's columns come from the second cache, and rows are taken in turn:

        pack columns of B
        for each panel of A:
          pack it;  for each panel of B: registers, sums
          after the last of the summed axes: what follows its rows, and the stores

Rows, columns and summed axes are flattened, so that a convolution is the same thing with a window
in the reads that packing does. What a panel lacks at the edge is packed as zeros and computed too;
only rows and columns that exist are stored. Packing computes whatever stands between the reads and
the product: widening casts, scales, masks. Where the sum has very many steps, those of `_TOGETHER`
steps are totalled in a second place, for no number is to be added to a far greater one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import (
    MANY_LANES,
    ZERO,
    Cut,
    Panels,
    Side,
    Tile,
    close,
    cuts,
    repeat,
)
from weft.codegen.cpu.prefetch import LINE
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, Blocking, segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Expr,
    axis,
    coefficient,
    constant,
    linear,
    simplify,
    substitute,
)
from weft.foundation.whole_numbers import round_up
from weft.plan.contraction import takes_rows_in_turn
from weft.region.forms.panels import Panels as PanelForm
from weft.region.forms.panels import panels_of
from weft.region.ir import Binary, Read, Reduce, operands

_TOGETHER: Final = 32
"""Steps of `tile[2]` that are summed up before they join the total of a long sum."""
_MANY: Final = 16
"""Of more steps of `tile[2]` than these, where they do not share their code anyway, the first and
the last are as all others. For fewer, sums that are neither cleared before nor read again after are
worth code of their own."""
_AHEAD: Final = 8
"""Steps along k between a panel's prefetch from the second cache and its use: a hundred clocks."""
FAR_AHEAD: Final = 1024
"""Elements between the prefetch of a panel that lies in memory and its use. The machine foresees no
further than the end of a page. With filters that are in no near cache a convolution of 512 channels
at 4 x 4 takes 1.6 ms without prefetches, and 1.48, 1.15, 1.02 and 1.10 with them 128, 512, 1024 and
2048 elements ahead (Emerald Rapids)."""
_FINISHED_TOGETHER: Final = 2
"""Vectors of results that are finished side by side: registers hold no more of an activation."""


@dataclass(frozen=True)
class Block:
    """What one piece computes: so many rows and columns, from there on."""

    row: Expr
    rows: int
    column: Expr
    columns: int


class BlockedContraction(Panels):
    """The nest of one contraction kernel; `blocking` says how it is cut."""

    blocking: Blocking
    packs_rows: ClassVar[bool] = True
    """Whether panels of A may be rows as they lie in memory."""
    shares_steps: ClassVar[bool] = True
    """Whether one code serves the first step along the summed axes, which stores its sums, the last
    one, which finishes them, and those between: registers are multiplied alike in all of them."""

    def routine(self, name: str) -> ir.Routine:
        self._begin()
        body, pieces = self._pieces()
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), self._scratch(),
            self._violations(),
        )  # fmt: skip

    def _begin(self) -> None:
        """The operands, how they are packed, and where sums are kept."""
        blocking = self.tiling.blocking
        if blocking is None or self.kernel.roles is None:
            raise InternalError("only a contraction is blocked")
        self.blocking, self.roles = blocking, self.kernel.roles
        self.reduce = self.kernel.let(self.roles.contraction)
        lhs, rhs = self._factors()
        panels = self._panels_in_memory(blocking)
        summed = panels.summed if panels else self.roles.k
        self.lanes, number = blocking.lanes, len(self.numbers)
        self.origins: dict[int, tuple[Expr, Expr]] = {}
        """By the number of an operand in memory: where a block of it begins, across and along k."""
        sides = []
        for name, value, axes, width in (
            ("A", lhs, self.roles.m, blocking.rows),
            ("B", rhs, self.roles.n, blocking.columns),
        ):
            if panels is not None and panels.side == name:
                at = self.numbers[panels.tensor]
                sides.append(Side(value, axes, summed, at, width, lies=True))
            else:
                sides.append(Side(value, axes, summed, number, width))
                number += 1
        (self.a, self.b), self.sums = sides, number
        if self._stays_in_rows(self.a):
            self.a = replace(self.a, in_rows=True)
        # Panels of A are packed, used and forgotten: that takes no place in the second cache from
        # B.
        in_turn = takes_rows_in_turn(self.kernel, self.tensors, self.lanes)
        self.rows_in_turn = in_turn and self.packs_rows and not self.b.lies
        # A sum of n numbers, one after the other, may err by n roundings. Here a number is added to
        # others of its step (256), of its group of steps (32), and of all groups: their sum, and
        # not their product, counts.
        steps = self._size(self.roles.k) // blocking.depth
        self.totals = self.sums + (steps > 2 * _TOGETHER)

    def _stays_in_rows(self, side: Side) -> bool:
        """Whether panels of A are rows as they lie in memory: windows, which would be turned
        element by element. Wide vectors are multiplied by single numbers that are spread as they
        are loaded, wherever they are. Rows run along k, in whole lines of the last summed axis."""
        if not self.packs_rows or self.lanes < MANY_LANES or side.lies or len(side.summed) < 2:
            return False
        last, depth = self.kernel.sizes[side.summed[-1]], self.blocking.depth
        whole = depth % last == 0 and self._size(side.summed) % depth % last == 0
        return whole and self._lies_along_k(side)

    def _lies_along_k(self, side: Side) -> bool:
        """Whether every read of a side that changes along the last summed axis runs along it."""
        stack, last, found = [side.value], side.summed[-1], False
        while stack:
            let = self.lets[stack.pop()]
            if isinstance(let.expr, Read) and last in let.axes:
                address = linear(let.expr.index, self.refs[let.expr.tensor].strides)
                found = coefficient(address, last) == 1
                if not found:
                    return False
            stack += operands(let)
        return found

    def _panels_in_memory(self, blocking: Blocking) -> PanelForm | None:
        """The operand that lies in panels, if the plan has it read so."""
        return panels_of(self.kernel, self.tensors) if blocking.lies else None

    def _factors(self) -> tuple[str, str]:
        """The two values that are multiplied, the one of the rows first."""
        value = self.reduce.expr.value if isinstance(self.reduce.expr, Reduce) else ""
        made = self.kernel.let(value).expr
        if not isinstance(made, Binary) or made.fn != "mul":
            raise InternalError("the summed value is not a product")
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
        rows, columns = (
            round_up(block.block_rows, block.rows),
            round_up(block.block_columns, block.columns),
        )
        sums = (self.reduce.dtype, rows * columns)
        if self.rows_in_turn:
            rows = block.rows
        sizes = ((self.a, rows), (self.b, columns))
        return (
            *(
                (self._packed_dtype(side), size * self._steps(block.depth))
                for side, size in sizes
                if not side.lies
            ),
            *[sums] * (1 + self.totals - self.sums),
        )

    def _steps(self, depth: int) -> int:
        """Steps of the product along so many summed elements."""
        return depth

    # -- pieces ----------------------------------------------------------------------------------

    def _pieces(self) -> tuple[list[ir.Stmt], int]:
        block, body, pieces = self.blocking, list[ir.Stmt](), 0
        rows = cuts(self._rows(), block.block_rows)
        columns = cuts(self._size(self.roles.n), block.block_columns)
        for across, along in product(rows, columns):
            total = self._size(self.roles.batch) * across.count * along.count
            body.append(self._piece_loop(across, along, pieces, total))
            pieces += total
        return body, pieces

    def _rows(self) -> int:
        """Rows of the product."""
        return self._size(self.roles.m)

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
        root.axes.update(self._unflatten(self._batch_axes(), batch))
        self._block(root, Block(row, rows.extent, column, columns.extent))
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _batch_axes(self) -> tuple[str, ...]:
        """The axes of whole products, one after the other."""
        return self.roles.batch

    def _block(self, root: Scope, block: Block) -> None:
        summed = self._size(self.roles.k)
        many = not self.shares_steps and summed // self.blocking.depth > _MANY
        if self.totals == self.sums and many:
            self._clear(root, self.sums, block, self._neutral_zero())
            self._sum_up(root, block, constant(0), summed, clear=True)
        elif self.totals == self.sums:
            self._sum_up(root, block, constant(0), summed, finishes=self.rows_in_turn)
        else:
            self._clear(root, self.totals, block, 0)
            for cut in cuts(summed, _TOGETHER * self.blocking.depth):
                scope = Scope(root, self._name("kg"), cut.count, SERIAL)
                self._sum_up(scope, block, axis(scope.var) * cut.extent + cut.start, cut.extent)
                self._add_up(scope, block)
                scope.close()
        if self.totals != self.sums or many or not self.rows_in_turn:
            self._finish_block(root, block)

    def _neutral_zero(self) -> float | int:
        """What changes no number that it is added to, also no zero."""
        # x + -0.0 is x, also for -0.0; 0.0 would make 0.0 of that.
        return -0.0 if self.reduce.dtype.is_float else 0

    def _sum_up(
        self,
        root: Scope,
        block: Block,
        first: Expr,
        extent: int,
        *,
        finishes: bool = False,
        clear: bool = False,
    ) -> None:
        """The sums over some of the summed axes, packed and multiplied step by step; the first step
        stores them, unless there is nothing in them already (`clear`), and those after it add to
        them. The last one `finishes` them."""
        steps = cuts(extent, self.blocking.depth)
        if not clear and not self.shares_steps:
            steps = first_apart(steps)
        for cut in steps:
            scope = Scope(root, self._name("kb"), cut.count, SERIAL)
            adds: bool | str = clear or cut.start > 0 or (cut.count > 1 and scope.var)
            start = axis(scope.var) * cut.extent + cut.start + first
            ends = None
            if finishes and cut.start + cut.count * cut.extent == extent:
                ends = axis(scope.var) - (cut.count - 1) if cut.count > 1 else ZERO
            self._pack_or_find(scope, self.b, block.column, block.columns, start, cut.extent)
            if self.rows_in_turn:
                self._rows_in_turn(scope, block, start, cut.extent, adds=adds, ends=ends)
            else:
                self._pack_or_find(scope, self.a, block.row, block.rows, start, cut.extent)
                self._multiply(scope, block.rows, block.columns, cut.extent, adds=adds)
            scope.close()

    def _pack_or_find(
        self, scope: Scope, side: Side, first: Expr, size: int, start: Expr, depth: int
    ) -> None:
        if side.lies:
            self.origins[side.scratch] = first, start
        else:
            self._pack_side(scope, side, first, size, start, depth)

    def _rows_in_turn(
        self, scope: Scope, block: Block, start: Expr, depth: int, *, adds: bool | str,
        ends: Expr | None,
    ) -> None:  # fmt: skip
        """Each panel of A packed, multiplied with all of B while it is in the nearest cache, and in
        the last step, where `ends` is 0, finished while its sums are there."""
        over = Scope(scope, self._name("ip"), -(-block.rows // self.a.width), SERIAL)
        panel, side = axis(over.var), self.a
        if side.lies:
            self.origins[side.scratch] = block.row, start
        else:
            self._pack_panel(over, block, panel, start, depth)
        columns = Scope(over, self._name("jp"), -(-block.columns // self.b.width), SERIAL)
        if ends is not None:
            last = Scope(columns, self._name("last"), stop=ends + 1, end=1)
            self._foresee_results(last, block, panel, axis(columns.var))
            last.close()
        tile = panel, axis(columns.var)
        panels = (panel if side.lies else ZERO), tile[1]
        width = round_up(block.columns, self.b.width)
        self._multiply_tile(columns, tile, panels, width, self._steps(depth), adds=adds)
        columns.close()
        if ends is not None:
            # Loops that turn once in the last step, and in others not at all.
            first, last = panel * side.width, Scope(over, self._name("last"), stop=ends + 1, end=1)
            self._finish_some(last, block, first, first + side.width)
            last.close()
        over.close()

    def _pack_panel(self, over: Scope, block: Block, panel: Expr, start: Expr, depth: int) -> None:
        """The panel of A at hand: a whole one, or the last, filled up with zeros. Loops that turn
        once or not at all say which."""
        side, (whole, rest) = self.a, divmod(block.rows, self.a.width)
        if whole:
            some = Scope(over, self._name("p"), whole, SERIAL)
            first = block.row + axis(some.var) * side.width
            self._panel(some, side, first, side.width, start, depth, ZERO)
            over.body.append(ir.For(some.var, panel, panel + 1, 1, SERIAL, tuple(some.body), whole))
        if rest:
            last = Scope(over, self._name("p"), 1, SERIAL)
            self._panel(last, side, block.row + whole * side.width, rest, start, depth, ZERO)
            self._zeros(last, side, rest, depth, 0)
            over.body.append(
                ir.For(last.var, constant(whole), panel + 1, 1, SERIAL, tuple(last.body))
            )

    def _clear(self, root: Scope, sums: int, block: Block, value: float | int) -> None:
        inner, place = self._each_sum(root, block)
        inner.body += [
            ir.Let("zero", self.reduce.dtype, "const", value=value),
            ir.Store(sums, place, "zero", ()),
        ]
        close(inner, root)

    def _add_up(self, root: Scope, block: Block) -> None:
        """The sums of some steps added to the totals."""
        inner, place = self._each_sum(root, block)
        inner.body += [
            ir.Load("total", self.totals, place),
            ir.Load("part", self.sums, place),
            ir.Let("more", self.reduce.dtype, "add", ("total", "part")),
            ir.Store(self.totals, place, "more", ()),
        ]
        close(inner, root)

    def _each_sum(self, root: Scope, block: Block) -> tuple[Scope, Expr]:
        """Loops over all sums of a block, and the place of one."""
        lanes = self.blocking.lanes
        total = round_up(block.rows, self.a.width) * round_up(block.columns, self.b.width)
        loop = Scope(root, self._name("z"), total // lanes, SERIAL)
        inner = Scope(loop, self._name("zl"), lanes, LANES)
        return inner, axis(loop.var) * lanes + axis(inner.var)

    # -- the product -----------------------------------------------------------------------------

    def _panel_place(self, side: Side, number: Expr, k: Expr, depth: int) -> Expr:
        if not side.lies:
            return super()._panel_place(side, number, k, depth)
        # Blocks begin at whole panels, so that rows before them are panels before them.
        first, start = self.origins[side.scratch]
        # Rows before this one, all k of each, then the steps of its own panel.
        row = first + number * side.width
        return row * self._size(self.roles.k) + (start + k) * side.width

    def _multiply(
        self,
        scope: Scope,
        rows: int,
        columns: int,
        depth: int,
        product: Expr = ZERO,
        *,
        adds: bool | str = True,
    ) -> None:
        """Every panel of A with every panel of B. Where there are several products, their panels
        and sums follow one another."""
        over_a, over_b, inner = self._over_panels(scope, rows, columns)
        ip, jp = product * over_a.count + axis(over_a.var), axis(over_b.var)
        own = product * over_b.count + jp
        width = round_up(columns, self.b.width)
        self._multiply_tile(inner, (ip, jp), (ip, own), width, self._steps(depth), adds=adds)
        close(inner, scope)

    def _multiply_tile(
        self,
        inner: Scope,
        tile: tuple[Expr, Expr],
        panels: tuple[Expr, Expr],
        width: int,
        steps: int,
        *,
        adds: bool | str,
    ) -> None:
        """A panel of A times one of B: registers, kept as a tile of sums."""
        (ip, jp), (row, column) = tile, panels
        lanes = self.blocking.lanes
        u, v, lane = self._name("u"), self._name("v"), self._name("l")
        vectors = self.b.width // lanes
        loops = ((u, self.a.width, UNROLLED), (v, vectors, UNROLLED), (lane, lanes, LANES))
        if adds:
            self._foresee(inner, u, ip, jp, width)
        inner.body.append(ir.Init("tile", self.reduce.dtype, "sum", loops))
        deep = Scope(inner, self._name("k"), steps, SERIAL)
        if lanes >= MANY_LANES:
            ahead = self._panel_place(self.b, column, axis(deep.var) + _AHEAD, steps)
            if self.b.lies:
                ahead = self._panel_place(self.b, column, axis(deep.var), steps) + FAR_AHEAD
            for vector in range(vectors):
                deep.body.append(ir.Prefetch(self.b.scratch, ahead + vector * lanes))
            if self.a.lies:
                far = self._panel_place(self.a, row, axis(deep.var), steps) + FAR_AHEAD
                deep.body.append(ir.Prefetch(self.a.scratch, far))
        self._multiply_step(deep, (self.a, self.b), (u, v, lane), row, column, steps)
        deep.close()
        self._keep_tile(inner, (u, v, lane), ip, jp, width, adds=adds)

    def _over_panels(self, scope: Scope, rows: int, columns: int) -> tuple[Scope, Scope, Scope]:
        """Loops over the panels of A and of B, and the inner of the two. A panel of B stays in the
        nearest cache and meets all of A, where it fits: one of wide vectors does not, and comes
        from the second cache for each panel of A, which stays. What lies in memory is read once."""
        # 256 steps of 48 columns in f32 are 48 KB, more than a first cache of 32 KB; of 8 rows 8
        # KB.
        outer, inner = (self._name("jp"), columns, self.b), (self._name("ip"), rows, self.a)
        if self.lanes >= MANY_LANES and not self.b.lies:
            outer, inner = inner, outer
        first = Scope(scope, outer[0], -(-outer[1] // outer[2].width), SERIAL)
        last = Scope(first, inner[0], -(-inner[1] // inner[2].width), SERIAL)
        return (last, first, last) if inner[2] is self.a else (first, last, last)

    def _foresee(self, scope: Scope, u: str, ip: Expr, jp: Expr, width: int) -> None:
        """The sums that the registers will be added to, told to the memory before the product."""
        first = (ip * self.a.width + axis(u)) * width + jp * self.b.width
        hints = (ir.Prefetch(self.sums, first), ir.Prefetch(self.sums, first + self.b.width - 1))
        scope.body.append(repeat(u, self.a.width, UNROLLED, *hints))

    def _foresee_results(self, scope: Scope, block: Block, ip: Expr, jp: Expr) -> None:
        """Where the results of a tile go, told to the memory before the product."""
        u, line = self._name("u"), LINE // self.reduce.dtype.storage_bytes
        for first in range(0, self.b.width, line):
            place = Scope(scope)
            row, column = ip * self.a.width + axis(u), jp * self.b.width + first
            place.axes.update(self._unflatten(self.roles.m, block.row + row))
            place.axes.update(self._unflatten(self.roles.n, block.column + column))
            places = place.bindings()
            hints = [
                ir.Prefetch(
                    self.numbers[output.tensor],
                    linear(
                        tuple(substitute(each, places) for each in output.index),
                        self.refs[output.tensor].strides,
                    ),
                )
                for output in self.kernel.outputs
            ]
            scope.body.append(repeat(u, self.a.width, UNROLLED, *hints))

    def _keep_tile(
        self, scope: Scope, tile: Tile, ip: Expr, jp: Expr, width: int, *, adds: bool | str
    ) -> None:
        """The registers stored as the sums, or added to them; to them but in the first turn of a
        loop, where that is what `adds` names."""
        (u, v, lane), lanes = tile, self.blocking.lanes
        row = ip * self.a.width + axis(u)
        place = row * width + jp * self.b.width + axis(v) * lanes + axis(lane)

        def each(*body: ir.Stmt) -> ir.Stmt:
            inner = repeat(v, self.b.width // lanes, UNROLLED, repeat(lane, lanes, LANES, *body))
            return repeat(u, self.a.width, UNROLLED, inner)

        finish = ir.Finish("part", ("tile",))
        store = ir.Store(self.sums, place, "part", ())
        add = (
            ir.Load("before", self.sums, place),
            ir.Let("after", self.reduce.dtype, "add", ("before", "part")),
            ir.Store(self.sums, place, "after", ()),
        )
        if isinstance(adds, bool):
            scope.body.append(each(finish, *(add if adds else [store])))
            return
        # Loops that turn once or not at all: the one in the first turn, the other in all others.
        turn, (first, later) = axis(adds), (self._name("first"), self._name("later"))
        scope.body += [
            each(finish),
            ir.For(first, turn, turn + 1, 1, SERIAL, (each(store),), 1),
            ir.For(later, constant(0), turn, 1, SERIAL, (each(*add),), 1),
        ]

    # -- the rest of the kernel ------------------------------------------------------------------

    def _finish_block(self, root: Scope, block: Block) -> None:
        self._finish_some(root, block, constant(0), constant(block.rows))

    def _finish_some(self, root: Scope, block: Block, first: Expr, stop: Expr) -> None:
        """Row by row, of those that a block has: the contraction is read back, and everything after
        it is computed."""
        width = round_up(block.columns, self.b.width)
        over = Scope(root, self._name("i"), block.rows, SERIAL)
        over.axes.update(self._unflatten(self.roles.m, block.row + axis(over.var)))
        for cut in segments(block.columns, AxisTiling(_FINISHED_TOGETHER, self.blocking.lanes)):
            loop = Scope(over, self._name("j"), cut.count, SERIAL)
            each = Scope(loop, self._name("ju"), cut.unroll, UNROLLED)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(each, self._name("jl"), cut.lanes, kind)
            place = axis(loop.var) * cut.extent + axis(each.var) * cut.lanes + axis(inner.var)
            place = place + cut.start
            inner.axes.update(self._unflatten(self.roles.n, block.column + place))
            address = axis(over.var) * width + place
            inner.body.append(ir.Load(self.reduce.name, self.totals, address))
            inner.names.add(self.reduce.name)
            self._store(self.kernel.outputs, inner)
            close(inner, over)
        end = None if stop.is_constant else block.rows
        root.body.append(ir.For(over.var, first, stop, 1, SERIAL, tuple(over.body), end))


def first_apart(blocks: list[Cut]) -> list[Cut]:
    """The same blocks, the first by itself."""
    if not blocks or blocks[0].count == 1:
        return blocks
    first = blocks[0]
    rest = Cut(first.start + first.extent, first.count - 1, first.extent)
    return [replace(first, count=1), rest, *blocks[1:]]
