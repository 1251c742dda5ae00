"""Selects that depend on a loop index alone: the loop is split where the condition changes.

    for i in 0..128:  select(i < 64, exp(x[i]), tanh(y[i - 64]))
                                                                     ->
    for i in 0..64:   exp(x[i])
    for i in 64..128: tanh(y[i - 64])

Joined and padded tensors, and with them the gradients of slices, are such choices. Not cut, every
element computes all sides, and reads under a mask what all of them read. Only axes of maps are cut,
and only into few long intervals: the code is written out for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from weft.foundation.index_expr import Axis, always, bounds
from weft.region.ir import AxisIndex, Binary, Check, Const, Fold, Kernel, Let, Read, Reduce, Select

Bounds: TypeAlias = tuple[int, int]
Box: TypeAlias = Mapping[str, Bounds]
"""The first and the last place of axes."""
UNDECIDED: Final = (0, 1)

MOST_PARTS: Final = 8
"""Copies of a kernel's code for parts of its domain: each takes its time to compile."""
_SHORTEST: Final = 16
"""An interval is at least this part of its axis: an edge of a few elements has no code of its
own."""


@dataclass(frozen=True)
class Interval:
    """A stretch of an axis."""

    start: int
    size: int


def intervals(kernel: Kernel, lanes: Mapping[str, int]) -> dict[str, list[Interval]]:
    """Every axis, cut where a choice by index changes; `lanes` are those of axes that vectors run
    along, which an interval fills at least once."""
    found = {name: [Interval(0, size)] for name, size in kernel.sizes.items()}
    if any(isinstance(let.expr, Reduce | Fold | Check) for let in kernel.body):
        return found
    parts = 1
    for name, places in _borders(kernel).items():
        size = kernel.sizes[name]
        ends = sorted({0, size, *(place for place in places if 0 < place < size)})
        cut = [Interval(a, b - a) for a, b in pairwise(ends)]
        least = max(lanes.get(name, 1), -(-size // _SHORTEST))
        if len(cut) * parts <= MOST_PARTS and all(one.size >= least for one in cut):
            found[name], parts = cut, parts * len(cut)
    return found


def _borders(kernel: Kernel) -> dict[str, set[int]]:
    """For each axis the places from which on a comparison of its index with a number differs."""
    lets = {let.name: let for let in kernel.body}
    found: dict[str, set[int]] = {}
    if not any(isinstance(let.expr, Select) for let in kernel.body):
        return found
    for let in kernel.body:
        if not isinstance(let.expr, Binary) or let.expr.fn not in _FIRST_OTHER:
            continue
        index, limit = lets[let.expr.lhs].expr, lets[let.expr.rhs].expr
        if not isinstance(index, AxisIndex) or not isinstance(limit, Const):
            continue
        if not isinstance(limit.value, int):
            continue
        terms = index.expr.terms
        if len(terms) == 1 and isinstance(terms[0][0], Axis) and terms[0][1] == 1:
            place = limit.value - index.expr.constant + _FIRST_OTHER[let.expr.fn]
            found.setdefault(terms[0][0].name, set()).add(place)
    return found


_FIRST_OTHER: Final = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
"""How far behind the number the answer changes."""


def settled(kernel: Kernel, box: Box) -> dict[str, Let]:
    """The values of a kernel within a box: a choice that is the same everywhere in it is the side
    that it takes, and guards that hold everywhere are left out."""
    known = _Known(kernel, box)
    lets: dict[str, Let] = {}
    for let in kernel.body:
        known.note(let)
        expr = let.expr
        if isinstance(expr, Select):
            answer = known.numbers.get(expr.pred, UNDECIDED)
            if answer != UNDECIDED:
                expr = lets[expr.x if answer[0] else expr.y].expr
        elif isinstance(expr, Read):
            ranges = kernel.ranges_of(expr) | dict(box)
            guards = tuple(guard for guard in expr.guards if not always(guard, ranges))
            expr = replace(expr, guards=guards)
        lets[let.name] = let if expr is let.expr else replace(let, expr=expr)
    return lets


class _Known:
    """Bounds of whole numbers, and of truths as 0 and 1, within a box."""

    def __init__(self, kernel: Kernel, box: Box) -> None:
        self.ranges = {**kernel.ranges, **box}
        self.numbers: dict[str, Bounds] = {}

    def note(self, let: Let) -> None:
        match let.expr:
            case AxisIndex(expr=expr):
                self.numbers[let.name] = bounds(expr, self.ranges)
            case Const(value=value) if isinstance(value, bool | int):
                self.numbers[let.name] = (int(value), int(value))
            case Binary(fn=fn, lhs=lhs, rhs=rhs) if {lhs, rhs} <= self.numbers.keys():
                answer = _answer(fn, self.numbers[lhs], self.numbers[rhs])
                if answer is not None:
                    self.numbers[let.name] = answer


def _answer(fn: str, a: Bounds, b: Bounds) -> Bounds | None:
    """Bounds of a comparison's truth, or of both of two truths."""
    match fn:
        case "lt":
            return int(a[1] < b[0]), int(a[0] < b[1])
        case "le":
            return int(a[1] <= b[0]), int(a[0] <= b[1])
        case "gt":
            return _answer("lt", b, a)
        case "ge":
            return _answer("le", b, a)
        case "min" | "and" if max(a[1], b[1]) <= 1 and min(a[0], b[0]) >= 0:
            return min(a[0], b[0]), min(a[1], b[1])
    return None
