"""Composing reads of Tiny values into accesses: an index, its guards, and the casts on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from weft.foundation.dtypes import DType, Kind
from weft.foundation.index_expr import (
    Expr,
    Guard,
    Index,
    add,
    axis,
    scale,
    simplify,
    substitute,
)
from weft.tiny.ir import Cast, Const, Value

Ranges: TypeAlias = dict[str, tuple[int, int]]


@dataclass
class Reading:
    """A read on its way down a chain of movements: an index into `value`, in the block's axes.

    Where a guard was met, the index goes on in an axis of its own that stays in range, because
    outside it nothing is read; `inner` says what that axis is.
    """

    value: Value
    index: Index
    ranges: Ranges
    guards: list[Guard] = field(default_factory=list)
    fill: Const | None = None
    widen: DType | None = None
    inner: dict[str, Expr] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)
    after: list[Value] = field(default_factory=list)
    """What the barriers on the way wait for."""

    def admits(self, fill: Const) -> bool:
        """Whether padding with `fill` further down means the same as padding met before."""
        if self.fill is None:
            return True
        same_class = type(fill.value) is type(self.fill.value)
        # By their text: 0.0 is not -0.0, and NaN is NaN.
        return same_class and repr(fill.value) == repr(self.fill.value)

    def simple(self, expr: Expr) -> Expr:
        return simplify(expr, self.ranges)

    def guarded(self, expr: Expr, size: int) -> Expr:
        """Note that `expr` is read only inside `[0, size)`; the axis that stands for it there."""
        name = f"z{len(self.inner)}"
        self.guards.append(Guard(expr, size))
        self.inner[name] = expr
        self.ranges[name] = (0, size - 1)
        return axis(name)

    def outer(self, expr: Expr) -> Expr:
        """An expression in the block's axes again."""
        # An axis that was put in later may stand for an expression in earlier ones, never the other
        # way round.
        for name in reversed(self.inner):
            expr = substitute(expr, {name: self.inner[name]})
        return self.simple(expr)

    def parts(self, expr: Expr, atoms: Sequence[int]) -> list[Expr]:
        """An index along an axis taken apart into its atoms."""
        return taken_apart(expr, atoms, self.ranges)


def taken_apart(expr: Expr, atoms: Sequence[int], ranges: Ranges) -> list[Expr]:
    """An index along an axis taken apart into its atoms, where axes and params have ranges."""
    found = []
    inner = prod(atoms)
    for size in atoms[:-1]:
        inner //= max(size, 1)
        quotient = simplify(expr // max(inner, 1), ranges)
        found.append(quotient)
        expr = simplify(add(expr, scale(quotient, -inner)), ranges)
    return [*found, simplify(expr, ranges)] if atoms else found


def tight(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Guards without those that another one implies."""
    kept: list[Guard] = []
    for guard in guards:
        if not any(_implies(other, guard) for other in kept):
            kept = [other for other in kept if not _implies(guard, other)]
            kept.append(guard)
    return tuple(kept)


def _implies(one: Guard, other: Guard) -> bool:
    """Whether the second holds wherever the first does, because it bounds the same expression."""
    # 0 <= e < n, and the other one bounds e + c by m: it holds wherever the first does if 0 <= c
    # and c + n <= m.
    ahead = add(other.expr, scale(one.expr, -1))
    return ahead.is_constant and 0 <= ahead.constant <= other.size - one.size


def widens(cast: Cast) -> bool:
    """Whether a cast loses nothing: to a wider dtype of the same class, or of integers with a sign
    where there was none."""
    before, after = cast.x.dtype, cast.dtype
    # f16 has more precision than bf16, and bf16 a wider range: of two floats with the same bits
    # neither widens the other.
    exact = not before.is_float or before.precision <= after.precision
    alike = before.kind is after.kind or (before.kind, after.kind) == (Kind.UNSIGNED, Kind.SIGNED)
    return alike and before.bits < after.bits and exact
