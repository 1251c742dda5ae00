"""Matrix products on AMX tiles: how the loops are blocked, and the one statement that multiplies
tiles.

    A: [rows][k]            B: [panels of 32 columns][words along k][32]

A word is two neighbours of bf16 along the summed axis, or four of 8 bits. What a block lacks of
whole tiles, in any direction, is zero.

A number of f16 has eleven significant bits: it is the sum of two of bf16, which have eight. All
first parts are packed, then all second ones, and every part of A meets every part of B: f32 adds up
the same products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.int8_products import WordContraction
from weft.codegen.cpu.panels import ZERO, Side, close, cuts, halves
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tile_code import EDGE, STEP
from weft.foundation.dtypes import BF16, F16, F32, UI32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant
from weft.foundation.whole_numbers import round_up
from weft.region.ir import Read

_TURNED: Final = 16
"""Rows, and elements along k, that are turned together where rows lie across memory."""


class TileContraction(WordContraction):
    """The nest of one contraction by tiles."""

    # A step is one statement, which stores or adds wherever it stands.
    shares_steps = False
    part: int = 0
    """Which part of numbers is packed."""

    @property
    def per_word(self) -> int:
        return 4 // self.lets[self.a.value].dtype.storage_bytes

    @property
    def parts(self) -> int:
        """Numbers that the tiles know, of which one of an operand is the sum."""
        return 2 if self.lets[self.a.value].dtype is F16 else 1

    def _packed_dtype(self, side: Side) -> DType:
        dtype = BF16 if self.parts > 1 else self.lets[side.value].dtype
        if side.scratch != self.b.scratch:
            return dtype
        # The side whose words are columns is stored a word at a time; rows lie as their elements
        # do.
        return UI32 if dtype is BF16 else super()._packed_dtype(side)

    def _steps(self, depth: int) -> int:
        return round_up(-(-depth // self.per_word), STEP)

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        (a, rows), (b, columns), *others = super()._scratch()
        if not self._runs_along(self.b):
            depth = self._steps(self.blocking.depth) * self.per_word
            # A panel of columns before it is turned.
            others.append((BF16 if self.parts > 1 else self.lets[self.b.value].dtype, EDGE * depth))
        return (a, rows * self.per_word * self.parts), (b, columns * self.parts), *others

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
        if isinstance(adds, str):
            raise InternalError("a step of tiles stores its sums, or adds to them")
        sizes = (round_up(rows, EDGE), round_up(columns, EDGE), self._steps(depth))
        operands = (self.sums, self.a.scratch, self.b.scratch)
        scope.body.append(ir.Tiles(*operands, *sizes, adds, self.parts))

    # -- packing ---------------------------------------------------------------------------------

    def _pack_side(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        numbers = self.per_word if side is self.a else 1
        size = round_up(extent, EDGE) * self._steps(depth) * numbers
        for part in range(self.parts):
            self.part = part
            own = replace(side, offset=part * size)
            self._pack_part(scope, own, start, extent, k, depth)

    def _packed_part(self, inner: Scope, side: Side, value: str) -> str:
        """The number of bf16 that has the upper bits, or what is then left: three bits at most, so
        that nothing is cut off of it."""
        if self.parts == 1:
            return value
        wide, high, near, rest, low = (
            f"{value}.{name}" for name in ("wide", "high", "near", "rest", "low")
        )
        inner.body += [ir.Let(wide, F32, "cast", (value,)), ir.Let(high, BF16, "cut", (wide,))]
        if self.part == 0:
            return high
        inner.body += [
            ir.Let(near, F32, "cast", (high,)),
            ir.Let(rest, F32, "sub", (wide, near)),
            ir.Let(low, BF16, "cut", (rest,)),
        ]
        return low

    def _pack_part(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        if side.scratch == self.a.scratch:
            self._pack_rows(scope, side, start, extent, k, depth)
            return
        if not self._runs_along(side):
            self._turn_columns(scope, side, start, extent, k, depth)
            return
        super()._pack_side(scope, side, start, extent, k, depth)
        filled, steps = -(-depth // self.per_word), self._steps(depth)
        if filled < steps:
            panel = Scope(scope, self._name("p"), -(-extent // side.width), SERIAL)
            first = axis(panel.var) * (steps * side.width) + filled * side.width
            self._clear_run(panel, side, first, (steps - filled) * side.width)
            panel.close()

    def _turn_columns(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """Columns that lie along k, as rows are packed, and then turned, a panel at a time."""
        rows, steps = replace(side, scratch=self.totals + 1, offset=0), self._steps(depth)
        for cut in cuts(extent, EDGE):
            panel = Scope(scope, self._name("p"), cut.count, SERIAL)
            first = axis(panel.var) * EDGE + cut.start
            self._pack_rows(panel, rows, start + first, cut.extent, k, depth)
            place = first * steps + side.offset
            panel.body.append(ir.Turn(side.scratch, place, rows.scratch, steps))
            panel.close()

    def _pack_rows(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """Rows along k, then zeros up to whole tiles, and rows of zeros."""
        long = self._steps(depth) * self.per_word
        whole = extent // _TURNED * _TURNED if self._lies_turned(side) else 0
        if whole:
            self._turned_rows(scope, side, start, whole, k, depth)
        if whole < extent:
            each = Scope(scope, self._name("w"), extent - whole, SERIAL)
            row = axis(each.var) + whole
            for cut in halves(depth, self.lanes * self.per_word):
                self._along(each, side, start + row, k, row * long, cut.start, cut.count, cut.lanes)
            close(each, scope)
        if depth < long:
            each = Scope(scope, self._name("w"), extent, SERIAL)
            self._clear_run(each, side, axis(each.var) * long + depth, long - depth)
            each.close()
        # Rows that are made up are multiplied, and looked at (`tile_code`), as others are: zeros
        # are never weak, what memory held before might be.
        if extent % EDGE:
            self._clear_run(
                scope, side, constant(extent * long), (round_up(extent, EDGE) - extent) * long
            )

    def _along(
        self,
        scope: Scope,
        side: Side,
        row: Expr,
        k: Expr,
        base: Expr,
        start: int,
        count: int,
        lanes: int,
    ) -> None:
        """Vectors of a row."""
        loop = Scope(scope, self._name("kt"), count, SERIAL)
        inner = Scope(loop, self._name("kl"), lanes, LANES if lanes > 1 else UNROLLED)
        along = axis(loop.var) * lanes + axis(inner.var) + start
        self._place(inner, side, row, k + along)
        self._emit(side.value, inner)
        packed = self._packed_part(inner, side, side.value)
        inner.body.append(ir.Store(side.scratch, base + along + side.offset, packed, ()))
        close(inner, scope)

    def _lies_turned(self, side: Side) -> bool:
        read = self.lets[side.value].expr
        return isinstance(read, Read) and not read.guards and self._runs_along(side)

    def _turned_rows(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """Rows that lie across memory: read along them, and turned."""
        long = self._steps(depth) * self.per_word
        whole = depth // _TURNED * _TURNED
        tile = Scope(scope, self._name("w"), extent // _TURNED, SERIAL)
        loop = Scope(tile, self._name("kt"), whole // _TURNED, SERIAL)
        deep = Scope(loop, self._name("wu"), _TURNED, UNROLLED)
        inner = Scope(deep, self._name("kl"), _TURNED, LANES)
        self.turned = deep.var
        row = axis(tile.var) * _TURNED + axis(deep.var)
        along = axis(loop.var) * _TURNED + axis(inner.var)
        self._place(inner, side, start + row, k + along)
        self._emit(side.value, inner)
        packed = self._packed_part(inner, side, side.value)
        inner.body.append(ir.Store(side.scratch, row * long + along + side.offset, packed, ()))
        close(inner, tile)
        self.turned = ""
        if whole < depth:
            each = Scope(tile, self._name("wr"), _TURNED, SERIAL)
            row = axis(tile.var) * _TURNED + axis(each.var)
            self._along(each, side, start + row, k, row * long, whole, depth - whole, 1)
            each.close()
        tile.close()

    def _clear_run(self, scope: Scope, side: Side, first: Expr, count: int) -> None:
        """Zeros, so many from there on."""
        for cut in halves(count, self.lanes * 2):
            loop = Scope(scope, self._name("z"), cut.count, SERIAL)
            inner = Scope(loop, self._name("zl"), cut.lanes, LANES if cut.lanes > 1 else UNROLLED)
            place = first + axis(loop.var) * cut.lanes + axis(inner.var) + cut.start + side.offset
            inner.body += [
                ir.Let("zero", self._packed_dtype(side), "const", value=0),
                ir.Store(side.scratch, place, "zero", ()),
            ]
            close(inner, scope)
