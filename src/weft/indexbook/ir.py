"""IndexBook: a side table that gives every Tiny value its axes and says which operand elements it
reads.

    AxisVar   = (id, name i0 | i1 | ..., size, kind iter | reduce | broadcast)
    IndexInfo = axes, domain, inputs [(value, map, guards)], reduce_axes
    IndexBook = value id -> IndexInfo

Semantics. `axes` are the value's own axes, named `i0, i1, ...` in order. For each operand, `map`
has one expression per axis of the *operand*, in the value's axes (for a `Reduce`, in its operand's
axes: those that stay keep their id, those that go are listed in `reduce_axes`). A broadcast axis is
the constant 0. Where a guard fails the element is not there: it is padding (`fill`). Divisors are
positive and reduced, and a remainder is a floor division with its guard.

Axes are made of atoms. `atoms[k]` lists the sizes into which axis k is split so that every reshape
connected to this value is a regrouping: later stages iterate over atoms, and most maps are then
permutations with offsets. A reshape without a common refinement keeps floor divisions
(`aligned=False`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weft.foundation.dims import Dim
from weft.foundation.index_expr import Guard, Index


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
    kind: AxisKind = AxisKind.ITER


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
class IndexInfo:
    """The axis space of one value."""

    axes: tuple[AxisVar, ...]
    domain: Domain
    inputs: tuple[InputMap, ...]
    reduce_axes: tuple[int, ...] = ()
    atoms: tuple[tuple[int, ...], ...] = ()
    scop: bool = True
    """False for values that are not affine: boundaries of every later stage."""


@dataclass(frozen=True)
class IndexBook:
    """Every value's axis space, by value id (the position in the graph's topological order: v0,
    v1)."""

    infos: dict[str, IndexInfo]

    def get(self, value_id: str) -> IndexInfo:
        return self.infos[value_id]
