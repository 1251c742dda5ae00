"""`Binned`, the kernel that ends a scatter of sums of single elements: its updates are known by the
upper bits of their rows, and it adds them up.

    row      | bin: the upper bits | place: the `low` lower bits            |
             |                     | group: at most 8 bits | the bits below |
    pairs    (row, update), (row, update), ...  in the order of bins, earlier updates first
    block b  the updates of bin b, to shared memory in the order of groups, to the bin's sums

A block, step by step:

1. It finds where the updates of its bin begin and end among the pairs: a warp looks for either.
2. Its threads load the updates, and what the sums begin with: the elements of x. Sums stay in
   shared memory, one for each row of the bin.
3. It ranks the updates by groups, as a pass of a radix sort does, and puts them in this order into
   shared memory.
4. A thread takes the updates of a group, one after the other, and adds each to the sum of its row.
   No two threads add to one sum, and a sum gets its updates in order. Groups of `_LONG` updates and
   more are taken by warps instead: for each row of the group, a lane looks at every 32nd update
   and adds up those of the row, and then the lanes add up what they have.
5. The sums are rounded and stored.

*Pieces.* How many updates a bin has, the data say. A bin of more than `tile` is cut into pieces of
`tile` updates, each for a block of its own. They do steps 1 to 4, the first with x and the others
with zeros, and keep their sums in the workspace; whichever block is last adds these up, from the
first piece on, and does step 5. The grid does not depend on the data: beside a block for each bin
it has one for each *stretch*, `tile` pairs from a multiple of `tile` on. The n-th stretch that
begins inside a bin stands for piece n of the bin, where there is one. Else, as in bins of at most
`tile` updates, its block ends after step 1.

So every element gets its updates in an order that the rows alone decide, and has the same bits in
every run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.statements import Code, split_number
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import NARROW
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
    wide,
)
from weft.codegen.gpu.whole.kernel import THREADS, Work
from weft.codegen.gpu.whole.radix_sort import MOST_BITS, DigitKernel, counter
from weft.foundation.dtypes import F32, SI32, UI32, DType
from weft.foundation.radix_sort import Pass
from weft.foundation.records import dataclass
from weft.foundation.whole_ops import Binned

LARGEST_PIECE: Final = 4352
"""Updates that registers of a block hold: seventeen a thread."""
MOST_LOW: Final = 12
"""Bits of the places of a bin."""
_WARPS: Final = THREADS // LANES
_WORD: Final = 4
_LINE: Final = 4
"""Sums that a thread keeps side by side."""
_LONG: Final = 64
"""Updates of a group that a warp takes: a thread needs 65 cycles for each."""
_AHEAD: Final = 4
"""Pieces whose sums are asked for at a time."""
_LINES_AHEAD: Final = 8
"""Elements, or vectors of them, that a thread asks for at a time: as many as there are registers
for beside its updates."""
_MEETING: Final = 1
"""The barrier of blocks that meet others; 0 is that of all threads."""
_RESIDENT: Final = 3
"""Blocks of a unit, as many as there is shared memory for: those that have nothing to do wait for
none of the others to end."""
_Visit = Callable[[Code, Scalar, Scalar, Scalar], None]
"""What is written for a vector of rows: the statements so far, where the vector begins in the bin,
where among all elements, and whether it is there."""


def accepts_bins(op: Binned, dtype: DType) -> str:
    """Why there is no kernel for sums in bins; empty where there is."""
    if dtype is not F32 and dtype not in NARROW:
        return f"sums of {dtype} are not made in bins"
    if not 0 < op.low <= MOST_LOW:
        return f"a block does not have bins of {op.low} bits"
    if op.tile % THREADS or not 0 < op.tile <= LARGEST_PIECE:
        return f"a block does not take pieces of {op.tile} updates"
    return ""


@dataclass(frozen=True)
class _Piece:
    """What a block works on: piece `number`, of `count`, of a bin. It has `updates` pairs from the
    pair `first` of its outer row on; `stretch` is the first one that begins in the bin."""

    outer: Scalar
    bin: Scalar
    number: Scalar
    count: Scalar
    stretch: Scalar
    first: Scalar
    updates: Scalar


class BinKernel(DigitKernel):
    """One scatter that adds."""

    def binned(self, op: Binned) -> Work:
        code = Code()
        self._tiles(op)
        bins = op.outer * op.bins
        piece, there = self._piece(op, code, bins)
        inside = code.inside()
        self._sum_up(op, inside, piece)
        code.branch(there, inside)
        count = op.outer * op.stretches
        words = self._lines(op) * _LINE * THREADS
        self.resident = _RESIDENT
        self.workspace = ir.Workspace(count, 2 * count * words)
        return bins + count, THREADS, code

    def _tiles(self, op: Binned) -> None:
        """Shared memory, but for the counters, which begin it."""
        step = self._step(op)
        sizes = {
            "goals": step.digits * _WORD,
            "totals": 2 * _WARPS * _WORD,
            "ends": 2 * _WORD,
            "found": _WARPS * self._turns(op) * _WORD,
            "sums": self._lines(op) * _LINE * THREADS * _WORD,
            "places": op.tile * _WORD,
            "updates": op.tile * _WORD,
        }
        start = _WARPS * step.digits * _WORD
        for name, size in sizes.items():
            start = -(-start // (_LINE * _WORD)) * (_LINE * _WORD)
            self.tiles.append(ir.SharedTile(name, start, size))
            start += size

    def _step(self, op: Binned) -> Pass:
        """The digit that updates are ranked by: the highest bits of their places in the bin."""
        bits = min(op.low, MOST_BITS)
        return Pass(1, op.tile, op.tile, op.low, op.low - bits, bits)

    def _lines(self, op: Binned) -> int:
        """Sums of a thread, four at a time."""
        return -(-(1 << op.low) // (_LINE * THREADS))

    def _turns(self, op: Binned) -> int:
        """Places of a piece at which each warp looks for long groups."""
        return -(-op.tile // (_LONG * _WARPS))

    # -- which piece a block has -----------------------------------------------------------------

    def _piece(self, op: Binned, code: Code, bins: int) -> tuple[_Piece, Scalar]:
        """The piece, and whether there is one."""
        own, outer, stretch = self._own_bin(op, code, bins)
        start, end = self._ends(op, code, outer, own)
        length = code.let("length", end - start)
        before = code.let("before", (start + (op.tile - 1)) // op.tile)
        is_first = code.let("is_first", bins > BLOCK)
        number = code.let("number", (stretch - before + 1) * is_first.equals(0))
        first = code.let("first", start + number * op.tile)
        updates = code.let("updates", least(op.tile, end - first))
        count = code.let("count", (length + (op.tile - 1)) // op.tile)
        piece = _Piece(outer, own, number, count, before, first, updates)
        # The piece of a stretch that begins in a bin of one piece would be its second one.
        return piece, is_first | (number < count)

    def _own_bin(self, op: Binned, code: Code, bins: int) -> tuple[Scalar, Scalar, Scalar]:
        """A block's bin, its outer row, and the stretch that it stands for, if it does."""
        own, outer, stretch = (code.variable(stem, 0) for stem in ("bin", "outer", "stretch"))
        first_ones, others = code.inside(), code.inside()
        at, row = split_number(first_ones, BLOCK, op.bins, bins)
        first_ones.set(own, at)
        first_ones.set(outer, row)
        others.count = first_ones.count
        number = others.let("number", BLOCK - bins)
        at, row = split_number(others, number, op.stretches, op.outer * op.stretches)
        offset = (row * op.count + at * op.tile) * 2
        key = others.load(self.numbers[self.inputs[1]], UI32, offset, Lit(1), 0, True)
        others.set(own, others.place(key, op.rows) >> op.low)
        others.set(outer, row)
        others.set(stretch, at)
        code.count = others.count
        code.body.append(ir.If(bins > BLOCK, tuple(first_ones.body), tuple(others.body)))
        return own, outer, stretch

    def _ends(self, op: Binned, code: Code, outer: Scalar, own: Scalar) -> tuple[Scalar, Scalar]:
        """Where the updates of a bin begin and end: warps look for either."""
        wanted = code.let("wanted", own + (WARP & 1))
        low = self._count_by_warp(op, code, self.inputs[1], outer, wanted, op.low)
        putting = code.inside()
        self._put_number(putting, ir.Address("ends", WARP * _WORD), low)
        code.branch(both(WARP < 2, LANE.equals(0)), putting)
        code.body.append(ir.SyncThreads())
        start, end = (
            self._number(code, ir.Address("ends", Lit(n * _WORD)), op.count) for n in (0, 1)
        )
        return start, end

    # -- the sums of a piece ---------------------------------------------------------------------

    def _sum_up(self, op: Binned, code: Code, piece: _Piece) -> None:
        step = self._step(op)
        elements = self._load_updates(op, code, piece)
        self._begin_sums(op, code, piece)
        self._counters(step, code, _WARPS)
        ranked = [self._rank_update(op, step, code, *found) for found in elements]
        code.body.append(ir.SyncThreads())
        self._direct_digits(step, code, None)
        for joint, value in ranked:
            self._stage_update(op, step, code, joint, value)
        code.body.append(ir.SyncThreads())
        self._take_short(op, step, code, piece)
        self._take_long(op, step, code, piece)
        code.body.append(ir.SyncThreads())
        self._hand_in(op, code, piece)

    def _rank_update(
        self, op: Binned, step: Pass, code: Code, place: Scalar, value: str
    ) -> tuple[Scalar, str]:
        """An update's rank among those of its group in the warp, above its place."""
        rank = self._rank(step, code, place >> step.low)
        # Both in one register, of which three blocks leave a thread 80.
        name = code.fresh("ranked")
        code.body.append(ir.Let(name, place + (rank << op.low), pinned=True))
        return Name(name), value

    def _stage_update(self, op: Binned, step: Pass, code: Code, joint: Scalar, value: str) -> None:
        """The place and the number of an update, where they stand in the order of groups."""
        place = code.let("place", joint & ((1 << op.low) - 1))
        start = self._number(code, counter(step, WARP, place >> step.low), op.tile)
        at = code.let("at", (start + (joint >> op.low)) * _WORD)
        # Apart, since threads go to places at random: side by side, all that they ask for at once
        # would be in every other bank.
        self._put_number(code, ir.Address("places", at), place)
        code.body.append(ir.StShared(ir.Address("updates", at), value, UI32))

    def _load_updates(self, op: Binned, code: Code, piece: _Piece) -> list[tuple[Scalar, str]]:
        """A thread's updates: their places in the bin, and what they add."""
        pairs, loaded = self.numbers[self.inputs[1]], []
        base = code.let("base", piece.outer * op.count + piece.first)
        for slot in range(op.tile // THREADS):
            n = code.let("n", (WARP * (op.tile // THREADS) + slot) * LANES + LANE)
            there = code.let("there", n < piece.updates)
            key, value = code.fresh(), code.fresh()
            offset = wide((base + n) * 2)
            # Loads of what might be written are not put off: a constant one is, behind the barrier
            # and in front of its rank, where each would be waited for.
            load = values.LoadVector((key, value), pairs, UI32, offset, there, constant=False)
            code.body.append(load)
            loaded.append((key, value, there))
        found = []
        # Behind the end of the piece is the highest place: as these updates also come last, they
        # are put behind all others.
        last = code.compute(UI32, "const", value=(1 << op.low) - 1)
        for key, value, there in loaded:
            place = self._mask_bits(code, UI32, key, (1 << op.low) - 1)
            place = code.choose(UI32, there, place, last)
            found.append((code.place(place, 1 << op.low), value))
        return found

    def _begin_sums(self, op: Binned, code: Code, piece: _Piece) -> None:
        """What a sum begins with: in the first piece the element, in others nothing."""
        nothing = code.compute(F32, "const", value=-0.0)
        zero = code.compute(F32, "const", value=0.0)
        is_first = code.let("is_first", piece.number.equals(0))

        def begin(turn: Code, local: Scalar, offset: Scalar, inside: Scalar) -> None:
            count = self._vector(op)
            if op.zeros:
                olds = [zero] * count
            else:
                guard = turn.let("guard", both(inside, is_first))
                olds = self._load_elements(turn, offset, guard, count)
            for n, old in enumerate(olds):
                start = turn.choose(F32, is_first, old, nothing)
                place = ir.Address("sums", (local + n) * _WORD)
                turn.body.append(ir.StShared(place, start, F32))

        self._for_rows(op, code, piece, begin)

    def _load_elements(self, code: Code, offset: Scalar, guard: Scalar, count: int) -> list[str]:
        number, dtype = self.numbers[self.inputs[0]], self.dtype
        if count == 1:
            return [code.widened(dtype, code.load(number, dtype, offset, guard, 0, True))]
        names = [code.fresh() for _ in range(count)]
        load = values.LoadVector(tuple(names), number, dtype, wide(offset), guard)
        code.body.append(load)
        return [code.widened(dtype, name) for name in names]

    def _vector(self, op: Binned) -> int:
        """Neighbouring elements that a thread reads and writes at once."""
        return _LINE if op.rows % _LINE == 0 else 1

    def _for_rows(self, op: Binned, code: Code, piece: _Piece, visit: _Visit) -> None:
        """A loop over the vectors of rows that are a thread's."""
        vector = self._vector(op)
        turn = code.inside()
        local = turn.let("local", (THREAD + Name("line") * THREADS) * vector)
        row = turn.let("row", (piece.bin << op.low) + local)
        inside = row < op.rows
        if 1 << op.low < THREADS * _LINE:
            inside = both(local < 1 << op.low, inside)
        visit(turn, local, piece.outer * op.rows + row, turn.let("inside", inside))
        code.loop("line", self._lines(op) * _LINE // vector, turn, times=_LINES_AHEAD)

    def _bounds(
        self, step: Pass, code: Code, digit: Scalar, piece: _Piece
    ) -> tuple[Scalar, Scalar]:
        """Where the updates of a group begin and end."""
        start = self._number(code, ir.Address("goals", digit * _WORD), step.tile)
        following = least(digit + 1, step.digits - 1)
        behind = self._number(code, ir.Address("goals", following * _WORD), step.tile)
        is_last = digit.equals(step.digits - 1)
        end = code.let("end", behind + (piece.updates - behind) * is_last)
        return start, end

    def _update(self, op: Binned, code: Code, k: Scalar) -> tuple[Scalar, str]:
        """The place and the number of the k-th update in order, or of the last one."""
        at = code.let("at", least(k, op.tile - 1) * _WORD)
        return self._place_at(op, code, at), code.get(F32, ir.Address("updates", at))

    def _place_at(self, op: Binned, code: Code, at: Scalar) -> Scalar:
        return code.place(code.get(SI32, ir.Address("places", at)), 1 << op.low)

    def _take_short(self, op: Binned, step: Pass, code: Code, piece: _Piece) -> None:
        """A thread for each group, one update after the other."""
        taking = code.inside()
        start, end = self._bounds(step, taking, THREAD, piece)
        short = taking.inside()
        # The next update is on its way while one is added.
        place, added = self._update(op, short, start)
        at, value = short.variable("place", place), short.fresh("value")
        short.body += [values.Variable(value, F32, 0.0), values.Assign(value, added, Lit(1))]
        turn = short.inside()
        following, added = self._update(op, turn, Name("k") + 1)
        total = ir.Address("sums", at * _WORD)
        result = turn.compute(F32, "add", turn.get(F32, total), value)
        turn.body += [ir.StShared(total, result, F32), values.Assign(value, added, Lit(1))]
        turn.set(at, following)
        short.count = turn.count
        short.body.append(ir.For("k", start, end, 1, tuple(turn.body)))
        taking.branch(end - start < _LONG, short)
        code.branch(Lit(1) if step.digits == THREADS else step.digits > THREAD, taking)

    def _take_long(self, op: Binned, step: Pass, code: Code, piece: _Piece) -> None:
        """Warps take long groups: each of those that begin to cover a multiple of `_LONG` at one of
        the places at which it looks."""
        turns = self._turns(op)
        looking = code.inside()
        at = looking.let("at", (WARP + LANE * _WARPS) * _LONG)
        there = looking.let("there", at < piece.updates)
        place = self._place_at(op, looking, least(at, op.tile - 1) * _WORD)
        digit = looking.let("digit", place >> step.low)
        start, end = self._bounds(step, looking, digit, piece)
        mine = both(both(there, end - start >= _LONG), at - start < _LONG)
        # `digits` stands for nothing found.
        group = looking.let("group", digit + (step.digits - digit) * mine.equals(0))
        slot = (WARP * turns + LANE) * _WORD
        self._put_number(looking, ir.Address("found", slot), group)
        code.branch(turns > LANE, looking)
        code.body.append(ir.SyncWarp())
        turn = code.inside()
        slot = (WARP * turns + Name("turn")) * _WORD
        group = self._number(turn, ir.Address("found", slot), step.digits)
        taking = turn.inside()
        start, end = self._bounds(step, taking, group, piece)
        each = taking.inside()
        self._take_row(op, each, (group << step.low) + Name("which"), start, end)
        taking.loop("which", 1 << step.low, each)
        turn.branch(group < step.digits, taking)
        code.loop("turn", turns, turn)

    def _take_row(self, op: Binned, code: Code, row: Scalar, start: Scalar, end: Scalar) -> None:
        """The updates of a row among those of its group, by the lanes of a warp."""
        part = code.fresh("part")
        code.body.append(values.Variable(part, F32, -0.0))
        turn = code.inside()
        k = turn.let("at", Name("k") + LANE)
        place, value = self._update(op, turn, k)
        mine = both(k < end, place.equals(row))
        added = turn.compute(F32, "add", part, value)
        turn.body.append(values.Assign(part, added, mine))
        code.count = turn.count
        code.body.append(ir.For("k", start, end, LANES, tuple(turn.body), _AHEAD))
        total = part
        for bit in range(5):
            other = code.fresh()
            code.body.append(values.Shuffle(other, F32, total, 1 << bit))
            total = code.compute(F32, "add", total, other)
        adding = code.inside()
        address = ir.Address("sums", row * _WORD)
        result = adding.compute(F32, "add", adding.get(F32, address), total)
        adding.body.append(ir.StShared(address, result, F32))
        code.branch(LANE.equals(0), adding)

    # -- what becomes of them --------------------------------------------------------------------

    def _hand_in(self, op: Binned, code: Code, piece: _Piece) -> None:
        """The sums of a bin of one piece are stored; else those of each piece are kept, and the
        last block adds them up and stores them."""
        whole = code.variable("whole", Lit(1))
        several = code.inside()
        self._meet_others(op, several, piece, whole)
        code.branch(piece.count > 1, several)
        storing = code.inside()
        self._for_rows(op, storing, piece, partial(self._store_sums, self._vector(op)))
        code.branch(whole > 0, storing)

    def _store_sums(
        self, count: int, code: Code, local: Scalar, offset: Scalar, inside: Scalar
    ) -> None:
        place = ir.Address("sums", local * _WORD)
        if count == 1:
            self.write(code, offset, inside, code.get(F32, place))
            return
        names = [code.fresh() for _ in range(count)]
        code.body.append(ir.LoadSharedVector(tuple(names), F32, place))
        if self.dtype is not F32:
            names = [code.compute(self.dtype, "cast", name) for name in names]
        number = self.numbers[self.result]
        store = values.StoreVector(number, self.dtype, wide(offset), inside, tuple(names))
        code.body.append(store)

    def _meet_others(self, op: Binned, code: Code, piece: _Piece, whole: Scalar) -> None:
        lines, stretches = self._lines(op), op.outer * op.stretches
        words = lines * _LINE * THREADS
        stretch = code.let("stretch", piece.outer * op.stretches + piece.stretch)
        # Every piece but the first has the stretch that begins in it, and the first the number of
        # its bin's first stretch among those behind.
        own = (piece.number - 1) + (stretches + 1) * piece.number.equals(0)
        code.body.append(ir.Registers("kept", ir.RegisterKind.F32, lines * _LINE))
        for n in range(lines * _LINE):
            local = (THREAD + n // _LINE * THREADS) * _LINE + n % _LINE
            source = ir.Address("sums", local * _WORD)
            code.body.append(ir.LdRegister(ir.RegAt("kept", n), source, F32))
        code.body += [
            ir.KeepSums("kept", wide(stretch + own) * words, THREAD, THREADS),
            ir.CountOff("done", stretch, piece.count - 1, THREAD, Lit(_MEETING), THREADS),
        ]
        code.set(whole, Name("done"))
        start = wide(stretch + stretches) * words
        others = wide(stretch + Name("piece") - 1) * words
        adding: list[ir.Stmt] = [
            ir.GatherSums("kept", start, 0, 1, THREAD, THREADS),
            ir.For(
                "piece", 1, piece.count, 1, (ir.AddSums("kept", others, THREAD, THREADS),), _AHEAD
            ),
        ]
        for n in range(0, lines * _LINE, 2):
            local = (THREAD + n // _LINE * THREADS) * _LINE + n % _LINE
            target = ir.Address("sums", local * _WORD)
            adding.append(ir.StSharedVec(target, ir.RegAt("kept", n), 2))
        code.body += [ir.If(Name("done"), tuple(adding)), ir.SyncThreads()]
