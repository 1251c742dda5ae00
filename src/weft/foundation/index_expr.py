"""Index expressions: integers made of axes by sums, constant multiples and floor division.

    Expr = constant + sum of coefficient * Term
    Term = Axis(name) | Param(name) | FloorDiv(Expr, divisor)

Semantics. An `Axis` is a loop index or a value's axis; a `Param` is a number known only at run time
(the start of a dynamic slice); `FloorDiv` rounds toward minus infinity and its divisor is positive.
Remainders are written `e - q * floordiv(e, q)`. Expressions are interned and in normal form: terms
are sorted, no coefficient is zero, so equal expressions are the same object.

A `Guard` says `0 <= expr < size`: where it fails, the element read is not there (it is padding).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any, TypeAlias

from weft.foundation.errors import InternalError
from weft.foundation.interned import Node, node
from weft.foundation.memo import memo


@node
class Axis(Node):
    """An index variable."""

    name: str

    def __str__(self) -> str:
        return self.name


@node
class Param(Node):
    """A number known at run time, the same for every index."""

    name: str

    def __str__(self) -> str:
        return f"${self.name}"


@node
class FloorDiv(Node):
    """`floor(value / divisor)`."""

    value: Expr
    divisor: int

    def __str__(self) -> str:
        return f"floor(({self.value})/{self.divisor})"


Term: TypeAlias = Axis | Param | FloorDiv


@node
class Expr(Node):
    """`constant + sum(coefficient * term)`; build with the functions below."""

    constant: int
    terms: tuple[tuple[Term, int], ...]

    def __str__(self) -> str:
        parts = [_term_text(term, factor) for term, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def __add__(self, other: Expr | int) -> Expr:
        return add(self, other)

    def __radd__(self, other: int) -> Expr:
        return add(self, other)

    def __sub__(self, other: Expr | int) -> Expr:
        return add(self, scale(as_expr(other), -1))

    def __mul__(self, factor: int) -> Expr:
        return scale(self, factor)

    def __rmul__(self, factor: int) -> Expr:
        return scale(self, factor)

    def __floordiv__(self, divisor: int) -> Expr:
        return floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Expr:
        return add(self, scale(floordiv(self, divisor), -divisor))

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def single_axis(self) -> Axis | None:
        """The axis this expression is, if it is nothing but one axis."""
        if self.constant == 0 and len(self.terms) == 1:
            term, factor = self.terms[0]
            if factor == 1 and isinstance(term, Axis):
                return term
        return None


@node
class Guard(Node):
    """`0 <= expr < size`."""

    expr: Expr
    size: int

    def __str__(self) -> str:
        return f"0 <= {self.expr} < {self.size}"


Index: TypeAlias = tuple[Expr, ...]
SELECTED = "j"
"""The param that stands for the place a gather reads: the same only within one of its elements."""


def _term_text(term: Term, factor: int) -> str:
    if factor == 1:
        return str(term)
    return f"-{term}" if factor == -1 else f"{factor}*{term}"


@memo(1 << 12, typed=True)
def constant(value: int) -> Expr:
    return Expr(value, ())


@memo(1 << 12)
def axis(name: str) -> Expr:
    return Expr(0, ((Axis(name), 1),))


def param(name: str) -> Expr:
    return Expr(0, ((Param(name), 1),))


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else constant(value)


def add(*values: Expr | int) -> Expr:
    """The sum, in normal form."""
    total = 0
    factors: dict[Term, int] = {}
    for value in map(as_expr, values):
        total += value.constant
        for term, factor in value.terms:
            factors[term] = factors.get(term, 0) + factor
    return _ordered_sum(total, factors)


def scale(value: Expr, factor: int) -> Expr:
    """The expression times a constant."""
    if factor == 1:
        return value
    return _ordered_sum(value.constant * factor, {t: f * factor for t, f in value.terms})


@memo(1 << 14)
def floordiv(value: Expr, divisor: int) -> Expr:
    """`floor(value / divisor)`, reduced: multiples of the divisor come out, common factors
    cancel."""
    if divisor <= 0:
        raise InternalError(f"floor division by {divisor}")
    if divisor == 1:
        return value
    nested = _nested_division(value)
    if nested is not None:
        # floor((floor(e / q) + c) / d) = floor((e + c * q) / (q * d))
        inside, by = nested
        return floordiv(add(inside, value.constant * by), by * divisor)
    # floor((d x + y) / d) = x + floor(y / d); and floor(y / d) with y and d both multiples of g,
    # but for a constant under g, is floor((y / g) / (d / g)).
    whole = {t: f // divisor for t, f in value.terms if f % divisor == 0}
    rest = {t: f for t, f in value.terms if f % divisor}
    out, left = divmod(value.constant, divisor)
    if not rest:
        return _ordered_sum(out, whole)
    common = gcd(divisor, *rest.values())
    inner = _ordered_sum(left // common, {t: f // common for t, f in rest.items()})
    if inner is value:
        return Expr(0, ((FloorDiv(inner, divisor), 1),))
    return add(_ordered_sum(out, whole), floordiv(inner, divisor // common))


def _nested_division(value: Expr) -> tuple[Expr, int] | None:
    """What is divided, and by what, if an expression is one floor division plus a constant."""
    if len(value.terms) == 1:
        term, factor = value.terms[0]
        if factor == 1 and isinstance(term, FloorDiv):
            return term.value, term.divisor
    return None


def _ordered_sum(total: int, factors: Mapping[Term, int]) -> Expr:
    kept = list(factors.items())
    if 0 in factors.values():
        kept = [pair for pair in kept if pair[1]]
    if len(kept) > 1:
        # One order for equal sums, whatever order they were made in: interning makes them one
        # object.
        kept.sort(key=lambda pair: _term_order(pair[0]))
    return Expr(total, tuple(kept))


@memo(1 << 14)
def _term_order(term: Term) -> tuple[int, str]:
    if isinstance(term, FloorDiv):
        return (2, str(term))
    return (0 if isinstance(term, Axis) else 1, term.name)


def substitute(
    value: Expr, replace: Mapping[str, Expr], params: Mapping[str, Expr] | None = None
) -> Expr:
    """The expression with axes, and run-time parameters, replaced by expressions, by name."""
    alone = value.single_axis
    if alone is not None:
        return replace.get(alone.name, value)
    if not value.terms:
        return value
    parts: list[Expr | int] = [value.constant]
    for term, factor in value.terms:
        match term:
            case Axis(name=name):
                new = replace.get(name, Expr(0, ((term, 1),)))
            case Param(name=name):
                new = (params or {}).get(name, Expr(0, ((term, 1),)))
            case FloorDiv(value=inner, divisor=divisor):
                new = floordiv(substitute(inner, replace, params), divisor)
        parts.append(scale(new, factor))
    return add(*parts)


@memo(1 << 14)
def axes_of(value: Expr) -> frozenset[str]:
    """Names of the axes the expression depends on."""
    found: set[str] = set()
    for term, _ in value.terms:
        if isinstance(term, Axis):
            found.add(term.name)
        elif isinstance(term, FloorDiv):
            found |= axes_of(term.value)
    return frozenset(found)


@memo(1 << 14)
@memo(1 << 14)
def params_of(value: Expr) -> frozenset[str]:
    """Names of the run-time parameters the expression depends on."""
    found: set[str] = set()
    for term, _ in value.terms:
        if isinstance(term, Param):
            found.add(term.name)
        elif isinstance(term, FloorDiv):
            found |= params_of(term.value)
    return frozenset(found)


def coefficient(value: Expr, name: str) -> int:
    """The factor of an axis outside floor divisions."""
    for term, factor in value.terms:
        if isinstance(term, Axis) and term.name == name:
            return factor
    return 0


def evaluate(value: Expr, env: Mapping[str, Any]) -> Any:
    """The number for given axes and params; works on NumPy arrays too."""
    total: Any = value.constant
    for term, factor in value.terms:
        match term:
            case Axis(name=name) | Param(name=name):
                found = env[name]
            case FloorDiv(value=inner, divisor=divisor):
                found = evaluate(inner, env) // divisor
        total = total + factor * found
    return total


def bounds(value: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Bounds of the value when each axis or param lies in an inclusive range.

    They are those of interval arithmetic, with remainders `c * (e - q * floor(e / q))` known to lie
    in `[0, c * (q - 1)]`.
    """
    low = high = value.constant
    for term, factor in value.terms:
        match term:
            case Axis(name=name) | Param(name=name):
                first, last = ranges[name]
            case FloorDiv(value=inner, divisor=divisor):
                # Ends of intervals alone would have e - q floor(e / q) as wide as e itself.
                split = _split_remainder(value, term, factor)
                if split is not None:
                    rest, largest = split
                    below, above = bounds(rest, ranges)
                    return below, above + largest
                first, last = (bound // divisor for bound in bounds(inner, ranges))
        ends = (factor * first, factor * last)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _split_remainder(value: Expr, term: FloorDiv, factor: int) -> tuple[Expr, int] | None:
    """What is left when `c * (e - q * floor(e / q))`, with `-c * q` the factor, is taken away, and
    the largest value of what was taken; None if it is not there."""
    present = dict(value.terms)
    for whole, divisor in _dividends(value, term):
        count, uneven = divmod(-factor, divisor)
        wanted = {part: count * own for part, own in whole.terms}
        if (
            uneven
            or count <= 0
            or not all(_covers(present.get(part, 0), n) for part, n in wanted.items())
        ):
            continue
        remainder = add(whole, scale(Expr(0, ((term, 1),)), -divisor))
        return add(value, scale(remainder, -count)), count * (divisor - 1)
    return None


def _dividends(value: Expr, term: FloorDiv) -> Iterator[tuple[Expr, int]]:
    """Pairs (e, q) with `floor(e / q)` equal to the term: its own, and those where e is a floor
    division of the expression."""
    yield term.value, term.divisor
    for other, _ in value.terms:
        if isinstance(other, FloorDiv) and other is not term and term.divisor % other.divisor == 0:
            # floor((x + c a) / (a b)) = floor((floor(x / a) + c) / b): the term is also a quotient
            # of the other quotient.
            ahead = add(term.value, scale(other.value, -1))
            if ahead.is_constant and ahead.constant % other.divisor == 0:
                shifted = Expr(ahead.constant // other.divisor, ((other, 1),))
                yield shifted, term.divisor // other.divisor


def _covers(present: int, wanted: int) -> bool:
    """Whether a factor can give away another one without changing its sign."""
    return _sign(present) == _sign(wanted) and abs(present) >= abs(wanted)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def simplify(value: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
    """The expression without the floor divisions, and the parts of them, that the ranges make
    constant."""
    for term, _ in value.terms:
        if isinstance(term, FloorDiv):
            break
    else:
        return value
    parts: list[Expr | int] = [value.constant]
    for term, factor in value.terms:
        new = Expr(0, ((term, 1),))
        if isinstance(term, FloorDiv):
            new = _divide(simplify(term.value, ranges), term.divisor, ranges)
        parts.append(scale(new, factor))
    return add(*parts)


def _divide(value: Expr, divisor: int, ranges: Mapping[str, tuple[int, int]]) -> Expr:
    """`floor(value / divisor)` where small parts that cannot reach the next multiple are dropped:
    `floor((4*i + j) / 8)` is `floor(i / 2)` for `0 <= j < 4`."""
    result = floordiv(value, divisor)
    low, high = bounds(result, ranges)
    if low == high:
        return constant(low)
    steps = sorted({gcd(divisor, f) for _, f in value.terms}, reverse=True)
    # All terms but the small ones, and the constant less its rest, are multiples of `step`, which
    # divides the divisor. Such a sum is below a multiple of the divisor by `step` at least, so that
    # what lies in [0, step) does not carry it there.
    for step in steps:
        small = {t: f for t, f in value.terms if f % step}
        rest = _ordered_sum(value.constant % step, small)
        first, last = bounds(rest, ranges)
        if step > 1 and small and first >= 0 and last < step:
            return floordiv(add(value, scale(rest, -1)), divisor)
    return result


def always(guard: Guard, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a guard holds everywhere in the ranges, by interval arithmetic."""
    low, high = bounds(guard.expr, ranges)
    return low >= 0 and high < guard.size


def linear(index: Iterable[Expr], strides: Iterable[int]) -> Expr:
    """The dot product of an index with strides."""
    return _linear(tuple(index), tuple(strides))


@memo(1 << 14)
def _linear(index: tuple[Expr, ...], strides: tuple[int, ...]) -> Expr:
    return add(0, *(scale(e, s) for e, s in zip(index, strides, strict=True)))
