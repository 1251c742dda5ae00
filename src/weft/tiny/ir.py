"""Tiny IR: a graph of values that only move, compute element by element, or reduce.

    Leaf     = Input(name) | Const(value) | Iota(axis)
    Movement = Reshape | Permute | Expand | Pad | Shrink | Flip | View | DynamicShrink | Barrier
    Compute  = Unary(fn) | Cast | Binary(fn) | Where | Reduce(fn, axes, acc) | DynamicUpdate
             | Gather(axis) | Check(rule) | Words
    Other    = Opaque(op)                  what is none of these; a boundary for every later stage

Semantics. A value is a function from indices to elements. Movements copy nothing; they say which
element of their operand is meant. `Expand` repeats axes of size 1 and keeps the rank; `Pad`
surrounds with a scalar; `View` reads `x[index(out axes)]`, where every index is affine and in
range; `Barrier` is its operand, for those who compute from it once another value is there; `Reduce`
removes its axes and accumulates in `acc`, which is also its dtype. Operands of `Binary` and `Where`
have one shape and one dtype (`Where`'s predicate is i1); nothing is cast or broadcast implicitly.
`Gather` reads places that another value names; `Check` is its operand, of which every element must
keep a rule; one that does not is a violation when the graph runs. `Words` are random bits, a
function of a state. Storage types (fp8, bf16, f16, 4-bit) are computed as their reference meaning
says: widened, computed, rounded back by each node.

Nodes are interned; a graph names its inputs and outputs and nothing else. Shapes may hold symbols
when a graph is read from JSON; every later stage wants numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from enum import Enum
from functools import cache, cached_property
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray

from weft.foundation.dims import Shape, add_dims
from weft.foundation.dtypes import I1, UI32, DType
from weft.foundation.index_expr import Index
from weft.foundation.interned import Node, node
from weft.foundation.json_records import APART, LAST, SAID, called
from weft.foundation.records import dataclass
from weft.foundation.scalar import COMPARISONS, Fn

Scalar: TypeAlias = bool | int | float | complex
_NEW_SHAPE: Final = called("new_shape")
_SEVERAL: Final = "tuple[Value, ...]"


class ReduceFn(Enum):
    """Reductions, each with its identity."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"

    def __str__(self) -> str:
        return self.value


@node
class Input(Node):
    """A tensor handed in by name."""

    name: str
    dtype: DType
    shape: Shape


@node
class Const(Node):
    """A scalar; `Expand` makes it a tensor."""

    value: Scalar
    dtype: DType

    @property
    def shape(self) -> Shape:
        return ()


@node
class Iota(Node):
    """The index along one axis."""

    dtype: DType = field(metadata=LAST)
    shape: Shape = field(metadata={**LAST, **_NEW_SHAPE})
    axis: int


class Typed(Node):
    """A node whose type is found once, when the node is made and its operands have theirs, so that
    a deep graph needs no recursion. What a verifier would refuse gets some type, too."""

    __slots__ = ("_dtype", "_shape")
    _dtype: DType
    _shape: Shape

    def __post_init__(self) -> None:
        dtype, shape = _type_of(self)
        object.__setattr__(self, "_dtype", dtype)
        object.__setattr__(self, "_shape", shape)


class Derived(Typed):
    """A node that says neither its dtype nor its shape itself: both follow from its operands."""

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def shape(self) -> Shape:
        return self._shape


@node
class Reshape(Typed):
    """The same elements in row-major order under another shape."""

    x: Value
    shape: Shape = field(metadata=_NEW_SHAPE)

    @property
    def dtype(self) -> DType:
        return self._dtype


@node
class Permute(Derived):
    """Axis `i` of the result is axis `perm[i]` of `x`."""

    x: Value
    perm: tuple[int, ...]


@node
class Expand(Typed):
    """Axes of size 1 repeated to `shape`; the rank stays."""

    x: Value
    shape: Shape = field(metadata=_NEW_SHAPE)

    @property
    def dtype(self) -> DType:
        return self._dtype


@node
class Pad(Derived):
    """`low` elements of `value` before and `high` after each axis."""

    x: Value
    low: tuple[int, ...]
    high: tuple[int, ...]
    value: Const


@node
class Shrink(Derived):
    """The window of `size` that begins at `start`."""

    x: Value
    start: tuple[int, ...]
    size: Shape


@node
class Flip(Derived):
    """The axes run backwards."""

    x: Value
    axes: tuple[int, ...]


@node
class View(Typed):
    """`x[index]`, the index affine in the result's axes `i0, i1, ...` and always in range."""

    x: Value
    shape: Shape = field(metadata=_NEW_SHAPE)
    index: Index

    @property
    def dtype(self) -> DType:
        return self._dtype


@node
class DynamicShrink(Derived):
    """A window whose start is computed: `starts` has one scalar per axis, clamped into range."""

    x: Value
    starts: tuple[Value, ...]
    size: Shape


@node
class Barrier(Derived):
    """`x`, for what may be computed only after `after` is. It is another value than `x`: what is
    computed from both is computed twice. Behind itself, `x` is stored before it is read."""

    x: Value
    after: Value


@node
class DynamicUpdate(Derived):
    """`x` with a window replaced by `update`; starts as in `DynamicShrink`."""

    x: Value
    update: Value
    starts: tuple[Value, ...]


@node
class Gather(Derived):
    """`x` read at places that `index` names along one axis: element i is `x[i]` with `i[axis]`
    replaced by `index[i]`. The shape is that of `index`, and that of `x` but for the axis. Indices
    are in range: a `Check` sees to it, or whoever makes them."""

    x: Value
    index: Value
    axis: int


class Rule(Enum):
    """What a `Check` asks of an element."""

    INSIDE = "inside"
    """0 <= x < size."""
    NONZERO = "nonzero"
    NONNEGATIVE = "nonnegative"

    def __str__(self) -> str:
        return self.value


@node
class Check(Derived):
    """`x`, an integer, where every element keeps the rule; a violation with `code` where one does
    not."""

    x: Value
    rule: Rule
    code: str
    size: int = field(default=0, metadata=SAID)


@node
class Words(Node):
    """Random 32-bit words for a state, si64[2]: element i in row-major order is word i mod 4 of
    block i div 4 of Philox4x32-10, with the first number of the state as its key and the second as
    the upper half of its counter. An array of states, whose axes begin the shape, has words for
    each of them, counted from 0."""

    state: Value
    shape: Shape = field(metadata=_NEW_SHAPE)

    @property
    def lead(self) -> int:
        """How many axes count the states."""
        return len(self.state.shape) - 1

    @property
    def dtype(self) -> DType:
        return UI32


@node
class Unary(Derived):
    """`fn` of every element."""

    fn: Fn = field(metadata=APART)
    x: Value


@node
class Cast(Typed):
    """Every element in another dtype, by PTIR's cast."""

    x: Value
    dtype: DType

    @property
    def shape(self) -> Shape:
        return self._shape


@node
class Binary(Derived):
    """`fn` of pairs of elements; a comparison gives i1."""

    fn: Fn = field(metadata=APART)
    lhs: Value
    rhs: Value


@node
class Where(Derived):
    """`pred ? x : y`, element by element."""

    pred: Value
    x: Value
    y: Value


@node
class Reduce(Derived):
    """Elements along `axes` combined in the dtype `acc`; the axes disappear."""

    fn: ReduceFn = field(metadata=APART)
    x: Value
    axes: tuple[int, ...] = field(metadata=APART)
    acc: DType


@node
class Opaque(Node):
    """One result of an op that is neither affine nor elementwise, carried whole.

    `op` is the PTIR op itself, or a record of `foundation.whole_ops`; this stage only hands it on.
    A result with a `base` is that operand, but for elements that the op replaces. `pairs` are the
    operands that are complex for the op, and `workspace` the bytes it needs for itself. Ops with
    different `site`s are different even where all else is equal: they may draw random numbers.
    """

    op: object
    inputs: tuple[Value, ...]
    result: int
    dtype: DType = field(metadata=APART)
    shape: Shape = field(metadata=APART)
    base: int | None = None
    workspace: int = 0
    pairs: tuple[int, ...] = ()
    site: int = 0


Leaf: TypeAlias = Input | Const | Iota
Movement: TypeAlias = (
    Reshape | Permute | Expand | Pad | Shrink | Flip | View | DynamicShrink | Barrier
)
Compute: TypeAlias = Unary | Cast | Binary | Where | Reduce | DynamicUpdate | Gather | Check | Words
Value: TypeAlias = Leaf | Movement | Compute | Opaque


@dataclass(frozen=True)
class Graph:
    """Named outputs over shared values.

    `constants` holds the data of the `Input` nodes that are not handed in: literals of more than
    one distinct element. The other tables are for people, and outside equality like the data:
    `origin` maps a value to the ids of the PTIR values it came from; `names` and `op_names` are the
    names that a JSON file gave to a value and to the op that makes it.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[tuple[str, Value], ...]
    origin: dict[Value, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False, repr=False)
    names: dict[Value, str] = field(default_factory=dict, compare=False, repr=False)
    op_names: dict[Value, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value below the outputs, operands first."""
        return tuple(topological(tuple(value for _, value in self.outputs)))


@cache
def operand_fields(kind: type) -> tuple[str, ...]:
    """The fields of a node that are operands, in order. The last may hold any number of them."""
    return tuple(known.name for known in fields(kind) if known.type in ("Value", _SEVERAL))


@cache
def takes_several(kind: type) -> bool:
    """Whether the last of these fields holds any number of operands."""
    return any(known.type == _SEVERAL for known in fields(kind))


def operands(value: Value) -> tuple[Value, ...]:
    """The values a value is made of, in order."""
    kind = type(value)
    found = [getattr(value, name) for name in operand_fields(kind)]
    return (*found[:-1], *found[-1]) if takes_several(kind) else tuple(found)


def topological(outputs: tuple[Value, ...]) -> list[Value]:
    """Every value below the outputs, operands first, in a deterministic order; no recursion."""
    order: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(value, False) for value in reversed(outputs)]
    while stack:
        value, ready = stack.pop()
        if value in order:
            continue
        if ready:
            order[value] = None
        else:
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(operands(value)))
    return list(order)


def value_ids(values: Sequence[Value]) -> dict[Value, str]:
    """The ids of values in topological order: v0, v1, ... These are the ids that every side table
    and every dump uses."""
    return {value: f"v{number}" for number, value in enumerate(values)}


def _type_of(value: Any) -> tuple[DType, Shape]:
    """The type that a node has by its operands."""
    match value:
        case Binary(fn=fn, lhs=lhs):
            return (I1 if fn in COMPARISONS else lhs.dtype), lhs.shape
        case Gather(x=x, index=index):
            return x.dtype, index.shape
        case Reduce(x=x, axes=axes, acc=acc):
            return acc, tuple(d for k, d in enumerate(x.shape) if k not in axes)
        case Cast(x=x, dtype=dtype):
            return dtype, x.shape
        case Permute(x=x, perm=perm):
            return x.dtype, tuple(x.shape[k] for k in perm if -len(x.shape) <= k < len(x.shape))
        case Pad(x=x, low=low, high=high):
            sizes = zip(x.shape, low, high, strict=False)
            return x.dtype, tuple(add_dims(size, a + b) for size, a, b in sizes)
        case Shrink(x=x, size=size) | DynamicShrink(x=x, size=size):
            return x.dtype, size
        case Reshape(x=x, shape=shape) | Expand(x=x, shape=shape) | View(x=x, shape=shape):
            return x.dtype, shape
        case _:
            operand: Value = value.x
            return operand.dtype, operand.shape
