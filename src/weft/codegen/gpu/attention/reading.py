"""Loads and elementwise ops of an attention kernel as statements of the dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Refs, Source, Strides, affine, element_op
from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Expr, coefficient, constant, linear
from weft.foundation.records import dataclass
from weft.region.forms.bands import HULL_ROWS, Band
from weft.region.forms.dropout_bits import find_chance, made_of
from weft.region.forms.runs import longest_run
from weft.region.ir import AxisIndex, Kernel, Let, Read, Words


@dataclass(frozen=True)
class Draw:
    """Where the random word of each element is in the stream of the state with this number. With
    `narrow` the numbers of all blocks of the stream have 32 bits."""

    state: int
    strides: Strides
    narrow: bool

    @property
    def paired(self) -> bool:
        """Whether neighbours along a row, from an even one on, share a block of the stream."""
        return self.shared > 1 and self.strides.column == 1

    @property
    def shared(self) -> int:
        """How many neighbours have a block of the stream together: four, along a row or in a
        column; two along a row, from an even one on; or one."""
        strides = self.strides
        rest = (strides.offset, *strides.batch)
        for size, along, across in (
            (4, strides.column, strides.row),
            (4, strides.row, strides.column),
            (2, strides.column, strides.row),
        ):
            if along == 1 and all(number % size == 0 for number in (*rest, across)):
                return size
        return 1


@dataclass(frozen=True)
class Chance:
    """Whether the random word of each element is at least `least`."""

    draw: Draw
    least: int


@dataclass(frozen=True)
class Bit:
    """A truth value of each element: that of a chance, or the opposite of it."""

    name: str
    chance: Chance
    inverted: bool


@dataclass(frozen=True)
class State:
    """What a random stream begins with: the same numbers for all elements, by names of their
    own."""

    sources: tuple[Source, ...]
    ops: tuple[ElementOp, ...]
    seed: str
    offset: str


@dataclass(frozen=True)
class Program:
    """What is made of one element: `value` names it, `result` what comes of it."""

    value: str
    sources: tuple[Source, ...]
    ops: tuple[ElementOp, ...]
    result: str
    draws: tuple[tuple[str, Draw], ...] = ()
    """Random words, by their names."""
    bits: tuple[Bit, ...] = ()

    @property
    def is_low(self) -> bool:
        """Whether the result may lie so far below 0, as lowest numbers that are masks do, that it
        is to be shifted before it is scaled."""
        read = any(source.dtype.is_float for source in self.sources)
        return read or any(_is_low(op.value) for op in self.ops if op.fn == "const")


def _is_low(value: Number | None) -> bool:
    return not isinstance(value, complex | None) and -math.inf < value < -(2.0**24)


@dataclass(frozen=True)
class HullTables:
    """Between which columns those lie that a tile of rows may see, and those that it sees whole: a
    table each, with a number for each of `count` tiles of a matrix. `each` says it of a row and a
    column."""

    tensors: tuple[str, str, str, str]
    strides: Strides
    count: int
    each: Program


@dataclass(frozen=True)
class Axes:
    """The axes of one kind of element, and of what it lies in."""

    batch: tuple[str, ...]
    row: str
    columns: tuple[str, ...]
    sizes: Mapping[str, int]

    @property
    def extents(self) -> tuple[int, ...]:
        """Of rows, columns and the axes of a batch."""
        columns = prod(self.sizes[name] for name in self.columns)
        return (self.sizes[self.row], columns, *(self.sizes[name] for name in self.batch))

    def strides(self, expr: Expr) -> Strides:
        return Strides(
            expr.constant,
            coefficient(expr, self.row),
            _column_stride(expr, self.columns, self.sizes),
            tuple(coefficient(expr, name) for name in self.batch),
        )


class Reading:
    """One kernel, its batch axes those of more than one element."""

    def __init__(self, kernel: Kernel, refs: Refs, batch: Sequence[str]) -> None:
        self.kernel, self.refs = kernel, refs
        self.lets = {let.name: let for let in kernel.body}
        self.sizes = kernel.sizes
        self.all_batch = tuple(batch)
        self.batch = tuple(name for name in batch if self.sizes[name] != 1)
        self.states: dict[tuple[str, str], State] = {}
        """Of the random streams that programs draw from, by the Lets of seed and offset."""

    # Operands

    def operand(
        self, let: Let, rows: str, columns: tuple[str, ...], index: Sequence[Expr] = ()
    ) -> Operand:
        """Where the rows of a matrix lie that is read, in the place of its own `index` by another
        one, where that is given."""
        if not isinstance(let.expr, Read):
            raise Refusal("OperandComputed", "an operand of the attention is computed, not read")
        if let.dtype not in (BF16, F16):
            raise Refusal("OperandDType", f"an operand is {let.dtype}, not bf16 or f16")
        expr = self.address(index, let.expr.tensor) if index else self.read_address(let.expr)
        if {*let.axes} - {rows, *columns, *self.all_batch}:
            raise Refusal("OperandForm", "an operand depends on more than its rows and columns")
        across = (
            coefficient(expr, rows)
            if self.sizes[rows] > 1
            else prod(self.sizes[name] for name in columns)
        )
        batch = tuple(coefficient(expr, name) for name in self.batch)
        inner = _column_stride(expr, columns, self.sizes)
        return Operand(let.expr.tensor, let.dtype, expr.constant, across, inner, batch)

    def read_address(self, read: Read) -> Expr:
        if self.kernel.open_guards(read) or read.places:
            raise Refusal("GuardedRead", "a read is guarded, or its place is computed")
        return self.address(read.index, read.tensor)

    def address(self, index: Sequence[Expr], tensor: str) -> Expr:
        return affine(linear(index, self.refs[tensor].strides))

    # Programs

    def hulls(self, band: Band, row: str, starts: Sequence[str], axes: Axes) -> list[HullTables]:
        """What is read and computed for the hulls of a band."""
        found: list[HullTables] = []
        for number, hull in enumerate(band.hulls):
            names = (hull.first, hull.last, hull.whole_from, hull.whole_to)
            reads = [let.expr for let in map(self.lets.__getitem__, names)]
            tensors = [read.tensor for read in reads if isinstance(read, Read)]
            assert isinstance(reads[0], Read)
            *matrix, _ = reads[0].index
            at = self.address((*matrix, constant(0)), tensors[0])
            batch = tuple(coefficient(at, name) for name in self.batch)
            strides = Strides(at.constant, 0, 0, batch)
            count = -(-self.sizes[row] // HULL_ROWS)
            each = self.program(hull.each, starts, axes, f"h{number}_")
            first, last, whole_from, whole_to = tensors
            found.append(HullTables((first, last, whole_from, whole_to), strides, count, each))
        return found

    def program(self, value: str, starts: Sequence[str], axes: Axes, stem: str = "v") -> Program:
        """The Lets that `value` needs beyond the starts, as an element program: v0, v1, ..."""
        sources: list[Source] = []
        draws: list[tuple[str, Draw]] = []
        bits: list[Bit] = []
        ops: list[ElementOp] = []
        needed = self.needed(value, {*starts})
        names = {name: f"{stem}{i}" for i, name in enumerate([*starts, *needed])}
        for let in map(self.lets.__getitem__, needed):
            if chance := find_chance(self.lets, let.name):
                drawn = Chance(self.draw(chance.words, axes), chance.least)
                bits.append(Bit(names[let.name], drawn, chance.inverted))
                continue
            match let.expr:
                case Read() as read:
                    strides = axes.strides(self.read_address(read))
                    sources.append(Source(names[let.name], let.dtype, read.tensor, strides))
                case AxisIndex(expr=expr):
                    strides = axes.strides(affine(expr))
                    sources.append(Source(names[let.name], let.dtype, None, strides))
                case Words():
                    draws.append((names[let.name], self.draw(let.name, axes)))
                case _:
                    ops.append(element_op(let, names[let.name], names))
        made = (tuple(sources), tuple(ops), names[value], tuple(draws), tuple(bits))
        return Program(names[starts[0]], *made)

    def draw(self, name: str, axes: Axes) -> Draw:
        """Where the random words of a Let are."""
        words = self.lets[name].expr
        assert isinstance(words, Words)
        strides = axes.strides(affine(words.element))
        steps = (strides.row, strides.column, *strides.batch)
        last = strides.offset
        last += sum(max(0, step) * (n - 1) for step, n in zip(steps, axes.extents, strict=True))
        # A call of Philox makes four words: below 2^34 of them, the number of a call has 32 bits.
        return Draw(self.state(words.seed, words.offset), strides, last < 1 << 34)

    def state(self, seed: str, offset: str) -> int:
        """The number of a random stream."""
        if (seed, offset) not in self.states:
            number = len(self.states)
            needed = [*dict.fromkeys([*self.needed(seed, set()), *self.needed(offset, set())])]
            names = {name: f"state{number}_{i}" for i, name in enumerate(needed)}
            sources: list[Source] = []
            ops: list[ElementOp] = []
            for let in map(self.lets.__getitem__, needed):
                if let.axes:
                    raise Refusal("RandomState", "elements have random streams of their own")
                if isinstance(let.expr, Read):
                    at = self.read_address(let.expr)
                    strides = Strides(at.constant, 0, 0, ())
                    sources.append(Source(names[let.name], let.dtype, let.expr.tensor, strides))
                else:
                    ops.append(element_op(let, names[let.name], names))
            made = (tuple(sources), tuple(ops), names[seed], names[offset])
            self.states[seed, offset] = State(*made)
        return [*self.states].index((seed, offset))

    def needed(self, value: str, known: set[str]) -> list[str]:
        """The Lets that a value is made of, without those that are known, in order."""
        return made_of(self.lets, [value], known)


def _column_stride(expr: Expr, columns: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The stride of the columns, which act as one axis."""
    apart, run = longest_run(columns, [expr], sizes)
    if any(sizes[name] != 1 for name in apart):
        raise Refusal("OperandStride", "the axes of a row do not follow one another in memory")
    present = [name for name in run if sizes[name] != 1]
    return coefficient(expr, present[-1]) if present else 1
