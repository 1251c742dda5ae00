"""A builder of kernel bodies: one Let at a time, and an equal Let is never written twice.

Axes and dtypes of results follow from the operands, so a body built here has the shape that the
verifier asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft.foundation.dtypes import I1, UI32, DType
from weft.foundation.functions import COMPARISONS
from weft.foundation.index_expr import Expr, Guard, Index, axes_of
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Let,
    Place,
    Read,
    Reduce,
    Scalar,
    Select,
    Unary,
    ValueExpr,
    Words,
    operands,
)


@dataclass
class Body:
    """Lets in the making. `axes` are the kernel's axis names in order; each method answers the name
    of a Let."""

    axes: list[str]
    prefix: str = "v"
    lets: list[Let] = field(default_factory=list)
    known: dict[str, tuple[DType, tuple[str, ...]]] = field(default_factory=dict)
    _names: dict[object, str] = field(default_factory=dict)

    def let(self, dtype: DType, axes: Iterable[str], expr: ValueExpr) -> str:
        """The Let of this expression: the existing one, or a new one."""
        held = set(axes)
        ordered = tuple([name for name in self.axes if name in held]) if held else ()
        key = (dtype, ordered, expr, _expression_key(expr))
        return self._names.get(key) or self._add(key, dtype, ordered, expr)

    def _add(self, key: object, dtype: DType, ordered: tuple[str, ...], expr: ValueExpr) -> str:
        name = self._names[key] = f"{self.prefix}{len(self.lets)}"
        self.lets.append(Let(name, dtype, ordered, expr))
        self.known[name] = (dtype, ordered)
        return name

    def _together(self, *names: str) -> tuple[str, ...]:
        """The axes of operands. Those that a value has are in order, and stay so when axes are
        added."""
        first, *rest = [self.known[name][1] for name in names]
        if all(axes == first for axes in rest):
            return first
        held = {name for axes in (first, *rest) for name in axes}
        return tuple([name for name in self.axes if name in held])

    def inside(self, prefix: str) -> Body:
        """An empty body that sees what this one has: for the step and the merge of a fold."""
        return Body(self.axes, prefix, known=dict(self.known))

    def dtype(self, name: str) -> DType:
        return self.known[name][0]

    def axes_of(self, *names: str) -> tuple[str, ...]:
        return tuple(axis for name in names for axis in self.known[name][1])

    def depends(self, name: str, on: str) -> bool:
        """Whether one value is made of another, however indirectly."""
        # From the last Let back: whatever a wanted one is made of stands before it.
        parts = {name}
        for let in reversed(self.lets):
            if let.name in parts:
                parts.update(operands(let))
        return on in parts

    # -- expressions -----------------------------------------------------------------------------

    def read(
        self,
        tensor: str,
        dtype: DType,
        index: Index,
        guards: Sequence[Guard] = (),
        fill: Scalar | None = None,
        places: Sequence[Place] = (),
    ) -> str:
        found = Read(tensor, index, tuple(guards), fill, tuple(places))
        return self.let(dtype, self.axes_read(found), found)

    def axes_read(self, read: Read) -> tuple[str, ...]:
        """The axes that a read depends on."""
        exprs: list[Expr] = [*read.index, *(guard.expr for guard in read.guards)]
        axes = [name for expr in exprs for name in axes_of(expr)]
        return (*axes, *self.axes_of(*(place.value for place in read.places)))

    def const(self, value: Scalar, dtype: DType) -> str:
        return self.let(dtype, (), Const(value))

    def index(self, expr: Expr, dtype: DType) -> str:
        return self.let(dtype, axes_of(expr), AxisIndex(expr))

    def unary(self, fn: str, x: str) -> str:
        key = (Unary, fn, x)
        return self._names.get(key) or self._add(key, *self.known[x], Unary(fn, x))

    def cast(self, x: str, dtype: DType) -> str:
        before, axes = self.known[x]
        if before is dtype:
            return x
        key = (Cast, dtype, x)
        return self._names.get(key) or self._add(key, dtype, axes, Cast(x))

    def binary(self, fn: str, lhs: str, rhs: str) -> str:
        key = (Binary, fn, lhs, rhs)
        found = self._names.get(key)
        if found is not None:
            return found
        dtype = I1 if fn in COMPARISONS else self.dtype(lhs)
        return self._add(key, dtype, self._together(lhs, rhs), Binary(fn, lhs, rhs))

    def check(self, x: str, rule: str, code: str, size: int, element: Expr) -> str:
        axes = (*self.axes_of(x), *axes_of(element))
        return self.let(self.dtype(x), axes, Check(x, rule, code, size, element))

    def words(self, seed: str, offset: str, element: Expr) -> str:
        # Guards of padding that the seed was read under live over more than the element does.
        axes = (*self.axes_of(seed, offset), *axes_of(element))
        return self.let(UI32, axes, Words(seed, offset, element))

    def select(self, pred: str, x: str, y: str) -> str:
        key = (Select, pred, x, y)
        found = self._names.get(key)
        if found is not None:
            return found
        return self._add(key, self.dtype(x), self._together(pred, x, y), Select(pred, x, y))

    def reduce(self, fn: str, x: str, axes: Sequence[str], accum: DType) -> str:
        kept = [name for name in self.axes_of(x) if name not in axes]
        return self.let(accum, kept, Reduce(fn, tuple(axes), x))


def _expression_key(expr: ValueExpr) -> str | None:
    """What tells expressions apart that are equal in Python: 0.0 and -0.0, 1 and True."""
    match expr:
        case Const(value=value):
            return repr(value)
        case Read(fill=fill):
            return repr(fill)
        case _:
            return None
