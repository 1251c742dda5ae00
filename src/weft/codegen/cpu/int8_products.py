"""Matrix products of 8-bit integers by dot-product instructions, four products at a time.

    word = four neighbours along the summed axes, in one number of 32 bits
    registers (mr x nr) += dot(word of A, word of B)

Both operands are packed as words, panels and blocks being those of any blocked contraction; what a
last word lacks is zero. A word of signed bytes is signed, and the two need not agree. The sums are
exact: they wrap as 32-bit numbers do.
"""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.cpu import ir
from weft.codegen.cpu.accept import WORD
from weft.codegen.cpu.blocked import BlockedContraction
from weft.codegen.cpu.panels import Cut, Side, close
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, segments
from weft.foundation.dtypes import SI32, UI32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant
from weft.region.ir import Read


class WordContraction(BlockedContraction):
    """The nest of one contraction of bytes."""

    packs_rows = False

    @property
    def per_word(self) -> int:
        """Numbers that a word is made of."""
        return WORD

    def _factors(self) -> tuple[str, str]:
        return self.roles.lhs, self.roles.rhs

    def _packed_dtype(self, side: Side) -> DType:
        return SI32 if self.lets[side.value].dtype.is_signed else UI32

    def _steps(self, depth: int) -> int:
        return -(-depth // self.per_word)

    def _product(self, side: Side) -> tuple[ir.Stmt, ...]:
        """`tile += dot(a, b)`, in one instruction where there is one."""
        return (
            ir.Current("before", "tile"),
            ir.Let("after", self.reduce.dtype, "dot", ("before", "a", "b")),
            ir.Assign("tile", "after"),
        )

    def _pack_side(
        self, scope: Scope, side: Side, start: Expr, extent: int, k: Expr, depth: int
    ) -> None:
        """All panels of one side, the last filled up with zeros, a row of words of each in turn."""
        whole, rest = divmod(extent, side.width)
        size = self._steps(depth) * side.width
        for cut, used in _word_cuts(depth, self.per_word):
            rows = Scope(scope, self._name("k"), cut.count, SERIAL)
            word = axis(rows.var) + cut.start
            if whole:
                panel = Scope(rows, self._name("p"), whole, SERIAL)
                number = axis(panel.var)
                place = number * size + word * side.width
                first = start + number * side.width
                self._row_of_words(
                    panel, side, first, side.width, k + word * self.per_word, used, place
                )
                panel.close()
            if rest:
                place = constant(whole * size) + word * side.width
                first = start + whole * side.width
                self._row_of_words(rows, side, first, rest, k + word * self.per_word, used, place)
            rows.close()
        if rest:
            self._zeros(scope, side, rest, self._steps(depth), whole)

    def _row_of_words(
        self, scope: Scope, side: Side, start: Expr, width: int, k: Expr, used: int, base: Expr
    ) -> None:
        """One word for each element across a panel: vectors where these are neighbours in memory,
        else one by one, so that the bytes of a word can be loaded at once."""
        lanes = self.lanes if self._runs_along(side) else 1
        for cut in segments(width, AxisTiling(1, lanes)):
            each = Scope(scope, self._name("w"), cut.count * cut.unroll, UNROLLED)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(each, self._name("wl"), cut.lanes, kind)
            place = axis(each.var) * cut.lanes + axis(inner.var) + cut.start
            inner.axes.update(self._unflatten(side.axes, start + place))
            for number in range(self.per_word):
                inner.body.append(self._byte(inner, side, number, used, k))
            names = tuple(
                self._packed_part(inner, side, f"byte{number}") for number in range(self.per_word)
            )
            inner.body.append(ir.Let("word", self._packed_dtype(side), "word", names))
            inner.body.append(ir.Store(side.scratch, base + place + side.offset, "word", ()))
            close(inner, scope)

    def _packed_part(self, inner: Scope, side: Side, value: str) -> str:
        """What of a value is packed: all of it."""
        return value

    def _byte(self, inner: Scope, side: Side, number: int, used: int, k: Expr) -> ir.Stmt:
        let = self.lets[side.value]
        if number >= used:
            return ir.Let(f"byte{number}", let.dtype, "const", value=0)
        if not isinstance(let.expr, Read):
            raise InternalError("only reads are packed as words")
        inner.axes.update(self._unflatten(side.summed, k + number))
        return replace(self._load(let, let.expr, inner), name=f"byte{number}")


def _word_cuts(depth: int, each: int) -> list[tuple[Cut, int]]:
    """Whole words, then one that lacks bytes; with each how many bytes it has."""
    whole, rest = divmod(depth, each)
    found = [(Cut(0, whole, 1), each)] if whole else []
    return [*found, (Cut(whole, 1, 1), rest)] if rest else found
