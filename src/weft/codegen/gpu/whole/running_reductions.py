"""Cumulative reductions (cumsum and the like).

*Threads.* Where columns are many or short, a thread goes along each.

*Blocks.* Else a block goes along a column, or a part of one, a stretch at a time. Of a stretch each
warp has a piece, and of that each lane in turn some neighbouring elements, a vector where it can:
the lane combines these, lanes learn from one another what came before, and warps through shared
memory. Everything that a stretch takes from memory is asked for at once.

*Parts.* Very long columns are cut. Each part is combined first; then a block goes along each and
begins with the totals of all parts before its own, which it combines itself.

However many blocks run when, numbers are combined in the same order.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.reductions import FUNCTIONS
from weft.codegen.gpu.body.statements import Code, split_number
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import ACCESS_BYTES
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    LANES,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    both,
    wide,
)
from weft.codegen.gpu.whole.kernel import THREADS, WholeKernel, Work, blocks_of
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass
from weft.foundation.whole_ops import Columns, Continued, InParts, Running, Totals

_SLOT: Final = 8
"""Bytes of a value in shared memory, of any dtype."""
_LONG: Final = 512
"""Elements of a column from which on a block goes along it, where there are few columns."""
_LONG_ROW: Final = 16
"""The same of columns whose elements lie side by side, for each wave of blocks: in the time of a
wave a thread goes along so many."""
_WAVE: Final = 1024
"""Blocks that run at once."""
_MANY_COLUMNS: Final = 1 << 15
_MOST_THREADS: Final = 1024
"""Columns that keep all units busy with a thread each, and threads of a block."""
_MOST_HELD: Final = 16
"""Elements that a thread holds at once."""
_MOST_IN_VECTOR: Final = 8
"""Elements of one access."""


@dataclass(frozen=True)
class _Stretch:
    """What a block takes at once: `rounds` times `vector` elements a thread."""

    threads: int
    rounds: int
    vector: int

    @property
    def warps(self) -> int:
        return self.threads // LANES

    @property
    def size(self) -> int:
        return self.threads * self.rounds * self.vector


@dataclass(frozen=True)
class _Piece:
    """Neighbouring elements in the order in which they are combined; where they lie, and whether
    they are there."""

    found: list[str]
    offset: Scalar
    there: Scalar


class RunningKernel(WholeKernel):
    """One running reduction, or a step of one in parts."""

    def work(self, op: Columns) -> Work:
        match op:
            case Running() if not self.goes_by_blocks(op):
                return self.running_threads(op)
            case InParts(chunk=chunk, parts=parts):
                return self.blocks(op, chunk, parts)
        return self.blocks(op, op.length, 1)

    def element(self, op: Columns, outer: Scalar, n: Scalar, column: Scalar) -> Scalar:
        step = (n * -1) + (op.length - 1) if op.reverse else n
        return (outer * op.length + step) * op.width + column

    # -- threads ---------------------------------------------------------------------------------

    def running_threads(self, op: Running) -> Work:
        count = op.outer * op.width
        outside, code, point, there = self.points(count)
        column, outer = split_number(code, point, op.width, count)
        code.body.append(values.Variable("total", self.wide_dtype, self.neutral(op.fn)))
        turn = code.inside()
        offset = turn.let("at", self.element(op, outer, Name("n"), column))
        found = turn.load(self.numbers[self.inputs[0]], self.dtype, offset, Lit(1), 0, True)
        x = turn.widened(self.dtype, found)
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
        # With a width, neighbouring threads read neighbouring columns, whole lines of them. Where a
        # column's elements lie side by side each thread has lines of its own, and a block is worth
        # while for shorter ones.
        return op.length >= long and columns <= _MANY_COLUMNS

    # -- blocks ----------------------------------------------------------------------------------

    def blocks(self, op: Columns, chunk: int, parts: int) -> Work:
        """A block for each part of each column."""
        return _Blocks(self, op, chunk, parts).work()


class _Blocks:
    """The statements of blocks that go along parts of columns."""

    def __init__(self, kernel: RunningKernel, op: Columns, chunk: int, parts: int) -> None:
        self.kernel, self.op, self.chunk, self.parts = kernel, op, chunk, parts
        self.dtype, self.fn = kernel.wide_dtype, FUNCTIONS[op.fn]
        self.shape = _stretch(op, chunk, kernel.dtype)
        kernel.tiles.append(ir.SharedTile("totals", 0, 2 * self.shape.warps * _SLOT))

    def work(self) -> Work:
        op, code = self.op, Code()
        count = op.outer * self.parts * op.width
        column, rest = split_number(code, BLOCK, op.width, count)
        part, outer = split_number(code, rest, self.parts, op.outer * self.parts)
        self.place = (part, outer, column)
        code.body.append(values.Variable("before", self.dtype, self.kernel.neutral(op.fn)))
        if isinstance(op, Continued):
            self.parts_before(code)
        turn = code.inside()
        self.stretch(turn)
        turns = -(-self.chunk // self.shape.size)
        if turns > 1:
            code.loop("turn", turns, turn)
        else:
            code.branch(Lit(1), turn)
        if isinstance(op, Totals):
            self.store_total(code)
        return count, self.shape.threads, code

    def combine(self, code: Code, x: str, y: str) -> str:
        return code.compute(self.dtype, self.fn, x, y)

    def identity(self, code: Code) -> str:
        return code.compute(self.dtype, "const", value=self.kernel.neutral(self.op.fn))

    # -- a stretch

    def stretch(self, code: Code) -> None:
        shape = self.shape
        turn = Name("turn") if self.chunk > shape.size else Lit(0)
        lane = WARP * (shape.rounds * LANES) + LANE
        first = code.let("first", turn * shape.size + lane * shape.vector)
        pieces = [self.loaded(code, first + n * LANES * shape.vector) for n in range(shape.rounds)]
        prefixes = [self.combined(code, piece.found) for piece in pieces]
        if isinstance(self.op, Totals):
            total = self.combined(code, [prefix[-1] for prefix in prefixes])[-1]
            self.shared(code, 0, self.all_lanes(code, total, LANES))
        else:
            self.stored(code, pieces, prefixes)
        if isinstance(self.op, Totals) or self.chunk > shape.size:
            new = self.combine(code, "before", self.of_warps(code, 0, below=False))
            code.body.append(values.Assign("before", new, Lit(1)))
        if self.chunk > shape.size:
            code.body.append(ir.SyncThreads())

    def combined(self, code: Code, found: list[str]) -> list[str]:
        """Each with all before it."""
        made = found[:1]
        for x in found[1:]:
            made.append(self.combine(code, made[-1], x))
        return made

    def stored(self, code: Code, pieces: list[_Piece], prefixes: list[list[str]]) -> None:
        empty = self.identity(code)
        ahead, starts = "", []
        for prefix in prefixes:
            total, below = warp_prefix(code, self.dtype, self.fn, prefix[-1], empty)
            starts.append(self.combine(code, ahead, below) if ahead else below)
            ahead = self.combine(code, ahead, total) if ahead else total
        # Three levels, each exclusive of itself: what came before the stretch, the warps below, the
        # lanes below, and then the thread's own pieces.
        self.shared(code, 0, ahead)
        before = self.combine(code, "before", self.of_warps(code, 0, below=True))
        for piece, start, prefix in zip(pieces, starts, prefixes, strict=True):
            base = self.combine(code, before, start)
            self.store(code, piece, [self.combine(code, base, x) for x in prefix])

    def loaded(self, code: Code, step: Scalar) -> _Piece:
        op, vector = self.op, self.shape.vector
        part, outer, column = self.place
        n = code.let("n", part * self.chunk + step)
        there: Scalar = Lit(1) if self.chunk % self.shape.size == 0 else step < self.chunk
        if op.length % self.chunk:
            there = both(there, n < op.length)
        last = n + (vector - 1) if op.reverse else n
        offset = code.let("at", self.kernel.element(op, outer, last, column))
        found = self.fetched(code, offset, there)
        return _Piece(found[::-1] if op.reverse else found, offset, there)

    def fetched(self, code: Code, offset: Scalar, there: Scalar) -> list[str]:
        """Neighbouring elements as they are combined; what is not there changes nothing."""
        kernel, dtype = self.kernel, self.kernel.dtype
        number, start = kernel.numbers[kernel.inputs[0]], kernel.neutral(self.op.fn)
        if self.shape.vector == 1:
            found = code.load(number, dtype, offset, there, start, True)
            return [code.widened(dtype, found)]
        names = tuple(code.fresh() for _ in range(self.shape.vector))
        code.body.append(values.LoadVector(names, number, dtype, wide(offset), there))
        held = [code.widened(dtype, x) for x in names]
        if there == Lit(1):
            return held
        empty = self.identity(code)
        return [code.choose(self.dtype, there, x, empty) for x in held]

    def store(self, code: Code, piece: _Piece, made: list[str]) -> None:
        kernel = self.kernel
        if len(made) == 1:
            kernel.write(code, piece.offset, piece.there, made[0])
            return
        if kernel.wide_dtype is not kernel.dtype:
            made = [code.compute(kernel.dtype, "cast", x) for x in made]
        sources = tuple(made[::-1] if self.op.reverse else made)
        number, offset = kernel.numbers[kernel.result], wide(piece.offset)
        store = values.StoreVector(number, kernel.dtype, offset, piece.there, sources)
        code.body.append(store)

    # -- warps

    def shared(self, code: Code, which: int, value: str) -> None:
        """What each warp has, for all to see."""
        put = ir.StShared(_slot(self.shape, which, WARP), value, self.dtype)
        code.body += [ir.If(LANE.equals(0), (put,)), ir.SyncThreads()]

    def of_warps(self, code: Code, which: int, *, below: bool) -> str:
        """Those of all warps combined, or of the warps below one's own."""
        warps = self.shape.warps
        number = LANE & (warps - 1)
        value = code.get(self.dtype, _slot(self.shape, which, number))
        if below:
            # The same tree for every warp: what does not count is replaced by what changes nothing.
            value = code.choose(self.dtype, number < WARP, value, self.identity(code))
        return self.all_lanes(code, value, warps)

    def all_lanes(self, code: Code, value: str, lanes: int) -> str:
        bit = 1
        while bit < lanes:
            other = code.fresh()
            code.body.append(values.Shuffle(other, self.dtype, value, bit))
            value, bit = self.combine(code, value, other), 2 * bit
        return value

    # -- parts

    def parts_before(self, code: Code) -> None:
        """The totals of the parts before this one, combined."""
        part, outer, column = self.place
        number = self.kernel.numbers[self.kernel.inputs[1]]
        start, threads = self.kernel.neutral(self.op.fn), self.shape.threads
        value = ""
        for first in range(0, self.parts, threads):
            n = code.let("n", THREAD + first)
            offset = (outer * self.parts + n) * self.op.width + column
            found = code.load(number, self.dtype, offset, n < part, start, True)
            value = self.combine(code, value, found) if value else found
        self.shared(code, 1, self.all_lanes(code, value, LANES))
        code.body.append(values.Assign("before", self.of_warps(code, 1, below=False), Lit(1)))

    def store_total(self, code: Code) -> None:
        number = self.kernel.numbers[self.kernel.result]
        store = values.StoreElement(number, self.dtype, wide(BLOCK), Lit(1), "before")
        code.body.append(ir.If(THREAD.equals(0), (store,)))


def _slot(shape: _Stretch, which: int, warp: Scalar) -> ir.Address:
    return ir.Address("totals", (warp + which * shape.warps) * _SLOT)


def _stretch(op: Columns, length: int, dtype: DType) -> _Stretch:
    """Few threads where one round of them is enough, then more rounds, then more threads."""
    vector = 1
    most = min(_MOST_IN_VECTOR, ACCESS_BYTES // dtype.storage_bytes) if op.width == 1 else 1
    # A row that is no multiple of the vector would let the next row begin inside of one.
    while vector < most and op.length % (2 * vector) == 0:
        vector *= 2
    if vector * dtype.storage_bytes < 4:
        vector = 1
    rounds = max(1, _MOST_HELD // max(vector, 2))
    pieces = -(-length // vector)
    threads = _power_of_two(pieces, THREADS)
    if threads * rounds < pieces:
        threads = _power_of_two(-(-pieces // rounds), _MOST_THREADS)
    return _Stretch(threads, min(rounds, -(-pieces // threads)), vector)


def _power_of_two(least: int, most: int) -> int:
    return max(LANES, min(most, 1 << (least - 1).bit_length()))


def warp_prefix(
    code: Code, dtype: DType, fn: str, x: str, start: str | None = None
) -> tuple[str, str]:
    """Everything of a warp combined, and everything up to the thread's own number, or with a
    `start` that combined with everything before it."""
    total, prefix = x, x if start is None else start
    for bit in range(5):
        other = code.fresh()
        code.body.append(values.Shuffle(other, dtype, total, 1 << bit))
        # After each step lanes that differ in the bits so far have a total in common; those in the
        # upper half have all of the lower half before them.
        upper = (LANE & (1 << bit)) > 0
        prefix = code.choose(dtype, upper, code.compute(dtype, fn, other, prefix), prefix)
        total = code.compute(dtype, fn, total, other)
    return total, prefix
