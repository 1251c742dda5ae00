"""Scatter of updates that are not sorted.

*In any order.* Integers that are added, or of which the most or the least counts: a thread for each
element of the updates combines it with its place in one step. The result has the same bits, in
whatever order they come.

*In order.* Else the rows of the result are dealt to groups of threads; the threads of a group, one
for each column, look at all updates in order and apply those to their rows. So every element gets
its updates in order, whatever runs when, and no two threads touch one element.
"""

from __future__ import annotations

from weft.codegen.gpu.body.statements import Code, split_number
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, both, wide
from weft.codegen.gpu.whole.kernel import THREADS, WholeKernel, Work, blocks_of
from weft.foundation.whole_ops import Scatter


class ScatterKernel(WholeKernel):
    """One scatter."""

    def scatter(self, op: Scatter) -> Work:
        if op.has_any_order(self.dtype):
            return self._in_any_order(op)
        return self._in_order(op)

    def _in_any_order(self, op: Scatter) -> Work:
        target, index, source = (self.numbers[name] for name in (self.result, *self.inputs[1:]))
        count = op.outer * op.count * op.width
        outside, code, point, there = self.points(count)
        column, update = split_number(code, point, op.width, count)
        _, outer = split_number(code, update, op.count, op.outer * op.count)
        dtype, at = self.tensors[self.inputs[1]].dtype, point if op.each else update
        row = code.place(code.load(index, dtype, at, Lit(1), 0, True), op.rows)
        new = code.load(source, self.dtype, point, Lit(1), 0, True)
        offset = wide((outer * op.rows + row) * op.width + column)
        combine = values.CombineElement(target, self.dtype, op.fn, offset, Lit(1), new)
        code.body.append(combine)
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    def _in_order(self, op: Scatter) -> Work:
        columns = op.outer * op.width
        room = self.target.limits.units * 1024
        # About 1024 threads for each unit: every group reads all updates' places, so more of them
        # than keep the machine busy only read more.
        groups = max(1, min(op.rows, room // max(1, columns)))
        rows = -(-op.rows // groups)
        groups = -(-op.rows // rows)
        count = columns * groups
        outside, code, point, there = self.points(count)
        column, rest = split_number(code, point, op.width, count)
        group, outer = split_number(code, rest, groups, count // op.width)
        first = code.let("first", group * rows)
        self._updates(op, code, outer, column, first, rows)
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    def _updates(
        self, op: Scatter, code: Code, outer: Scalar, column: Scalar, first: Scalar, rows: int
    ) -> None:
        """All updates, in order, to the rows from `first` on."""
        target, index, source = (self.numbers[name] for name in (self.result, *self.inputs[1:]))
        turn = code.inside()
        update = turn.let("update", outer * op.count + Name("m"))
        element = turn.let("element", update * op.width + column)
        place = turn.load(
            index, self.tensors[self.inputs[1]].dtype, element if op.each else update,
            Lit(1), 0, True,
        )  # fmt: skip
        row = turn.fresh("row")
        turn.body.append(values.PlaceOf(row, place, op.rows))
        mine = turn.inside()
        offset = mine.let("at", (outer * op.rows + Name(row)) * op.width + column)
        new = mine.load(source, self.dtype, element, Lit(1), 0, True)
        if op.fn != "replace":
            old = mine.load(target, self.dtype, offset, Lit(1), 0, False)
            new = mine.compute(self.dtype, op.fn, old, new)
        mine.body.append(values.StoreElement(target, self.dtype, wide(offset), Lit(1), new))
        owned: Scalar = Lit(1)
        if rows < op.rows:
            owned = both(Name(row) >= first, Name(row) < first + rows)
        turn.branch(owned, mine)
        code.loop("m", op.count, turn, times=4)
