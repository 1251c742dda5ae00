"""Convolutions with 3 x 3 windows by Winograd's F(2x2, 3x3): 16 multiplications instead of 36.

    parallel piece:               `tile[0]` tiles of 2 x 2 results, `tile[1]` columns
      products = 0                [point][tile][column]
      for each `tile[2]` of the channels:
        windows = G g G'          [point][panels of nr columns][channel][nr]
        tiles = B' d B            [point][panels of mr tiles][channel][mr]
        for each of 16 points:    products += tiles x windows
      for each tile: A' products A, what follows the convolution, and the stores

         |1  0 -1  0|         |1    0    0|
    B' = |0  1  1  0|     G = |1/2  1/2  1/2|     A' = |1 1  1  0|
         |0 -1  1  0|         |1/2 -1/2  1/2|          |0 1 -1 -1|
         |0  1  0 -1|         |0    0    1|

A tile is read through the kernel's own read, guards and all, with the window at its first element.

**Error.** A point of a tile is a sum of 4 elements, one of a window at most 9/4 of the greatest, a
result a sum of 9 products. With u the unit roundoff, and over C channels,

    max |result - exact| <= 81 C (C + 13) u max|x| max|w|

where a plain sum of 9 C products has 81 C^2 u max|x| max|w|: with many channels the two bounds are
the same. On random numbers the two err about as much. An infinity may be subtracted from itself:
results whose windows have it are infinite or NaN, and no others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.blocked import Block, BlockedContraction
from weft.codegen.cpu.panels import Side, close, cuts, repeat
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, segments
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant
from weft.foundation.whole_numbers import round_up
from weft.plan.winograd import POINTS, scratch_elements, windows_of
from weft.region.form import Windows
from weft.region.forms.winograd import STEP, WINDOW
from weft.region.ir import Cast, Let, Read

# Of the bound above: a row of B' has two numbers of size 1, so that a point of a tile is a sum of 2
# × 2 elements; a row of G has sizes 1 or 3/2 in all, 9/4 both ways; A' takes three points each way.
# 9 × 4 × 9/4 = 81. Roundings that a number goes through are 2 for a tile, 4 for a window, 1 for its
# product, C - 1 for the sum over channels and 4 for the result: C + 10, and 13 leave room for what
# is of second order.
SIDE: Final = STEP + WINDOW - 1
HALF: Final = "half"
Step: TypeAlias = tuple[str, str, str, str]
"""The name of a value, a function and its two operands."""
Line: TypeAlias = Callable[[Sequence[str], str], tuple[list[Step], list[str]]]
"""A transform along one line of a square: its steps, and the names of its four points."""


class WinogradConvolution(BlockedContraction):
    """The nest of one convolution kernel."""

    packs_rows = False

    windows: Windows

    def routine(self, name: str) -> ir.Routine:
        found = windows_of(self.kernel)
        if isinstance(found, str):
            raise InternalError(f"{self.kernel.name}: {found}")
        self.windows = found
        return super().routine(name)

    def _begin(self) -> None:
        super()._begin()
        summed, first = self.windows.channels, self.a.scratch
        self.a = replace(self.a, summed=summed)
        self.b = replace(self.b, summed=summed)
        self.totals, self.unturned = self.sums, first + 3

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        block = self.blocking
        tile = (block.block_rows, block.block_columns, block.depth)
        channels = self._size(self.windows.channels)
        sizes = scratch_elements(tile, (block.rows, block.columns), channels)
        return tuple((self.reduce.dtype, size) for size in sizes)

    def _rows(self) -> int:
        return self._size(self.roles.m) // STEP**2

    def _block(self, root: Scope, block: Block) -> None:
        self._clear(root, self.sums, block, 0)
        for cut in cuts(self._size(self.windows.channels), self.blocking.depth):
            scope = Scope(root, self._name("cb"), cut.count, SERIAL)
            start = axis(scope.var) * cut.extent + cut.start
            self._transform_windows(scope, block, start, cut.extent)
            self._transform_tiles(scope, block, start, cut.extent)
            point = Scope(scope, self._name("e"), POINTS, SERIAL)
            self._multiply(point, block.rows, block.columns, cut.extent, axis(point.var))
            point.close()
            scope.close()
        self._finish_block(root, block)

    def _each_sum(self, root: Scope, block: Block) -> tuple[Scope, Expr]:
        lanes = self.blocking.lanes
        total = POINTS * round_up(block.rows, self.a.width) * round_up(block.columns, self.b.width)
        loop = Scope(root, self._name("z"), total // lanes, SERIAL)
        inner = Scope(loop, self._name("zl"), lanes, LANES)
        return inner, axis(loop.var) * lanes + axis(inner.var)

    # -- windows ---------------------------------------------------------------------------------

    def _transform_windows(self, scope: Scope, block: Block, start: Expr, depth: int) -> None:
        """All panels of columns: the whole ones in a loop, then the last, filled up with zeros."""
        whole, rest = divmod(block.columns, self.b.width)
        if whole:
            panel = Scope(scope, self._name("p"), whole, SERIAL)
            number, width = axis(panel.var), self.b.width
            self._windows_of_panel(panel, block, number, width, start, depth)
            panel.close()
        if rest:
            self._windows_of_panel(scope, block, constant(whole), rest, start, depth)
            self._fill(scope, self.b, rest, depth, whole, self._panels(block.columns, self.b))

    def _windows_of_panel(
        self, scope: Scope, block: Block, panel: Expr, width: int, start: Expr, depth: int
    ) -> None:
        panels = self._panels(block.columns, self.b)
        deep = Scope(scope, self._name("c"), depth, SERIAL)
        for cut in segments(width, AxisTiling(1, self.lanes)):
            each = Scope(deep, self._name("w"), cut.count * cut.unroll, SERIAL)
            inner = self._lanes(each, cut.lanes)
            place = axis(each.var) * cut.lanes + axis(inner.var) + cut.start
            inner.axes.update(
                self._unflatten(self.roles.n, block.column + panel * self.b.width + place)
            )
            inner.axes.update(self._unflatten(self.b.summed, start + axis(deep.var)))
            grid = self._loads(inner, self.b.value, WINDOW, self._at_window)
            for number, value in enumerate(self._transform_square(inner, grid, _window_line)):
                base = (panel + number * panels) * (depth * self.b.width)
                address = base + axis(deep.var) * self.b.width + place
                inner.body.append(ir.Store(self.b.scratch, address, value, ()))
            close(inner, deep)
        deep.close()

    def _at_window(self, row: int, column: int) -> dict[str, Expr]:
        found = self.windows
        return {found.window_rows: constant(row), found.window_columns: constant(column)}

    # -- tiles -----------------------------------------------------------------------------------

    def _transform_tiles(self, scope: Scope, block: Block, start: Expr, depth: int) -> None:
        """All panels of tiles, likewise."""
        whole, rest = divmod(block.rows, self.a.width)
        if whole:
            panel = Scope(scope, self._name("p"), whole, SERIAL)
            self._tiles_of_panel(panel, block, axis(panel.var), self.a.width, start, depth)
            panel.close()
        if rest:
            self._tiles_of_panel(scope, block, constant(whole), rest, start, depth)
            self._fill(scope, self.a, rest, depth, whole, self._panels(block.rows, self.a))

    def _tiles_of_panel(
        self, scope: Scope, block: Block, panel: Expr, width: int, start: Expr, depth: int
    ) -> None:
        """Tile after tile, with lanes along the channels, as the image lies in memory; then turned
        round, with the tiles of a panel side by side."""
        each = Scope(scope, self._name("w"), width, SERIAL)
        tile = self._tile_axes(block.row + panel * self.a.width + axis(each.var))
        for cut in segments(depth, AxisTiling(1, self.lanes)):
            loop = Scope(each, self._name("c"), cut.count * cut.unroll, SERIAL)
            inner = self._lanes(loop, cut.lanes)
            place = axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            inner.axes.update(tile | self._unflatten(self.a.summed, start + place))
            grid = self._loads(inner, self.a.value, SIDE, self._in_tile(tile))
            for number, value in enumerate(self._transform_square(inner, grid, _tile_line)):
                address = (axis(each.var) + number * self.a.width) * depth + place
                inner.body.append(ir.Store(self.unturned, address, value, ()))
            close(inner, each)
        each.close()
        self._turn(scope, panel, width, depth, self._panels(block.rows, self.a))

    def _turn(self, scope: Scope, panel: Expr, width: int, depth: int, panels: int) -> None:
        """One panel from [point][tile][channel] to [point][channel][tile]."""
        point = Scope(scope, self._name("e"), POINTS, SERIAL)
        base = (panel + axis(point.var) * panels) * (depth * self.a.width)
        for cut in segments(depth, AxisTiling(1, self.lanes)):
            loop = Scope(point, self._name("c"), cut.count * cut.unroll, SERIAL)
            each = Scope(loop, self._name("w"), width, UNROLLED)
            inner = self._lanes(each, cut.lanes)
            place = axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            source = (axis(each.var) + axis(point.var) * self.a.width) * depth + place
            inner.body.append(ir.Load("turned", self.unturned, source))
            close(inner, loop)
            # All loads before all stores: then LLVM stores neighbours together.
            target = base + place * self.a.width + axis(each.var)
            stored = ir.Store(self.a.scratch, target, "turned", ())
            lanes = repeat(inner.var, inner.count, inner.kind, stored)
            loop.body.append(repeat(each.var, each.count, UNROLLED, lanes))
            loop.close()
        point.close()

    def _tile_axes(self, tile: Expr) -> dict[str, Expr]:
        """Where a tile begins, from its number; the axes of the window stand at 0."""
        found, sizes = self.windows, self.kernel.sizes
        down, across = sizes[found.rows] // STEP, sizes[found.columns] // STEP
        row, column = tile // across, tile % across
        places = {found.columns: column * STEP}
        places[found.rows] = (row % down if found.images else row) * STEP
        places |= self._unflatten(found.images, row // down) if found.images else {}
        return places | self._at_window(0, 0)

    def _in_tile(self, tile: dict[str, Expr]) -> Callable[[int, int], dict[str, Expr]]:
        found = self.windows

        def place(row: int, column: int) -> dict[str, Expr]:
            return {
                found.rows: tile[found.rows] + row,
                found.columns: tile[found.columns] + column,
            }

        return place

    # -- transforms ------------------------------------------------------------------------------

    def _loads(
        self, inner: Scope, value: str, side: int, place: Callable[[int, int], dict[str, Expr]]
    ) -> list[list[str]]:
        """A square of an operand, element by element, widened where it has to be."""
        names: list[list[str]] = []
        casts, let = self._casts(value)
        if not isinstance(let.expr, Read):
            raise InternalError("only a read has tiles")
        for row in range(side):
            names.append([])
            for column in range(side):
                inner.axes.update(place(row, column))
                name = f"x{row}{column}"
                inner.body.append(replace(self._load(let, let.expr, inner), name=name))
                for step, dtype in enumerate(casts):
                    inner.body.append(ir.Let(f"{name}w{step}", dtype, "cast", (name,)))
                    name = f"{name}w{step}"
                names[-1].append(name)
        return names

    def _casts(self, value: str) -> tuple[list[DType], Let]:
        """The casts between an operand and its read, and the read."""
        casts: list[DType] = []
        let = self.lets[value]
        while isinstance(let.expr, Cast):
            casts.insert(0, let.dtype)
            let = self.lets[let.expr.x]
        return casts, let

    def _transform_square(self, inner: Scope, grid: list[list[str]], line: Line) -> list[str]:
        """A square transformed along its columns, then along its rows: the names of 16 points."""
        half = ir.Let(HALF, self.reduce.dtype, "const", value=0.5)
        inner.body += [half] if len(grid) == WINDOW else []
        down = []
        for column in range(len(grid)):
            # The transform is T d T': columns first and rows then come to the same as the other way
            # round but for rounding, and all kernels have this order.
            steps, points = line([row[column] for row in grid], f"t{column}")
            self._steps_of_line(inner, steps)
            down.append(points)
        names: list[str] = []
        for row in range(SIDE):
            steps, points = line([column[row] for column in down], f"v{row}")
            self._steps_of_line(inner, steps)
            names += points
        return names

    def _steps_of_line(self, inner: Scope, steps: Sequence[Step]) -> None:
        inner.body += [ir.Let(n, self.reduce.dtype, fn, (x, y)) for n, fn, x, y in steps]

    # -- results ---------------------------------------------------------------------------------

    def _finish_block(self, root: Scope, block: Block) -> None:
        """Tile by tile: each of its results is gathered from the points, and everything after the
        convolution is computed."""
        over = Scope(root, self._name("i"), block.rows, SERIAL)
        tile = self._tile_axes(block.row + axis(over.var))
        for row, column in product(range(STEP), repeat=2):
            places = self._in_tile(tile)(row, column)
            for cut in segments(block.columns, AxisTiling(1, self.lanes)):
                loop = Scope(over, self._name("j"), cut.count * cut.unroll, SERIAL)
                inner = self._lanes(loop, cut.lanes)
                place = axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
                images = {name: tile[name] for name in self.windows.images}
                inner.axes.update(images | places)
                inner.axes.update(self._unflatten(self.roles.n, block.column + place))
                self._gather(inner, block, axis(over.var), place, row, column)
                self._store(self.kernel.outputs, inner)
                close(inner, over)
        over.close()

    def _gather(
        self, inner: Scope, block: Block, tile: Expr, place: Expr, row: int, column: int
    ) -> None:
        """One result of a tile, from nine of its points."""
        rows, width = round_up(block.rows, self.a.width), round_up(block.columns, self.b.width)
        sums = []
        for i in range(row, row + WINDOW):
            names = []
            for j in range(column, column + WINDOW):
                address = ((i * SIDE + j) * rows + tile) * width + place
                names.append(f"m{i}{j}")
                inner.body.append(ir.Load(names[-1], self.sums, address))
            sums.append(f"r{i}")
            self._steps_of_line(inner, _result_line(names, sums[-1], column))
        self._steps_of_line(inner, _result_line(sums, self.reduce.name, row))
        inner.names.add(self.reduce.name)

    # -- loops -----------------------------------------------------------------------------------

    def _lanes(self, around: Scope, lanes: int) -> Scope:
        return Scope(around, self._name("l"), lanes, LANES if lanes > 1 else UNROLLED)

    def _panels(self, count: int, side: Side) -> int:
        return math.ceil(count / side.width)

    def _fill(
        self, scope: Scope, side: Side, used: int, depth: int, panel: int, panels: int
    ) -> None:
        """Zeros where the last panel has no more columns or tiles, at every point."""
        point = Scope(scope, self._name("e"), POINTS, SERIAL)
        loop = Scope(point, self._name("c"), depth, SERIAL)
        each = Scope(loop, self._name("w"), side.width - used, UNROLLED)
        base = (axis(point.var) * panels + panel) * (depth * side.width) + used
        address = base + axis(loop.var) * side.width + axis(each.var)
        each.body += [
            ir.Let("zero", self.reduce.dtype, "const", value=0),
            ir.Store(side.scratch, address, "zero", ()),
        ]
        close(each, scope)


def _tile_line(d: Sequence[str], name: str) -> tuple[list[Step], list[str]]:
    """A row of B' d."""
    points = [f"{name}{number}" for number in range(SIDE)]
    steps = [
        (points[0], "sub", d[0], d[2]),
        (points[1], "add", d[1], d[2]),
        (points[2], "sub", d[2], d[1]),
        (points[3], "sub", d[1], d[3]),
    ]
    return steps, points


def _window_line(g: Sequence[str], name: str) -> tuple[list[Step], list[str]]:
    """A row of G g."""
    outer, more, less = (f"{name}{part}" for part in ("o", "m", "l"))
    points = [g[0], f"{name}1", f"{name}2", g[2]]
    steps = [
        (outer, "add", g[0], g[2]),
        (more, "add", outer, g[1]),
        (less, "sub", outer, g[1]),
        (points[1], "mul", more, HALF),
        (points[2], "mul", less, HALF),
    ]
    return steps, points


def _result_line(m: Sequence[str], name: str, which: int) -> list[Step]:
    """A row of A' m: of the first three points, or of the last three."""
    fn = "sub" if which else "add"
    return [(f"{name}p", fn, m[0], m[1]), (name, fn, f"{name}p", m[2])]
