"""How the warps of a GPU carry out a kernel with stages, with all rows in registers.

A warp walks down a strip of rows. Every lane has some neighbouring columns of each part, as many as
a vector has, and of each stage the rows that somebody still reads; what lies further along a row
comes from the lanes behind. The lanes of one part stand where those of its readers do, or before
them, so that nothing is read from the lanes before. The last lanes know too little of their
neighbours to make results: they are the *halo*, which the next warp computes again.

What is read of memory at several places is a stage too, a copy: a warp loads it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Final

from weft.foundation.index_expr import Axis, Expr, axis, bounds, coefficient, constant
from weft.foundation.records import dataclass
from weft.region.form import Ring, Staged
from weft.region.forms.staged import find_staged
from weft.region.ir import Kernel, KernelAxis, Let, Pattern, Read, Reduce, Stage, Tensor, walk

LANES: Final = 32
VECTORS: Final = (4, 2, 1)
"""Columns that a lane may have."""
MOST_ROWS: Final = 16
"""Of a stage, at most, that registers hold."""
MOST_TAPS: Final = 32
"""Of a window that is reduced, at most: each is written out."""
MOST_HELD: Final = 144
"""Registers of rows of a thread, at most; others hold places, and what is on its way."""
_BESIDE: Final = 24
_REGISTER: Final = 4
"""Registers beside rows of a thread, about, and bytes of a register."""


@dataclass(frozen=True)
class Edge:
    """A part that reads a local, by number: along the columns, from `low` to `high` of its own, in
    a row that its own and windows say."""

    reader: int
    stage: int
    low: int
    high: int
    row: Expr


@dataclass(frozen=True)
class Slide:
    """A kernel with stages as warps carry it out."""

    kernel: Kernel
    """With copies of what is read at several places as its first stages."""
    copies: int
    form: Staged
    columns: tuple[str, ...]
    """The axis of every part along which lanes lie, the results' last."""
    edges: tuple[Edge, ...]

    @property
    def rings(self) -> tuple[Ring, ...]:
        return self.form.rings

    @cached_property
    def loading(self) -> tuple[bool, ...]:
        """Which parts read memory."""
        own = {stage.name for stage in self.kernel.stages}
        return tuple(
            any(isinstance(x.expr, Read) and x.expr.tensor not in own for x in walk(part.body))
            for part in self.kernel.parts
        )

    def is_shared(self, local: str) -> bool:
        """Whether several points read an element of a local."""
        names = [stage.name for stage in self.kernel.stages]
        edges = {edge for edge in self.edges if names[edge.stage] == local}
        return len(edges) > 1 or any(edge.low < edge.high for edge in edges)

    def shifts(self, vector: int) -> tuple[int, ...]:
        """How far the first column of every part lies from that of the results. Those that read
        memory begin at whole vectors."""
        found = [0] * len(self.columns)
        for number in range(len(self.columns) - 2, -1, -1):
            first = min(found[e.reader] + e.low for e in self.edges if e.stage == number)
            found[number] = first // vector * vector if self.loading[number] else first
        return tuple(found)

    @cached_property
    def _last(self) -> tuple[int, ...]:
        """How far the last column that is needed of every part lies from that of the results."""
        found = [0] * len(self.columns)
        for number in range(len(self.columns) - 2, -1, -1):
            own = (edge for edge in self.edges if edge.stage == number)
            found[number] = max(found[edge.reader] + edge.high for edge in own)
        return tuple(found)

    def width(self, vector: int) -> int:
        """Columns of the results that a warp makes, in whole vectors; none where it reads too far
        along a row."""
        ends = zip(self._last, self.shifts(vector), strict=True)
        # The lanes at the end lack what lies behind the warp: the part that reaches furthest beyond
        # its own first column says how many.
        left = LANES * vector - max(last - shift for last, shift in ends)
        return max(0, left // vector * vector)

    def exchanges(self, vector: int) -> int:
        """Values that a lane takes from others in every step."""
        shifts, found = self.shifts(vector), set()
        for edge in self.edges:
            first = shifts[edge.reader] - shifts[edge.stage]
            # For its `vector` columns a lane needs these, counted from its own first: those below
            # `vector` it has itself, whoever else asks for the others gets them with it.
            for column in range(first + edge.low, first + edge.high + vector):
                if column >= vector:
                    found.add((edge.reader, edge.stage, edge.row, column))
        return len(found)

    def registers(self, vector: int) -> int:
        """About how many a thread has."""
        rings = zip(self.kernel.stages, self.rings, strict=True)
        held = sum(ring.depth * -(-s.local.dtype.storage_bytes // _REGISTER) for s, ring in rings)
        return _BESIDE + vector * held

    def vectors(self) -> tuple[int, ...]:
        """The columns of a lane for which registers hold all rows, and at most half of the lanes
        are halo."""
        widest = max(
            let.dtype.storage_bytes for let in self.kernel.every_let() if isinstance(let.expr, Read)
        )
        return tuple(
            count
            for count in VECTORS
            if self.registers(count) <= MOST_HELD + _BESIDE
            and 2 * self.width(count) >= LANES * count
            and count * widest <= 4 * _REGISTER
        )


def find_slide(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Slide | str:
    """How warps carry out a kernel with stages, or why they cannot."""
    found = _slide(kernel, 0)
    if isinstance(found, str):
        return found
    for name in _read_repeatedly(kernel):
        copied = _slide(_with_copy(found.kernel, tensors[name]), found.copies + 1)
        # What does not follow the rows is read where it is needed.
        if isinstance(copied, Slide) and copied.form.slide == found.form.slide:
            found = copied
    if not found.vectors():
        return "registers do not hold its rows, or rows reach too far to the side"
    return found


def _read_repeatedly(kernel: Kernel) -> list[str]:
    """The tensors in memory that are read at several places."""
    own, places = {stage.name for stage in kernel.stages}, dict[str, int]()
    for part in kernel.parts:
        reads = [let.expr for let in walk(part.body) if isinstance(let.expr, Read)]
        for name, _ in dict.fromkeys((read.tensor, read.index) for read in reads):
            places[name] = places.get(name, 0) + 1
        for read in reads:
            windows = any(coefficient(x, a.name) for x in read.index for a in part.axes if a.reduce)
            places[read.tensor] = places.get(read.tensor, 0) + windows
    return [name for name, count in places.items() if count > 1 and name not in own]


def _with_copy(kernel: Kernel, tensor: Tensor) -> Kernel:
    """The kernel with a stage that copies a tensor."""
    taken = {tensor.name, *kernel.inputs, *(stage.name for stage in kernel.stages)}
    name = tensor.name
    while name in taken:
        name += "_"
    long = [place for place, size in enumerate(tensor.shape) if size > 1]
    axes = tuple(KernelAxis(f"c{place}", tensor.shape[place]) for place in long)
    index = tuple(
        axis(f"c{place}") if place in long else constant(0) for place in range(len(tensor.shape))
    )
    read = Let("x", tensor.dtype, tuple(a.name for a in axes), Read(tensor.name, index))
    local = Tensor(name, tensor.dtype, tuple(a.size for a in axes), "local")

    def moved(body: Sequence[Let]) -> tuple[Let, ...]:
        return tuple(
            replace(let, expr=_of_copy(let.expr, local, long))
            if isinstance(let.expr, Read) and let.expr.tensor == tensor.name
            else let
            for let in body
        )

    copy = Stage(local, axes, (read,), "x")
    stages = (copy, *(replace(stage, body=moved(stage.body)) for stage in kernel.stages))
    made = replace(kernel, body=moved(kernel.body), stages=stages, form=None)
    return replace(made, pattern=Pattern.STAGED)


def _of_copy(read: Read, local: Tensor, long: Sequence[int]) -> Read:
    return replace(read, tensor=local.name, index=tuple(read.index[place] for place in long))


def _slide(kernel: Kernel, copies: int) -> Slide | str:
    form = find_staged(kernel)
    if isinstance(form, str):
        return form
    columns = list(_column_axes(kernel, form))
    if not all(columns):
        return "rows of it have several axes"
    if max(ring.depth for ring in form.rings) > MOST_ROWS:
        return f"more than {MOST_ROWS} rows of a stage are alive at a time"
    for part in kernel.parts:
        sums = [let.expr for let in part.body if isinstance(let.expr, Reduce)]
        if any(prod(part.sizes[name] for name in found.axes) > MOST_TAPS for found in sums):
            return f"{part.name} reduces more than {MOST_TAPS} elements at a time"
    places = {stage.name: number for number, stage in enumerate(kernel.stages)}
    edges = []
    for number, part in enumerate(kernel.parts):
        for let in walk(part.body):
            if isinstance(let.expr, Read) and let.expr.tensor in places:
                stage = places[let.expr.tensor]
                inside = [found.name for found in kernel.stages[stage].outer]
                expr = let.expr.index[inside.index(columns[stage])]
                row = let.expr.index[inside.index(form.rings[stage].axis)]
                reach = _columns_reached(part, columns[number], expr)
                if reach is None:
                    return f"{part.name} reads {let.expr.tensor} along other columns than its own"
                edges.append(Edge(number, stage, *reach, row))
    return Slide(kernel, copies, form, tuple(columns), tuple(edges))


def _column_axes(kernel: Kernel, form: Staged) -> Iterator[str]:
    """The axis inside of the rows of each part; nothing where there are several."""
    for stage, ring in zip(kernel.stages, form.rings, strict=True):
        outside = {ring.axis, *ring.batch}
        inside = [found.name for found in stage.outer if found.name not in outside]
        yield inside[0] if len(inside) == 1 else ""
    outside = {form.slide, *form.batch}
    inside = [a.name for a in kernel.axes if not a.reduce and a.name not in outside]
    yield inside[0] if len(inside) == 1 else ""


def _columns_reached(part: Kernel, column: str, expr: Expr) -> tuple[int, int] | None:
    """How far along a row a part reads from its own column; None where it does not move with it."""
    windows = {found.name for found in part.axes if found.reduce}
    names = {term.name if isinstance(term, Axis) else "" for term, _ in expr.terms}
    if coefficient(expr, column) != 1 or not names <= {column, *windows}:
        return None
    return bounds(expr - axis(column), part.ranges)
