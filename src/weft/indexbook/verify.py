"""The verifier of an IndexBook: what every map, guard and atom has to hold.

E1203 MissingDivGuard         a remainder without the guard that bounds it
E1204 DivisorInvalid          a divisor that is not positive or not reduced
E1304 AxisAlignmentMismatch   a map of the wrong length, axes that are not i0, i1, ... or not
                              there, atoms that do not make up their axis or differ where two
                              axes are one (a reshape that is not aligned reads other atoms)
E1305 MapOutOfRange           a map that leaves its operand where its guards hold
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import gcd, prod
from typing import Final

from weft.foundation.dims import static
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.index_expr import (
    SELECTED,
    Expr,
    FloorDiv,
    Guard,
    axes_of,
    axis,
    bounds,
    params_of,
)
from weft.indexbook.ir import IndexBook, IndexInfo, InputMap, is_remainder

GUARD: Final = "E1203 MissingDivGuard"
DIVISOR: Final = "E1204 DivisorInvalid"
ALIGNMENT: Final = "E1304 AxisAlignmentMismatch"
RANGE: Final = "E1305 MapOutOfRange"
Problem = tuple[str, str]


def verify(book: IndexBook) -> None:
    """Raise a `SpecViolation` that carries everything that is wrong with a book."""
    found = list(findings(book))
    if found:
        raise SpecViolation.of(found)


def findings(book: IndexBook) -> Iterator[Finding]:
    """Everything that is wrong with a book. Equal values that read equal ones in the same way, as
    those of equal layers do, are looked at once."""
    numbers: dict[Hashable, int] = {}
    kinds = {
        key: numbers.setdefault(_kind_of_value(i), len(numbers)) for key, i in book.infos.items()
    }
    known: dict[Hashable, tuple[Problem, ...]] = {}
    for value_id, info in book.infos.items():
        if info.scop and len({own.id for own in info.axes}) != len(info.axes):
            yield Finding(ALIGNMENT, value_id, "two axes have one id")
        kind = kinds[value_id]
        if kind not in known:
            known[kind] = tuple(_axis_problems(info))
        for code, why in known[kind]:
            yield Finding(code, value_id, why)
        for read in info.inputs:
            # All that the problems of a read follow from. The ids of values, which differ from
            # layer to layer, are not part of it.
            key = (kind, kinds.get(read.value_id), read.map, read.guards, read.aligned)
            if key not in known:
                known[key] = tuple(_input_problems(info, read, book))
            for code, why in known[key]:
                yield Finding(code, f"{value_id} reading {read.value_id}", why)


def _kind_of_value(info: IndexInfo) -> Hashable:
    """All that is asked of a value, without its ids."""
    axes = tuple((own.name, own.size) for own in info.axes)
    reduces = bool(info.reduce_axes)
    params = tuple(_params(info).items())
    return axes, info.domain.constraints, info.atoms, info.scop, reduces, params


def _axis_problems(info: IndexInfo) -> Iterator[Problem]:
    names = [own.name for own in info.axes]
    if names != [f"i{k}" for k in range(len(names))]:
        yield ALIGNMENT, f"the axes are called {', '.join(names)}, not i0, i1, ..."
    if len(info.atoms) != len(info.axes):
        yield ALIGNMENT, f"there are atoms for {len(info.atoms)} axes of {len(info.axes)}"
    for own, atoms in zip(info.axes, info.atoms, strict=False):
        if prod(atoms) != own.size:
            yield ALIGNMENT, f"the atoms {list(atoms)} do not make up {own.name} of {own.size}"
    wanted = {a.name: Guard(axis(a.name), static(a.size)) for a in info.axes}
    missing = [name for name, bound in wanted.items() if bound not in info.domain.constraints]
    if missing:
        yield ALIGNMENT, f"the domain does not bound {', '.join(missing)}"


def _input_problems(info: IndexInfo, read: InputMap, book: IndexBook) -> Iterator[Problem]:
    source = book.infos.get(read.value_id)
    if source is None:
        yield ALIGNMENT, "there is no such value"
        return
    if not info.scop:
        return
    if len(read.map) != len(source.axes):
        yield ALIGNMENT, f"the map has {len(read.map)} parts for {len(source.axes)} axes"
        return
    own = source if info.reduce_axes else info
    known = {a.name for a in own.axes} | _params(info).keys()
    for expr in (*read.map, *(guard.expr for guard in read.guards)):
        unknown = (axes_of(expr) | params_of(expr)) - known
        if unknown:
            yield ALIGNMENT, f"{expr} uses {', '.join(sorted(unknown))}, which is not there"
            return
        yield from _divisors(expr)
    for k, expr in enumerate(read.map):
        yield from _index_problems(info, own, source, read, k, expr)


def _index_problems(
    info: IndexInfo, own: IndexInfo, source: IndexInfo, read: InputMap, k: int, expr: Expr
) -> Iterator[Problem]:
    """One expression: guarded where it is a remainder, in range, and with the atoms it runs by."""
    size = static(source.axes[k].size)
    if is_remainder(expr):
        # Interval arithmetic cannot bound every remainder: its guard says how large it may be.
        if Guard(expr, size) not in info.domain.constraints:
            yield GUARD, f"{expr} takes a remainder, and the domain lacks 0 <= {expr} < {size}"
        return
    # Expressions are unique objects: what is the same is the same object.
    if any(guard.expr is expr and guard.size <= size for guard in read.guards):
        return
    ranges = {a.name: (0, static(a.size) - 1) for a in own.axes}
    ranges.update(_params(info))
    if any(first > last for first, last in ranges.values()):
        return
    low, high = bounds(expr, ranges)
    if low < 0 or high >= size:
        yield RANGE, f"{expr} runs from {low} to {high}, outside [0, {size})"
    single = expr.single_axis
    if single is not None and read.aligned:
        number = int(single.name[1:])
        same = own.axes[number].size == size and number < len(own.atoms) and k < len(source.atoms)
        if same and own.atoms[number] != source.atoms[k]:
            yield (
                ALIGNMENT,
                f"{single.name} is axis {k} of the operand, but their atoms are "
                f"{list(own.atoms[number])} and {list(source.atoms[k])}",
            )


def _params(info: IndexInfo) -> dict[str, tuple[int, int]]:
    """The ranges of the parameters of a value's maps."""
    found = {p.name: (p.low, p.high) for p in info.params}
    return found | ({SELECTED: (0, info.selected - 1)} if info.selected else {})


def _divisors(expr: Expr) -> Iterator[Problem]:
    for term, _ in expr.terms:
        if isinstance(term, FloorDiv):
            factors = [factor for _, factor in term.value.terms]
            if term.divisor <= 1 or gcd(term.divisor, *factors) > 1:
                yield DIVISOR, f"the divisor of {term} is not positive and reduced"
            yield from _divisors(term.value)
