"""Index expressions of kernels as scalar expressions of the dialect.

A scalar is 32 bits wide unless it says otherwise, and its division rounds toward zero: what could
overflow is computed in 64 bits, and a dividend that may be negative is first moved up by a multiple
of the divisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from weft.codegen.gpu.ir.scalar import Lit, Scalar, both, op, total, wide
from weft.foundation.index_expr import Axis, Expr, FloorDiv, Guard, Param, Term, bounds

Ranges = Mapping[str, tuple[int, int]]
Known = Mapping[str, Scalar]

_LIMIT: Final = 1 << 30
"""Half of what 32 bits hold: axes of points that are cut off may run past their ranges."""


class Indexer:
    """Turns the expressions of one kernel into scalars."""

    def __init__(self, ranges: Ranges, params: Known) -> None:
        self.ranges = ranges
        self.params = params
        self._sizes: dict[Expr, int] = {}

    def scalar(self, expr: Expr, axes: Known) -> Scalar:
        """The expression, with axes as they stand at a point."""
        widen = self._size(expr) >= _LIMIT
        parts: list[Scalar] = []
        for term, factor in expr.terms:
            value = self._term(term, axes)
            parts.append((wide(value) if widen else value) * factor)
        return total(*parts, expr.constant) if parts else Lit(expr.constant)

    def _term(self, term: Term, axes: Known) -> Scalar:
        match term:
            case Axis(name=name):
                return axes[name]
            case Param(name=name):
                return axes[name] if name in axes else self.params[name]
            case FloorDiv(value=value, divisor=divisor):
                low, _ = bounds(value, self.ranges)
                up = -(low // divisor) if low < 0 else 0
                moved = self.scalar(value, axes) + up * divisor
                return moved // divisor - up

    def _size(self, expr: Expr) -> int:
        """The largest magnitude that a partial sum can have."""
        if expr not in self._sizes:
            self._sizes[expr] = self._largest(expr)
        return self._sizes[expr]

    def _largest(self, expr: Expr) -> int:
        size = abs(expr.constant)
        for term, factor in expr.terms:
            ends = bounds(Expr(0, ((term, 1),)), self.ranges)
            size += abs(factor) * max(map(abs, ends))
            if isinstance(term, FloorDiv):
                size = max(size, self._size(term.value))
        return size

    def holds(self, guards: Iterable[Guard], axes: Known) -> Scalar:
        """Whether all guards hold."""
        result: Scalar = Lit(1)
        for guard in guards:
            low, high = bounds(guard.expr, self.ranges)
            value = self.scalar(guard.expr, axes)
            if low < 0:
                result = both(result, op("ge", value, 0))
            if high >= guard.size:
                result = both(result, op("lt", value, guard.size))
        return result


def unflatten(number: Scalar, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Scalar]:
    """The axes of a point from its number, the last axis running fastest."""
    found: dict[str, Scalar] = {}
    rest = number
    for place, name in reversed(list(enumerate(names))):
        before, inside = _divide(rest, sizes[name])
        found[name] = rest if place == 0 else inside
        rest = before
    return {name: found[name] for name in names}


def _divide(number: Scalar, size: int) -> tuple[Scalar, Scalar]:
    """Quotient and remainder. By a power of two they are bits of the number, which say more to the
    compiler than divisions do: it does not know that numbers are not negative."""
    if size > 1 and size.bit_count() == 1:
        return number >> (size.bit_length() - 1), number & (size - 1)
    return number // size, number % size
