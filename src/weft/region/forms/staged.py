"""How the stages of a kernel follow one another row by row.

The results move along one axis, `slide`, and a stage computes each of its rows as late as can be:
in the step in which the first of those is computed that read it. What a row of the results needs of
a local is the hull of all reads, composed through all stages between: a chain of three sums of
three rows needs seven rows of the first. Of these only as many are alive at once as lie between the
newest row and the oldest that somebody still reads, and a ring of so many rows holds them.

Inside of a row anything may be read. Along `slide` a read moves with its reader, `i + 2`, and along
the axes outside of it, the batch, it stays where its reader is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from weft.foundation.index_expr import Expr, axes_of, axis
from weft.region.form import Ring, Staged
from weft.region.ir import Kernel, KernelAxis, Read, Reduce, Stage

SHORTEST: Final = 64
"""Elements of a row, at least, for which it is worth going from stage to stage."""
_PIECES: Final = 16
"""Pieces that a few threads share evenly."""
_ROWS_PER_WARM_UP: Final = 8
"""Rows of the results for each row that is computed before them: an eighth of the work again."""


def find_staged(kernel: Kernel) -> Staged | str:
    """How the stages of a kernel slide, or why they cannot: along the innermost axis whose rows are
    long enough."""
    why = "results have one axis alone"
    for place in range(len(kernel.axes) - 2, -1, -1):
        if prod(found.size for found in kernel.axes[place + 1 :]) < SHORTEST:
            why = f"rows have fewer than {SHORTEST} elements"
            continue
        names = [found.name for found in kernel.axes]
        found = _along(kernel, names[place], tuple(names[:place]))
        if isinstance(found, Staged):
            return found
        why = found
    return why


@dataclass
class _Reads:
    """Where readers of one local stand: its axis and batch, and how far the rows lie from the row
    of the results that are computed in the same step."""

    batch: tuple[str, ...] = ()
    axis: str = ""
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)


def _along(kernel: Kernel, slide: str, batch: tuple[str, ...]) -> Staged | str:
    """How all stages move with an axis of the results."""
    if not kernel.stages:
        return "there are none"
    found = {stage.name: _Reads() for stage in kernel.stages}
    axes = {stage.name: stage.axes for stage in kernel.stages}
    why = _look(kernel, _Reads(batch, slide, [0], [0]), axes, found)
    for stage in reversed(kernel.stages):
        here = found[stage.name]
        if why is None and not here.lows:
            why = f"nobody reads {stage.name}"
        if why is None:
            why = _look(stage.kernel, here, axes, found)
    if why is not None:
        return why
    rings = tuple(_ring(stage.name, found[stage.name]) for stage in kernel.stages)
    return Staged(slide, batch, rings)


def _ring(name: str, reads: _Reads) -> Ring:
    high = max(reads.highs)
    depth = high - min(reads.highs) + 1
    return Ring(name, reads.batch, reads.axis, min(reads.lows), high, depth)


def _look(
    reader: Kernel,
    at: _Reads,
    axes: Mapping[str, Sequence[KernelAxis]],
    found: dict[str, _Reads],
) -> str | None:
    """Note what one part reads of the locals; why that does not slide, where it does not."""
    if any(isinstance(let.expr, Reduce) for let in reader.body):
        return f"{reader.name} has reductions"
    for let in reader.body:
        if not isinstance(let.expr, Read) or let.expr.tensor not in found:
            continue
        name = let.expr.tensor
        place = _place(let.expr, at, axes[name])
        if isinstance(place, str):
            return f"{reader.name} reads {name} {place}"
        batch, own, offset = place
        here = found[name]
        if here.axis and (here.axis, here.batch) != (own, batch):
            return f"{name} is read along several axes"
        here.axis, here.batch = own, batch
        here.lows.append(min(at.lows) + offset)
        here.highs.append(max(at.highs) + offset)
    return None


def _place(
    read: Read, at: _Reads, axes: Sequence[KernelAxis]
) -> tuple[tuple[str, ...], str, int] | str:
    """The batch and the axis along which a local is read, and how far from the reader's row."""
    if read.places:
        return "where data says"
    slides: list[tuple[str, int]] = []
    batch: dict[str, str] = {}
    for expr, own in zip(read.index, axes, strict=True):
        used = axes_of(expr)
        if at.axis in used:
            if _offset(expr, at.axis) is None:
                return f"at {expr}, which does not move as its rows do"
            slides.append((own.name, expr.constant))
        elif used & set(at.batch):
            single = expr.single_axis
            if single is None or single.name in batch:
                return f"at {expr}, in other parts of the batch"
            batch[single.name] = own.name
    if len(slides) != 1 or set(batch) != set(at.batch):
        return "not row by row"
    ((own_axis, offset),) = slides
    return tuple(batch[name] for name in at.batch), own_axis, offset


def _offset(expr: Expr, name: str) -> int | None:
    return expr.constant if expr - expr.constant is axis(name) else None


def strip_rows(kernel: Kernel, form: Staged) -> int:
    """Rows of the results that one piece computes, where no plan says: enough pieces for threads to
    share, and enough rows in each that what it computes before its first hardly counts."""
    batch = prod(kernel.sizes[name] for name in form.batch)
    rows = kernel.sizes[form.slide]
    share = -(-rows // max(1, _PIECES // batch))
    return min(rows, max(share, _ROWS_PER_WARM_UP * form.warm_up, 1))


def local_bytes(kernel: Kernel, form: Staged) -> int:
    """What the rings of a thread hold, with the least depths."""
    return sum(
        ring.depth * row_elements(stage, ring) * stage.local.dtype.storage_bytes
        for stage, ring in zip(kernel.stages, form.rings, strict=True)
    )


def row_elements(stage: Stage, ring: Ring) -> int:
    """The elements of one row of a local."""
    outside = {ring.axis, *ring.batch}
    return prod(found.size for found in stage.axes if found.name not in outside)
