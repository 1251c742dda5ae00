"""Sorting rows: the positions of their elements in order.

*In shared memory.* A block sorts a row by a bitonic network: at each step, elements that lie a
distance apart are compared and change places, all pairs at once. Elements are ordered by value and
then by position, so that no two are equal and the result is that of a stable sort.

*By counting.* Rows that are very short: a thread counts how many elements of the row come before
its own. That is its place.

Rows that no block holds are sorted by digits (`digits.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.element import ElementOp
from weft.codegen.gpu.scalar import BLOCK, THREAD, Lit, Name, Scalar, wide
from weft.codegen.gpu.statements import Code, split
from weft.foundation.dtypes import I1, SI32, DType
from weft.foundation.errors import InternalError
from weft.foundation.whole_ops import Order
from weft.region.ir import Kernel, Tensor

_THREADS: Final = 256
_MOST_THREADS: Final = 1024
_SHORTEST: Final = 64
"""Elements that a network sorts at least: half of them are a warp's."""
LONGEST: Final = 8192
"""Elements of a row that shared memory of any target holds."""
_KEY: Final = 8
_PLACE: Final = 4
"""Bytes of an element and of its position in shared memory."""


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

    # -- in shared memory ------------------------------------------------------------------------

    def network(self, op: Order) -> tuple[int, int, Code]:
        """Every row by a block; the first `count` positions of it are kept."""
        levels = (op.length - 1).bit_length()
        size = 1 << levels
        threads = min(_MOST_THREADS, size // 2)
        self.tiles.append(ir.SharedTile("keys", 0, size * _KEY))
        self.tiles.append(ir.SharedTile("places", size * _KEY, size * _PLACE))
        code = Code()
        row = BLOCK if op.outer > 1 else Lit(0)
        self._fetch(code, row, size, threads)
        level, step, turn = code.inside(), code.inside(), code.inside()
        self._exchange(turn, turn.let("pair", Name("turn") * threads + THREAD), size)
        step.loop("turn", size // 2 // threads, turn)
        step.body.append(ir.SyncThreads())
        level.loop("step", Name("level") + 1, step)
        code.loop("level", levels, level)
        self._hand_out(code, row, op.count, threads)
        return op.outer, threads, code

    def _fetch(self, code: Code, row: Scalar, size: int, threads: int) -> None:
        """The row, and behind it elements that come last."""
        turn = code.inside()
        i = turn.let("i", Name("taking") * threads + THREAD)
        x = turn.load(0, self.dtype, row * self.length + i, i < self.length, 0, True)
        position = turn.fresh()
        turn.body += [
            values.IndexValue(position, SI32, i),
            ir.StShared(_key(i), x, self.dtype),
            ir.StShared(_place(i), position, SI32),
        ]
        code.loop("taking", size // threads, turn)
        code.body.append(ir.SyncThreads())

    def _exchange(self, code: Code, pair: Scalar, size: int) -> None:
        """A pair in the order of its half of the network: up, or down."""
        apart = code.let("apart", Lit(1) << (Name("level") - Name("step")))
        rest = code.let("rest", pair & (apart - 1))
        low = code.let("low", (pair - rest) * 2 + rest)
        high = code.let("high", low + apart)
        a, b = (code.get(self.dtype, _key(at)) for at in (low, high))
        p, q = (code.get(SI32, _place(at)) for at in (low, high))
        falls = self._stands_before(code, (b, q), (a, p), size)
        rises = code.compute(I1, "not", falls)
        up = (low & (Lit(2) << Name("level"))).equals(0)
        swap = code.choose(I1, up, falls, rises)
        for at, x, y in ((low, b, a), (high, a, b)):
            new = code.compute(self.dtype, "select", swap, x, y)
            code.body.append(ir.StShared(_key(at), new, self.dtype))
        for at, x, y in ((low, q, p), (high, p, q)):
            new = code.compute(SI32, "select", swap, x, y)
            code.body.append(ir.StShared(_place(at), new, SI32))

    def _stands_before(
        self, code: Code, first: tuple[str, str], second: tuple[str, str], size: int
    ) -> str:
        """Whether an element, with its position, stands before another one."""
        earlier = code.compute(I1, "lt", first[1], second[1])
        not_after, strictly = self._compared(code, first[0], second[0])
        found = code.compute(I1, "select", earlier, not_after, strictly)
        if self.length % size == 0:
            return found
        end = code.compute(SI32, "const", value=self.length)
        there = code.compute(I1, "lt", first[1], end)
        alone = code.compute(I1, "ge", second[1], end)
        return code.compute(I1, "min", code.compute(I1, "max", found, alone), there)

    def _hand_out(self, code: Code, row: Scalar, count: int, threads: int) -> None:
        """The first `count` positions, in order."""
        turn = code.inside()
        i = turn.let("i", Name("giving") * threads + THREAD)
        given = Code([], turn.count)
        place = given.get(SI32, _place(i))
        made = given.fresh()
        given.body.append(values.Compute(ElementOp(made, self.wanted, "cast", (place,))))
        offset = wide(row * count + i)
        given.body.append(values.StoreElement(1, self.wanted, offset, Lit(1), made))
        turn.branch(Lit(1) if count % threads == 0 else i < count, given)
        code.loop("giving", -(-count // threads), turn)

    # -- by counting -----------------------------------------------------------------------------

    def counted(self, op: Order) -> tuple[int, int, Code]:
        count = op.outer * op.length
        outside = Code()
        point = outside.let("point", BLOCK * _THREADS + THREAD)
        code = outside.inside()
        i, outer = split(code, point, op.length, count)
        mine = code.load(0, self.dtype, point, Lit(1), 0, True)
        code.body.append(values.Variable("rank", SI32, 0))
        turn = code.inside()
        other = turn.load(0, self.dtype, outer * op.length + Name("j"), Lit(1), 0, True)
        before = turn.choose(I1, Name("j") < i, *self._compared(turn, other, mine))
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

    def _compared(self, code: Code, first: str, second: str) -> tuple[str, str]:
        """Whether an element does not stand after another one, and whether it stands before it,
        whatever their positions. NaN is larger than everything else."""
        low, high = (second, first) if self.descending else (first, second)
        not_after = code.compute(I1, "le", low, high)
        strictly = code.compute(I1, "not", code.compute(I1, "le", high, low))
        if self.dtype.is_float:
            not_after = code.compute(I1, "max", not_after, code.compute(I1, "ne", high, high))
            strictly = code.compute(I1, "min", strictly, code.compute(I1, "eq", low, low))
        return not_after, strictly


def _key(at: Scalar) -> ir.Address:
    return ir.Address("keys", at * _KEY)


def _place(at: Scalar) -> ir.Address:
    return ir.Address("places", at * _PLACE)
