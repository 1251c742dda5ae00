"""Index expressions as LLVM code: loop variables, params, lanes, and values that are places.

A variable is a number that is known while code is written (an unrolled loop) or a value. Inside a
lanes loop an expression has one number for each lane; most move by a constant step from lane to
lane, and one address then serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.codegen.cpu.code import Code, Val, multiples, number
from weft.codegen.cpu.edges import GuardedTile
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Term,
    axes_of,
    bounds,
    coefficient,
    params_of,
)


@dataclass
class Lanes:
    """The lanes loop that code stands in."""

    var: str
    count: int


@dataclass
class IndexCode:
    """Writes expressions into a `Code`."""

    code: Code
    variables: dict[str, Val | int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    lanes: Lanes | None = None
    places: dict[str, Val] = field(default_factory=dict)
    """Params that are values: i64, one for each lane or one for all, in range."""

    @property
    def lane_count(self) -> int:
        return 1 if self.lanes is None else self.lanes.count

    def value(self, expr: Expr, lane: int = 0) -> Val:
        """The expression as a number, in the given lane."""
        moving, fixed = self._split(expr, lane)
        if moving is None:
            return number(fixed, "i64")
        return self.code.binary("add", moving, number(fixed, "i64")) if fixed else moving

    def pointer(self, base: str, kind: str, address: Expr, lane: int = 0) -> str:
        """The place of an element. Neighbours share what moves, and differ by a constant."""
        moving, fixed = self._split(address, lane)
        if moving is None or fixed <= 0 or not self._rises(address):
            return self.code.pointer(base, kind, self.value(address, lane))
        shared = self.code.pointer(base, kind, moving)
        return self.code.pointer(shared, kind, number(fixed, "i64"))

    def _rises(self, address: Expr) -> bool:
        """Whether no term takes anything away: then a part of the sum is inside the buffer too."""
        return all(factor > 0 and self._lowest(term) >= 0 for term, factor in address.terms)

    def _lowest(self, term: Term) -> int:
        if isinstance(term, FloorDiv):
            return bounds(term.value, self.ranges)[0] // term.divisor
        return self.ranges[term.name][0]

    def _split(self, expr: Expr, lane: int) -> tuple[Val | None, int]:
        """The sum of what is computed, what moves least often first, and the sum of what is
        known."""
        known = expr.constant
        parts: list[tuple[Term, Val]] = []
        for term, factor in expr.terms:
            value = self._term(term, lane)
            if isinstance(value, int):
                known += factor * value
            elif factor == 1:
                parts.append((term, value))
            else:
                parts.append((term, self.code.binary("mul", value, number(factor, "i64"))))
        if len(parts) > 1:
            parts.sort(key=lambda part: self._depth(part[0]))
        total: Val | None = None
        for _, part in parts:
            total = part if total is None else self.code.binary("add", total, part)
        return total, known

    def _depth(self, term: Term) -> int:
        """The innermost loop that moves a term."""
        names = axes_of(term.value) if isinstance(term, FloorDiv) else (term.name,)
        return max((n for n, name in enumerate(self.variables) if name in names), default=0)

    def _term(self, term: Term, lane: int) -> Val | int:
        if isinstance(term, FloorDiv):
            return self._floordiv(term, lane)
        if self.lanes is not None and term.name == self.lanes.var:
            return lane
        if term.name in self.places:
            place = self.places[term.name]
            return place if place.lanes == 1 else self.code.lane(place, lane)
        return self.variables[term.name]

    def _floordiv(self, term: FloorDiv, lane: int) -> Val:
        code = self.code
        value = self.value(term.value, lane)
        divisor = number(term.divisor, "i64")
        low, _ = bounds(term.value, self.ranges)
        if low >= 0:
            return code.binary("udiv", value, divisor)
        quotient = code.binary("sdiv", value, divisor)
        rest = code.binary("srem", value, divisor)
        below = code.compare("icmp slt", rest, number(0, "i64"))
        return code.binary("sub", quotient, code.convert("zext", below, "i64"))

    def step(self, expr: Expr) -> int | None:
        """How far the expression moves from lane to lane; None when it is not the same
        everywhere."""
        if self.lanes is None:
            return 0
        if any(self.places[name].lanes > 1 for name in params_of(expr) if name in self.places):
            return None
        name = self.lanes.var
        for term, _ in expr.terms:
            if isinstance(term, FloorDiv) and not self._is_same(term, self.lanes):
                return None
        return coefficient(expr, name)

    def _is_same(self, term: FloorDiv, lanes: Lanes) -> bool:
        """Whether a quotient is the same in all lanes: none of them, or they begin at a multiple of
        their number, which divides the divisor."""
        value, count = term.value, lanes.count
        if lanes.var not in axes_of(value):
            return True
        if coefficient(value, lanes.var) != 1 or term.divisor % count or value.constant % count:
            return False
        return all(
            factor % count == 0
            and not (isinstance(other, FloorDiv) and not self._is_same(other, lanes))
            for other, factor in value.terms
            if not (isinstance(other, Axis) and other.name == lanes.var)
        )

    def inside(self, guards: Sequence[Guard], lane: int) -> Val:
        """Whether every guard holds."""
        found: Val | None = None
        for guard in guards:
            value = self.value(guard.expr, lane)
            # One unsigned comparison says both that it is not negative and that it is small enough.
            holds = self.code.compare("icmp ult", value, number(guard.size, "i64"))
            found = holds if found is None else self.code.binary("and", found, holds)
        if found is None:
            raise InternalError("a guarded load without guards")
        return found

    def inside_lanes(self, guards: Sequence[Guard]) -> Val:
        """Whether every guard holds, lane by lane; each moves by a step."""
        found: Val | None = None
        for guard in guards:
            step = self.step(guard.expr)
            low, high = bounds(guard.expr, self.ranges)
            scalar = "i32" if max(-low, high, guard.size) < 1 << 30 else "i64"
            value = self.value(guard.expr)
            value = value if scalar == "i64" else self.code.convert("trunc", value, scalar)
            lanes = self.code.spread(value, self.lane_count)
            if step:
                moved = multiples(step, scalar, self.lane_count)
                lanes = self.code.binary("add", lanes, moved)
            holds = self.code.compare("icmp ult", lanes, number(guard.size, scalar))
            found = holds if found is None else self.code.binary("and", found, holds)
        if found is None:
            raise InternalError("a guarded load without guards")
        return found

    def select(self, values: Mapping[str, tuple[Val, int, bool]]) -> None:
        """Let params be values, each with its size and signedness, kept inside [0, size)."""
        self.places = {}
        for name, (value, size, signed) in values.items():
            wide = value
            if value.scalar != "i64":
                wide = self.code.convert("sext" if signed else "zext", value, "i64")
            low = self.code.intrinsic("llvm.smax", wide, number(0, "i64", wide.lanes))
            last = number(max(size - 1, 0), "i64", wide.lanes)
            self.places[name] = self.code.intrinsic("llvm.smin", low, last)
            self.ranges[name] = (0, max(size - 1, 0))

    def unrolled(self) -> dict[str, int]:
        """The variables that are known while code is written."""
        return {var: value for var, value in self.variables.items() if isinstance(value, int)}

    def hold_everywhere(self, tile: GuardedTile) -> Val:
        """Whether the moving guards of a tile hold for all of its elements."""
        code = self.code
        found: Val | None = None
        for guard in tile.moving:
            ends = []
            for last in (False, True):
                corner = tile.corner(guard, last=last)
                self.variables.update(corner)
                ends.append(self.value(guard.expr))
                for name in corner:
                    del self.variables[name]
            low = code.compare("icmp sge", ends[0], number(0, "i64"))
            high = code.compare("icmp slt", ends[1], number(guard.size, "i64"))
            holds = code.binary("and", low, high)
            found = holds if found is None else code.binary("and", found, holds)
        if found is None:
            raise InternalError("a tile without guards that move")
        return found
