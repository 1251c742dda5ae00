"""IndexBook: a side table that gives every Tiny value its axes and says which operand elements it
reads.

    AxisVar   = (id, name i0 | i1 | ..., size, kind iter | reduce | broadcast)
    IndexInfo = axes, domain, inputs [(value, map, guards)], reduce_axes, params
    IndexBook = value id -> IndexInfo

Semantics. `axes` are the value's own axes, named `i0, i1, ...` in order. For each operand, `map`
has one expression per axis of the *operand*, in the value's axes (for a `Reduce`, in its operand's
axes: those that stay keep their id, those that go are listed in `reduce_axes`). A broadcast axis is
the constant 0. Where a guard of an input fails, that operand has no such element: it is padding, or
for a `DynamicUpdate` the element of the other operand. Divisors are positive and reduced, and a
remainder is a floor division with its guard among the constraints of the domain.

The start of a dynamic window is a parameter: a scalar value, clamped to `[low, high]`. What a
`Gather` reads along its axis is `$j`: the element of its other operand at the same place, a number
from 0 to `selected` - 1.

Axes are made of atoms. `atoms[k]` lists the sizes into which axis k is split so that every reshape
connected to this value is a regrouping: later stages iterate over atoms, and most maps are then
permutations with offsets. An axis of size 1 has no atoms. A reshape without a common refinement
keeps floor divisions (`aligned=False`); a second one in a chain of movements reads a value that is
marked `materialise`, which must then exist in memory.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from weft.foundation.dims import Dim
from weft.foundation.errors import Finding
from weft.foundation.index_expr import Expr, FloorDiv, Guard, Index
from weft.foundation.json_records import SAID
from weft.foundation.records import dataclass


class AxisKind(Enum):
    """What becomes of an axis."""

    ITER = "iter"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class AxisVar:
    """An axis of a value. `id` survives renaming: a reduce keeps the ids of the axes that stay."""

    id: int
    name: str
    size: Dim
    kind: AxisKind = field(default=AxisKind.ITER, metadata=SAID)


@dataclass(frozen=True)
class Domain:
    """`0 <= i_k < size_k`, and the guards on top; `pieces` split it where a pad does."""

    constraints: tuple[Guard, ...]
    pieces: tuple[Domain, ...] = ()


@dataclass(frozen=True)
class InputMap:
    """How a value reads one operand."""

    value_id: str
    map: Index
    guards: tuple[Guard, ...] = ()
    aligned: bool = True


@dataclass(frozen=True)
class IndexParam:
    """A number known only at run time: the scalar `value_id`, clamped to `[low, high]`."""

    name: str
    value_id: str
    low: int
    high: int


@dataclass(frozen=True)
class IndexInfo:
    """The axis space of one value."""

    axes: tuple[AxisVar, ...]
    domain: Domain
    inputs: tuple[InputMap, ...]
    reduce_axes: tuple[int, ...] = ()
    atoms: tuple[tuple[int, ...], ...] = field(default=(), metadata=SAID)
    params: tuple[IndexParam, ...] = ()
    scop: bool = True
    """False for values that are not affine: boundaries of every later stage."""
    materialise: bool = False
    """True for a movement that must be a tensor of its own."""
    selected: int = 0
    """For a gather, the extent of the axis along which it reads; `$j` is the place there."""


@dataclass(frozen=True)
class IndexBook:
    """Every value's axis space, by value id (the position in the graph's topological order: v0,
    v1)."""

    infos: dict[str, IndexInfo]
    findings: tuple[Finding, ...] = ()
    """Warnings: W2101 for each value that had to be marked `materialise`."""

    def get(self, value_id: str) -> IndexInfo:
        return self.infos[value_id]


def is_remainder(expr: Expr) -> bool:
    """Whether an expression takes away a floor division, as `e - q * floor(e / q)` does: it then
    needs a guard that says how large the rest may be."""
    return any(isinstance(term, FloorDiv) and factor < 0 for term, factor in expr.terms)
