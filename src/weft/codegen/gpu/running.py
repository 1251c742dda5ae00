"""Running reductions.

A thread goes along a column; or, where columns are long and few, a block, a stretch of one element
a thread at a time: prefixes within warps by exchange, those of the warps through shared memory, and
what came before the stretch in a register. Columns that are very long come in parts: each has been
gone along by itself, their ends are taken together, and what came before a part is combined with
every element of it.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.element import Number
from weft.codegen.gpu.reductions import FUNCTIONS
from weft.codegen.gpu.scalar import BLOCK, LANE, THREAD, WARP, Lit, Name, Scalar, wide
from weft.codegen.gpu.statements import Code, split
from weft.codegen.gpu.whole_kernel import THREADS, WholeKernel, Work, blocks_of
from weft.foundation.dtypes import DType
from weft.foundation.functions import identity
from weft.foundation.whole_ops import Continued, Ends, Running

_WARP: Final = 32
_SLOT: Final = 8
"""Bytes of a value in shared memory, of any dtype."""
_LONG: Final = 512
"""Elements of a column from which on a block goes along it, where there are few columns."""
_LONG_ROW: Final = 16
"""The same of columns whose elements lie side by side, for each wave of blocks: in the time of a
wave a thread goes along so many."""
_WAVE: Final = 1024
"""Blocks that run at once."""
_VERY_LONG: Final = 4096
_MANY_COLUMNS: Final = 1 << 15


class RunningKernel(WholeKernel):
    """One running reduction, or a step of one in parts."""

    def work(self, op: Running | Ends | Continued) -> Work:
        match op:
            case Ends():
                return self.ends(op)
            case Continued():
                return self.continued(op)
            case Running() if self.goes_by_blocks(op):
                return self.running_blocks(op)
            case Running():
                return self.running_threads(op)

    def start(self, fn: str) -> Number:
        # Beginning at -0 leaves the first element as it is, whatever its sign.
        if fn == "sum" and self.dtype.is_float:
            return -0.0
        found = identity(fn, self.dtype)
        return float(found) if self.dtype.is_float else int(found)

    def element(self, op: Running, outer: Scalar, n: Scalar, column: Scalar) -> Scalar:
        step = (n * -1) + (op.length - 1) if op.reverse else n
        return (outer * op.length + step) * op.width + column

    def read(self, code: Code, offset: Scalar, guard: Scalar, fill: Number) -> str:
        found = code.load(self.numbers[self.inputs[0]], self.dtype, offset, guard, fill, True)
        return code.widened(self.dtype, found)

    def running_threads(self, op: Running) -> Work:
        count = op.outer * op.width
        outside, code, point, there = self.points(count)
        column, outer = split(code, point, op.width, count)
        code.body.append(values.Variable("total", self.wide_dtype, self.start(op.fn)))
        turn = code.inside()
        offset = turn.let("at", self.element(op, outer, Name("n"), column))
        x = self.read(turn, offset, Lit(1), 0)
        new = turn.compute(self.wide_dtype, FUNCTIONS[op.fn], "total", x)
        turn.body.append(values.Assign("total", new, Lit(1)))
        self.write(turn, offset, Lit(1), new)
        code.loop("n", op.length, turn, times=4)
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    @staticmethod
    def goes_by_blocks(op: Running) -> bool:
        columns = op.outer * op.width
        long = _LONG if op.width > 1 else _LONG_ROW * -(-columns // _WAVE)
        return op.length >= long and columns <= _MANY_COLUMNS

    def running_blocks(self, op: Running) -> Work:
        threads = 1024 if op.length >= _VERY_LONG else THREADS
        warps, dtype, fn = threads // _WARP, self.wide_dtype, FUNCTIONS[op.fn]
        self.tiles.append(ir.SharedTile("totals", 0, warps * _SLOT))
        code = Code()
        column, outer = split(code, BLOCK, op.width, op.outer * op.width)
        code.body.append(values.Variable("before", dtype, self.start(op.fn)))
        turn = code.inside()
        n = turn.let("n", Name("turn") * threads + THREAD)
        there = n < op.length
        offset = turn.let("at", self.element(op, outer, n, column))
        x = self.read(turn, offset, there, self.start(op.fn))
        total, prefix = warp_prefix(turn, dtype, fn, x)
        put = ir.StShared(ir.Address("totals", WARP * _SLOT), total, dtype)
        turn.body += [ir.If(LANE.equals(0), (put,)), ir.SyncThreads()]
        below = everything = "before"
        for warp in range(warps):
            got = turn.get(dtype, ir.Address("totals", Lit(warp * _SLOT)))
            below = turn.choose(dtype, warp < WARP, turn.compute(dtype, fn, below, got), below)
            everything = turn.compute(dtype, fn, everything, got)
        self.write(turn, offset, there, turn.compute(dtype, fn, below, prefix))
        turn.body += [values.Assign("before", everything, Lit(1)), ir.SyncThreads()]
        code.loop("turn", -(-op.length // threads), turn)
        return op.outer * op.width, threads, code

    # -- in parts --------------------------------------------------------------------------------

    def ends(self, op: Ends) -> Work:
        count = op.outer * op.parts * op.width
        outside, code, point, there = self.points(count)
        column, part = split(code, point, op.width, count)
        end = 0 if op.reverse else op.chunk - 1
        offset = code.let("at", (part * op.chunk + end) * op.width + column)
        found = code.load(self.numbers[self.inputs[0]], self.dtype, offset, Lit(1), 0, True)
        number = self.numbers[self.result]
        code.body.append(values.StoreElement(number, self.dtype, wide(point), Lit(1), found))
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    def continued(self, op: Continued) -> Work:
        each = op.chunk * op.width
        count = op.outer * op.parts * each
        outside, code, point, there = self.points(count)
        inside, part = split(code, point, each, count)
        column = code.let("column", inside % op.width) if op.width > 1 else Lit(0)
        number = code.let("number", part % op.parts)
        first = number < op.parts - 1 if op.reverse else number > 0
        before = part + 1 if op.reverse else part - 1
        offset = code.let("at", before * op.width + column)
        x = code.load(self.numbers[self.inputs[0]], self.dtype, point, Lit(1), 0, True)
        source = self.numbers[self.inputs[1]]
        already = code.load(source, self.dtype, offset, first, self.start(op.fn), True)
        self.write(code, point, Lit(1), code.compute(self.dtype, FUNCTIONS[op.fn], already, x))
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside


def warp_prefix(code: Code, dtype: DType, fn: str, x: str) -> tuple[str, str]:
    """Everything of a warp combined, and everything up to the thread's own number."""
    total = prefix = x
    for bit in range(5):
        other = code.fresh()
        code.body.append(values.Shuffle(other, dtype, total, 1 << bit))
        upper = (LANE & (1 << bit)) > 0
        prefix = code.choose(dtype, upper, code.compute(dtype, fn, other, prefix), prefix)
        total = code.compute(dtype, fn, total, other)
    return total, prefix
