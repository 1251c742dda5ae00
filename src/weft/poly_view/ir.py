"""Poly-View: the analysis form. Movements are gone; what is left are statements with domains and
accesses.

    Scop      = blocks, edges, non-SCoP boundaries
    PolyBlock = name, kind, axes (with sizes), accesses, attrs
    Access    = tensor (a block or an input), map, guards, fill
    Edge      = from, to, true dependences

Semantics. A block computes one Tiny value: its elementwise function, reduction or contraction.
`axes` are its iteration axes, made of atoms, in order; `reduce_axes` are the ones it reduces. Each
access says, for one operand, which element of which other block (or input) is read: movements
between the two have been composed into `map`, a list of expressions in the block's axes, one per
axis (atom) of the source's *output* space. Where a guard fails, `fill` is the element. SSA makes
anti and output dependences empty; a true dependence is the access itself.

A contraction block is a `mul` under a `reduce(sum)` whose operands are movements only. `pattern`
names what it was recognised as; `fold` marks a chain (softmax statistics) that one pass can
compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import Guard, Index


class BlockKind(Enum):
    """What a block does over its domain."""

    EWISE = "ewise"
    REDUCE = "reduce"
    MOVEMENT = "movement_affine"
    CONTRACTION = "contraction_pattern"
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
    fill: object | None = None


@dataclass(frozen=True)
class ContractionAttrs:
    """The roles of the axes of a contraction, by name."""

    pattern: str
    batch_idx: tuple[str, ...]
    lhs_idx: tuple[str, ...]
    rhs_idx: tuple[str, ...]
    out_idx: tuple[str, ...]
    reduce_idx: tuple[str, ...]
    affine_offsets: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PolyBlock:
    """A statement. `value` is the Tiny value it computes."""

    name: str
    kind: BlockKind
    axes: tuple[IterAxis, ...]
    dtype: DType
    accesses: tuple[Access, ...]
    value: Any
    attrs: ContractionAttrs | None = None

    @property
    def out_axes(self) -> tuple[IterAxis, ...]:
        """The axes of the result, in order."""
        return tuple(axis for axis in self.axes if not axis.reduce)


@dataclass(frozen=True)
class Edge:
    """Block `to` reads block `source` through access number `access`."""

    source: str
    to: str
    access: int


@dataclass(frozen=True)
class Chain:
    """Blocks recognised together: a softmax (`row_softmax`) or an attention (`attention`)."""

    kind: str
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class Scop:
    """The whole view. `outputs` maps a program output to the block (or input) that is it, and
    how."""

    inputs: dict[str, tuple[DType, tuple[int, ...]]]
    blocks: tuple[PolyBlock, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[tuple[str, Access, tuple[IterAxis, ...]], ...]
    chains: tuple[Chain, ...] = ()
