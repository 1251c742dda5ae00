"""Radix sort kernels: counting the digits of a tile, moving its elements, and finding where runs of
keys begin.

*Counting.* A block takes a tile of a row; its threads count their elements in counters that all
share, which comes out the same in any order.

*Ranks.* Of a tile that is moved each warp has a stretch, 32 elements at a time. Of lanes
that have the same digit each learns how many come before it and how many there are; the first of
them counts them into the warp's counter of that digit. What the counter held before says how many
elements of the stretch with the same digit come before the lane's own.

*Moving.* A thread for each digit adds up the counters of the warps, the digits below, and what the
sums say of the tiles before and of the row's digits below. The elements of the tile are brought
into order in shared memory first, so that neighbours in a digit are stored side by side.

Lanes behind the end of a row take part with the highest digit: they come after everything else.

Rows that lie apart are operands and results by themselves. A block has one row, and finds out by
halves which: loads and stores stand there for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.statements import Code, split_number
from weft.codegen.gpu.ir import values
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
    least,
    most,
    wide,
)
from weft.codegen.gpu.whole.kernel import THREADS, WholeKernel, Work, blocks_of
from weft.codegen.gpu.whole.running_reductions import warp_prefix
from weft.foundation.dtypes import F32, SI32, UI32, UI64, DType
from weft.foundation.radix_sort import CARRIED, Digits, Moved, Pass, Starts, UpdatesMoved
from weft.foundation.records import dataclass
from weft.foundation.whole_ops import Binned

_WARPS: Final = THREADS // LANES
_FEW_KEYS: Final = 1 << 15
"""Keys up to which a warp looks for each: in four steps instead of twenty among a million."""
_WORD: Final = 4
_PAIR: Final = 8
"""Bytes of a number and of a pair in shared memory."""
LARGEST_TILE: Final = 4096
"""Elements of a tile: sixteen a thread, whose keys, positions and ranks registers hold."""
MOST_BITS: Final = 8
"""Bits of a digit: a thread for each, and counters of each for every warp in shared memory."""
_SMALL_TILE: Final = 2048
_RESIDENT: Final = 4
"""Tiles of so few elements of which a unit has so many at work where some would have to wait if it
had one fewer, and none has to now: as of the 512 tiles of a million elements on 132 units."""


@dataclass(frozen=True)
class _Element:
    """What a thread knows of one of its elements."""

    key: str
    position: str
    digit: Scalar
    rank: Scalar


class DigitKernel(WholeKernel):
    """One step of a sort by digits."""

    def work(self, op: Digits | Moved | Starts) -> Work:
        match op:
            case Digits():
                return self.counted(op)
            case Moved():
                return self.moved(op)
            case Starts():
                return self.starts(op)

    # -- a tile ----------------------------------------------------------------------------------

    def counted(self, op: Digits) -> Work:
        code = Code()
        tile, row = split_number(code, BLOCK, op.tiles, op.outer * op.tiles)
        first = code.let("first", tile * op.tile)
        loaded = self._elements(op, code, row, first)
        self._counters(op, code, 1)
        code.body += [ir.CountShared(counter(op, 0, digit)) for *_, digit in loaded]
        code.body.append(ir.SyncThreads())
        inside = code.inside()
        total = self._number(inside, counter(op, 0, THREAD), op.tile)
        # Lanes behind the end of the row were counted as the highest digit.
        # Taken away where they were counted, by the one thread that stores the highest digit's
        # count.
        missing = _beyond(op, first) * THREAD.equals(op.digits - 1)
        count = inside.fresh()
        inside.body.append(values.IndexValue(count, SI32, total - missing))
        offset = wide((row * op.digits + THREAD) * op.tiles + tile)
        inside.body.append(self._store(SI32, offset, Lit(1), count))
        code.branch(_has_digit(op), inside)
        return op.outer * op.tiles, THREADS, code

    def _counters(self, op: Pass, code: Code, warps: int) -> None:
        """Counters of every digit for some warps, all zero."""
        self.tiles.append(ir.SharedTile("counts", 0, warps * op.digits * _WORD))
        zero = code.compute(SI32, "const", value=0)
        clearing = code.inside()
        at = clearing.let("at", Name("clearing") * THREADS + THREAD)
        clear = clearing.inside()
        clear.body.append(ir.StShared(ir.Address("counts", at * _WORD), zero, SI32))
        counters = warps * op.digits
        clearing.branch(Lit(1) if counters % THREADS == 0 else at < counters, clear)
        code.loop("clearing", -(-counters // THREADS), clearing)
        code.body.append(ir.SyncThreads())

    def _rank_elements(self, op: Pass, code: Code, row: Scalar, first: Scalar) -> list[_Element]:
        """The elements of each thread, and how many of its warp with the same digit come before;
        all of a warp are counted then."""
        loaded = self._elements(op, code, row, first)
        self._counters(op, code, _WARPS)
        found = [
            _Element(key, position, digit, self._rank(op, code, digit))
            for key, position, digit in loaded
        ]
        code.body.append(ir.SyncThreads())
        return found

    def _elements(
        self, op: Pass, code: Code, row: Scalar, first: Scalar
    ) -> list[tuple[str, str, Scalar]]:
        """A thread's elements: what travels of their keys, their positions, their digits."""
        apart = op.apart and op.is_first
        known = self._of_rows_apart(op, code, row, first) if apart else []
        return [
            self._load_element(op, code, row, first, n, known[n] if known else None)
            for n in range(op.tile // THREADS)
        ]

    def _load_element(
        self, op: Pass, code: Code, row: Scalar, first: Scalar, number: int, x: str | None
    ) -> tuple[str, str, Scalar]:
        """One of a thread's elements, which may be known."""
        n, there = self._place(op, code, first, number)
        if op.is_first:
            position = self._first_position(op, code, row, n, there)
            key = (
                self._first_key(op, code, row, n, there) if x is None else self._key_of(op, code, x)
            )
        else:
            pairs = self.numbers[self.inputs[1 if op.reads_again else 0]]
            key, position = code.fresh(), code.fresh()
            offset = wide((row * op.length + n) * 2)
            code.body.append(values.LoadVector((key, position), pairs, UI32, offset, there))
            if op.reads_again:
                at = code.place(position, op.length)
                key = self._key(op, code, row * op.length + at, there)
        digit = self._digit(op, code, key)
        held = self._cut_key(op, code, key)
        if there != Lit(1):
            # Elements behind the row's end get the highest digit: as they also come last in the
            # tile, they stand behind all others with it.
            last = code.compute(UI32, "const", value=op.digits - 1)
            digit = code.choose(UI32, there, digit, last)
        return held, position, code.place(digit, op.digits)

    def _first_position(self, op: Pass, code: Code, row: Scalar, n: Scalar, there: Scalar) -> str:
        """What goes with an element: its position, or its update."""
        if isinstance(op, UpdatesMoved):
            update = self.inputs[1]
            number, dtype = self.numbers[update], self.tensors[update].dtype
            return code.widened(
                dtype, code.load(number, dtype, row * op.length + n, there, 0, True)
            )
        position = code.fresh()
        code.body.append(values.IndexValue(position, UI32, n))
        return position

    def _first_key(self, op: Pass, code: Code, row: Scalar, n: Scalar, there: Scalar) -> str:
        offset = row * op.length + n
        if op.columns == 1:
            return self._key(op, code, offset, there)
        place = code.load(self.numbers[self.inputs[0]], self.dtype, offset, there, 0, True)
        bound = max(1, (1 << op.key_bits) // op.columns)
        number = code.place(place, bound) * op.columns + n % op.columns
        key = code.fresh()
        code.body.append(values.IndexValue(key, UI32, number))
        return key

    def _of_rows_apart(self, op: Pass, code: Code, row: Scalar, first: Scalar) -> list[str]:
        """A thread's elements of its row, one of several that lie apart."""
        found = [code.fresh("x") for _ in range(op.tile // THREADS)]
        code.body += [values.Variable(name, self.dtype, 0) for name in found]

        def load(inside: Code, which: int) -> None:
            buffer = self.numbers[self.inputs[which]]
            for number, name in enumerate(found):
                n, there = self._place(op, inside, first, number)
                x = inside.load(buffer, self.dtype, n, there, 0, True)
                inside.body.append(values.Assign(name, x, Lit(1)))

        _for_row(code, row, 0, op.outer, load)
        return found

    def _place(self, op: Pass, code: Code, first: Scalar, number: int) -> tuple[Scalar, Scalar]:
        """Where one of a thread's elements stands in the row, and whether it is there."""
        # A warp has a stretch of its own, of which lanes take neighbours at once. Ranks count in
        # this order, so that equal digits keep their order: a stable sort is what makes passes from
        # the lowest digit up right.
        n = code.let("n", first + (WARP * (op.tile // THREADS) + number) * LANES + LANE)
        return n, Lit(1) if op.length % op.tile == 0 else n < op.length

    def _key(self, op: Pass, code: Code, offset: Scalar, there: Scalar) -> str:
        x = code.load(self.numbers[self.inputs[0]], self.dtype, offset, there, 0, True)
        return self._key_of(op, code, x)

    def _key_of(self, op: Pass, code: Code, x: str) -> str:
        dtype = UI64 if self.dtype.bits == UI64.bits else UI32
        key = code.fresh()
        code.body.append(values.SortKey(key, dtype, x, op.descending))
        if dtype is not UI64:
            return key
        if op.word:
            upper = code.compute(UI64, "const", value=CARRIED * op.word)
            key = code.compute(UI64, "shift_right", key, upper)
        return code.compute(UI32, "cast", self._mask_bits(code, UI64, key, (1 << CARRIED) - 1))

    def _digit(self, op: Pass, code: Code, key: str) -> str:
        low = op.low % CARRIED
        if low:
            key = code.compute(UI32, "shift_right", key, code.compute(UI32, "const", value=low))
        return self._mask_bits(code, UI32, key, op.digits - 1)

    def _cut_key(self, op: Pass, code: Code, key: str) -> str:
        """The bits of a key that count; they did so before from the second pass on."""
        if not op.is_first or op.key_bits >= min(32, self.dtype.bits):
            return key
        return self._mask_bits(code, UI32, key, (1 << op.key_bits) - 1)

    def _mask_bits(self, code: Code, dtype: DType, value: str, mask: int) -> str:
        return code.compute(dtype, "and", value, code.compute(dtype, "const", value=mask))

    def _number(self, code: Code, address: ir.Address, most: int) -> Scalar:
        """A number that shared memory holds, at most `most`."""
        return code.place(code.get(SI32, address), most + 1)

    def _put_number(self, code: Code, address: ir.Address, number: Scalar) -> None:
        value = code.fresh()
        code.body += [values.IndexValue(value, SI32, number), ir.StShared(address, value, SI32)]

    def _rank(self, op: Pass, code: Code, digit: Scalar) -> Scalar:
        before, count = code.fresh("before"), code.fresh("alike")
        code.body.append(values.Alike((before, count), digit, op.bits))
        own = counter(op, WARP, digit)
        # All lanes read the counter before the first of each digit adds to it, and meet before the
        # next 32 elements do: only this warp has this counter.
        earlier = self._number(code, own, op.tile)
        code.body.append(ir.SyncWarp())
        counting = code.inside()
        self._put_number(counting, own, earlier + Name(count))
        code.branch(Name(before).equals(0), counting)
        code.body.append(ir.SyncWarp())
        return code.let("rank", earlier + Name(before))

    # -- moving ----------------------------------------------------------------------------------

    def moved(self, op: Moved) -> Work:
        code = Code()
        tile, row = split_number(code, BLOCK, op.tiles, op.outer * op.tiles)
        first = code.let("first", tile * op.tile)
        sums = self._sums(op, code, row, tile)
        elements = self._rank_elements(op, code, row, first)
        after = _WARPS * op.digits * _WORD
        self.tiles.append(ir.SharedTile("goals", after, op.digits * _WORD))
        after = -(-(after + op.digits * _WORD) // _PAIR) * _PAIR
        self.tiles.append(ir.SharedTile("totals", after, 2 * _WARPS * _WORD))
        self.tiles.append(ir.SharedTile("staged", after + 2 * _WARPS * _WORD, op.tile * _PAIR))
        if isinstance(op, UpdatesMoved) and op.tile <= _SMALL_TILE:
            of_unit = -(-op.outer * op.tiles // self.target.limits.units)
            self.resident = of_unit if of_unit == _RESIDENT else 1
        self._direct_digits(op, code, sums)
        for element in elements:
            start = self._number(code, counter(op, WARP, element.digit), op.tile)
            at = code.let("at", (start + element.rank) * _PAIR)
            code.body.append(ir.StShared(ir.Address("staged", at), element.key, UI32))
            second = UI32 if not isinstance(op, UpdatesMoved) else F32
            place = ir.Address("staged", at + _WORD)
            code.body.append(ir.StShared(place, element.position, second))
        code.body.append(ir.SyncThreads())
        turn = code.inside()
        self._handed_out(op, turn, row, first)
        code.loop("turn", op.tile // THREADS, turn, times=4)
        return op.outer * op.tiles, THREADS, code

    def _sums(self, op: Moved, code: Code, row: Scalar, tile: Scalar) -> tuple[str, str]:
        """A thread for each digit: how many elements of the row have it, and how many of the tiles
        before this one."""
        has, number = _has_digit(op), self.numbers[self.inputs[-1]]
        offset = code.let("at", (row * op.digits + self._own_digit(op)) * op.tiles)
        # Counts are running sums along the tiles by now: the last one is that of the row, and the
        # one before a tile's own is that of all tiles before it.
        of_row = code.load(number, SI32, offset + (op.tiles - 1), has, 0, True)
        earlier = code.load(number, SI32, offset + tile - (tile > 0), both(has, tile > 0), 0, True)
        return of_row, earlier

    def _own_digit(self, op: Pass) -> Scalar:
        return THREAD if _has_digit(op) == Lit(1) else least(THREAD, op.digits - 1)

    def _direct_digits(self, op: Pass, code: Code, sums: tuple[str, str] | None) -> None:
        """A thread for each digit: where the elements of each warp begin in the tile, and how far
        from there in the row. Without sums, where those of all warps begin in the tile."""
        has = _has_digit(op)
        digit = code.let("digit", self._own_digit(op))
        total, starts = code.variable("own", 0), []
        for warp in range(_WARPS):
            starts.append(code.let("start", total))
            found = self._number(code, counter(op, warp, digit), op.tile)
            code.set(total, total + found)
        own = code.fresh()
        code.body.append(values.IndexValue(own, SI32, total * has))
        below = self._below(code, own, 0)
        goal = below
        if sums is not None:
            of_row, earlier = sums
            goal = code.compute(SI32, "add", self._below(code, of_row, 1), earlier)
        putting = code.inside()
        start = putting.place(below, op.tile + 1)
        for warp, before in enumerate(starts):
            # The counter of a warp becomes the place in the tile where its elements with this digit
            # begin: digits below first, then the warps before.
            self._put_number(putting, counter(op, warp, digit), start + before)
        # An element at place j of the tile goes to j + distance: its digit's first place in the
        # row, less its first place in the tile, is the same for all with that digit.
        distance = below if sums is None else putting.compute(SI32, "sub", goal, below)
        putting.body.append(ir.StShared(ir.Address("goals", digit * _WORD), distance, SI32))
        code.branch(has, putting)
        code.body.append(ir.SyncThreads())

    def _below(self, code: Code, value: str, which: int) -> str:
        """The sum of what the threads before this one have."""
        everything, upto = warp_prefix(code, SI32, "add", value)
        first = which * _WARPS
        put = ir.StShared(ir.Address("totals", (WARP + first) * _WORD), everything, SI32)
        code.body += [ir.If(LANE.equals(0), (put,)), ir.SyncThreads()]
        below = code.compute(SI32, "sub", upto, value)
        for warp in range(_WARPS - 1):
            got = code.get(SI32, ir.Address("totals", Lit((warp + first) * _WORD)))
            below = code.choose(SI32, warp < WARP, code.compute(SI32, "add", below, got), below)
        return below

    def _handed_out(self, op: Moved, code: Code, row: Scalar, first: Scalar) -> None:
        """The elements in the order of the tile to their places in the row."""
        j = code.let("j", Name("turn") * THREADS + THREAD)
        key, position = code.fresh(), code.fresh()
        staged = ir.Address("staged", j * _PAIR)
        code.body.append(ir.LoadSharedVector((key, position), UI32, staged))
        digit = code.place(self._digit(op, code, key), op.digits)
        distance = code.get(SI32, ir.Address("goals", digit * _WORD))
        number = code.fresh()
        code.body.append(values.IndexValue(number, SI32, j))
        place = code.place(code.compute(SI32, "add", distance, number), op.length)
        there: Scalar = Lit(1) if op.length % op.tile == 0 else first + j < op.length
        if op.results > 1:

            def store(inside: Code, which: int) -> None:
                offset, target = wide(place * 2), self.numbers[self.results[which]]
                pair = values.StoreVector(target, UI32, offset, there, (key, position))
                inside.body.append(pair)

            _for_row(code, row, 0, op.outer, store)
            return
        if not op.count:
            offset = wide((row * op.length + place) * 2)
            target = self.numbers[self.result]
            code.body.append(values.StoreVector(target, UI32, offset, there, (key, position)))
            return
        wanted = self.tensors[self.result].dtype
        kept = place < op.count if op.count < op.length else Lit(1)
        cast = code.compute(wanted, "cast", position)
        offset = wide(row * op.count + place)
        code.body.append(self._store(wanted, offset, both(there, kept), cast))

    def _store(self, dtype: DType, offset: Scalar, guard: Scalar, value: str) -> ir.Stmt:
        return values.StoreElement(self.numbers[self.result], dtype, offset, guard, value)

    # -- where keys begin ------------------------------------------------------------------------

    def starts(self, op: Starts) -> Work:
        if op.apart:
            return self._starts_apart(op)
        if op.outer * (op.rows + 1) <= _FEW_KEYS:
            return self._starts_by_warps(op)
        return self._starts_by_threads(op)

    def _starts_by_warps(self, op: Starts) -> Work:
        """A warp for each key looks for its first element, at 32 places at a time."""
        count = op.outer * (op.rows + 1)
        outside = Code()
        point = outside.let("point", BLOCK * _WARPS + WARP)
        code = outside.inside()
        key, outer = split_number(code, point, op.rows + 1, count)
        low = self._count_by_warp(op, code, self.inputs[0], outer, key)
        start = code.fresh()
        code.body.append(values.IndexValue(start, SI32, low))
        code.body.append(self._store(SI32, wide(point), LANE.equals(0), start))
        outside.branch(Lit(1) if count % _WARPS == 0 else point < count, code)
        return -(-count // _WARPS), THREADS, outside

    def _count_by_warp(
        self, op: Starts | Binned, code: Code, pairs: str, outer: Scalar, key: Scalar, low: int = 0
    ) -> Scalar:
        """How many pairs of a row have keys, less their lowest bits, that are less than one."""
        found_low, left = code.variable("low", 0), op.count
        # Of 32 places a step apart those before the key are the first ones: the key begins behind
        # the last of them, in a stretch of a 32nd.
        while left:
            step = -(-left // LANES)
            at = code.let("at", found_low + (LANE + 1) * step - 1)
            there = at < op.count
            offset = (outer * op.count + at) * 2
            found = code.load(self.numbers[pairs], UI32, offset, there, 0, True)
            before = code.let("before", both(there, (code.place(found, op.rows) >> low) < key))
            names = code.fresh("earlier"), code.fresh("alike")
            code.body.append(values.Alike(names, before, 1))
            alike = Name(names[1])
            # How many lanes have `before` 1: `alike` of them where this lane has it, and 32 less
            # `alike` where it has not.
            lanes = code.let("lanes", before * (alike * 2 - LANES) + LANES - alike)
            code.set(found_low, found_low + lanes * step)
            left = step - 1
        return found_low

    def _starts_apart(self, op: Starts) -> Work:
        """The same by threads for rows that lie apart, of which a block has one."""
        blocks = blocks_of(op.rows + 1)
        code = Code()
        part, row = split_number(code, BLOCK, blocks, op.outer * blocks)
        key = code.let("key", part * THREADS + THREAD)
        looking = code.inside()

        def look(inside: Code, which: int) -> None:
            pairs, target = (self.numbers[names[which]] for names in (self.inputs, self.results))
            start = self._count_by_halves(op, inside, key, Lit(0), pairs)
            inside.body.append(values.StoreElement(target, SI32, wide(key), Lit(1), start))

        _for_row(looking, row, 0, op.outer, look)
        code.branch(Lit(1) if (op.rows + 1) % THREADS == 0 else key <= op.rows, looking)
        return op.outer * blocks, THREADS, code

    def _starts_by_threads(self, op: Starts) -> Work:
        """A thread for each key looks for its first element by halves."""
        count = op.outer * (op.rows + 1)
        outside, code, point, there = self.points(count)
        key, outer = split_number(code, point, op.rows + 1, count)
        start = self._count_by_halves(op, code, key, outer * op.count, self.numbers[self.inputs[0]])
        code.body.append(self._store(SI32, wide(point), Lit(1), start))
        outside.branch(there, code)
        return blocks_of(count), THREADS, outside

    def _count_by_halves(
        self, op: Starts, code: Code, key: Scalar, first: Scalar, pairs: int
    ) -> str:
        """How many pairs of a row, from the pair `first` on, stand before those of a key."""
        low, high = code.variable("low", 0), code.variable("high", op.count)
        turn = code.inside()
        mid = turn.let("mid", (low + high) // 2)
        found = turn.load(pairs, UI32, (first + mid) * 2, Lit(1), 0, True)
        before = turn.let("before", turn.place(found, op.rows) < key)
        turn.set(low, low + before * (mid + 1 - low))
        turn.set(high, mid + before * (high - mid))
        halving = code.inside()
        halving.branch(low < high, turn)
        code.loop("halving", op.count.bit_length(), halving)
        start = code.fresh()
        code.body.append(values.IndexValue(start, SI32, low))
        return start


def _for_row(
    code: Code, row: Scalar, low: int, high: int, write: Callable[[Code, int], None]
) -> None:
    """What is to be done for a row of some that lie apart, whichever it is."""
    if high - low == 1:
        write(code, low)
        return
    # log2 of the rows many questions, in place of one for each row: the statements of each row
    # stand in the text in any case.
    middle = (low + high) // 2
    lower = code.inside()
    _for_row(lower, row, low, middle, write)
    upper = lower.inside()
    _for_row(upper, row, middle, high, write)
    code.count = upper.count
    code.body.append(ir.If(row < middle, tuple(lower.body), tuple(upper.body)))


def counter(op: Pass, warp: Scalar | int, digit: Scalar) -> ir.Address:
    """A warp's counter of a digit."""
    return ir.Address("counts", (digit + warp * op.digits) * _WORD)


def _has_digit(op: Pass) -> Scalar:
    """Whether a thread has a digit to look after."""
    return Lit(1) if op.digits == THREADS else op.digits > THREAD


def _beyond(op: Pass, first: Scalar) -> Scalar:
    """How many elements of a tile lie behind the end of the row."""
    if op.length % op.tile == 0:
        return Lit(0)
    return most(0, first + op.tile - op.length)
