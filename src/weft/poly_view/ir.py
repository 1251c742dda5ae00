"""Poly-View: the analysis form. Movements are gone; what is left are statements with domains and
accesses.

    Scop      = inputs, params, blocks, edges, outputs, chains
    PolyBlock = name, kind, axes (with sizes), accesses, shape, write, base, attrs, after
    Access    = tensor (a block or an input), map, guards, fill, widen
    Edge      = from, to, true dependences

Semantics. A block computes one Tiny value: its elementwise function, reduction or contraction.
`axes` are its iteration axes, made of atoms, in order; `reduce_axes` are the ones it reduces. Each
access says, for one operand, which element of which other block (or input) is read: movements
between the two have been composed into `map`, a list of expressions in the block's axes, one per
axis (atom) of the source's *output* space. Where a guard fails, `fill` is the element. With `widen`
the element is converted to that dtype, exactly, after it is read. SSA makes anti and output
dependences empty; a true dependence is the access itself.

Tensors, inputs included, have the shape of their atoms: their elements in row-major order, the same
as under the shape that the program gave them (`Scop.shapes`), without axes of size 1 and with axes
split where a reshape splits them. Constants and counters are blocks without accesses, whose `value`
says what they are. A scalar is a tensor of rank 0, and so is a constant.

A contraction block is a `mul` under a `reduce(sum)` whose operands are movements (and widening
casts) of other tensors; both depend on every reduced axis. Products are in the dtype in which the
operands are read (after `widen`) and are summed in the block's. `pattern` names what it was
recognised as: `matmul`, or `conv` where an operand adds a reduced axis to another one.

An update block writes a window of a tensor: it iterates over the window, stores at `write` (one
expression per axis of its result, in its axes and in params), and takes every other element from
the tensor `base`, which has the shape of the result.

A gather is an elementwise block whose first access reads a place along an axis of the tensor of its
second access: `$j` there, a number from 0 to `selected` - 1.

A block may have to wait: it is computed only `after` other blocks are, whether or not it reads
them. What waits is computed for itself, even where another block computes the same.

An opaque block reads whole tensors: the maps of its accesses are identities over the tensors' own
axes.

A param is a scalar of the run: element `access` of a tensor, clamped to `[low, high]`.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import SELECTED, Expr, Guard, Index, params_of
from weft.foundation.json_records import APART, INLINE, SAID, called
from weft.foundation.records import dataclass

Scalar: TypeAlias = bool | int | float | complex


class BlockKind(Enum):
    """What a block does over its domain."""

    EWISE = "ewise"
    REDUCE = "reduce"
    MOVEMENT = "movement_affine"
    CONTRACTION = "contraction_pattern"
    UPDATE = "update"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class IterAxis:
    """One axis of a block's domain: `0 <= name < size`."""

    name: str
    size: int
    reduce: bool = False


@dataclass(frozen=True)
class Access:
    """A read of one operand."""

    tensor: str
    map: Index
    guards: tuple[Guard, ...] = ()
    fill: Scalar | None = None
    widen: DType | None = None


@dataclass(frozen=True)
class IndexParam:
    """A run-time number of index expressions, `$name` in them."""

    name: str
    access: Access = field(metadata=INLINE)
    low: int
    high: int


@dataclass(frozen=True)
class ContractionAttrs:
    """The roles of the axes of a contraction, by name: in both operands and the result (batch), in
    lhs and the result, in rhs and the result, in the result (all of the former, in its order), and
    in the operands only. `affine_offsets` maps an axis to the expression that adds a reduced axis
    to it."""

    pattern: str
    batch_idx: tuple[str, ...]
    lhs_idx: tuple[str, ...]
    rhs_idx: tuple[str, ...]
    out_idx: tuple[str, ...]
    reduce_idx: tuple[str, ...]
    affine_offsets: dict[str, str] = field(default_factory=dict, hash=False, metadata=SAID)


@dataclass(frozen=True)
class PolyBlock:
    """A statement. `value` is the Tiny value it computes."""

    name: str
    kind: BlockKind
    axes: tuple[IterAxis, ...] = field(metadata=INLINE)
    dtype: DType
    accesses: tuple[Access, ...]
    value: Any = field(metadata=APART)
    attrs: ContractionAttrs | None = None
    value_id: str = field(default="", metadata={**SAID, **called("value")})
    """The id of the Tiny value: v0, v1, ..."""
    fn: str = field(default="", metadata=SAID)
    """What is computed: the function or reduction by its Tiny name, or cast, where, const, iota,
    gather, check, words."""
    write: Index | None = None
    base: str | None = None
    window_of: tuple[int, ...] = field(default=(), metadata=called("shape"))
    """The shape of the result of an update block."""
    selected: int = 0
    """For a gather, the extent of the axis along which it reads."""
    after: tuple[str, ...] = ()
    """Blocks that have to be there before this one is computed, besides those it reads."""

    @cached_property
    def out_axes(self) -> tuple[IterAxis, ...]:
        """The axes that are not reduced, in order: those of the result, but for an update."""
        return tuple(axis for axis in self.axes if not axis.reduce)

    @cached_property
    def out_names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.out_axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all axes, those that are reduced behind the others."""
        return (*self.out_names, *(axis.name for axis in self.reduce_axes))

    @cached_property
    def reduce_axes(self) -> tuple[IterAxis, ...]:
        return tuple(axis for axis in self.axes if axis.reduce)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, in atoms."""
        if self.write is not None:
            return self.window_of
        return tuple(axis.size for axis in self.out_axes)

    @cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """Every index expression of the block."""
        reads = (e for a in self.accesses for e in (*a.map, *(g.expr for g in a.guards)))
        return (*reads, *(self.write or ()))

    @cached_property
    def params(self) -> frozenset[str]:
        """The params of the view that its index expressions use."""
        used = frozenset[str]().union(*(params_of(expr) for expr in self.expressions))
        return used - {SELECTED}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Inclusive ranges of the axes, for interval arithmetic."""
        return {axis.name: (0, axis.size - 1) for axis in self.axes}


@dataclass(frozen=True)
class Edge:
    """Block `to` reads block `source` through access number `access`; -1: as its base, or for a
    param of its index expressions."""

    source: str
    to: str
    access: int


@dataclass(frozen=True)
class Chain:
    """Blocks recognised together: a softmax (`row_softmax`), an attention (`attention`), or what
    the gradient of one is made of (`stream`)."""

    kind: str
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class Scop:
    """The whole view. `outputs` maps a program output to the block (or input) that is it, and
    how, over the atoms of the output."""

    inputs: dict[str, tuple[DType, tuple[int, ...]]]
    blocks: tuple[PolyBlock, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[tuple[str, Access, tuple[IterAxis, ...]], ...]
    chains: tuple[Chain, ...] = ()
    params: tuple[IndexParam, ...] = ()
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of inputs and outputs as the program gave them, and of blocks that are stored in
    another order than their own."""

    @cached_property
    def by_name(self) -> dict[str, PolyBlock]:
        return {block.name: block for block in self.blocks}

    @cached_property
    def dependences(self) -> tuple[Edge, ...]:
        """The edges that follow from the accesses."""
        sources = {p.name: p.access.tensor for p in self.params}
        found: list[Edge] = []
        for block in self.blocks:
            reads: dict[str, list[int]] = {}
            for number, access in enumerate(block.accesses):
                reads.setdefault(access.tensor, []).append(number)
            others = [block.base, *(sources.get(name) for name in sorted(block.params))]
            for tensor in dict.fromkeys(others):
                reads.setdefault(str(tensor), []).append(-1)
            for tensor, numbers in reads.items():
                if tensor in self.by_name:
                    found += [Edge(tensor, block.name, number) for number in numbers]
        return tuple(found)
