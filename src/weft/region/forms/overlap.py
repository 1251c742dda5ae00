"""Overlapping rows (sliding windows): neighbours along a kept axis read mostly the same elements,
each with another tap of its window.

    y[p, c] = sum over s of x[p + s, c] * w[s, c]

Kept axis p and reduced axis s meet in one place of x. In the gradient of the filters, a sum over p,
they have changed sides: there neighbouring taps overlap. Neighbours along the columns c are
neighbours in memory; where images have their channels first, those along the last summed axis are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from weft.foundation.index_expr import Axis, Expr, FloorDiv, coefficient
from weft.foundation.records import dataclass
from weft.region.forms.columns import reduced_once
from weft.region.ir import Check, Kernel, Let, Read, Reduce
from weft.region.row_reads import is_gather

LONG: Final = 1 << 12
"""Points of a sum that threads share, at least."""


class Overlap(NamedTuple):
    """A kept axis, and the reduced one that it shares places with."""

    kept: str
    reduced: str


@dataclass(frozen=True)
class OverlappingRows:
    """Sums whose rows overlap: the axes that they keep, columns last, those that they add up along,
    and pairs of one of each that overlap, innermost first."""

    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    pairs: tuple[Overlap, ...]
    streams: tuple[Let, ...]
    """What is read at every point of a row and differs from row to row."""
    shared: tuple[Let, ...]
    """What all rows of a column read alike: filters."""
    summed: bool = False
    """Whether neighbours in memory are points of one sum, not columns."""

    @property
    def columns(self) -> str:
        return self.kept[-1]

    @property
    def in_turn(self) -> list[str]:
        """The other kept axes in the order in which rows with much in common are neighbours: the
        outermost of those that overlap runs fastest."""
        last = [pair.kept for pair in self.pairs]
        return [name for name in self.kept[:-1] if name not in last] + last

    def moves_along_columns(self) -> bool:
        """Whether windows move along the columns too."""
        every = [steps_of(expr) for let in self.streams for expr in _index_of_read(let)]
        return any(self.columns in steps and set(self.reduced) & {*steps} for steps in every)


def overlapping_rows(kernel: Kernel) -> OverlappingRows | None:
    """The rows of a kernel that does nothing but reduce rows which overlap; None elsewhere."""
    reduced = reduced_once(kernel)
    kept = [axis.name for axis in kernel.axes if axis.name not in reduced]
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    if not reduced or kernel.roles is not None or any(set(s.axes) != {*kept} for s in sums):
        return None
    if any(isinstance(let.expr, Check) for let in kernel.body):
        return None
    ordered = tuple(axis.name for axis in kernel.axes if axis.name in reduced)
    for columns in reversed(kept):
        others = [name for name in kept if name != columns]
        found = _rows_side_by_side(kernel, (*others, columns), ordered)
        if found is not None:
            return found
    apart = (_rows_apart(kernel, kept, name, ordered) for name in kept)
    return next((found for found in apart if found is not None), None)


def _rows_side_by_side(
    kernel: Kernel, kept: tuple[str, ...], reduced: tuple[str, ...]
) -> OverlappingRows | None:
    """Rows side by side along the last of the kept axes; None where they do not lie so, or do not
    overlap along another one."""
    streams, shared = _streams_and_shared(kernel, kept, reduced)
    side_by_side = [let for let in streams if kept[-1] in let.axes]
    if not side_by_side or not all(_is_along(kernel, let, kept[-1]) for let in side_by_side):
        return None
    pairs = _overlap_pairs(kernel, streams, kept, reduced)
    return OverlappingRows(kept, reduced, pairs, tuple(streams), tuple(shared)) if pairs else None


def _rows_apart(
    kernel: Kernel, kept: Sequence[str], columns: str, reduced: tuple[str, ...]
) -> OverlappingRows | None:
    """Long sums of rows along whose last summed axis all elements lie side by side, in columns that
    no window moves along."""
    ordered = (*(name for name in kept if name != columns), columns)
    streams, shared = _streams_and_shared(kernel, ordered, reduced)
    over = [*streams, *shared]
    if not streams or any(is_gather(let) or columns not in let.axes for let in over):
        return None
    along = all(coefficient(_index_of_read(let)[-1], reduced[-1]) == 1 for let in over)
    pairs = _overlap_pairs(kernel, streams, ordered, reduced)
    found = OverlappingRows(ordered, reduced, pairs, tuple(streams), tuple(shared), summed=True)
    long = prod(kernel.sizes[name] for name in reduced) >= LONG
    suits = along and long and bool(pairs) and pairs[0].reduced == reduced[-1]
    return found if suits and not found.moves_along_columns() else None


def _streams_and_shared(
    kernel: Kernel, kept: Sequence[str], reduced: tuple[str, ...]
) -> tuple[list[Let], list[Let]]:
    """What is read at points of the sums: what differs from row to row, and what all rows of a
    column, the last of the kept axes, read alike."""
    reads = [let for let in kernel.body if isinstance(let.expr, Read)]
    over = [let for let in reads if set(reduced) & set(let.axes)]
    shared = [let for let in over if set(let.axes) <= {*reduced, kept[-1]} and not is_gather(let)]
    return [let for let in over if let not in shared], shared


def _is_along(kernel: Kernel, let: Let, columns: str) -> bool:
    """Whether neighbours along the columns are neighbours in memory. Where windows move along them,
    these are the shorter of the two."""
    *others, last = _index_of_read(let)
    if is_gather(let) or coefficient(last, columns) != 1:
        return False
    longer = any(kernel.sizes[name] > kernel.sizes[columns] for name in steps_of(last))
    return not longer and not any(columns in steps_of(other) for other in others)


def _index_of_read(let: Let) -> Sequence[Expr]:
    assert isinstance(let.expr, Read)
    return let.expr.index or (Expr(0, ()),)


def _overlap_pairs(
    kernel: Kernel, streams: Sequence[Let], kept: Sequence[str], reduced: Sequence[str]
) -> tuple[Overlap, ...]:
    found: dict[str, Overlap] = {}
    for steps in [
        steps_of(expr) for let in streams if not is_gather(let) for expr in _index_of_read(let)
    ]:
        for name in kept[:-1]:
            for other in reduced:
                if {name, other} <= {*steps} and _windows_overlap(
                    kernel, steps, Overlap(name, other)
                ):
                    found.setdefault(other, Overlap(name, other))
    return tuple(sorted(found.values(), key=lambda pair: -kept.index(pair.kept)))


def _windows_overlap(kernel: Kernel, steps: Mapping[str, int], pair: Overlap) -> bool:
    """Whether the windows of neighbours have places in common."""
    sizes = kernel.sizes
    if min(sizes[pair.kept], sizes[pair.reduced]) < 2:
        return False
    # Neighbours are a step of the kept axis apart, and a window is as long as its taps reach.
    return steps[pair.kept] < steps[pair.reduced] * sizes[pair.reduced]


def steps_of(expr: Expr) -> dict[str, int]:
    """How far the axes of an expression go, those inside of floor divisions in their own steps."""
    found: dict[str, int] = {}
    for term, factor in expr.terms:
        if isinstance(term, Axis):
            found[term.name] = abs(factor)
        elif isinstance(term, FloorDiv):
            found |= steps_of(term.value)
    return found
