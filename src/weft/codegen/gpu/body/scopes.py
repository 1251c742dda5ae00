"""Scopes in the code of a thread: where each value is known, and how many points it is computed for
at once.

A `Scope` is a place in the code where some axes stand at known scalars. Points that a thread takes
together (a vector) are scopes that write into one body: the *instances* of a `Group`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Lit, Scalar, both

ALWAYS: Final = Lit(1)


@dataclass(eq=False)
class Scope:
    """A place in the code: axes that are known, statements so far, values made here."""

    parent: Scope | None
    axes: dict[str, Scalar]
    body: list[ir.Stmt]
    inside: Scalar = ALWAYS
    """Whether the point exists; where it does not, nothing is read, stored or accumulated."""
    group: Group | None = None
    made: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _above(self) -> tuple[Scope, ...]:
        return () if self.parent is None else self.parent.chain()

    def chain(self) -> tuple[Scope, ...]:
        """The scopes from the outermost to this one."""
        return (*self._above, self)

    def known(self) -> dict[str, Scalar]:
        merged: dict[str, Scalar] = {}
        for scope in self.chain():
            merged.update(scope.axes)
        return merged

    def exists(self) -> Scalar:
        result: Scalar = Lit(1)
        for scope in self.chain():
            result = both(result, scope.inside)
        return result


@dataclass(eq=False)
class Group:
    """Points that follow one another along an axis, taken together."""

    axis: str | None
    instances: list[Scope] = field(default_factory=list)


def group_at(
    parent: Scope, axes: Mapping[str, Scalar], axis: str | None, count: int, inside: Scalar
) -> Group:
    """`count` points from the one at `axes` on, along `axis`. What does not change along it is
    made once for all of them."""
    others = {name: place for name, place in axes.items() if name != axis}
    base = Scope(parent, others, parent.body, inside)
    group = Group(axis)
    if axis is None:
        base.group = group
        group.instances.append(base)
        return group
    for step in range(count):
        group.instances.append(Scope(base, {axis: axes[axis] + step}, base.body, group=group))
    return group


def in_whole_vectors(sizes: Mapping[str, int], axis: str | None, vector: int) -> Mapping[str, int]:
    """How far the axes go when the last vector along one may reach into the room behind a row,
    which is the row's own: what lies there is read for nothing, and may be overwritten."""
    if axis is None or sizes[axis] % vector == 0:
        return sizes
    return {**sizes, axis: -(-sizes[axis] // vector) * vector}


def end_in_room(group: Group, sizes: Mapping[str, int]) -> None:
    """Mark the points of a group that exist where the last one of a row reaches into its room."""
    axis = group.axis
    if axis is None or sizes[axis] % len(group.instances) == 0:
        return
    for point in group.instances[1:]:
        point.inside = point.axes[axis] < sizes[axis]


Sweep = Callable[[Group, int], None]
"""What is done with every group of points, and how many points came before it in the body."""
