"""Scopes of a loop nest under construction: which values are known in which loop, and how loops are
closed and reopened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import Expr, axes_of, constant

UNROLLED, LANES, SERIAL, PARALLEL = (
    LoopKind.UNROLLED,
    LoopKind.LANES,
    LoopKind.SERIAL,
    LoopKind.PARALLEL,
)
Wrapper: TypeAlias = tuple[str, int, LoopKind]
"""Variable, count and kind of an unrolled or lanes loop of a tile."""


@dataclass
class Scope:
    """A loop under construction: its statements, and the axes that are known inside it."""

    parent: Scope | None
    var: str = ""
    count: int = 1
    kind: LoopKind = SERIAL
    axes: dict[str, Expr] = field(default_factory=dict)
    body: list[ir.Stmt] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    start: Expr = field(default_factory=partial(constant, 0))
    stop: Expr | None = None
    """Where a loop ends that is not counted from its start."""
    end: int | None = None

    @property
    def is_tile(self) -> bool:
        """Whether it is written out or carried by lanes, so that its values are still seen
        later."""
        return self.kind in (UNROLLED, LANES)

    def chain(self) -> list[Scope]:
        """The scopes from the outermost to this one."""
        found: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            found.append(scope)
            scope = scope.parent
        return found[::-1]

    def bindings(self) -> dict[str, Expr]:
        merged: dict[str, Expr] = {}
        for scope in self.chain():
            merged.update(scope.axes)
        return merged

    def close(self) -> None:
        """Hand the statements gathered so far to the parent, as a loop; more may follow."""
        if self.parent is not None and self.body:
            body, self.body = tuple(self.body), []
            stop = self.start + self.count if self.stop is None else self.stop
            self.parent.body.append(
                ir.For(self.var, self.start, stop, 1, self.kind, body, self.end)
            )


def open_tile(
    root: Scope, places: dict[str, Expr], wrappers: Sequence[Wrapper], lanes_first: bool = False
) -> Scope:
    """Scopes for the unrolled, then the lanes loops, or the other way; an axis is known where its
    last variable is."""
    missing = dict(places)
    inside = {var for var, _, _ in wrappers}

    def bind(scope: Scope, known: set[str]) -> None:
        for name, place in list(missing.items()):
            if axes_of(place) & inside <= known:
                scope.axes[name] = place
                del missing[name]

    scope, known = root, set[str]()
    bind(scope, known)
    for var, count, kind in sorted(
        wrappers, key=lambda wrapper: (wrapper[2] is LANES) is not lanes_first
    ):
        scope = Scope(scope, var, count, kind)
        known.add(var)
        bind(scope, known)
    return scope


def reopen(home: Scope) -> tuple[list[Scope], Scope]:
    """The tile loops around a scope, closed so that a loop can come before what follows, and the
    scope outside them."""
    tile = [scope for scope in home.chain() if scope.is_tile]
    base = next(scope for scope in reversed(home.chain()) if not scope.is_tile)
    for scope in reversed(tile):
        scope.close()
    return tile, base


def instances(inner: Scope) -> tuple[tuple[str, int, LoopKind], ...]:
    """The loops that give an accumulator its instances."""
    return tuple((s.var, s.count, s.kind) for s in inner.chain() if s.is_tile)


def plain(name: str) -> str:
    """An axis name as part of a loop variable's name."""
    return "".join(c for c in name if c.isalnum()) or "i"
