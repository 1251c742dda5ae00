"""Statements that move elements between global memory, shared memory and registers, and the
epilogue of a matrix kernel.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.frame import Address, RegAt
from weft.codegen.gpu.ir.scalar import Scalar
from weft.codegen.gpu.ir.swizzle import Swizzle
from weft.foundation.dtypes import F32, DType
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class LoadElement:
    """`name = buffer[offset]`, or `fill` where the guard fails."""

    name: str
    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    fill: Number = 0
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""


@dataclass(frozen=True)
class StShared:
    """Store a value as `dtype`, in whole words."""

    target: Address
    source: str
    dtype: DType


@dataclass(frozen=True)
class LoadShared:
    """A value that was stored as `dtype`."""

    name: str
    dtype: DType
    source: Address


@dataclass(frozen=True)
class LoadSharedVector:
    """Values that were stored as `dtype` one after the other, by one access."""

    names: tuple[str, ...]
    dtype: DType
    source: Address


@dataclass(frozen=True)
class LoadStaged:
    """Elements that a copy has put one after the other into shared memory, packed as in global
    memory, by one access: a vector of them, or one."""

    names: tuple[str, ...]
    dtype: DType
    source: Address


@dataclass(frozen=True)
class CountShared:
    """Add one to a number of 32 bits, in one step: lanes and warps may count there at once."""

    target: Address


@dataclass(frozen=True)
class StSharedVec:
    """Store consecutive registers of 32 bits."""

    target: Address
    source: RegAt
    count: int


@dataclass(frozen=True)
class SharedColumns:
    """A value per column, from f32s in shared memory that begin with this thread's first column."""

    name: str
    dtype: DType
    source: Address


@dataclass(frozen=True)
class GlobalElements:
    """A value per element, from `buffer[base + row * row_stride + column * column_stride]`. Where
    rows do not follow one another, `digits` are sizes and strides of what the number of a row is
    made of, outermost first."""

    name: str
    dtype: DType
    buffer: int
    base: Scalar
    row_stride: int
    column_stride: int
    digits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class IndexElements:
    """`base + row * row_factor + column * column_factor` as a number."""

    name: str
    dtype: DType
    base: Scalar
    row_factor: int
    column_factor: int


@dataclass(frozen=True)
class StagedElements:
    """A value per element, from a panel in shared memory whose rows follow one another, pieces
    permuted: where this thread's first row begins, and its first column in bytes."""

    name: str
    dtype: DType
    row: Address
    column: Scalar
    swizzle: Swizzle


@dataclass(frozen=True)
class RowValues:
    """A value per row: of the thread's two values, the one of the element's row."""

    name: str
    dtype: DType
    values: tuple[str, ...]


@dataclass(frozen=True)
class RegisterElements:
    """A value per element, from another accumulator, whose elements lie in the same way."""

    name: str
    dtype: DType
    source: RegAt


@dataclass(frozen=True)
class RandomElements:
    """A word per element, as ui32: that of the random stream of a state (`seed`, `offset`) at
    `base + row * row_factor + column * column_factor`. `paired` says that the two columns of a pair
    follow one another in the stream, from an even place on."""

    name: str
    dtype: DType
    seed: str
    offset: str
    base: Scalar
    row_factor: int
    column_factor: int
    paired: bool = False


@dataclass(frozen=True)
class BitElements:
    """A truth value per element, from bits that `DrawBits` has put into registers: whether the
    element's bit is set, or with `inverted` whether it is not."""

    name: str
    dtype: DType
    source: RegAt
    inverted: bool = False


ElementSource: TypeAlias = (
    SharedColumns
    | StagedElements
    | GlobalElements
    | IndexElements
    | RowValues
    | RegisterElements
    | RandomElements
    | BitElements
)


@dataclass(frozen=True)
class Fragment:
    """Where a thread's share of a 16-row accumulator lies in the result.

    Accumulators come in groups of 8 columns; of each, a thread holds four elements: (row, column),
    (row, column + 1), (row + 8, column), (row + 8, column + 1). The next group is 8 columns on.
    Elements outside `rows x columns` are neither read from memory nor stored.
    """

    groups: int
    row: Scalar
    column: Scalar
    rows: int
    columns: int


@dataclass(frozen=True)
class DrawBits:
    """A bit per element of a fragment: whether the word of a random stream (`RandomElements`) that
    belongs to it is at least `least`. Bit 4 * (g % 8) + e of register g // 8 is that of the e-th
    element of group g.

    `shared` neighbours have words of one block: four along a row or in a column, so that one of the
    factors is 1, the other one and `base` are multiples of 4, and a warp's first row and first
    column of 8; the two columns of a pair, as with `RandomElements`; or one. The whole warp draws
    at once. With `narrow` the numbers of all blocks have 32 bits; of elements outside the
    fragment's rows and columns bits are anything."""

    out: RegAt
    fragment: Fragment
    seed: str
    offset: str
    base: Scalar
    row_factor: int
    column_factor: int
    least: int
    shared: int = 1
    narrow: bool = False


@dataclass(frozen=True)
class Epilogue:
    """Apply `ops` to every element of an accumulator and keep the results in registers.

    `value` names the accumulator's element, of `value_dtype`, in `ops`, `result` the op whose value
    is kept: results of 32 and 64 bits as they are (four registers a group), narrower ones in pairs,
    the first in the lower bits (two registers a group).
    """

    acc: RegAt
    fragment: Fragment
    value: str
    sources: tuple[ElementSource, ...]
    ops: tuple[ElementOp, ...]
    result: str
    out: RegAt
    out_dtype: DType
    value_dtype: DType = F32


@dataclass(frozen=True)
class StGlobalVec:
    """Store a fragment of results, `width` elements at a time, at
    `buffer[base + row * row_stride + column * column_stride]`."""

    source: RegAt
    dtype: DType
    fragment: Fragment
    buffer: int
    base: Scalar
    row_stride: int
    column_stride: int
    width: int


@dataclass(frozen=True)
class StGlobalRow:
    """Store a piece of a row, of which each lane has a word in shared memory.

    Lanes with the same `offset` share a piece: the one with `place` p has the p-th word, and stores
    its elements to `buffer[offset + i]` where their number i in the piece is below `count`. The
    whole warp stores at once. Results need not begin at whole words. With `vector` a lane has four
    words, all of which are stored or none; pieces begin and end at whole lines of 16 bytes.
    """

    source: Address
    dtype: DType
    buffer: int
    offset: Scalar
    place: Scalar
    count: Scalar
    vector: bool = False


SharedStmt: TypeAlias = (
    StShared | CountShared | StSharedVec | LoadShared | LoadSharedVector | LoadStaged
)
