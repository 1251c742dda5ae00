"""Statements on single values, of which map and row kernels are made.

    Stmt = ReadParam | LoadVector | LoadAcross | Compute | IndexValue | Words | Variable | Assign
         | Choose | Shuffle | ShuffleDown | Alike | SortKey | PlaceOf | StoreElement
         | StoreVector | CombineElement | Report

Semantics. A value is a named element of a dtype, one per thread; `Compute` and the others that name
a value make it once, a `Variable` may be assigned again. Guards are truth values per thread: where
one fails, memory is not touched and nothing changes. Offsets are in elements. Names are unique in a
kernel.
"""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation.dtypes import SI32, SI64, UI32, UI64, DType
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class ReadParam:
    """A new integer variable: an element of an integer buffer, held to a range."""

    name: str
    buffer: int
    dtype: DType
    element: int
    low: int
    high: int
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""


@dataclass(frozen=True)
class PlaceOf:
    """A new integer variable: an integer value, held to [0, size)."""

    name: str
    source: str
    size: int


@dataclass(frozen=True)
class LoadVector:
    """Consecutive elements by one access, or zeros where the guard fails."""

    names: tuple[str, ...]
    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""
    once: bool = False
    """Whether the unit reads it only here, so that its own cache need not take it."""
    lasting: bool = False
    """Whether the cache that all units share should give up other lines first."""


@dataclass(frozen=True)
class LoadAcross:
    """Consecutive elements, 16 bytes of them, from any element on: the first `count`, then zeros.

    The one or two lines of 16 bytes in which these lie are read whole; the buffer begins at a
    whole line, and the line in which it ends is there.
    """

    names: tuple[str, ...]
    buffer: int
    dtype: DType
    offset: Scalar
    count: Scalar
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""


@dataclass(frozen=True)
class Compute:
    """A value by one function."""

    op: ElementOp


@dataclass(frozen=True)
class IndexValue:
    """An integer expression as a value."""

    name: str
    dtype: DType
    value: Scalar


@dataclass(frozen=True)
class Words:
    """Consecutive words of the random stream of a state (`seed`, `offset`), as ui32: one from
    `element` on, or four, a block of the stream, where `element` is a multiple of four."""

    names: tuple[str, ...]
    seed: str
    offset: str
    element: Scalar


@dataclass(frozen=True)
class Variable:
    """A value that will be assigned again, and its start."""

    name: str
    dtype: DType
    start: Number


@dataclass(frozen=True)
class Assign:
    """A variable's next value."""

    name: str
    source: str
    guard: Scalar


@dataclass(frozen=True)
class Choose:
    """`cond ? x : y`, of two values of one dtype."""

    name: str
    dtype: DType
    cond: Scalar
    x: str
    y: str


@dataclass(frozen=True)
class Shuffle:
    """The value that the lane whose number differs in the bits of `mask` has. All lanes take
    part."""

    name: str
    dtype: DType
    source: str
    mask: int


@dataclass(frozen=True)
class ShuffleDown:
    """The value that the lane `count` further on has; the last `count` lanes have their own. All
    lanes take part."""

    name: str
    dtype: DType
    source: str
    count: int


@dataclass(frozen=True)
class Alike:
    """Two new integer variables: of the lanes that have the same `number`, which has `bits` bits,
    how many come before this one, and how many there are. All lanes take part."""

    names: tuple[str, ...]
    number: Scalar
    bits: int


@dataclass(frozen=True)
class SortKey:
    """An element's place in the order of its dtype, as an unsigned number of as many bits
    (`foundation.radix_sort`): a ui64 if these are 64, a ui32 else."""

    name: str
    dtype: DType
    source: str
    descending: bool = False


@dataclass(frozen=True)
class StoreElement:
    """`buffer[offset] = source`, rounded to nothing: the value has the buffer's dtype."""

    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    source: str


@dataclass(frozen=True)
class StoreVector:
    """Consecutive elements by one access."""

    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    sources: tuple[str, ...]
    passing: bool = False
    """Whether the cache that all units share should give them up before other lines."""


@dataclass(frozen=True)
class CombineElement:
    """`buffer[offset] = fn(buffer[offset], source)`, in one step: any threads may combine with one
    element at once. Of integers, by add, max or min, the result is the same in any order."""

    buffer: int
    dtype: DType
    fn: str
    offset: Scalar
    guard: Scalar
    source: str


@dataclass(frozen=True)
class Report:
    """Report to the host where a value breaks a rule: it is not `inside` [0, size), or not
    `nonzero`, or not `nonnegative`. Of several reports the first check, by number, and of that the
    first element counts."""

    value: str
    rule: str
    size: int
    number: int
    element: Scalar
    guard: Scalar


COMBINED: Final = (SI32, UI32, SI64, UI64)
"""Dtypes of elements that are combined in one step."""
COMBINING: Final = ("add", "max", "min")
"""The functions by which they are."""

ValueStmt: TypeAlias = (
    ReadParam | PlaceOf | LoadVector | LoadAcross | Compute | IndexValue | Words | Variable
    | Assign | Choose | Shuffle | ShuffleDown | Alike | SortKey | StoreElement | StoreVector
    | CombineElement | Report
)  # fmt: skip
VALUES: Final[tuple[type[ValueStmt], ...]] = get_args(ValueStmt)
"""The same, for those who ask often: of a union, `isinstance` takes several times as long."""
