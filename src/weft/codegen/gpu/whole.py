"""Kernels for the ops that stay whole: scatter, running reductions, sorting.

*Scatter.* The rows of the result are dealt to groups of threads; the threads of a group, one for
each column, look at all updates in order and apply those to their rows. So every element gets its
updates in order, whatever runs when, and no two threads touch one element.

*Running reductions.* A thread goes along a column; or, where columns are long and few, a block,
a stretch of one element a thread at a time: prefixes within warps by exchange, those of the warps
through shared memory, and what came before the stretch in a register.

*Scatter of sorted updates.* A thread has one update and one column. Where its update is the first
of its place, it takes the others of that place, which follow, one after the other.

*Sorting* is in `sorting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from weft.codegen.gpu import ir, sorting, values
from weft.codegen.gpu.accept import MAX_POINTS, refuse
from weft.codegen.gpu.element import Number, supports
from weft.codegen.gpu.formats import HELD, NARROW
from weft.codegen.gpu.reductions import FUNCTIONS
from weft.codegen.gpu.scalar import BLOCK, LANE, THREAD, WARP, Lit, Name, Scalar, both, wide
from weft.codegen.gpu.statements import Code, split
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import Finding, InternalError
from weft.foundation.functions import identity
from weft.foundation.whole_ops import (
    Gathered,
    Merge,
    Order,
    Running,
    Runs,
    Scatter,
    WholeOp,
)
from weft.region.ir import Kernel, Tensor
from weft.region.structure import buffers
from weft.target.target import Target

_THREADS: Final = 256
_WARP: Final = 32
_SLOT: Final = 8
"""Bytes of a value in shared memory, of any dtype."""
_LONG: Final = 512
"""Elements of a column from which on a block goes along it, where there are few columns."""
_VERY_LONG: Final = 4096
_MANY_COLUMNS: Final = 1 << 15


def accepts(op: WholeOp, kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Why there is no kernel for an op; empty where there is."""
    if kernel.opaque is None:
        raise InternalError(f"kernel {kernel.name} carries no op")
    dtypes = [tensors[name].dtype for name in kernel.opaque.inputs]
    sizes = [prod(tensors[name].shape) for name in buffers(kernel)]
    found = [dtype for dtype in dtypes if dtype not in HELD]
    if found:
        return [refuse("DTypeNotSupported", f"GPU kernels have no arithmetic in {found[0]}")]
    if max(sizes) >= MAX_POINTS:
        return [refuse("Points", "a tensor has more elements than 32 bits count")]
    match op:
        case Scatter(fn="add") if dtypes[0] in NARROW:
            return [refuse("FunctionNotSupported", f"updates of {dtypes[0]} are added in f32")]
        case Scatter(fn=fn) if fn != "replace" and not supports(fn, dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Running(fn=fn) if not supports(FUNCTIONS.get(fn, fn), dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Gathered(fn=fn) if fn != "replace" and not supports(fn, _wide(dtypes[0])):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Order(length=longest) | Runs(run=longest) if longest > sorting.LONGEST:
            return [refuse("Points", f"{longest} elements are too many for one block to sort")]
        case Runs(run=run) if run < sorting.SHORTEST or run & (run - 1):
            return [refuse("Points", f"a network does not sort runs of {run} elements")]
    return []


def build(
    op: WholeOp, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, name: str
) -> ir.Kernel:
    """The dialect kernel of an op that `accepts` has nothing against."""
    made = _Builder(kernel, tensors, target)
    match op:
        case Scatter():
            return made.kernel_called(name, *made.scatter(op))
        case Running() if made.goes_by_blocks(op):
            return made.kernel_called(name, *made.running_blocks(op))
        case Running():
            return made.kernel_called(name, *made.running_threads(op))
        case Gathered():
            return made.kernel_called(name, *made.gathered(op))
        case Order() | Runs() | Merge():
            return sorting.build(op, kernel, tensors, name)
    raise InternalError(f"{op!r} is not an op that has a kernel")


class _Builder:
    def __init__(self, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> None:
        if kernel.opaque is None:
            raise InternalError(f"kernel {kernel.name} carries no op")
        self.tensors, self.target = tensors, target
        self.inputs = list(kernel.opaque.inputs)
        self.result = kernel.outputs[0].tensor
        base = kernel.outputs[0].base
        # What the result is based on lies in it already; as an update it is read all the same.
        read = self.inputs[1:] if self.inputs[0] == base else self.inputs
        self.names = tuple(dict.fromkeys((*read, self.result)))
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.dtype = tensors[self.inputs[0]].dtype
        self.tiles: list[ir.SharedTile] = []

    def kernel_called(self, name: str, grid: int, threads: int, code: Code) -> ir.Kernel:
        return ir.Kernel(
            name, grid, threads, self.names, (), tuple(self.tiles), (), (), tuple(code.body)
        )

    def points(self, count: int) -> tuple[Code, Code, Scalar, Scalar]:
        """The statements of a thread, those for its point, which one that is, and whether it is
        there."""
        outside = Code()
        point = outside.let("point", BLOCK * _THREADS + THREAD)
        there: Scalar = Lit(1) if count % _THREADS == 0 else point < count
        return outside, outside.inside(), point, there

    # -- scatter ---------------------------------------------------------------------------------

    def scatter(self, op: Scatter) -> tuple[int, int, Code]:
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
        return -(-count // _THREADS), _THREADS, outside

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

    def gathered(self, op: Gathered) -> tuple[int, int, Code]:
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
        return -(-count // _THREADS), _THREADS, outside

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

    # -- running reductions ----------------------------------------------------------------------

    @property
    def wide_dtype(self) -> DType:
        return _wide(self.dtype)

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

    def write(self, code: Code, offset: Scalar, guard: Scalar, value: str) -> None:
        if self.wide_dtype is not self.dtype:
            value = code.compute(self.dtype, "cast", value)
        number = self.numbers[self.result]
        code.body.append(values.StoreElement(number, self.dtype, wide(offset), guard, value))

    def running_threads(self, op: Running) -> tuple[int, int, Code]:
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
        return -(-count // _THREADS), _THREADS, outside

    @staticmethod
    def goes_by_blocks(op: Running) -> bool:
        return op.length >= _LONG and op.outer * op.width <= _MANY_COLUMNS

    def running_blocks(self, op: Running) -> tuple[int, int, Code]:
        threads = 1024 if op.length >= _VERY_LONG else _THREADS
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
        total, prefix = _warp_prefix(turn, dtype, fn, x)
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


def _wide(dtype: DType) -> DType:
    """The dtype in which numbers are combined."""
    return F32 if dtype in NARROW else dtype


def _warp_prefix(code: Code, dtype: DType, fn: str, x: str) -> tuple[str, str]:
    """Everything of a warp combined, and everything up to the thread's own number."""
    total = prefix = x
    for bit in range(5):
        other = code.fresh()
        code.body.append(values.Shuffle(other, dtype, total, 1 << bit))
        upper = (LANE & (1 << bit)) > 0
        prefix = code.choose(dtype, upper, code.compute(dtype, fn, other, prefix), prefix)
        total = code.compute(dtype, fn, total, other)
    return total, prefix
