"""Scatter of sorted updates: those of one row of the result are contiguous, in their original
order.

*Short runs.* A thread has some neighbouring columns of a row, a vector of them where it can, and
takes the row's updates one after the other; neighbours ask for neighbouring columns.

Where the result begins as zeros, rows without updates are written too; else they stay as they are.

*Long runs.* A team has some columns of a row: a block, or where rows are single elements a warp,
and a block for the longest runs. The first of T members takes the updates 0, T, 2 T, ..., the
second 1, T + 1, ...; then a thread for each column takes what the members have, the first one's
first. Which rows have long runs only the data say: there is a block for every stretch of updates,
and the rows whose runs begin to cover multiples of `long` in it are that block's. A run of `long`
updates or more covers one.

So every element of a short run has the bits of one update after the other, and those of a long run
depend on the run alone: not on where it stands, nor on who is done first. One after the other,
additions would wait four cycles each, two milliseconds for a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.statements import Code, split_number
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import ACCESS_BYTES, held_bytes
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
    most,
    wide,
)
from weft.codegen.gpu.whole.kernel import WholeKernel, Work
from weft.foundation.dtypes import SI32, UI32, DType
from weft.foundation.records import dataclass
from weft.foundation.whole_ops import Collected, Gathered

_THREADS: Final = 128
_REDUCTION: Final = {"add": "sum", "max": "max", "min": "min"}
_WORD: Final = 4
_MOST_IN_VECTOR: Final = 8
"""Elements: their sums are registers."""
_AT_ONCE: Final = 8
"""Updates that a thread waits for together."""
_BLOCK_COLUMNS: Final = 32
"""Columns that a block takes of a long run: a line of f32."""
_STRETCH: Final = 16
"""Multiples of `long` that a block looks at."""
# 2^20 updates of one place took 6281 µs with a thread for each column and take 798 with teams, 4096
# places 47.1 and 43.1 (H200).
_LONGEST: Final = 1 << 12
"""Single elements of a run that a block takes together, and not a warp."""
_IN_FLIGHT: Final = 32
"""Elements that a member of a block waits for together, in up to `_MOST_ROUNDS` updates."""
_MOST_ROUNDS, _ROUNDS_OF_ELEMENTS = 8, 16
_READ_AHEAD: Final = (16, 8, 4, 2, 1)
"""What so many members have is read before it is taken."""


@dataclass(frozen=True)
class Team:
    """`threads` threads that take the updates of a run of `least` and more together, each a vector
    of their `columns`, in turns of `rounds` updates a member."""

    threads: int
    columns: int
    vector: int
    rounds: int
    least: int

    @property
    def in_block(self) -> int:
        """Teams of a block, each with a run of its own."""
        return _THREADS // self.threads

    @property
    def thread(self) -> Scalar:
        """A thread's number in its team."""
        return THREAD if self.in_block == 1 else LANE

    @property
    def number(self) -> Scalar:
        return Lit(0) if self.in_block == 1 else WARP

    @property
    def meeting(self) -> ir.Stmt:
        return ir.SyncThreads() if self.in_block == 1 else ir.SyncWarp()

    @property
    def lanes(self) -> int:
        """Threads of a member: one for each vector of columns."""
        return self.columns // self.vector

    @property
    def members(self) -> int:
        return self.threads // self.lanes

    @property
    def elements(self) -> int:
        """What the teams of a block have."""
        return self.in_block * self.members * self.columns

    def staged(self, member: Scalar, column: Scalar, each: int) -> ir.Address:
        """Where what a member has of a column lies, in so many bytes."""
        place = (self.number * self.members + member) * self.columns + column
        return ir.Address("staged", place * each)


class GatherKernel(WholeKernel):
    """One scatter of sorted updates."""

    def gathered(self, op: Gathered) -> Work:
        vector = _access_elements(op.width, self.dtype)
        outside = Code()
        has_long = op.fn != "replace" and op.count >= op.long
        long_blocks = self._long_blocks(op) if has_long else 0
        vectors = op.width // vector
        count = op.outer * op.rows * vectors
        code = outside.inside()
        point = code.let("point", (BLOCK - long_blocks) * _THREADS + THREAD)
        short = code.inside()
        piece, row = split_number(short, point, vectors, count)
        self._short(op, short, row, piece * vector, vector)
        code.branch(Lit(1) if count % _THREADS == 0 else point < count, short)
        if long_blocks:
            taken = code.inside()
            self._long(op, taken)
            code.count = taken.count
            outside.body.append(ir.If(long_blocks > BLOCK, tuple(taken.body), tuple(code.body)))
        else:
            outside.branch(Lit(1), code)
        return long_blocks + -(-count // _THREADS), _THREADS, outside

    # -- short runs ------------------------------------------------------------------------------

    def _short(self, op: Gathered, code: Code, row: Scalar, column: Scalar, vector: int) -> None:
        r, outer = split_number(code, row, op.rows, op.outer * op.rows)
        start, end = self._bounds_of_row(op, code, outer, r)
        has: Scalar = Lit(1) if isinstance(op, Collected) else start < end
        if op.fn != "replace":
            # Longer runs are another block's; both ask the same question, so that each row has
            # exactly one.
            has = both(has, end - start < op.long)
        inside = code.inside()
        # The last update is the one that stays: none before it is looked at.
        first = most(start, end - 1) if op.fn == "replace" else start
        self._combine_updates(op, inside, outer, (first, end), row, column, vector)
        code.branch(has, inside)

    def _bounds_of_row(
        self, op: Gathered, code: Code, outer: Scalar, r: Scalar
    ) -> tuple[Scalar, Scalar]:
        """Where the updates of a row begin and end."""
        number, at = self.numbers[self.inputs[-1]], outer * (op.rows + 1) + r
        start, end = (code.load(number, SI32, at + n, Lit(1), 0, True) for n in (0, 1))
        return code.place(start, op.count + 1), code.place(end, op.count + 1)

    def _update(self, op: Gathered, code: Code, outer: Scalar, k: Scalar, guard: Scalar) -> Scalar:
        """The number of the k-th update in order."""
        at = (outer * op.count + k) * 2 + 1
        found = code.load(self.numbers[self.inputs[-2]], UI32, at, guard, 0, True)
        return outer * op.count + code.place(found, op.count)

    def _load_elements(
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

    def _combine_updates(
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
            self._load_elements(turn, source, update * op.width + column, vector, guard, True)
            for update, guard in zip(updates, guards, strict=True)
        ]
        for guard, new in zip(guards, found, strict=True):
            for total, value in zip(totals, new, strict=True):
                self._take(op, turn, total, value, guard)
        code.count = turn.count
        code.body.append(ir.For("k", span[0], span[1], at_once, tuple(turn.body)))
        self._write_totals(code, offset, totals)

    def _old(
        self, op: Gathered, code: Code, offset: Scalar, vector: int, guard: Scalar
    ) -> list[str]:
        """What neighbouring elements begin as."""
        if not isinstance(op, Collected):
            return self._load_elements(
                code, self.numbers[self.result], offset, vector, guard, False
            )
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

    def _write_totals(self, code: Code, offset: Scalar, totals: list[str]) -> None:
        if len(totals) == 1:
            self.write(code, offset, Lit(1), totals[0])
            return
        if self.wide_dtype is not self.dtype:
            totals = [code.compute(self.dtype, "cast", total) for total in totals]
        number = self.numbers[self.result]
        store = values.StoreVector(number, self.dtype, wide(offset), Lit(1), tuple(totals))
        code.body.append(store)

    # -- long runs -------------------------------------------------------------------------------

    def _long_blocks(self, op: Gathered) -> int:
        stretches = -(-op.count // (op.long * _STRETCH))
        return op.outer * stretches * -(-op.width // teams_of(op, self.dtype)[0].columns)

    def _long(self, op: Gathered, code: Code) -> None:
        teams = teams_of(op, self.dtype)
        columns, each = teams[0].columns, held_bytes(self.wide_dtype)
        staged = max(team.elements for team in teams) * each
        self.tiles.append(ir.SharedTile("staged", 0, staged))
        self.tiles.append(ir.SharedTile("found", staged, len(teams) * _STRETCH * _WORD))
        blocks, chunks = self._long_blocks(op), -(-op.width // columns)
        chunk, rest = split_number(code, BLOCK, chunks, blocks)
        stretch, outer = split_number(code, rest, blocks // chunks // op.outer, blocks // chunks)
        self._look(op, code, outer, stretch, teams)
        for place, team in enumerate(teams):
            code.body.append(ir.SyncThreads())
            turn = code.inside()
            slot = Name("turn") * team.in_block + team.number + place * _STRETCH
            found = turn.get(SI32, ir.Address("found", slot * _WORD))
            row = turn.place(found, op.rows + 1)
            taken = turn.inside()
            self._take_updates(op, taken, outer, row, chunk * columns, team)
            turn.branch(row < op.rows, taken)
            code.loop("turn", _STRETCH // team.in_block, turn)

    def _look(
        self, op: Gathered, code: Code, outer: Scalar, stretch: Scalar, teams: Sequence[Team]
    ) -> None:
        """Which rows with long runs are this block's, and each of its teams'."""
        looking = code.inside()
        # A run of `long` updates covers a multiple of `long`. The first multiple in it is less than
        # `long` behind its start, and no other one is: the run is found once.
        k = looking.let("k", (stretch * _STRETCH + THREAD) * op.long)
        there = k < op.count
        at = (outer * op.count + k) * 2
        key = looking.load(self.numbers[self.inputs[-2]], UI32, at, there, 0, True)
        row = looking.place(key, op.rows)
        start, end = self._bounds_of_row(op, looking, outer, row)
        length = looking.let("length", end - start)
        first = both(there, k - start < op.long)
        for place, team in enumerate(teams):
            mine = both(first, length >= team.least)
            if place + 1 < len(teams):
                mine = both(mine, length < teams[place + 1].least)
            # `rows` stands for nothing found: it is the number of no row.
            its = looking.let("row", row + (op.rows - row) * mine.equals(0))
            value = looking.fresh()
            slot = (THREAD + place * _STRETCH) * _WORD
            looking.body += [
                values.IndexValue(value, SI32, its),
                ir.StShared(ir.Address("found", slot), value, SI32),
            ]
        code.branch(THREAD < _STRETCH, looking)

    def _take_updates(
        self, op: Gathered, code: Code, outer: Scalar, row: Scalar, first: Scalar, team: Team
    ) -> None:
        """The updates of a row into the columns from `first` on."""
        self._shared_out(op, code, outer, row, first, team)
        code.body.append(team.meeting)
        column = code.let("column", first + team.thread)
        adds = team.columns > team.thread
        if op.width % team.columns:
            adds = both(adds, column < op.width)
        adding, turn = code.inside(), code.inside()
        offset = adding.let("at", (outer * op.rows + row) * op.width + column)
        (old,) = self._old(op, adding, offset, 1, Lit(1))
        total = self._total(adding, "total", old)
        turn.count = adding.count
        ahead = next(n for n in _READ_AHEAD if team.members % n == 0)
        for value in self._stage_columns(turn, team, ahead):
            self._take(op, turn, total, value, Lit(1))
        adding.count = turn.count
        adding.body.append(ir.For("k", 0, team.members, ahead, tuple(turn.body)))
        self.write(adding, offset, Lit(1), total)
        code.branch(adds, adding)
        code.body.append(team.meeting)

    def _shared_out(
        self, op: Gathered, code: Code, outer: Scalar, row: Scalar, first: Scalar, team: Team
    ) -> None:
        """What each member makes of its updates, into shared memory."""
        start, end = self._bounds_of_row(op, code, outer, row)
        piece = code.let("piece", team.thread % team.lanes * team.vector)
        member = code.let("member", team.thread // team.lanes)
        inside: Scalar = Lit(1)
        if op.width % team.columns:
            inside = first + piece < op.width
        if team.threads % team.lanes:
            inside = both(inside, member < team.members)
        dtype = self.wide_dtype
        nothing = code.compute(dtype, "const", value=self.neutral(_REDUCTION[op.fn]))
        parts = [self._total(code, f"part{n}", nothing) for n in range(team.vector)]
        turn = code.inside()
        numbers = [Name("k") + member + n * team.members for n in range(team.rounds)]
        guards = [both(inside, number < end) for number in numbers]
        updates = [
            self._update(op, turn, outer, number, guard)
            for number, guard in zip(numbers, guards, strict=True)
        ]
        source = self.numbers[self.inputs[-3]]
        found = [
            self._load_elements(
                turn, source, update * op.width + first + piece, team.vector, guard, True
            )
            for update, guard in zip(updates, guards, strict=True)
        ]
        for guard, new in zip(guards, found, strict=True):
            for part, value in zip(parts, new, strict=True):
                self._take(op, turn, part, value, guard)
        code.count = turn.count
        step = team.members * team.rounds
        code.body.append(ir.For("k", start, end, step, tuple(turn.body)))
        storing = code.inside()
        for place, part in enumerate(parts):
            at = team.staged(member, piece + place, held_bytes(dtype))
            storing.body.append(ir.StShared(at, part, dtype))
        code.branch(inside, storing)

    def _stage_columns(self, code: Code, team: Team, count: int) -> list[str]:
        """What the next members have of a thread's column."""
        dtype, each = self.wide_dtype, held_bytes(self.wide_dtype)
        vector = min(count, ACCESS_BYTES // each) if team.columns == 1 else 1
        found: list[str] = []
        for first in range(0, count, vector):
            names = tuple(code.fresh() for _ in range(vector))
            column = Lit(0) if team.columns == 1 else team.thread
            place = team.staged(Name("k") + first, column, each)
            if vector == 1:
                code.body.append(ir.LoadShared(names[0], dtype, place))
            else:
                code.body.append(ir.LoadSharedVector(names, dtype, place))
            found += names
        return found


def _access_elements(width: int, dtype: DType) -> int:
    """Elements of a row that one access takes."""
    most = min(_MOST_IN_VECTOR, ACCESS_BYTES // dtype.storage_bytes)
    for count in (8, 4, 2):
        if count <= most and width % count == 0 and count * dtype.storage_bytes >= _WORD:
            return count
    return 1


def teams_of(op: Gathered, dtype: DType) -> list[Team]:
    """The teams that take long runs of elements of a dtype, those of the longest runs last."""
    columns, vector = min(op.width, _BLOCK_COLUMNS), _access_elements(op.width, dtype)
    if columns > 1:
        rounds = min(_MOST_ROUNDS, _IN_FLIGHT // vector)
        return [Team(_THREADS, columns, vector, rounds, op.long)]
    sizes = [(LANES, op.long)]
    if op.count >= _LONGEST > op.long:
        sizes.append((_THREADS, _LONGEST))
    return [Team(threads, 1, 1, _ROUNDS_OF_ELEMENTS, least) for threads, least in sizes]
