"""Scatter.

*As updates come.* The rows of the result are dealt to groups of threads; the threads of a group,
one for each column, look at all updates in order and apply those to their rows. So every element
gets its updates in order, whatever runs when, and no two threads touch one element.

*Sorted updates.* A thread has one update and one column. Where its update is the first of its
place, it takes the others of that place, which follow, one after the other.
"""

from __future__ import annotations

from weft.codegen.gpu import values
from weft.codegen.gpu.scalar import Lit, Name, Scalar, both, wide
from weft.codegen.gpu.statements import Code, split
from weft.codegen.gpu.whole_kernel import THREADS, WholeKernel, Work, blocks_of
from weft.foundation.whole_ops import Gathered, Scatter


class ScatterKernel(WholeKernel):
    """One scatter."""

    def scatter(self, op: Scatter) -> Work:
        columns = op.outer * op.width
        room = self.target.limits.units * 1024
        groups = max(1, min(op.rows, room // max(1, columns)))
        rows = -(-op.rows // groups)
        groups = -(-op.rows // rows)
        count = columns * groups
        outside, code, point, there = self.points(count)
        column, rest = split(code, point, op.width, count)
        group, outer = split(code, rest, groups, count // op.width)
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

    def gathered(self, op: Gathered) -> Work:
        count = op.outer * op.count * op.width
        outside, code, point, there = self.points(count)
        column, rest = split(code, point, op.width, count)
        k, outer = split(code, rest, op.count, count // op.width)
        row = self._row_of(op, code, outer, k)
        begins = self._row_of(op, code, outer, k - (k > 0)).equals(row).equals(0)
        first = code.inside()
        end = self._end(op, first, outer, k, row)
        self._combined(op, first, outer, (k, end), row, column)
        code.branch(k.equals(0) | begins, first)
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    def _update_at(self, op: Gathered, code: Code, outer: Scalar, k: Scalar) -> Scalar:
        """The number of the k-th update in order."""
        order = self.inputs[3]
        dtype, place = self.tensors[order].dtype, code.fresh("update")
        found = code.load(self.numbers[order], dtype, outer * op.count + k, Lit(1), 0, True)
        code.body.append(values.PlaceOf(place, found, op.count))
        return outer * op.count + Name(place)

    def _row_of(self, op: Gathered, code: Code, outer: Scalar, k: Scalar) -> Scalar:
        """Where the k-th update in order goes."""
        index, row = self.inputs[1], code.fresh("row")
        update = self._update_at(op, code, outer, k)
        dtype = self.tensors[index].dtype
        found = code.load(self.numbers[index], dtype, update, Lit(1), 0, True)
        code.body.append(values.PlaceOf(row, found, op.rows))
        return Name(row)

    def _end(self, op: Gathered, code: Code, outer: Scalar, k: Scalar, row: Scalar) -> Scalar:
        """The first update behind the k-th, in order, that goes elsewhere: by halves."""
        low, high = code.variable("low", k + 1), code.variable("high", op.count)
        turn = code.inside()
        mid = turn.let("mid", (low + high) // 2)
        stays = turn.let("stays", self._row_of(op, turn, outer, mid).equals(row))
        turn.set(low, low + stays * (mid + 1 - low))
        turn.set(high, mid + stays * (high - mid))
        halving = code.inside()
        halving.branch(low < high, turn)
        code.loop("halving", op.count.bit_length(), halving)
        return low

    def _combined(
        self,
        op: Gathered,
        code: Code,
        outer: Scalar,
        span: tuple[Scalar, Scalar],
        row: Scalar,
        column: Scalar,
    ) -> None:
        """The updates of a span into one element, which is rounded once."""
        target, source = self.numbers[self.result], self.numbers[self.inputs[2]]
        offset = code.let("at", (outer * op.rows + row) * op.width + column)
        dtype = self.wide_dtype
        total = code.widened(self.dtype, code.load(target, self.dtype, offset, Lit(1), 0, False))
        code.body += [
            values.Variable("total", dtype, 0.0 if dtype.is_float else 0),
            values.Assign("total", total, Lit(1)),
        ]
        turn = code.inside()
        update = self._update_at(op, turn, outer, Name("k"))
        new = turn.load(source, self.dtype, update * op.width + column, Lit(1), 0, True)
        new = turn.widened(self.dtype, new)
        if op.fn != "replace":
            new = turn.compute(dtype, op.fn, "total", new)
        turn.body.append(values.Assign("total", new, Lit(1)))
        code.loop("k", span[1], turn, times=4, start=span[0])
        self.write(code, offset, Lit(1), "total")
