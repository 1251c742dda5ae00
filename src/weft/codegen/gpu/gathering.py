"""Scatter of sorted updates: those of one row of the result stand together, in the order they came.

*Short runs.* A thread has some neighbouring columns of a row, a vector of them where it can, and
takes the row's updates one after the other; neighbours ask for neighbouring columns.

Where the result begins as zeros, rows without updates are written too; else they stay as they are.

*Long runs.* A block, or a warp where rows are single elements, has some columns of a row. All its
threads bring a batch of updates into shared memory, then a thread for each column takes them one
after the other. Which rows have long runs only the data say: there is a block for every stretch of
updates, and the rows whose runs begin to cover multiples of `long` in it are that block's. A run of
`long` updates or more covers one.

Either way every element gets its updates in order, so that the result has the same bits as one made
by a single thread. That also bounds how fast a long run can be: additions that wait for one another
take four cycles each, two milliseconds for a million.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.formats import held_bytes
from weft.codegen.gpu.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    both,
    least,
    most,
    wide,
)
from weft.codegen.gpu.statements import Code, split
from weft.codegen.gpu.whole_kernel import WholeKernel, Work
from weft.foundation.dtypes import SI32, UI32, DType
from weft.foundation.whole_ops import Collected, Gathered

_THREADS: Final = 128
_REDUCTION: Final = {"add": "sum", "max": "max", "min": "min"}
_WORD: Final = 4
_VECTOR_BYTES: Final = 16
_MOST_IN_VECTOR: Final = 8
"""Elements: their sums are registers."""
_AT_ONCE: Final = 8
"""Updates that a thread waits for together."""
_BLOCK_COLUMNS: Final = 32
"""Columns that a block takes of a long run: a line of f32."""
_STRETCH: Final = 16
"""Multiples of `long` that a block looks at."""
_STAGED_BYTES: Final = 16 << 10
_MOST_ROUNDS, _ROUNDS_OF_WARPS = 8, 16
"""Updates of a batch that a thread brings: what it waits for at a time."""
_READ_AHEAD: Final = (16, 8, 4, 2, 1)
"""Updates of a batch that a thread reads before it takes them."""
_WARP: Final = 32


@dataclass(frozen=True)
class _Batches:
    """How `threads` threads bring updates: `lanes` of them a vector each of one update's
    columns."""

    threads: int
    columns: int
    vector: int
    rounds: int

    @property
    def groups(self) -> int:
        """Groups of so many threads in a block, each with a run of its own."""
        return _THREADS // self.threads

    @property
    def number(self) -> Scalar:
        """A thread's number in its group."""
        return THREAD if self.groups == 1 else LANE

    @property
    def group(self) -> Scalar:
        return Lit(0) if self.groups == 1 else WARP

    @property
    def meeting(self) -> ir.Stmt:
        return ir.SyncThreads() if self.groups == 1 else ir.SyncWarp()

    @property
    def lanes(self) -> int:
        return self.columns // self.vector

    @property
    def at_once(self) -> int:
        """Updates that all threads together bring in a round."""
        return self.threads // self.lanes

    @property
    def size(self) -> int:
        return self.rounds * self.at_once

    def staged(self, update: Scalar, column: Scalar, each: int) -> ir.Address:
        """Where an update's column lies, of values of so many bytes."""
        place = (self.group * self.size + update) * self.columns + column
        return ir.Address("staged", place * each)


class GatherKernel(WholeKernel):
    """One scatter of sorted updates."""

    def gathered(self, op: Gathered) -> Work:
        vector = _vector(op.width, self.dtype)
        outside = Code()
        has_long = op.fn != "replace" and op.count >= op.long
        long_blocks = self._long_blocks(op, vector) if has_long else 0
        vectors = op.width // vector
        count = op.outer * op.rows * vectors
        code = outside.inside()
        point = code.let("point", (BLOCK - long_blocks) * _THREADS + THREAD)
        short = code.inside()
        piece, row = split(short, point, vectors, count)
        self._short(op, short, row, piece * vector, vector)
        code.branch(Lit(1) if count % _THREADS == 0 else point < count, short)
        if long_blocks:
            taken = code.inside()
            self._long(op, taken, vector)
            code.count = taken.count
            outside.body.append(ir.If(long_blocks > BLOCK, tuple(taken.body), tuple(code.body)))
        else:
            outside.branch(Lit(1), code)
        return long_blocks + -(-count // _THREADS), _THREADS, outside

    # -- short runs ------------------------------------------------------------------------------

    def _short(self, op: Gathered, code: Code, row: Scalar, column: Scalar, vector: int) -> None:
        r, outer = split(code, row, op.rows, op.outer * op.rows)
        start, end = self._run(op, code, outer, r)
        has: Scalar = Lit(1) if isinstance(op, Collected) else start < end
        if op.fn != "replace":
            has = both(has, end - start < op.long)
        inside = code.inside()
        first = most(start, end - 1) if op.fn == "replace" else start
        self._combined(op, inside, outer, (first, end), row, column, vector)
        code.branch(has, inside)

    def _run(self, op: Gathered, code: Code, outer: Scalar, r: Scalar) -> tuple[Scalar, Scalar]:
        """Where the updates of a row begin and end."""
        number, at = self.numbers[self.inputs[-1]], outer * (op.rows + 1) + r
        start, end = (code.load(number, SI32, at + n, Lit(1), 0, True) for n in (0, 1))
        return code.place(start, op.count + 1), code.place(end, op.count + 1)

    def _update(self, op: Gathered, code: Code, outer: Scalar, k: Scalar, guard: Scalar) -> Scalar:
        """The number of the k-th update in order."""
        at = (outer * op.count + k) * 2 + 1
        found = code.load(self.numbers[self.inputs[-2]], UI32, at, guard, 0, True)
        return outer * op.count + code.place(found, op.count)

    def _loaded(
        self, code: Code, number: int, offset: Scalar, vector: int, guard: Scalar, constant: bool
    ) -> list[str]:
        """Neighbouring elements, as they are combined."""
        if vector == 1:
            found = [code.load(number, self.dtype, offset, guard, 0, constant)]
        else:
            found = [code.fresh() for _ in range(vector)]
            load = values.LoadVector(
                tuple(found), number, self.dtype, wide(offset), guard, constant
            )
            code.body.append(load)
        return [code.widened(self.dtype, name) for name in found]

    def _combined(
        self,
        op: Gathered,
        code: Code,
        outer: Scalar,
        span: tuple[Scalar, Scalar],
        row: Scalar,
        column: Scalar,
        vector: int,
    ) -> None:
        """The updates of a span into neighbouring elements, which are rounded once."""
        offset = code.let("at", row * op.width + column)
        old = self._old(op, code, offset, vector, Lit(1))
        totals = [self._total(code, f"total{n}", value) for n, value in enumerate(old)]
        turn = code.inside()
        at_once = 1 if op.fn == "replace" else _AT_ONCE
        numbers = [Name("k") + n for n in range(at_once)]
        guards = [Lit(1) if number == Name("k") else number < span[1] for number in numbers]
        updates = [
            self._update(op, turn, outer, number, guard)
            for number, guard in zip(numbers, guards, strict=True)
        ]
        source = self.numbers[self.inputs[-3]]
        found = [
            self._loaded(turn, source, update * op.width + column, vector, guard, True)
            for update, guard in zip(updates, guards, strict=True)
        ]
        for guard, new in zip(guards, found, strict=True):
            for total, value in zip(totals, new, strict=True):
                self._take(op, turn, total, value, guard)
        code.count = turn.count
        code.body.append(ir.For("k", span[0], span[1], at_once, tuple(turn.body)))
        self._written(code, offset, totals)

    def _old(
        self, op: Gathered, code: Code, offset: Scalar, vector: int, guard: Scalar
    ) -> list[str]:
        """What neighbouring elements begin as."""
        if not isinstance(op, Collected):
            return self._loaded(code, self.numbers[self.result], offset, vector, guard, False)
        dtype = self.wide_dtype
        zero = code.compute(dtype, "const", value=0.0 if dtype.is_float else 0)
        return [zero] * vector

    def _total(self, code: Code, name: str, start: str) -> str:
        dtype = self.wide_dtype
        code.body += [
            values.Variable(name, dtype, 0.0 if dtype.is_float else 0),
            values.Assign(name, start, Lit(1)),
        ]
        return name

    def _take(self, op: Gathered, code: Code, total: str, value: str, guard: Scalar) -> None:
        if op.fn != "replace":
            value = code.compute(self.wide_dtype, op.fn, total, value)
        code.body.append(values.Assign(total, value, guard))

    def _written(self, code: Code, offset: Scalar, totals: list[str]) -> None:
        if len(totals) == 1:
            self.write(code, offset, Lit(1), totals[0])
            return
        if self.wide_dtype is not self.dtype:
            totals = [code.compute(self.dtype, "cast", total) for total in totals]
        number = self.numbers[self.result]
        store = values.StoreVector(number, self.dtype, wide(offset), Lit(1), tuple(totals))
        code.body.append(store)

    # -- long runs -------------------------------------------------------------------------------

    def _long_blocks(self, op: Gathered, vector: int) -> int:
        stretches = -(-op.count // (op.long * _STRETCH))
        return (
            op.outer
            * stretches
            * -(-op.width // _batches(op.width, self.wide_dtype, vector).columns)
        )

    def _long(self, op: Gathered, code: Code, vector: int) -> None:
        batches = _batches(op.width, self.wide_dtype, vector)
        chunks = -(-op.width // batches.columns)
        each = held_bytes(self.wide_dtype)
        staged = batches.groups * batches.size * batches.columns * each
        self.tiles.append(ir.SharedTile("staged", 0, staged))
        self.tiles.append(ir.SharedTile("found", staged, _STRETCH * _WORD))
        blocks = self._long_blocks(op, vector)
        chunk, rest = split(code, BLOCK, chunks, blocks)
        stretch, outer = split(code, rest, blocks // chunks // op.outer, blocks // chunks)
        self._look(op, code, outer, stretch)
        turn = code.inside()
        slot = Name("turn") * batches.groups + batches.group
        found = turn.get(SI32, ir.Address("found", slot * _WORD))
        row = turn.place(found, op.rows + 1)
        taken = turn.inside()
        self._taken(op, taken, outer, row, chunk * batches.columns, batches)
        turn.branch(row < op.rows, taken)
        code.loop("turn", _STRETCH // batches.groups, turn)

    def _look(self, op: Gathered, code: Code, outer: Scalar, stretch: Scalar) -> None:
        """Which rows with long runs are this block's."""
        looking = code.inside()
        k = looking.let("k", (stretch * _STRETCH + THREAD) * op.long)
        there = k < op.count
        at = (outer * op.count + k) * 2
        key = looking.load(self.numbers[self.inputs[-2]], UI32, at, there, 0, True)
        row = looking.place(key, op.rows)
        start, end = self._run(op, looking, outer, row)
        mine = both(there, both(end - start >= op.long, k - start < op.long))
        row = looking.let("row", row + (op.rows - row) * mine.equals(0))
        value = looking.fresh()
        looking.body += [
            values.IndexValue(value, SI32, row),
            ir.StShared(ir.Address("found", THREAD * _WORD), value, SI32),
        ]
        code.branch(THREAD < _STRETCH, looking)
        code.body.append(ir.SyncThreads())

    def _taken(
        self,
        op: Gathered,
        code: Code,
        outer: Scalar,
        row: Scalar,
        first: Scalar,
        batches: _Batches,
    ) -> None:
        """The updates of a row into the columns from `first` on."""
        start, end = self._run(op, code, outer, row)
        column = code.let("column", first + batches.number)
        adds = batches.columns > batches.number
        if op.width % batches.columns:
            adds = both(adds, column < op.width)
        offset = code.let("at", (outer * op.rows + row) * op.width + column)
        (old,) = self._old(op, code, offset, 1, adds)
        total = self._total(code, "total", old)
        batch = code.inside()
        self._brought(op, batch, outer, end, first, batches)
        batch.body.append(batches.meeting)
        adding, turn = batch.inside(), batch.inside()
        ahead = next(n for n in _READ_AHEAD if batches.size % n == 0)
        for value in self._staged(turn, batches, ahead):
            self._take(op, turn, total, value, Lit(1))
        adding.count = turn.count
        stop = least(end - Name("batch"), batches.size)
        adding.body.append(ir.For("k", 0, stop, ahead, tuple(turn.body)))
        batch.branch(adds, adding)
        batch.body.append(batches.meeting)
        code.count = batch.count
        code.body.append(ir.For("batch", start, end, batches.size, tuple(batch.body)))
        self.write(code, offset, adds, total)

    def _staged(self, code: Code, batches: _Batches, count: int) -> list[str]:
        """The next updates of a batch, of a thread's column."""
        dtype, each = self.wide_dtype, held_bytes(self.wide_dtype)
        vector = min(count, _VECTOR_BYTES // each) if batches.columns == 1 else 1
        found: list[str] = []
        for first in range(0, count, vector):
            names = tuple(code.fresh() for _ in range(vector))
            column = Lit(0) if batches.columns == 1 else batches.number
            place = batches.staged(Name("k") + first, column, each)
            if vector == 1:
                code.body.append(ir.LoadShared(names[0], dtype, place))
            else:
                code.body.append(ir.LoadSharedVector(names, dtype, place))
            found += names
        return found

    def _brought(
        self,
        op: Gathered,
        code: Code,
        outer: Scalar,
        end: Scalar,
        first: Scalar,
        batches: _Batches,
    ) -> None:
        """A batch of updates into shared memory; what is not there changes nothing."""
        piece = code.let("piece", batches.number % batches.lanes * batches.vector)
        number = code.let("number", batches.number // batches.lanes)
        source, each = self.numbers[self.inputs[-3]], held_bytes(self.wide_dtype)
        inside: Scalar = Lit(1)
        if op.width % batches.columns:
            inside = first + piece < op.width
        if batches.threads % batches.lanes:
            inside = both(inside, number < batches.at_once)
        numbers = [code.let("n", number + n * batches.at_once) for n in range(batches.rounds)]
        guards = [both(inside, Name("batch") + n < end) for n in numbers]
        updates = [
            self._update(op, code, outer, Name("batch") + n, guard)
            for n, guard in zip(numbers, guards, strict=True)
        ]
        found = [
            self._loaded(
                code, source, update * op.width + first + piece, batches.vector, guard, True
            )
            for update, guard in zip(updates, guards, strict=True)
        ]
        dtype = self.wide_dtype
        nothing = code.compute(dtype, "const", value=self.neutral(_REDUCTION[op.fn]))
        storing = code.inside()
        for n, guard, parts in zip(numbers, guards, found, strict=True):
            for place, part in enumerate(parts):
                value = storing.choose(dtype, guard, part, nothing)
                at = batches.staged(n, piece + place, each)
                storing.body.append(ir.StShared(at, value, dtype))
        code.branch(inside, storing)


def _vector(width: int, dtype: DType) -> int:
    """Elements of a row that one access takes."""
    most = min(_MOST_IN_VECTOR, _VECTOR_BYTES // dtype.storage_bytes)
    for count in (8, 4, 2):
        if count <= most and width % count == 0 and count * dtype.storage_bytes >= _WORD:
            return count
    return 1


def _batches(width: int, dtype: DType, vector: int) -> _Batches:
    """Dtype: the one in which updates are combined."""
    columns = min(width, _BLOCK_COLUMNS)
    if columns == 1:
        return _Batches(_WARP, columns, vector, _ROUNDS_OF_WARPS)
    bytes_of_round = _THREADS // (columns // vector) * columns * held_bytes(dtype)
    return _Batches(
        _THREADS, columns, vector, max(1, min(_MOST_ROUNDS, _STAGED_BYTES // bytes_of_round))
    )
