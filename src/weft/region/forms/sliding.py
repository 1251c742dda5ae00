"""The steps of fused stages: how they move together down the rows and along the columns.

What a kernel of a GPU keeps of its stages, in registers (`forms.slides`) or in shared memory
(`forms.shared_slides`), is asked of the same edges: how far along a row, and in which row, a part
reads from its own point.

What is read of memory at several places is a stage too, a copy: it is loaded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from weft.foundation.index_expr import Axis, Expr, axis, bounds, coefficient, constant
from weft.foundation.records import dataclass
from weft.region.form import Ring, Staged
from weft.region.forms.joined_columns import with_joined_columns
from weft.region.forms.staged import find_staged
from weft.region.ir import Kernel, KernelAxis, Let, Pattern, Read, Reduce, Stage, Tensor, walk


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
class Limits:
    """What a place for rows takes, at most."""

    rows: int
    """Of a stage."""
    taps: int
    """Of a window that is reduced: each is written out."""


@dataclass(frozen=True)
class Sliding:
    """A kernel with stages whose parts move together."""

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


def find_sliding(kernel: Kernel, tensors: Mapping[str, Tensor], limits: Limits) -> Sliding | str:
    """How the parts of a kernel move together, or why they do not."""
    found = _find_sliding(kernel, 0, limits)
    if isinstance(found, str):
        return found
    for name in read_repeatedly(kernel):
        more = _with_copy(kernel, tensors[name])
        copied = _find_sliding(more, found.copies + 1, limits)
        # What does not follow the rows is read where it is needed.
        if isinstance(copied, Sliding) and copied.form.slide == found.form.slide:
            kernel, found = more, copied
    return found


def read_repeatedly(kernel: Kernel) -> list[str]:
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


def _find_sliding(kernel: Kernel, copies: int, limits: Limits) -> Sliding | str:
    form = find_staged(kernel)
    if isinstance(form, str):
        return form
    joined = with_joined_columns(kernel, form)
    if joined is None:
        return "rows of it have several axes"
    kernel, columns = joined
    if max(ring.depth for ring in form.rings) > limits.rows:
        return f"more than {limits.rows} rows of a stage are live at a time"
    for part in kernel.parts:
        sums = [let.expr for let in part.body if isinstance(let.expr, Reduce)]
        if any(prod(part.sizes[name] for name in found.axes) > limits.taps for found in sums):
            return f"{part.name} reduces more than {limits.taps} elements at a time"
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
    return Sliding(kernel, copies, form, columns, tuple(edges))


def _columns_reached(part: Kernel, column: str, expr: Expr) -> tuple[int, int] | None:
    """How far along a row a part reads from its own column; None where it does not move with it."""
    windows = {found.name for found in part.axes if found.reduce}
    names = {term.name if isinstance(term, Axis) else "" for term, _ in expr.terms}
    if coefficient(expr, column) != 1 or not names <= {column, *windows}:
        return None
    return bounds(expr - axis(column), part.ranges)
