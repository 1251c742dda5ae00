"""Windows of single channels, summed over a copy of what they see.

    parallel piece:                       a plane of results, or a band of its lines
      board = the lines of the image      [other taps][phase][line][column]
      for each tile of lines x vectors:
        for each tap along a line:
          for each tap across lines:      (written out)
            sums += board x filter        (one load serves all lines that see an element)
        what follows the sums, and the stores

Beside the image the board has what the kernel's read gives there, so that the sums ask for nothing.
Where places of a line are several columns apart, each phase of the board has the columns that a tap
sees at neighbouring places. The last vector of a line may reach over its end: what it computes
there is not stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import Cut, cuts
from weft.codegen.cpu.reductions import Body, Reductions
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope, Wrapper, open_tile
from weft.codegen.cpu.tiling import AxisTiling, Segment, Tiling, segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Expr,
    Guard,
    always,
    axes_of,
    axis,
    constant,
    linear,
    simplify,
    substitute,
)
from weft.memory.ir import MemRef
from weft.plan.ir import RowPlan
from weft.plan.line_windows import board_of, other_taps
from weft.region.forms.line_windows import Slide, find_line_windows
from weft.region.ir import Kernel, Let, Output, Read, Tensor

_WRITTEN_OUT = 4
"""Vectors of a line that are copied without a loop."""
_WRITTEN_TAPS = 32
"""Taps across lines that are written out; gradients of filters have more of them, one for each line
of the image."""


class LineWindowSums(Reductions):
    """The nest of one kernel under a plan with lines."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        plan: RowPlan,
    ) -> None:
        super().__init__(kernel, tensors, refs, Tiling(None, {}, {}))
        windows = find_line_windows(kernel, tensors)
        if windows is None:
            raise InternalError(f"{kernel.name} sums no windows over lines")
        self.windows, self.plan = windows, plan
        self.board = board_of(kernel, windows, plan)
        self.others = other_taps(kernel, windows)
        self.in_turn = bool(self.others) and self.board.planes == 1
        """Whether planes are copied one after the other, each before it is summed."""
        self.scratch = len(self.numbers)
        self.first_line = constant(0)
        """Of the results of a piece."""
        self.ranges: dict[str, tuple[int, int]] = {}
        self.over: Guard | None = None
        """Which columns of results there are, while some lanes have none."""

    def routine(self, name: str) -> ir.Routine:
        places = {slide.place for slide in self.windows.slides}
        outer = [a.name for a in self.kernel.axes if a.name in self.windows.total.axes]
        others = tuple(name for name in outer if name not in places)
        row = self.windows.row
        lines = 1 if row is None else self.kernel.sizes[row.place]
        body, pieces = list[ir.Stmt](), 0
        for band in cuts(lines, self.board.band):
            total = self._size(others) * band.count
            body.append(self._pieces(others, band, pieces, total))
            pieces += total
        memory: tuple[DType, int] = (self.windows.factor.dtype, self.board.elements)
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), (memory,),
            self._violations(),
        )  # fmt: skip

    def _pieces(self, others: tuple[str, ...], band: Cut, first: int, total: int) -> ir.Stmt:
        piece = self._name("piece")
        self.ranges = {piece: (first, first + total - 1)}
        number = axis(piece) - first
        root = Scope(None, kind=PARALLEL)
        other = simplify(number // band.count, self.ranges)
        here = self._unflatten(others, other)
        root.axes.update({name: simplify(place, self.ranges) for name, place in here.items()})
        self.first_line = simplify(number % band.count, self.ranges) * band.extent + band.start
        self._clear_end(root)
        if not self.in_turn:
            self._copy(root, band.extent)
        self._sum_tiles(root, band.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    # -- the board -------------------------------------------------------------------------------

    def _copy(self, root: Scope, lines: int) -> None:
        """Everything that so many lines of results see."""
        opened, scope = self._over_planes(root)
        self._copy_plane(scope, lines)
        for made in reversed(opened):
            made.close()

    def _clear_end(self, root: Scope) -> None:
        """Behind the last line, where vectors reach over it."""
        lanes = Scope(root, self._name("l"), self.board.lanes, LANES)
        end = constant(self.board.elements - self.board.lanes)
        self._store_nothing(lanes, end + axis(lanes.var))
        lanes.close()

    def _over_planes(self, root: Scope) -> tuple[list[Scope], Scope]:
        """Loops over the taps along which no windows slide, and the innermost scope."""
        opened, scope = list[Scope](), root
        for name in self.others:
            scope = self._loop_over(scope, name, self.kernel.sizes[name])
            scope.axes[name] = axis(scope.var)
            opened.append(scope)
        return opened, scope

    def _plane(self, known: dict[str, Expr]) -> Expr:
        """The plane of the board that has what such taps see."""
        plane = constant(0)
        for name in self.others if self.board.planes > 1 else ():
            plane = plane * self.kernel.sizes[name] + known[name]
        return plane

    def _copy_plane(self, scope: Scope, lines: int) -> None:
        plane = self._plane(scope.bindings())
        rows = self.board.rows - self._row_step * (self.board.band - lines)
        for start, count, inside in self._stretches(rows):
            line = self._loop_over(scope, "line", count, start)
            for phase in range(self.board.phases):
                place = (plane * self.board.phases + phase) * self.board.rows + axis(line.var)
                self._copy_line(line, place * self.board.width, phase, inside)
            line.close()

    @property
    def _row_step(self) -> int:
        return 1 if self.windows.row is None else self.windows.row.step

    def _loop_over(self, scope: Scope, stem: str, count: int, start: int = 0) -> Scope:
        made = Scope(scope, self._name(stem), count, SERIAL, start=constant(start))
        self.ranges[made.var] = (start, start + max(0, count - 1))
        return made

    def _stretches(self, rows: int) -> list[tuple[int, int, bool | None]]:
        """Lines of the board that lie in the image, and those that do not, where that is known; all
        of them where it is not."""
        row, read = self.windows.row, self._image()
        own = [] if row is None else self._guards_of(row, read)
        if row is None or not self.first_line.is_constant or len(own) != 1:
            return [(0, rows, None)]
        (guard,) = own
        seen = row.where(guard.expr, self.first_line * row.step + self.board.first_row)
        if not seen.is_constant:
            return [(0, rows, None)]
        first = seen.constant
        low = min(rows, max(0, -first))
        high = max(low, min(rows, guard.size - first))
        found = [(0, low, False), (low, high - low, True), (high, rows - high, False)]
        return [stretch for stretch in found if stretch[1]]

    def _image(self) -> Read:
        read = self.windows.image.expr
        assert isinstance(read, Read)
        return read

    def _guards_of(self, slide: Slide, read: Read) -> list[Guard]:
        return [g for g in read.guards if slide.place in axes_of(g.expr)]

    def _copy_line(self, line: Scope, place: Expr, phase: int, inside: bool | None) -> None:
        """One phase of a line, vector by vector."""
        lanes = self.board.lanes
        count = self.board.width // lanes
        written = count <= _WRITTEN_OUT
        along = Scope(line, self._name("v"), count, UNROLLED if written else SERIAL)
        self.ranges[along.var] = (0, count - 1)
        inner = Scope(along, self._name("l"), lanes, LANES)
        self.ranges[inner.var] = (0, lanes - 1)
        column = axis(along.var) * lanes + axis(inner.var)
        if inside is False:
            self._store_nothing(inner, place + column)
        else:
            seen = column * self.windows.column.step + phase * self.board.between
            self._copy_elements(inner, axis(line.var), seen, inside)
            inner.body.append(ir.Store(self.scratch, place + column, self.windows.factor.name, ()))
        inner.close()
        along.close()

    def _store_nothing(self, inner: Scope, address: Expr) -> None:
        """What the image has where it has nothing."""
        value, dtype = self._image().fill or 0.0, self.windows.factor.dtype
        inner.body.append(ir.Let("beside", dtype, "const", value=value))
        inner.body.append(ir.Store(self.scratch, address, "beside", ()))

    def _copy_elements(self, inner: Scope, line: Expr, column: Expr, inside: bool | None) -> None:
        """What the image has in a column of a line of the board."""
        image, read, known = self.windows.image, self._image(), inner.bindings()
        places = [(self.windows.column, column + self.board.first_column)]
        row = self.windows.row
        if row is not None:
            places.append((row, line + self.board.first_row + self.first_line * row.step))

        def at(expr: Expr) -> Expr:
            for slide, place in places:
                expr = slide.where(expr, place)
            return substitute(expr, known)

        in_lines = [] if row is None or not inside else self._guards_of(row, read)
        asked = [Guard(at(g.expr), g.size) for g in read.guards if g not in in_lines]
        address = at(linear(read.index, self.refs[read.tensor].strides))
        if not self._guards_of(self.windows.column, read):
            # The last vector of a line may reach over the end of the tensor.
            asked.append(Guard(address, math.prod(self.tensors[read.tensor].shape)))
        kept = tuple(guard for guard in asked if not always(guard, self.ranges))
        fill = (0.0 if read.fill is None else read.fill) if kept else None
        inner.body.append(ir.Load(image.name, self.numbers[read.tensor], address, kept, fill))
        factor = self.windows.factor
        if image is not factor:
            inner.body.append(ir.Let(factor.name, factor.dtype, "cast", (image.name,)))

    # -- tiles -----------------------------------------------------------------------------------

    def _sum_tiles(self, root: Scope, lines: int) -> None:
        """All results of a piece."""
        column, row, plan = self.windows.column, self.windows.row, self.plan
        size = self.kernel.sizes[column.place]
        across = segments(size, AxisTiling(plan.accumulators, plan.vector))
        if across[-1].lanes < plan.vector:
            # What is left of whole vectors is one more, whose last lanes have no results.
            rest = across.pop()
            across.append(Segment(rest.start, 1, 1, 1 << (rest.unroll - 1).bit_length()))
        for cut in across:
            strip = self._loop_over(root, "strip", cut.count)
            wrappers: list[Wrapper] = []
            place = self._cut(cut, strip, "column", wrappers)
            end = Guard(place, size)
            self.over = end if cut.start + cut.count * cut.extent > size else None
            for part in cuts(lines, plan.lines):
                tile = self._loop_over(strip, "tile", part.count)
                places = {column.place: place}
                inner = list(wrappers)
                if row is not None:
                    down = Segment(part.start, part.count, part.extent, 1)
                    places[row.place] = self.first_line + self._cut(down, tile, "line", inner)
                self._tile(tile, places, inner)
                tile.close()
            strip.close()
        self.over = None

    def _cut(self, cut: Segment, loop: Scope, stem: str, wrappers: list[Wrapper]) -> Expr:
        """A place inside of a tile; the tile's loops join `wrappers`."""
        place = axis(loop.var) * cut.extent + cut.start
        for count, kind, step in ((cut.unroll, UNROLLED, cut.lanes), (cut.lanes, LANES, 1)):
            if count > 1:
                var = self._name(stem)
                self.ranges[var] = (0, count - 1)
                wrappers.append((var, count, kind))
                place = place + axis(var) * step
        return place

    def _tile(self, scope: Scope, places: dict[str, Expr], wrappers: Sequence[Wrapper]) -> None:
        leaf = open_tile(scope, places, wrappers)
        for output in self.kernel.outputs:
            self._emit(output.value, leaf)
            self._store_value(output, leaf)
        for made in leaf.chain()[: len(scope.chain()) - 1 : -1]:
            made.close()

    def _loop(
        self, base: Scope, axes: Sequence[str], body: Body, tile: Sequence[Scope] = ()
    ) -> None:
        """Taps across lines are innermost and, if they are few, written out: then an element is
        loaded once for all lines of the tile that see it."""
        row, column = self.windows.row, self.windows.column
        down = "" if row is None else row.tap
        opened, scope = self._over_planes(base)
        if self.in_turn:
            self._copy_plane(scope, self.board.band)
        if column.tap:
            scope = self._serial(scope, column.tap, self.kernel.sizes[column.tap])
            opened.append(scope)
        if down:
            var, count = self._name("down"), self.kernel.sizes[down]
            kind = UNROLLED if count <= _WRITTEN_TAPS else SERIAL
            scope = Scope(scope, var, count, kind, {down: axis(var)})
            opened.append(scope)
        self._segment_body(scope, tile, None, None, body, "a")
        for made in reversed(opened):
            made.close()

    def _init(self, acc: str, let: Let, inner: Scope) -> ir.Init:
        """One sum for all taps that are written out."""
        made = super()._init(acc, let, inner)
        row = self.windows.row
        taps = {s.var for s in inner.chain() if row is not None and row.tap in s.axes}
        return replace(made, loops=tuple(loop for loop in made.loops if loop[0] not in taps))

    def _emit(self, name: str, scope: Scope) -> None:
        if name != self.windows.factor.name:
            super()._emit(name, scope)
            return
        home = self._home(self.lets[name].axes, scope)
        if name not in home.names:
            home.names.add(name)
            home.body.append(ir.Load(name, self.scratch, self._address(home.bindings())))

    def _address(self, known: dict[str, Expr]) -> Expr:
        """Where an element of the board lies."""
        board, row, column = self.board, self.windows.row, self.windows.column
        line = constant(0)
        if row is not None:
            line = (known[row.place] - self.first_line) * row.step
            line = line + known[row.tap] * row.apart - board.first_row
        along = constant(0)
        if column.tap:
            along = known[column.tap] * column.apart - board.first_column
        phase = (along // board.between) % (column.step // board.between)
        place = (self._plane(known) * board.phases + phase) * board.rows + line
        return place * board.width + known[column.place] + along // column.step

    # -- what reaches over the end of a line -----------------------------------------------------

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        load = super()._load(let, read, scope)
        if self.over is None or self.windows.column.place not in let.axes:
            return load
        fill = 0 if load.fill is None else load.fill
        return replace(load, guards=(*load.guards, self.over), fill=fill)

    def _store_value(self, output: Output, scope: Scope) -> None:
        super()._store_value(output, scope)
        if self.over is not None:
            store = scope.body[-1]
            assert isinstance(store, ir.Store)
            scope.body[-1] = replace(store, guards=(self.over,))
