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
from itertools import combinations
from typing import TypeAlias

from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Index,
    axes_of,
    axis,
    bounds,
    simplify,
    substitute,
)

Span: TypeAlias = tuple[int, int]
"""A first and a last number."""
Box: TypeAlias = tuple[Span, ...]
Range: TypeAlias = tuple[str, int, int]
Nest: TypeAlias = tuple[Sequence[Range], Index]
"""Axes with their first and last numbers, and the point that their numbers lead to."""


def fill_box(nests: Sequence[Nest], whole: Box) -> bool:
    """Whether nests reach every point of a box once, and no other; False where that was not
    seen."""
    nests, whole = _with_joined_digits(nests, whole)
    boxes = [box for box in (box_of(axes, index) for axes, index in nests) if box is not None]
    return len(boxes) == len(nests) and fill(boxes, whole)


def _with_joined_digits(nests: Sequence[Nest], whole: Box) -> tuple[Sequence[Nest], Box]:
    """The same nests and box with two indices as one number `size * a + b`, where `b` stays under
    its size and quotients vanish by that: rows that are two axes (`row // 32` and `row % 32`) and
    come in blocks which are no multiple of the inner one."""
    for b, (first, last) in enumerate(whole):
        for a in range(len(whole)):
            size = last + 1
            if a == b or first != 0 or not all(_stays_within(nest, b, size) for nest in nests):
                continue
            joined = [(axes, _with_joined(index, a, b, size)) for axes, index in nests]
            if _quotients(joined) < _quotients(nests):
                low, high = whole[a]
                number = (low * size, high * size + last)
                box = tuple(number if k == a else span for k, span in enumerate(whole) if k != b)
                return _with_joined_digits(joined, box)
    return nests, whole


def _stays_within(nest: Nest, place: int, size: int) -> bool:
    axes, index = nest
    low, high = bounds(index[place], {name: (first, last) for name, first, last in axes})
    return low >= 0 and high < size


def _with_joined(index: Index, a: int, b: int, size: int) -> Index:
    number = index[a] * size + index[b]
    return tuple(number if k == a else expr for k, expr in enumerate(index) if k != b)


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


def box_of(axes: Sequence[tuple[str, int, int]], index: Index) -> Box | None:
    """The box that a nest over ranges reaches, each point once; None where that was not seen."""
    sizes = {name: last - first + 1 for name, first, last in axes}
    if min(sizes.values(), default=1) < 1:
        return None
    moved = {name: axis(name) + first for name, first, _ in axes}
    found = _without_quotients([substitute(expr, moved) for expr in index], sizes)
    if found is None:
        return None
    exprs, sizes = found
    spans = [_span(expr, sizes) for expr in exprs]
    used = [term for expr in exprs for term, _ in expr.terms]
    names = {term.name for term in used if isinstance(term, Axis)}
    idle = math.prod(size for name, size in sizes.items() if name not in names)
    # An axis in two indices would tie them together, and one in none would repeat every point.
    if len(names) < len(used) or idle > 1:
        return None
    box = tuple(span for span in spans if span is not None)
    return box if len(box) == len(spans) else None


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


def _span(expr: Expr, sizes: dict[str, int]) -> Span | None:
    """The numbers that an index counts through one by one, each for one point of its axes."""
    step = 1
    # Digits of a mixed base: where each factor is the product of all smaller sizes, every number
    # from 0 to the product of all less one comes up once.
    for factor, size in sorted(
        (factor, sizes[term.name]) for term, factor in expr.terms if isinstance(term, Axis)
    ):
        if size > 1 and factor != step:
            return None
        step *= size
    return expr.constant, expr.constant + step - 1
