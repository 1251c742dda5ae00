"""The tile table of grouped products: one thread per entry goes through all groups, counts their
tiles, and writes down which rows of which group its tile has.
"""

from __future__ import annotations

from weft.codegen.gpu.body.statements import Code
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, both, most, wide
from weft.codegen.gpu.whole.kernel import THREADS, WholeKernel, Work, blocks_of
from weft.foundation.dtypes import SI32
from weft.foundation.grouped_rows import ENTRY, GroupSpans, GroupTiles

_AT_ONCE = 8
"""Groups whose offsets are asked for at a time."""


class GroupingKernel(WholeKernel):
    """The table of one product."""

    def table(self, op: GroupTiles) -> Work:
        outside, code, point, there = self.points(op.count + 1)
        number = code.let("number", point - 1)
        start, passed = (code.variable(stem, 0) for stem in ("start", "passed"))
        entry = [code.variable(stem, 0) for stem in ("group", "source", "first", "end")]
        turn = code.inside()
        offset = turn.load(
            self.numbers[self.inputs[0]], self.dtype, Name("at"), Lit(1), 0, constant=True
        )
        # Offsets that fall back would give a group rows that another one has: they are taken to be
        # where the one before ends.
        end = turn.let("end", most(turn.place(offset, op.rows + 1), start))
        _visit(op, turn, number, (start, passed, end), entry, Name("at"))
        code.loop("at", op.groups, turn, times=_AT_ONCE)
        # Behind the last group there may be rows of none: their tiles have the group number
        # `groups`, and their source lies behind all rows.
        _visit(op, code, number, (start, passed, Lit(op.rows)), entry, Lit(op.groups))
        head = code.inside()
        # Entry 0 is no tile: it says how many there are.
        head.set(entry[0], passed)
        code.branch(point.equals(0), head)
        for place, value in enumerate(entry):
            name = code.fresh()
            code.body.append(values.IndexValue(name, SI32, value))
            at = wide(point * ENTRY + place)
            stored = values.StoreElement(self.numbers[self.result], SI32, at, Lit(1), name)
            code.body.append(stored)
        outside.branch(there, code)
        return blocks_of(op.count + 1), THREADS, outside

    def spans(self, op: GroupSpans) -> Work:
        outside, code, point, there = self.points(op.groups)
        start, first, last = (code.variable(stem, 0) for stem in ("start", "first", "last"))
        turn = code.inside()
        offset = turn.load(
            self.numbers[self.inputs[0]], self.dtype, Name("at"), Lit(1), 0, constant=True
        )
        end = turn.let("end", most(turn.place(offset, op.rows + 1), start))
        mine = turn.inside()
        mine.set(first, start)
        mine.set(last, end)
        turn.branch(point.equals(Name("at")), mine)
        turn.set(start, end)
        code.loop("at", op.groups, turn, times=_AT_ONCE)
        for place, value in enumerate((first, last)):
            name = code.fresh()
            code.body.append(values.IndexValue(name, SI32, value))
            at = wide(point * 2 + place)
            stored = values.StoreElement(self.numbers[self.result], SI32, at, Lit(1), name)
            code.body.append(stored)
        outside.branch(there, code)
        return blocks_of(op.groups), THREADS, outside


def _visit(
    op: GroupTiles,
    code: Code,
    number: Scalar,
    counted: tuple[Scalar, Scalar, Scalar],
    entry: list[Scalar],
    group: Scalar,
) -> None:
    """One group: whether the tile `number` is one of it. `counted` are the row where it starts,
    the tiles before it, and the row where it ends."""
    start, passed, end = counted
    tiles = code.let("tiles", (end - start + (op.tile - 1)) // op.tile)
    mine = code.inside()
    first = mine.let("row", start + (number - passed) * op.tile)
    source = Lit(op.rows) if group == Lit(op.groups) else first
    for variable, value in zip(entry, (group, source, first, end), strict=True):
        mine.set(variable, value)
    code.branch(both(number >= passed, number < passed + tiles), mine)
    code.set(passed, passed + tiles)
    code.set(start, end)
