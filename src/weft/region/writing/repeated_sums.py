"""Sums with the same value at many places, computed once.

    y[i, j] = sum_k c * w[j, k]      ->      s[j] = sum_k c * w[j, k],   y[i, j] = s[j]

The cotangent of a sum is one number for all elements: the gradient of `(x @ w).sum()` is a sum of w
that no row of x changes, and it would be computed for every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.foundation.index_expr import Expr, axes_of, constant, substitute
from weft.foundation.records import replace
from weft.poly_view.ir import Access, BlockKind, PolyBlock, Scop
from weft.target.target import Kind, Target

_FOLLOWED = (BlockKind.EWISE, BlockKind.REDUCE, BlockKind.MOVEMENT)
_BY_PLACE = frozenset({"iota", "words", "check", "gather"})
"""What depends on where it is computed."""


def with_single_sums(scop: Scop, target: Target) -> Scop:
    """The view with sums without the axes that they do not depend on, on a GPU, which would compute
    each of them anew."""
    if target.kind is not Kind.GPU:
        return scop
    found = _Dependence(scop)
    kept = {block.name: found.of(block) for block in scop.blocks if _is_sum(block)}
    held = {param.access.tensor for param in scop.params}
    narrow = {
        name: tuple(place for place, axis in enumerate(block.out_axes) if axis.name in own)
        for name, own in kept.items()
        for block in [scop.by_name[name]]
        if len(own) < len(block.out_axes) and name not in held
    }
    return _narrow_blocks(scop, narrow) if narrow else scop


def _is_sum(block: PolyBlock) -> bool:
    return block.kind is BlockKind.REDUCE and not block.params


@dataclass
class _Dependence:
    """On which of their axes the values of blocks depend."""

    scop: Scop
    known: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Poly-View has blocks after what they read.
        for block in self.scop.blocks:
            self.known[block.name] = self._find(block)

    def of(self, block: PolyBlock) -> frozenset[str]:
        return self.known[block.name]

    def _find(self, block: PolyBlock) -> frozenset[str]:
        own = frozenset(axis.name for axis in block.out_axes)
        # Nothing is read at 0 of an axis without elements.
        empty = any(axis.size == 0 for axis in block.axes)
        if empty or block.kind not in _FOLLOWED or block.fn in _BY_PLACE or block.params:
            return own
        used = frozenset[str]().union(*(self._axes_of_access(access) for access in block.accesses))
        return own & used

    def _axes_of_access(self, access: Access) -> frozenset[str]:
        """The axes that an access depends on."""
        held = self.scop.by_name.get(access.tensor)
        guards = (axes_of(guard.expr) for guard in access.guards)
        exprs = access.map
        if held is not None and held.write is None:
            pairs = zip(held.out_axes, access.map, strict=True)
            exprs = tuple(expr for axis, expr in pairs if axis.name in self.known[held.name])
        return frozenset[str]().union(*map(axes_of, exprs), *guards)


def _narrow_blocks(scop: Scop, narrow: Mapping[str, tuple[int, ...]]) -> Scop:
    """The view with blocks that have some of their axes alone."""

    def read(access: Access) -> Access:
        places = narrow.get(access.tensor)
        if places is None:
            return access
        return replace(access, map=tuple(access.map[place] for place in places))

    def made(block: PolyBlock) -> PolyBlock:
        if any(access.tensor in narrow for access in block.accesses):
            block = replace(block, accesses=tuple(map(read, block.accesses)))
        return _without_axes(block, narrow[block.name]) if block.name in narrow else block

    return replace(
        scop,
        blocks=tuple(map(made, scop.blocks)),
        outputs=tuple((name, read(access), axes) for name, access, axes in scop.outputs),
    )


def _without_axes(block: PolyBlock, places: tuple[int, ...]) -> PolyBlock:
    """A block over some of its axes, computed where the others are 0."""
    kept = {block.out_axes[place].name for place in places}
    dropped: dict[str, Expr] = {
        axis.name: constant(0) for axis in block.out_axes if axis.name not in kept
    }
    accesses = tuple(
        replace(
            access,
            map=tuple(substitute(expr, dropped) for expr in access.map),
            guards=tuple(
                type(guard)(substitute(guard.expr, dropped), guard.size) for guard in access.guards
            ),
        )
        for access in block.accesses
    )
    axes = tuple(axis for axis in block.axes if axis.name not in dropped)
    return replace(block, axes=axes, accesses=accesses)
