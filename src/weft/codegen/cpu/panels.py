"""Operands packed into panels, and the register tile that multiplies panels: what all blocked
products share.

    A: [panels of mr rows][k][mr]        B: [panels of nr columns][k][nr]
    registers (mr x nr) += A panel x B panel

Rows, columns and summed axes are flattened. What a panel lacks at the edge is packed as zeros.
Packing computes whatever stands between the reads and the product: widening casts, scales, masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.from_region import Lowering
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.prefetch import LINE
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, Segment, segments
from weft.foundation.dtypes import DType
from weft.foundation.index_expr import (
    Expr,
    FloorDiv,
    axes_of,
    axis,
    coefficient,
    constant,
    linear,
    simplify,
)
from weft.region.ir import Read, operands

ZERO: Final = constant(0)
_ROWS_TOGETHER: Final = 4
"""Rows that are packed side by side: so many streams memory foresees."""
MANY_LANES: Final = 16
"""Lanes of vectors so wide that panels fill a cache, and code for every lane is long."""
_FEWER_LANES: Final = (8, 4)
"""Lanes of tiles that are turned where a panel is no whole vectors: wide vectors are wider than
panels of rows."""
_QUARTERS: Final = 4
"""Such tiles that are turned together where a vector has room for so many rows of them."""
_MOST_COPIES: Final = 64
"""Elements that are copied one by one without a loop: what is left over of a vector is little of a
panel, and so much code, in every kind of block, that it takes a compiler seconds."""
_MOST_SCATTERED: Final = 256
"""The same where vectors are loaded, and their lanes stored one by one."""
_SHORTEST_LINE: Final = 4
"""Elements of a line that is worth vectors."""
_NEAR_STEPS: Final = (1, 2)
"""How far apart neighbours along a line lie that one or two vectors hold."""


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
    summed: tuple[str, ...]
    scratch: int
    """Where panels are: packed ones of a block, or all of them in memory."""
    width: int
    """Elements across a panel."""
    lies: bool = False
    """Whether the operand lies in panels, so that nothing is packed."""
    in_rows: bool = False
    """Whether a panel is its rows one after the other, each along k as memory has it."""
    offset: int = 0
    """Where in its scratch the panels begin: those of a second part stand behind the first ones."""


Sides: TypeAlias = tuple[Side, Side]
Tile: TypeAlias = tuple[str, str, str]
"""The variables of the rows, the vectors and the lanes of a register tile."""


class Panels(Lowering):
    """A nest under construction that packs operands."""

    lanes: int
    turned: str = ""
    """The unrolled loop along k of the tile that is packed in vectors both ways."""

    # -- packing ---------------------------------------------------------------------------------

    def _pack_side(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """All panels of one side: the whole ones in a loop, then the last, filled up with zeros."""
        whole, rest = divmod(extent, side.width)
        if whole and self._runs_along(side) and not self._jumps(side, start, k):
            self._rows_of_panels(scope, side, start, whole, k, depth)
        elif whole:
            panel = Scope(scope, self._name("p"), whole, SERIAL)
            number = axis(panel.var)
            self._panel(panel, side, start + number * side.width, side.width, k, depth, number)
            panel.close()
        if rest:
            number = constant(whole)
            self._panel(scope, side, start + whole * side.width, rest, k, depth, number)
            self._zeros(scope, side, rest, depth, whole)

    def _rows_of_panels(
        self, scope: Scope, side: Side, start: Expr, count: int, k: Expr, depth: int
    ) -> None:
        """Whole panels whose elements lie side by side in memory, a few steps along k of each in
        turn: memory is read along its rows."""
        # Panel by panel memory would be read in short runs that lie a row apart.
        for cut in cuts(depth, _ROWS_TOGETHER):
            rows = Scope(scope, self._name("k"), cut.count, SERIAL)
            panel = Scope(rows, self._name("p"), count, SERIAL)
            each = Scope(panel, self._name("ku"), cut.extent, UNROLLED)
            deep = axis(rows.var) * cut.extent + axis(each.var) + cut.start
            number = axis(panel.var)
            first, base = start + number * side.width, number * (depth * side.width)
            self._foretell(each, side, first, k + deep + cut.extent)
            for segment in segments(side.width, AxisTiling(1, self.lanes)):
                self._pack_step(each, side, first, segment, deep, k, base)
            close(each, scope)

    def _foretell(self, scope: Scope, side: Side, start: Expr, k: Expr) -> None:
        """What the next turn packs of a panel's rows, told to the memory: rows are far apart, and
        each begins where the machine foresees nothing."""
        if self.lanes < MANY_LANES or len(side.summed) != 1:
            return
        place = Scope(scope)
        self._place(place, side, start, k)
        for load in self._reads_across(side, place):
            if not load.guards and not load.places:
                size = self.lets[load.name].dtype.storage_bytes
                for first in range(0, side.width, LINE // size):
                    scope.body.append(ir.Prefetch(load.buffer, load.address + first))

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
        """One panel, with vectors along whichever of its two directions the memory runs."""
        base = number * (depth * side.width)
        if side.in_rows:
            self._row_by_row(scope, side, start, width, depth, k, base)
            return
        jumps = self._jumps(side, start, k)
        if jumps and self._lines_along(side, depth):
            self._line_by_line(scope, side, start, width, depth, k, base)
            return
        if jumps and self._runs_along(side):
            self._one_by_one(scope, side, start, width, depth, ZERO, k, base)
            return
        if self._runs_along(side):
            for cut in segments(width, AxisTiling(1, self.lanes)):
                loop = Scope(scope, self._name("k"), depth, SERIAL)
                self._pack_step(loop, side, start, cut, axis(loop.var), k, base)
                loop.close()
            return
        run = self._run_along(side, depth)
        runs = Scope(scope, self._name("kr"), depth // run, SERIAL)
        first, lanes = axis(runs.var) * run, self._lanes_across(width)
        together = _QUARTERS if lanes * _QUARTERS == self.lanes else 1
        for cut in segments(run, AxisTiling(together, lanes)):
            self._stretch(runs, side, start, width, cut, first, k, base)
        runs.close()

    def _stretch(
        self, runs: Scope, side: Side, start: Expr, width: int, cut: Segment, first: Expr, k: Expr,
        base: Expr,
    ) -> None:  # fmt: skip
        """A panel's tiles along k, turned in vectors both ways where it lies so."""
        loop = Scope(runs, self._name("kt"), cut.count, SERIAL)
        along = first + axis(loop.var) * cut.extent + cut.start
        copied = cut.lanes == 1 and cut.unroll * width > _MOST_COPIES
        if self._turned_tile(loop, side, start, width, cut, along, k, base):
            pass
        elif cut.lanes > 1 and cut.unroll > 1:
            for part in segments(cut.count * cut.extent, AxisTiling(1, cut.lanes)):
                shorter = replace(part, start=cut.start + part.start)
                self._stretch(runs, side, start, width, shorter, first, k, base)
        elif copied or self._jumps(side, start, k):
            self._one_by_one(loop, side, start, width, cut.extent, along, k, base)
        else:
            self._scattered_tile(loop, side, start, width, cut, along, k, base)
        loop.close()

    def _row_by_row(
        self, scope: Scope, side: Side, start: Expr, width: int, depth: int, k: Expr, base: Expr
    ) -> None:
        """A panel as its rows: read and stored in vectors along k, line by line, so that what the
        outer summed axes decide stands before the loop."""
        run = self.kernel.sizes[side.summed[-1]]
        each = Scope(scope, self._name("w"), width, SERIAL)
        lines = Scope(each, self._name("kr"), depth // run, SERIAL)
        for cut in halves(run, self.lanes):
            loop = Scope(lines, self._name("kt"), cut.count, SERIAL)
            inner = Scope(loop, self._name("kl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
            place = axis(lines.var) * run + axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            self._place(inner, side, start + axis(each.var), k + place)
            self._emit(side.value, inner)
            address = base + axis(each.var) * depth + place
            inner.body.append(ir.Store(side.scratch, address, side.value, ()))
            close(inner, lines)
        close(lines, scope)

    def _jumps(self, side: Side, start: Expr, k: Expr) -> bool:
        """Whether neighbours across a panel differ in more than a step along memory: then every
        lane has code of its own, and wide vectors have many."""
        if self.lanes < MANY_LANES:
            return False
        lane, scope = self._name("lane"), Scope(None)
        self._place(scope, side, start + axis(lane), k)
        guarded = [load for load in self._reads_across(side, scope) if load.guards]
        asked = (guard.expr for load in guarded for guard in load.guards)
        divided = (
            term.value
            for load in guarded
            for term, _ in load.address.terms
            if isinstance(term, FloorDiv) and term.divisor % self.lanes
        )
        return any(lane in axes_of(expr) for expr in (*asked, *divided))

    def _one_by_one(
        self, scope: Scope, side: Side, start: Expr, width: int, count: int, along: Expr, k: Expr,
        base: Expr,
    ) -> None:  # fmt: skip
        """A panel's part along k, element after element: what a place across decides stands before
        the loop along k."""
        each = Scope(scope, self._name("w"), width, SERIAL)
        deep = Scope(each, self._name("k"), count, SERIAL)
        self._copy(deep, side, start, axis(each.var), along + axis(deep.var), k, base)
        close(deep, scope)

    def _lines_along(self, side: Side, depth: int) -> int:
        """Steps of a line along k whose elements lie side by side in memory, or every second of
        them does; 0 where a panel has no whole lines, or they are short."""
        last = side.summed[-1] if side.summed else ""
        size = self.kernel.sizes.get(last, 1)
        if size < _SHORTEST_LINE or depth % size:
            return 0
        stack = [side.value]
        while stack:
            let = self.lets[stack.pop()]
            if isinstance(let.expr, Read) and last in let.axes:
                address = linear(let.expr.index, self.refs[let.expr.tensor].strides)
                if coefficient(address, last) not in _NEAR_STEPS:
                    return 0
            stack += operands(let)
        return size

    def _line_by_line(
        self, scope: Scope, side: Side, start: Expr, width: int, depth: int, k: Expr, base: Expr
    ) -> None:
        """A panel read in vectors along lines and stored element by element: a line of all places
        across, then the next, so that what is written stays near."""
        run = self._lines_along(side, depth)
        lines = Scope(scope, self._name("kr"), depth // run, SERIAL)
        each = Scope(lines, self._name("w"), width, SERIAL)
        for cut in halves(run, self.lanes):
            loop = Scope(each, self._name("kt"), cut.count, SERIAL)
            inner = Scope(loop, self._name("kl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
            along = axis(lines.var) * run + axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            self._copy(inner, side, start, axis(each.var), along, k, base)
            close(inner, each)
        close(each, scope)

    def _lanes_across(self, width: int) -> int:
        """Lanes of the tiles that a panel is turned in: all, or as many as make whole tiles."""
        fitting = (lanes for lanes in _FEWER_LANES if width % lanes == 0 and lanes < self.lanes)
        return self.lanes if width % self.lanes == 0 else next(fitting, self.lanes)

    def _run_along(self, side: Side, depth: int) -> int:
        """Steps along k that differ in the last summed axis alone: what the other ones decide, such
        as whether a window is inside, then stands before the loop."""
        last = self.kernel.sizes[side.summed[-1]] if side.summed else depth
        return last if depth % last == 0 and last % self.lanes == 0 else depth

    def _turned_tile(
        self,
        loop: Scope,
        side: Side,
        start: Expr,
        width: int,
        cut: Segment,
        along: Expr,
        k: Expr,
        base: Expr,
    ) -> bool:
        """A panel's part along k, read in vectors along k and stored in vectors across; False where
        an operand does not lie so, or panels are no whole vectors."""
        lanes = cut.lanes
        if lanes == 1 or width % lanes:
            return False
        deep = Scope(loop, self._name("ku"), cut.extent, UNROLLED)
        each = Scope(deep, self._name("w"), width // lanes, UNROLLED)
        inner = Scope(each, self._name("wl"), lanes, LANES)
        self.turned = deep.var
        place = along + axis(deep.var)
        across = axis(each.var) * lanes + axis(inner.var)
        self._place(inner, side, start + across, k + place)
        if not all(
            self._lies_across(load, deep, inner) for load in self._reads_across(side, inner)
        ):
            return False
        self._copy(inner, side, start, across, place, k, base)
        close(inner, loop)
        return True

    def _loop_across(self, home: Scope) -> Scope | None:
        return next((scope for scope in home.chain() if scope.var == self.turned), None)

    def _reads_across(self, side: Side, scope: Scope) -> Iterator[ir.Load]:
        """What is read across panels to pack a side."""
        stack, seen = [side.value], {side.value}
        while stack:
            let = self.lets[stack.pop()]
            if isinstance(let.expr, Read) and set(side.axes) & set(let.axes):
                yield self._load(let, let.expr, scope)
            stack += [name for name in operands(let) if name not in seen]
            seen.update(stack)

    def _scattered_tile(
        self,
        loop: Scope,
        side: Side,
        start: Expr,
        width: int,
        cut: Segment,
        along: Expr,
        k: Expr,
        base: Expr,
    ) -> None:
        """A panel's part along k, read in vectors along k and stored element by element."""
        if cut.extent * width > _MOST_SCATTERED and cut.unroll == 1:
            one = Scope(loop, self._name("w"), width, SERIAL)
            along_k = Scope(one, self._name("kl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
            self._copy(along_k, side, start, axis(one.var), along + axis(along_k.var), k, base)
            close(along_k, loop)
            return
        deep = Scope(loop, self._name("ku"), cut.unroll, UNROLLED)
        each = Scope(deep, self._name("w"), width, UNROLLED)
        place = along + axis(deep.var) * cut.lanes
        inner = Scope(each, self._name("kl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
        self._copy(inner, side, start, axis(each.var), place + axis(inner.var), k, base)
        # All loads before all stores: then LLVM stores neighbours together.
        store = inner.body.pop()
        close(inner, loop)
        stored = repeat(inner.var, inner.count, inner.kind, store)
        stored = repeat(each.var, each.count, UNROLLED, stored)
        loop.body.append(repeat(deep.var, deep.count, UNROLLED, stored))

    def _pack_step(
        self, loop: Scope, side: Side, start: Expr, cut: Segment, deep: Expr, k: Expr, base: Expr
    ) -> None:
        """One step along k of a panel whose elements lie side by side in memory."""
        each = Scope(loop, self._name("w"), cut.count * cut.unroll, UNROLLED)
        kind = LANES if cut.lanes > 1 else UNROLLED
        inner = Scope(each, self._name("wl"), cut.lanes, kind)
        place = axis(each.var) * cut.lanes + axis(inner.var) + cut.start
        self._copy(inner, side, start, place, deep, k, base)
        close(inner, loop)

    def _copy(
        self, inner: Scope, side: Side, start: Expr, place: Expr, deep: Expr, k: Expr, base: Expr
    ) -> None:
        self._place(inner, side, start + place, k + deep)
        self._emit(side.value, inner)
        address = base + deep * side.width + place
        inner.body.append(ir.Store(side.scratch, address, side.value, ()))

    def _place(self, scope: Scope, side: Side, across: Expr, along: Expr) -> None:
        """Bind the axes of a side, from its place across panels and its place along k."""
        ranges = {found.var: (0, found.count - 1) for found in scope.chain()}
        scope.axes.update(self._unflatten(side.axes, across))
        for name, place in self._unflatten(side.summed, along).items():
            known = axes_of(place) <= ranges.keys()
            scope.axes[name] = simplify(place, ranges) if known else place

    def _zeros(self, scope: Scope, side: Side, used: int, depth: int, number: int) -> None:
        loop = Scope(scope, self._name("k"), depth, SERIAL)
        each = Scope(loop, self._name("w"), side.width - used, UNROLLED)
        base, row = number * depth * side.width, axis(each.var) + used
        address = axis(loop.var) * side.width + row + base
        if side.in_rows:
            address = row * depth + axis(loop.var) + base
        each.body += [
            ir.Let("zero", self._packed_dtype(side), "const", value=0),
            ir.Store(side.scratch, address + side.offset, "zero", ()),
        ]
        close(each, scope)

    def _packed_dtype(self, side: Side) -> DType:
        """What an operand is packed as."""
        return self.lets[side.value].dtype

    def _runs_along(self, side: Side) -> bool:
        """Whether neighbours across a panel are neighbours in memory."""
        stack = [side.value]
        while stack and side.axes:
            let = self.lets[stack.pop()]
            if isinstance(let.expr, Read) and side.axes[-1] in let.axes:
                address = linear(let.expr.index, self.refs[let.expr.tensor].strides)
                return coefficient(address, side.axes[-1]) == 1
            stack += operands(let)
        return False

    def _multiply_step(
        self, deep: Scope, sides: Sides, loops: Tile, ip: Expr, jp: Expr, depth: int
    ) -> None:
        """One step along k: a column of the A panel times a row of the B panel, added to `tile`."""
        (a, b), (u, v, lane), k = sides, loops, axis(deep.var)
        if a.in_rows:
            row = ip * (depth * a.width) + axis(u) * depth
            deep.body.append(repeat(u, a.width, UNROLLED, ir.Load("a", a.scratch, row + k)))
        else:
            a_place = self._panel_place(a, ip, k, depth)
            deep.body.append(ir.LoadRun("a", u, a.width, a.scratch, a_place))
        b_place = self._panel_place(b, jp, k, depth)
        load = ir.Load("b", b.scratch, b_place + axis(v) * self.lanes + axis(lane))
        vectors = b.width // self.lanes
        deep.body.append(repeat(v, vectors, UNROLLED, repeat(lane, self.lanes, LANES, load)))
        tile = repeat(lane, self.lanes, LANES, *self._product(a))
        deep.body.append(repeat(u, a.width, UNROLLED, repeat(v, vectors, UNROLLED, tile)))

    def _panel_place(self, side: Side, number: Expr, k: Expr, depth: int) -> Expr:
        """Where a step along k of a panel of the block begins."""
        return number * (depth * side.width) + k * side.width

    def _product(self, side: Side) -> tuple[ir.Stmt, ...]:
        """`tile += a * b`."""
        product = ir.Let("ab", self._packed_dtype(side), "mul", ("a", "b"))
        return product, ir.Accumulate("tile", "ab")


def halves(size: int, lanes: int) -> list[Segment]:
    """Whole vectors, then vectors of half the lanes, and so on down to single elements."""
    found, start = [], 0
    while lanes and start < size:
        count = (size - start) // lanes
        if count:
            found.append(Segment(start, count, 1, lanes))
        start += count * lanes
        lanes //= 2
    return found


def repeat(var: str, count: int, kind: LoopKind, *body: ir.Stmt) -> ir.For:
    return ir.For(var, constant(0), constant(count), 1, kind, body)


def close(inner: Scope, outer: Scope) -> None:
    """Close the scopes from the inner one up to, and without, the outer one."""
    scope: Scope | None = inner
    while scope is not None and scope is not outer:
        scope.close()
        scope = scope.parent
