"""Loop nests that run over a box, by arithmetic.

Most loops take a box apart by tiles: an index such as `6*mt + mu` with `mu` under 6 counts through
its values one by one, as the digits of a number do. Where every index of a nest is such a number
and no axis is in two of them, the nest reaches each point of a box once. A proof of that can take
isl ten seconds where a tile's number is taken apart by quotients, so it is tried first; what this
file does not see, isl decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from typing import Final, TypeAlias

from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Index,
    add,
    axes_of,
    axis,
    bounds,
    constant,
    floordiv,
    scale,
    simplify,
    substitute,
)

Span: TypeAlias = tuple[int, int]
"""A first and a last number."""
Box: TypeAlias = tuple[Span, ...]
Range: TypeAlias = tuple[str, int, int]
Nest: TypeAlias = tuple[Sequence[Range], Index]
"""Axes with their first and last numbers, and the point that their numbers lead to."""

_MOST_BOXES: Final = 64
"""Boxes of one nest, which are all compared with each other."""


def fill_box(nests: Sequence[Nest], whole: Box) -> bool:
    """Whether nests reach every point of a box once, and no other; False where that was not
    seen."""
    nests, whole = _with_joined_digits(nests, whole)
    boxes: list[Box] = []
    for axes, index in nests:
        found = boxes_of(axes, index)
        if found is None:
            return False
        boxes += found
    return fill(boxes, whole)


def _with_joined_digits(nests: Sequence[Nest], whole: Box) -> tuple[Sequence[Nest], Box]:
    """The same nests and box with two indices as one number `size * a + b`, where `b` stays under
    its size and quotients vanish by that: rows that are two axes (`row // 32` and `row % 32`) and
    come in blocks which are no multiple of the inner one."""
    fewest, found = _quotients(nests), None
    for b, (first, last) in enumerate(whole):
        size = last + 1
        if first != 0 or not all(_stays_within(nest, b, size) for nest in nests):
            continue
        for a, (low, high) in enumerate(whole):
            joined = [(axes, _with_joined(index, a, b, size)) for axes, index in nests]
            # Of digits of one number the last two have most in common.
            if a != b and _quotients(joined) < fewest:
                number = (low * size, high * size + last)
                box = tuple(number if k == a else span for k, span in enumerate(whole) if k != b)
                fewest, found = _quotients(joined), (joined, box)
    return (nests, whole) if found is None else _with_joined_digits(*found)


def _stays_within(nest: Nest, place: int, size: int) -> bool:
    axes, index = nest
    low, high = bounds(index[place], {name: (first, last) for name, first, last in axes})
    return low >= 0 and high < size


def _with_joined(index: Index, a: int, b: int, size: int) -> Index:
    number = _with_whole_quotients(index[a] * size + index[b])
    return tuple(number if k == a else expr for k, expr in enumerate(index) if k != b)


def _with_whole_quotients(value: Expr) -> Expr:
    """The expression with `floor((a + floor(e / q)) / d)` as `floor((a q + e) / (q d))`: digits of
    one number, found in different ways, are quotients of the same number then."""
    parts: list[Expr | int] = [value.constant]
    for term, factor in value.terms:
        whole = Expr(0, ((term, 1),))
        if isinstance(term, FloorDiv):
            whole = _whole_quotient(_with_whole_quotients(term.value), term.divisor)
        parts.append(scale(whole, factor))
    return add(*parts)


def _whole_quotient(value: Expr, divisor: int) -> Expr:
    inner = next((t for t, f in value.terms if f == 1 and isinstance(t, FloorDiv)), None)
    if inner is None:
        return floordiv(value, divisor)
    rest = add(value, Expr(0, ((inner, -1),)))
    numerator = add(scale(rest, inner.divisor), inner.value)
    return _whole_quotient(numerator, divisor * inner.divisor)


def _quotients(nests: Sequence[Nest]) -> int:
    """How many quotients indices have, each counted once in a nest."""
    found = ({term for expr in index for term, _ in expr.terms} for _, index in nests)
    return sum(isinstance(term, FloorDiv) for terms in found for term in terms)


def without_stretches(
    axes: tuple[Range, ...], guards: Sequence[Guard], index: Index
) -> tuple[Range, ...] | None:
    """The axes of a nest without those that only say which stretch of another one is at hand
    (`size * a <= b < size * a + size`): every `b` has one. None where guards say something else."""
    while guards:
        low, *others = guards
        high = next((g for g in others if (g.expr + low.expr).is_constant), None)
        # Two guards whose expressions add up to a constant bound one number from both sides.
        found = None if high is None else _stretch(axes, low, high)
        indexed = {term for expr in index for term in axes_of(expr)}
        rest = [g for g in others if g is not high]
        if found is None or found in indexed or any(found in axes_of(g.expr) for g in rest):
            return None
        axes, guards = tuple(each for each in axes if each[0] != found), rest
    return axes


def _stretch(axes: Sequence[Range], low: Guard, high: Guard) -> str | None:
    """The axis that numbers stretches of another one, if two guards say no more than that."""
    ranges = {name: (first, last) for name, first, last in axes}
    # low is b - size * a, and high size - 1 - that.
    size = (low.expr + high.expr).constant + 1
    for sign in (low.expr, high.expr):
        steps = {term.name: step for term, step in sign.terms if isinstance(term, Axis)}
        if sign.constant or len(sign.terms) != 2 or {*steps.values()} != {1, -size}:
            continue
        number = next(name for name, step in steps.items() if step != 1)
        own = next(name for name, step in steps.items() if step == 1)
        (first, last), (begin, end) = ranges[own], ranges[number]
        reach = size * (end + 1)
        if size * begin <= first and last < reach and min(low.size, high.size) >= size:
            return number
    return None


def boxes_of(axes: Sequence[tuple[str, int, int]], index: Index) -> list[Box] | None:
    """The boxes that a nest over ranges reaches, each point of a box once; None where that was not
    seen. There is one for each number of the axes that count in steps with gaps between them."""
    sizes = {name: last - first + 1 for name, first, last in axes}
    if min(sizes.values(), default=1) < 1:
        return None
    moved = {name: axis(name) + first for name, first, _ in axes}
    found = _without_quotients([substitute(expr, moved) for expr in index], sizes)
    if found is None:
        return None
    exprs, sizes = found
    used = [term for expr in exprs for term, _ in expr.terms]
    names = {term.name for term in used if isinstance(term, Axis)}
    idle = math.prod(size for name, size in sizes.items() if name not in names)
    # An axis in two indices would tie them together, and one in none would repeat every point.
    if len(names) < len(used) or idle > 1:
        return None
    apart = [name for expr in exprs for name in _axes_with_gaps(expr, sizes)]
    if math.prod(sizes[name] for name in apart) > _MOST_BOXES:
        return None
    boxes = []
    for numbers in product(*(range(sizes[name]) for name in apart)):
        put = {name: constant(n) for name, n in zip(apart, numbers, strict=True)}
        boxes.append(tuple(_span(substitute(expr, put), sizes) for expr in exprs))
    return boxes


def fill(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes have exactly the points of another one, and no point twice."""
    inside = all(
        low >= first and high <= last
        for box in boxes
        for (low, high), (first, last) in zip(box, whole, strict=True)
    )
    apart = all(
        any(a[1] < b[0] or b[1] < a[0] for a, b in zip(one, other, strict=True))
        for one, other in combinations(boxes, 2)
    )
    # Boxes inside of the whole, of which no two meet: where they have as many points as it, none is
    # left out.
    return inside and apart and sum(map(_point_count, boxes)) == _point_count(whole)


def _point_count(box: Box) -> int:
    return math.prod(last - first + 1 for first, last in box)


def _without_quotients(
    exprs: list[Expr], sizes: dict[str, int]
) -> tuple[list[Expr], dict[str, int]] | None:
    """The same indices over axes of which none is divided: one that is, by a divisor of its size,
    becomes a quotient and a remainder. None where that does not do."""
    while True:
        ranges = {name: (0, size - 1) for name, size in sizes.items()}
        exprs = [simplify(expr, ranges) for expr in exprs]
        quotients = [t for expr in exprs for t, _ in expr.terms if isinstance(t, FloorDiv)]
        if not quotients:
            return exprs, sizes
        for term in quotients:
            # x = d q + r with r under d reaches each x once where d divides its size: q and r are
            # two axes in the place of one.
            divided = term.value.single_axis
            if divided is not None and sizes[divided.name] % term.divisor == 0:
                break
        else:
            return None
        name = divided.name
        high, low = f"{name}/{term.divisor}", f"{name}%{term.divisor}"
        parts = {name: axis(high) * term.divisor + axis(low)}
        sizes = {n: size for n, size in sizes.items() if n != name} | {
            high: sizes[name] // term.divisor,
            low: term.divisor,
        }
        exprs = [substitute(expr, parts) for expr in exprs]


def _axes_with_gaps(expr: Expr, sizes: dict[str, int]) -> list[str]:
    """The axes of an index that are no digits of a number which counts through its values one by
    one: in a mixed base, each factor is the product of all smaller sizes."""
    factors = sorted((f, term.name) for term, f in expr.terms if isinstance(term, Axis))
    step, left = 1, []
    for factor, name in factors:
        if sizes[name] > 1 and factor != step:
            left.append(name)
        else:
            step *= sizes[name]
    return left


def _span(expr: Expr, sizes: dict[str, int]) -> Span:
    """The numbers of an index whose axes are such digits."""
    count = math.prod(sizes[term.name] for term, _ in expr.terms if isinstance(term, Axis))
    return expr.constant, expr.constant + count - 1
