"""The dependences of fused stages, row by row.

The results move along one axis, `slide`, and a stage computes each of its rows as late as can be:
in the step in which the first of those is computed that read it. What a row of the results needs of
a local is the hull of all reads, composed through all stages between: a chain of three sums of
three rows needs seven rows of the first. Of these only as many are alive at once as lie between the
newest row and the oldest that somebody still reads, and a ring of so many rows holds them.

What a row of one part needs of a local is Poly Core's to say. Inside of a row anything may be read;
it has at least the last axis, along which vectors run, so that nobody may read it across.
Along `slide` rows move with their reader, `i + 2` or a window `i + k`, and along the axes outside
of it, the batch, a reader stays where it is. Where readers also move so along an axis inside of the
rows, a tile of its columns can be computed by itself, with a halo: again the hull of all reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from math import prod
from typing import Final

from weft.foundation.index_expr import coefficient
from weft.foundation.records import dataclass
from weft.poly.core import LoopAxis, Span, Statement, can_compute_at
from weft.poly.core import Read as StatementRead
from weft.region.form import Ring, Staged
from weft.region.ir import Fold, Kernel, Let, Read, Reduce, Stage, walk

SHORTEST: Final = 64
"""Elements of a row, at least, for which it is worth going from stage to stage."""
WIDEST: Final = 256
"""Elements of a window that is reduced, at most: its sum is taken one after the other."""
_PIECES: Final = 16
"""Pieces that a few threads share evenly."""
_ROWS_PER_WARM_UP: Final = 8
"""Rows of the results for each row that is computed before them: an eighth of the work again."""


def find_staged(kernel: Kernel) -> Staged | str:
    """How the stages of a kernel slide, or why they cannot: along the innermost axis whose rows are
    long enough."""
    refused = next(filter(None, map(_refusal, kernel.parts)), None)
    if refused is not None:
        return refused
    why = "results have one axis alone"
    outer = [found for found in kernel.axes if not found.reduce]
    for place in range(len(outer) - 2, -1, -1):
        if prod(found.size for found in outer[place + 1 :]) < SHORTEST:
            why = f"rows have fewer than {SHORTEST} elements"
            continue
        names = [found.name for found in outer]
        found = _stages_along(kernel, names[place], tuple(names[:place]))
        if isinstance(found, Staged):
            return found
        why = found
    return why


def slides_alone(kernel: Kernel) -> bool:
    """Whether each part of a kernel can be computed row by row, wherever its rows are needed."""
    return not any(map(_refusal, kernel.parts))


def _refusal(part: Kernel) -> str | None:
    """Why a part is not computed row by row: what it reduces are no small windows."""
    windows = {found.name for found in part.axes if found.reduce}
    reductions = [let.expr for let in part.body if isinstance(let.expr, Reduce | Fold)]
    if any(isinstance(expr, Fold) or not windows.issuperset(expr.axes) for expr in reductions):
        return f"{part.name} has reductions along its rows"
    if any(prod(part.sizes[name] for name in expr.axes) > WIDEST for expr in reductions):
        return f"{part.name} reduces more than {WIDEST} elements at a time"
    if reductions and not all(map(partial(_lies_along, part), walk(part.body))):
        return f"{part.name} reduces along what lies side by side"
    return None


def _lies_along(part: Kernel, let: Let) -> bool:
    """Whether what is read of a window lies side by side for results that do: lanes run along the
    last axis of the results."""
    windows = {found.name for found in part.axes if found.reduce}
    if not isinstance(let.expr, Read) or not windows.intersection(let.axes):
        return True
    along = next((found.name for found in reversed(part.axes) if not found.reduce), "")
    last = next((expr for expr in reversed(let.expr.index) if not expr.is_constant), None)
    return last is not None and coefficient(last, along) == 1


@dataclass
class _Reads:
    """Where readers of one local stand: its axis and batch, and how far the first, the last and the
    oldest row that they read lie from the row of the results that are computed in the same step."""

    batch: tuple[str, ...] = ()
    axis: str = ""
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    oldest: list[int] = field(default_factory=list)


def _stages_along(kernel: Kernel, slide: str, batch: tuple[str, ...]) -> Staged | str:
    """How all stages move with an axis of the results."""
    if not kernel.stages:
        return "there are none"
    found = {stage.name: _Reads() for stage in kernel.stages}
    locals_of = {stage.name: _local(stage) for stage in kernel.stages}
    why = _note_reads(kernel.parts[-1], _Reads(batch, slide, [0], [0]), locals_of, found)
    for stage in reversed(kernel.stages):
        here = found[stage.name]
        if why is None and not here.lows:
            why = f"nobody reads {stage.name}"
        if why is None:
            why = _note_reads(stage.kernel, here, locals_of, found)
    if why is not None:
        return why
    rings = tuple(_ring(stage.name, found[stage.name]) for stage in kernel.stages)
    return Staged(slide, batch, rings)


def _ring(name: str, reads: _Reads) -> Ring:
    high = max(reads.highs)
    # In the step that computes row `high` the oldest is still read: both, and all between, are
    # alive.
    depth = high - min(reads.oldest) + 1
    return Ring(name, reads.batch, reads.axis, min(reads.lows), high, depth)


def statement(part: Kernel, element_bytes: int = 0) -> Statement:
    """A part as Poly Core sees it."""
    reads = [let.expr for let in walk(part.body) if isinstance(let.expr, Read)]
    return Statement(
        part.name,
        tuple(LoopAxis(found.name, found.size, found.reduce) for found in part.axes),
        tuple(StatementRead(read.tensor, read.index) for read in reads if not read.places),
        element_bytes,
        tuple((param.name, param.low, param.high) for param in part.params),
        affine=part.opaque is None and not any(read.places for read in reads),
        pinned=any(output.base is not None for output in part.outputs),
    )


def _local(stage: Stage) -> Statement:
    return statement(stage.kernel, stage.local.dtype.storage_bytes)


def _note_reads(
    reader: Kernel, at: _Reads, locals_of: Mapping[str, Statement], found: dict[str, _Reads]
) -> str | None:
    """Note what one part reads of the locals; why that does not slide, where it does not."""
    known = statement(reader)
    cut = {at.axis, *at.batch}
    tile = {a.name: 1 if a.name in cut else a.size for a in known.outer}
    for name in dict.fromkeys(read.source for read in known.reads if read.source in found):
        allowed = can_compute_at(locals_of[name], known, tile)
        if not allowed.ok:
            return allowed.why
        place = _local_span(allowed.spans, at)
        if isinstance(place, str):
            return f"{reader.name} reads {name} {place}"
        batch, own, span = place
        here = found[name]
        if here.axis and (here.axis, here.batch) != (own, batch):
            return f"{name} is read along several axes"
        here.axis, here.batch = own, batch
        # In one step a reader computes up to row `highs` of its own, and reads from `span.low` to
        # `span.high` about it. A hull of hulls is their sum; the oldest row that must still be
        # there is the lowest one read for the newest that is computed.
        here.lows.append(min(at.lows) + span.low)
        here.highs.append(max(at.highs) + span.high)
        here.oldest.append(max(at.highs) + span.low)
    return None


def _local_span(spans: Mapping[str, Span], at: _Reads) -> tuple[tuple[str, ...], str, Span] | str:
    """The batch and the axis along which a local is read, and its rows for one of the reader's."""
    slides: list[tuple[str, Span]] = []
    batch: dict[str, str] = {}
    for own, span in spans.items():
        if not span.even:
            return f"along {own}, which does not move as its rows do"
        if at.axis in span.steps:
            if dict(span.steps) != {at.axis: 1}:
                return f"along {own}, which does not move as its rows do"
            slides.append((own, span))
        elif span.steps:
            ((name, step), *more) = span.steps.items()
            if more or step != 1 or span.low or span.high or name in batch:
                return f"along {own} in other parts of the batch"
            batch[name] = own
    if len(slides) != 1 or set(batch) != set(at.batch):
        return "not row by row"
    ((own_axis, rows),) = slides
    *_, last = spans
    if last in (own_axis, *batch.values()):
        return f"along {last}, where its elements lie side by side"
    return tuple(batch[name] for name in at.batch), own_axis, rows


@dataclass(frozen=True)
class Beside:
    """A part that reads a local, by number: along the columns from `low` to `high` of its own."""

    reader: int
    stage: int
    low: int
    high: int


@dataclass(frozen=True)
class Columns:
    """How columns of all parts move with those of the results: the axis of each part, the results'
    last, and who reads which."""

    axes: tuple[str, ...]
    edges: tuple[Beside, ...]

    @property
    def halos(self) -> tuple[int, ...]:
        """How many columns of each part a tile needs beside as many as it has of the results."""
        lows, highs = ([0] * len(self.axes) for _ in range(2))
        for number in range(len(self.axes) - 2, -1, -1):
            own = [edge for edge in self.edges if edge.stage == number]
            lows[number] = min(lows[edge.reader] + edge.low for edge in own)
            highs[number] = max(highs[edge.reader] + edge.high for edge in own)
        return tuple(high - low for low, high in zip(lows, highs, strict=True))


def columns_along(kernel: Kernel, form: Staged, column: str) -> Columns | str:
    """What columns along an axis of the results need of every stage; or why that is not told, so
    that rows stay whole."""
    numbers = {stage.name: number for number, stage in enumerate(kernel.stages)}
    outside = [*((ring.axis, *ring.batch) for ring in form.rings), (form.slide, *form.batch)]
    axes, edges = {len(kernel.stages): column}, list[Beside]()
    for reader in reversed(range(len(kernel.parts))):
        known = statement(kernel.parts[reader])
        cut = {*outside[reader], axes[reader]}
        tile = {a.name: 1 if a.name in cut else a.size for a in known.outer}
        for name in dict.fromkeys(read.source for read in known.reads if read.source in numbers):
            number = numbers[name]
            spans = can_compute_at(_local(kernel.stages[number]), known, tile).spans
            found = _span_beside(spans, axes[reader])
            if isinstance(found, str):
                return f"{known.name} reads {name} {found}"
            own, span = found
            if axes.setdefault(number, own) != own:
                return f"{name} is read along several axes"
            edges.append(Beside(reader, number, span.low, span.high))
    return Columns(tuple(axes[number] for number in range(len(kernel.parts))), tuple(edges))


def _span_beside(spans: Mapping[str, Span], column: str) -> tuple[str, Span] | str:
    """The axis of a local that moves with columns of its reader, and what they read along it."""
    moving = [own for own, span in spans.items() if not span.even or column in span.steps]
    if not moving:
        return "along whole rows"
    span = spans[moving[0]]
    if len(moving) > 1 or not span.even or dict(span.steps) != {column: 1}:
        return "at no fixed distance along its columns"
    return moving[0], span


def strip_rows(kernel: Kernel, form: Staged, tiles: int = 1) -> int:
    """Rows of the results that one piece computes, where no plan says: enough pieces for threads to
    share, of so many `tiles` of a row, and enough rows in each that what it computes before its
    first hardly counts."""
    batch = prod(kernel.sizes[name] for name in form.batch) * tiles
    rows = kernel.sizes[form.slide]
    share = -(-rows // max(1, _PIECES // batch))
    # A piece computes `warm_up` rows more than it makes: with eight times as many of its own an
    # eighth of the work is done twice.
    return min(rows, max(share, _ROWS_PER_WARM_UP * form.warm_up, 1))
