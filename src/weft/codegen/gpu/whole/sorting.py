"""Sorting of rows: the indices of their elements in order.

*By a network.* The threads of a block, or the lanes of a warp where rows are short, hold a row,
some neighbouring elements each, and sort it by a bitonic network: at each step, elements that lie a
distance apart are compared and change places, all pairs at once. Pairs of one thread need no one
else, those of lanes are exchanged, those of warps go through shared memory. An element is its key
(`foundation.radix_sort`) with its position below it, so that no two are equal and the result is
that of a stable sort.

*By counting.* Rows that are very short: a thread counts how many elements of the row come before
its own. That is its place.

Rows that no block holds are sorted by digits (`radix_sort.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    wide,
)
from weft.foundation.dtypes import I1, SI32, UI32, UI64, DType
from weft.foundation.errors import InternalError
from weft.foundation.whole_ops import Order
from weft.region.ir import Kernel, Tensor

_THREADS: Final = 256
"""Of a block, for rows that need fewer together."""
_SHORTEST: Final = 64
"""Elements up to which counting takes less than a network."""
LONGEST: Final = 8192
"""Elements of a row that the threads of a block hold."""
_HELD: Final = 8
"""Elements of a thread, at most; a row has a warp at least."""
_APART: Final = (UI64, UI32)
"""Keys of 64 bits and positions; others are one number."""
_Element = tuple[str, ...]
"""The values of an element: its key and its position, in one or in two."""


def build(op: Order, kernel: Kernel, tensors: Mapping[str, Tensor], name: str) -> ir.Kernel:
    """The dialect kernel."""
    if kernel.opaque is None:
        raise InternalError(f"kernel {kernel.name} carries no op")
    (source,), target = kernel.opaque.inputs, kernel.outputs[0].tensor
    sorter = _Sorter(op, tensors[source].dtype, tensors[target].dtype)
    work = sorter.counted if op.length <= _SHORTEST else sorter.network
    grid, threads, code = work(op)
    tiles, buffers = tuple(sorter.tiles), (source, target)
    return ir.Kernel(name, grid, threads, buffers, (), tiles, (), (), tuple(code.body))


class _Sorter:
    def __init__(self, op: Order, dtype: DType, wanted: DType) -> None:
        self.descending, self.length = op.descending, op.length
        self.dtype, self.wanted = dtype, wanted
        self.tiles: list[ir.SharedTile] = []

    def network(self, op: Order) -> tuple[int, int, Code]:
        return _Network(self, op).work()

    # -- by counting -----------------------------------------------------------------------------

    def counted(self, op: Order) -> tuple[int, int, Code]:
        count = op.outer * op.length
        outside = Code()
        point = outside.let("point", BLOCK * _THREADS + THREAD)
        code = outside.inside()
        i, outer = split_number(code, point, op.length, count)
        mine = code.load(0, self.dtype, point, Lit(1), 0, True)
        code.body.append(values.Variable("rank", SI32, 0))
        turn = code.inside()
        other = turn.load(0, self.dtype, outer * op.length + Name("j"), Lit(1), 0, True)
        # Elements that come first in the row also win where they are equal, the others only where
        # they are smaller: the sort is stable.
        before = turn.choose(I1, Name("j") < i, *self._compare(turn, other, mine))
        one = turn.compute(SI32, "cast", before)
        turn.body.append(values.Assign("rank", turn.compute(SI32, "add", "rank", one), Lit(1)))
        code.loop("j", op.length, turn, times=4)
        code.body.append(values.PlaceOf("place", "rank", op.length))
        position = code.fresh()
        code.body.append(values.IndexValue(position, self.wanted, i))
        offset = wide(outer * op.count + Name("place"))
        guard = Name("place") < op.count if op.count < op.length else Lit(1)
        code.body.append(values.StoreElement(1, self.wanted, offset, guard, position))
        outside.branch(Lit(1) if count % _THREADS == 0 else point < count, code)
        return -(-count // _THREADS), _THREADS, outside

    def _compare(self, code: Code, first: str, second: str) -> tuple[str, str]:
        """Whether an element does not stand after another one, and whether it stands before it,
        whatever their positions. NaN is larger than everything else."""
        low, high = (second, first) if self.descending else (first, second)
        not_after = code.compute(I1, "le", low, high)
        strictly = code.compute(I1, "not", code.compute(I1, "le", high, low))
        if self.dtype.is_float:
            not_after = code.compute(I1, "max", not_after, code.compute(I1, "ne", high, high))
            strictly = code.compute(I1, "min", strictly, code.compute(I1, "eq", low, low))
        return not_after, strictly


class _Network:
    """The statements of blocks that sort rows by a bitonic network."""

    def __init__(self, sorter: _Sorter, op: Order) -> None:
        self.sorter, self.op, self.dtype = sorter, op, sorter.dtype
        self.levels = (op.length - 1).bit_length()
        self.each = min(_HELD, (1 << self.levels) // LANES)
        self.threads = (1 << self.levels) // self.each
        self.rows = max(1, _THREADS // self.threads) if self.threads == LANES else 1
        # Key and position are one number of 32 bits where both fit there, of 64 bits where the key
        # has 32, and else two numbers.
        is_small = self.dtype.bits + self.levels <= UI32.bits
        self.kinds: tuple[DType, ...] = _APART
        if self.dtype.bits <= UI32.bits:
            self.kinds = (UI32,) if is_small else (UI64,)
        self.shift = self.levels if is_small else UI32.bits
        self.thread = LANE if self.rows > 1 else THREAD
        room = self.threads * self.each * sum(kind.storage_bytes for kind in self.kinds)
        if self.threads > LANES:
            sorter.tiles.append(ir.SharedTile("elements", 0, room))

    def work(self) -> tuple[int, int, Code]:
        code = Code()
        row = code.let("row", BLOCK * self.rows + WARP) if self.rows > 1 else BLOCK
        there: Scalar = Lit(1) if self.op.outer % self.rows == 0 else row < self.op.outer
        found = [self.fetched(code, row, n, there) for n in range(self.each)]
        for level in range(1, self.levels + 1):
            # The first step turns the upper half around, so that all go up.
            # Two sorted halves, the upper read backwards, are bitonic: the smaller of each pair all
            # come before the larger ones, and both halves are bitonic again.
            found = self.step(code, found, (1 << level) - 1)
            for bit in reversed(range(level - 1)):
                found = self.step(code, found, 1 << bit)
        self.handed_out(code, row, there, found)
        return -(-self.op.outer // self.rows), self.rows * self.threads, code

    # -- elements

    def fetched(self, code: Code, row: Scalar, number: int, there: Scalar) -> _Element:
        """An element of the row, or behind its end one that comes last."""
        length = self.op.length
        n = code.let("n", self.thread + number * self.threads)
        if length < 1 << self.levels:
            there = both(there, n < length)
        x = code.load(0, self.dtype, row * length + n, there, 0, True)
        kind = UI64 if self.dtype.bits > UI32.bits else UI32
        key, position = code.fresh(), code.fresh()
        code.body.append(values.SortKey(key, kind, x, self.sorter.descending))
        if there != Lit(1):
            # The highest key there is. A real element may have it too, but its position is smaller.
            highest = code.compute(kind, "const", value=(1 << self.dtype.bits) - 1)
            key = code.choose(kind, there, key, highest)
        code.body.append(values.IndexValue(position, UI32, n))
        if self.kinds == _APART:
            return key, position
        (packed,) = self.kinds
        if packed is UI64:
            key, position = (code.compute(UI64, "cast", part) for part in (key, position))
        shift = code.compute(packed, "const", value=self.shift)
        upper = code.compute(packed, "shift_left", key, shift)
        return (code.compute(packed, "or", upper, position),)

    def handed_out(self, code: Code, row: Scalar, there: Scalar, found: list[_Element]) -> None:
        """The first `count` positions, in order."""
        wanted, count = self.sorter.wanted, self.op.count
        places = [code.compute(wanted, "cast", self.position(code, x)) for x in found]
        vector = max(n for n in (1, 2, 4) if n * wanted.storage_bytes <= 16 and count % n == 0)
        for first in range(0, self.each, vector):
            i = code.let("i", self.thread * self.each + first)
            guard = both(there, i < count) if count < 1 << self.levels else there
            offset, sources = wide(row * count + i), tuple(places[first : first + vector])
            store: ir.Stmt = values.StoreVector(1, wanted, offset, guard, sources)
            if vector == 1:
                store = values.StoreElement(1, wanted, offset, guard, sources[0])
            code.body.append(store)

    def position(self, code: Code, x: _Element) -> str:
        if self.kinds == _APART:
            return x[1]
        (packed,) = self.kinds
        mask = code.compute(packed, "const", value=(1 << self.shift) - 1)
        return code.compute(packed, "and", x[0], mask)

    # -- steps

    def step(self, code: Code, found: list[_Element], mask: int) -> list[_Element]:
        """Pairs whose numbers differ in the bits of a mask, in order."""
        # Element number is thread * each + place in the thread: the low bits of a mask change the
        # place, the high ones the thread.
        held, threads = mask % self.each, mask // self.each
        if not threads:
            return self.within(code, found, held)
        partners = [found[n ^ held] for n in range(self.each)]
        if threads < LANES:
            others = [self.of_lane(code, x, threads) for x in partners]
        else:
            others = self.of_thread(code, found, held, threads)
        # Of a pair the one whose highest differing bit is set keeps the larger.
        upper = (self.thread & (1 << threads.bit_length() - 1)) > 0
        made = []
        for mine, other in zip(found, others, strict=True):
            falls = self.stands_before(code, other, mine)
            rises = code.compute(I1, "not", falls)
            taken = code.choose(I1, upper, rises, falls)
            made.append(self.chosen(code, taken, other, mine))
        return made

    def within(self, code: Code, found: list[_Element], mask: int) -> list[_Element]:
        """Pairs of a thread's own elements."""
        made = list(found)
        for low in range(self.each):
            high = low ^ mask
            if low > high:
                continue
            swap = self.stands_before(code, found[high], found[low])
            made[low] = self.chosen(code, swap, found[high], found[low])
            made[high] = self.chosen(code, swap, found[low], found[high])
        return made

    def of_lane(self, code: Code, x: _Element, mask: int) -> _Element:
        made = tuple(code.fresh() for _ in x)
        for name, part, kind in zip(made, x, self.kinds, strict=True):
            code.body.append(values.Shuffle(name, kind, part, mask))
        return made

    def of_thread(
        self, code: Code, found: list[_Element], held: int, threads: int
    ) -> list[_Element]:
        """The elements of a thread of another warp, through shared memory."""
        for number, x in enumerate(found):
            for place, part, kind in zip(self.places(number, THREAD), x, self.kinds, strict=True):
                code.body.append(ir.StShared(place, part, kind))
        code.body.append(ir.SyncThreads())
        other = code.let("other", THREAD ^ threads)
        made = []
        for number in range(self.each):
            places = self.places(number ^ held, other)
            parts = zip(self.kinds, places, strict=True)
            made.append(tuple(code.get(kind, place) for kind, place in parts))
        code.body.append(ir.SyncThreads())
        return made

    def places(self, number: int, thread: Scalar) -> tuple[ir.Address, ...]:
        """Where the parts of a thread's element lie."""
        made, start = [], 0
        for kind in self.kinds:
            at = (thread + number * self.threads) * kind.storage_bytes + start
            made.append(ir.Address("elements", at))
            start += self.threads * self.each * kind.storage_bytes
        return tuple(made)

    def stands_before(self, code: Code, x: _Element, y: _Element) -> str:
        first = code.compute(I1, "lt", x[0], y[0])
        if len(x) == 1:
            return first
        alike = code.compute(I1, "eq", x[0], y[0])
        earlier = code.compute(I1, "lt", x[1], y[1])
        return code.compute(I1, "max", first, code.compute(I1, "min", alike, earlier))

    def chosen(self, code: Code, cond: str, x: _Element, y: _Element) -> _Element:
        parts = zip(self.kinds, x, y, strict=True)
        return tuple(code.compute(kind, "select", cond, one, other) for kind, one, other in parts)
