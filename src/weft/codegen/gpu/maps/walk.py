"""The common part of fused kernels that slide down a strip of rows, wherever the rows are kept.

    strip  = block / tiles of columns % strips              its rows
    for step in range(...):
        each stage: the rows that are the newest somebody needs
        the results: rows of the strip, if there are any

Rows that no result needs, before the first and behind the last, are computed from nothing: nothing
is loaded where a point does not exist. A `Walk` is all parts together; a place for rows
(`maps.slides`, `maps.rings`) says where those of a stage are put, and found again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import frexp, prod
from typing import NamedTuple

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.index import Indexer
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import ALWAYS, Group, Scope, Sweep
from weft.codegen.gpu.body.thread import Emitter, Refs
from weft.codegen.gpu.body.unaligned_reads import Run
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, both
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Axis, Expr, FloorDiv, axes_of, coefficient
from weft.plan.ir import StagedPlan
from weft.plan.staged import strip_of
from weft.region.forms.sliding import Sliding
from weft.region.ir import AxisIndex, Binary, Const, Kernel, Let, Read
from weft.region.ir import walk as walk_lets
from weft.region.structure import buffers


class Along(NamedTuple):
    """How a part goes along its rows: an axis, the hull of a row of the results, and the first row
    of a strip that it computes."""

    axis: str
    low: int
    high: int
    first: int


class At(NamedTuple):
    """A point among those that a thread makes of a part in a step: its row and its column."""

    row: int
    column: int


class Wanted(NamedTuple):
    """An element of a stage: how many rows before the first that a step makes of it, and how many
    columns behind the first that the thread has."""

    stage: int
    age: int
    column: int


class Part(Emitter):
    """A stage, or the results: its rows come one after the other."""

    def __init__(self, kernel: Kernel, refs: Refs, walk: Walk, number: int) -> None:
        outputs = kernel.outputs if walk.ends(number) else ()
        super().__init__(replace(kernel, outputs=outputs), refs)
        self.of, self.number = walk, number
        self.column = walk.slide.columns[number]
        ring = None if walk.ends(number) else walk.slide.rings[number]
        axis, low, high = (
            (ring.axis, ring.low, ring.high) if ring else (walk.slide.form.slide, 0, 0)
        )
        self.along = Along(axis, low, high, high - walk.slide.form.warm_up)
        self.names, self.numbers = walk.names, walk.numbers
        self.written = walk.written
        if not walk.ends(number):
            # The rows of a stage are read again: they are rounded as if they were in memory.
            self.only_stored = set()
        self.lanes: Group = Group(self.column)
        self.at: dict[int, At] = {}
        """Where points stand among those of the thread, by scope."""

    # -- the kernel ------------------------------------------------------------------------------

    @property
    def grid(self) -> int:
        return self.of.grid

    @property
    def threads(self) -> int:
        return self.of.threads

    @property
    def partials(self) -> int:
        return 1

    def work(self) -> Iterator[ir.Stmt]:
        return self.of.work()

    def fresh(self, stem: str = "v") -> str:
        self.of.count += 1
        return f"{stem}{self.of.count}"

    # -- places ----------------------------------------------------------------------------------

    def stand(self, before: list[ir.Stmt], batch: Mapping[str, Scalar], first: Scalar) -> None:
        """Say where the columns of the thread are."""
        root = Scope(None, dict(batch), before)
        name = self.fresh("column")
        before.append(ir.Let(name, first))
        size, group = self.kernel.sizes[self.column], self.lanes
        low, high = self.of.columns_of(self.number)
        self.indexer = Indexer(self.ranges_from(low), self.params)
        for step in range(self.of.vector):
            place, inside = Name(name) + step, both(ALWAYS, ALWAYS)
            if low + step < 0:
                inside = both(inside, place >= 0)
            if high + step >= size:
                inside = both(inside, place < size)
            group.instances.append(Scope(root, {self.column: place}, before, inside, group))

    def ranges_from(self, column: int) -> dict[str, tuple[int, int]]:
        """Where the axes stand, whose points before the first row and column are computed too: that
        matters where an index divides."""
        known = dict(self.indexer.ranges)
        before = {self.column: column, self.along.axis: self.along.first}
        for name in _divided_axes(self.kernel) & before.keys():
            low, high = known[name]
            known[name] = min(low, before[name]), high
        return known

    def row(
        self, axis: str, place: Scalar, inside: Scalar, body: list[ir.Stmt], turn: int = 0
    ) -> Group:
        """The points of the thread in one row, of those that a step makes."""
        group = Group(self.column)
        for step, parent in enumerate(self.lanes.instances):
            scope = Scope(parent, {axis: place}, body, inside, group)
            group.instances.append(scope)
            self.at[id(scope)] = At(turn, step)
        return group

    # -- values ----------------------------------------------------------------------------------

    def read(self, let: Let, read: Read, home: Scope) -> None:
        """What a stage made comes from the rows that are kept of it."""
        if read.tensor not in self.of.places:
            super().read(let, read, home)
            return
        value = self.of.taken(self.reading(read, home), home)
        guards = self.kernel.open_guards(read)
        if guards:
            fill = ElementOp(self.fresh(), let.dtype, "const", (), read.fill or 0)
            inside = self.indexer.holds(guards, home.known())
            name = self.fresh()
            home.body.append(values.Compute(fill))
            home.body.append(values.Choose(name, let.dtype, inside, value, fill.name))
            value = name
        home.made[let.name] = value

    def reading(self, read: Read, home: Scope) -> Wanted:
        """Which element of a stage a point reads."""
        of = self.of
        slide, number = of.slide, of.places[read.tensor]
        stage, ring = slide.kernel.stages[number], slide.rings[number]
        index = {a.name: e for a, e in zip(stage.outer, read.index, strict=True)}
        at = self.at[next(id(scope) for scope in reversed(home.chain()) if id(scope) in self.at)]
        rows = _distance_from_axis(index[ring.axis], self.along.axis, home)
        age = ring.high - self.along.high - rows
        column = _distance_from_axis(index[slide.columns[number]], self.column, home)
        column += of.shifts[self.number] - of.shifts[number] + at.column
        if not 0 <= age < ring.depth or column < 0:
            raise InternalError(f"{self.kernel.name} reads {stage.name} where it is not kept")
        return Wanted(number, age - at.row, column)

    def run(self, dtype: DType, read: Read, group: Group) -> Run | None:
        """Lines that begin anywhere end with the row."""
        if self.kernel.sizes[self.column] % self.of.vector:
            return None
        return super().run(dtype, read, group)

    def shares_divisor(self, let: Let) -> bool:
        """A number divides all points; of a power of two the compiler knows the reciprocal."""
        if not isinstance(let.expr, Binary) or let.expr.fn != "div" or let.dtype is not F32:
            return False
        below = self.lets[let.expr.rhs].expr
        value = below.value if isinstance(below, Const) else None
        if "div" in self.loose or not isinstance(value, int | float):
            return False
        return abs(frexp(value)[0]) != 0.5

    def sweep(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        """The taps of a window, one after the other."""
        ranges = (range(self.kernel.sizes[name]) for name in axes)
        for number, place in enumerate(product(*ranges)):
            at: dict[str, Scalar] = dict(zip(axes, map(Lit, place), strict=True))
            body(Group(None, [Scope(scope, at, scope.body)]), number)

    def finish(self, scope: Scope, reduction: Reduction, carries: Sequence[str]) -> list[str]:
        return list(carries)


class Walk(ABC):
    """All parts of a kernel together."""

    shifts: Sequence[int]
    """How far the first column of every part lies from that of the results."""
    threads: int
    """Of a block."""
    rows_of_step: int = 1
    """Rows that a step makes of every part."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: StagedPlan, slide: Sliding) -> None:
        self.slide, self.plan, self.vector = slide, plan, plan.vector
        self.names = buffers(kernel)
        self.numbers = {tensor: number for number, tensor in enumerate(self.names)}
        self.written = {refs[output.tensor].buffer for output in kernel.outputs}
        self.count = 0
        self.places = {stage.name: n for n, stage in enumerate(slide.kernel.stages)}
        self.rows, self.height = strip_of(kernel, plan), kernel.sizes[slide.form.slide]
        self.sizes = {name: kernel.sizes[name] for name in slide.form.batch}
        self.sizes["strip"] = -(-self.height // self.rows)
        parts = slide.kernel.parts
        self.parts = [Part(recognise(part), refs, self, n) for n, part in enumerate(parts)]

    def ends(self, number: int) -> bool:
        """Whether a part makes the results."""
        return number == len(self.places)

    @property
    def grid(self) -> int:
        return prod(self.sizes.values())

    @abstractmethod
    def columns_of(self, number: int) -> tuple[int, int]:
        """The first and the last column at which a vector of a part may begin."""

    @abstractmethod
    def work(self) -> Iterator[ir.Stmt]:
        """What every thread does."""

    @abstractmethod
    def taken(self, wanted: Wanted, home: Scope) -> str:
        """The value of a stage that a point of another part reads."""

    def stand(self, before: list[ir.Stmt], found: Mapping[str, Scalar]) -> None:
        """Say where the strip and the columns of the thread are, whose first is `first`."""
        places = dict(found)
        before.append(ir.Let("row", places.pop("strip") * self.rows))
        batch = []
        for number, place in enumerate(places.values()):
            before.append(ir.Let(f"batch{number}", place))
            batch.append(Name(f"batch{number}"))
        names = [*(ring.batch for ring in self.slide.rings), self.slide.form.batch]
        for part, own, shift in zip(self.parts, names, self.shifts, strict=True):
            part.stand(before, dict(zip(own, batch, strict=True)), Name("first") + shift)

    def row_of(self, number: int, step: Scalar, body: list[ir.Stmt], turn: int = 0) -> Group:
        """The points of a part in a row, by the rows since the first of the strip. Those exist that
        the strip needs."""
        part = self.parts[number]
        axis, low, high, first = part.along
        size, row = part.kernel.sizes[axis], part.fresh("row")
        body.append(ir.Let(row, Name("row") + step + first))
        inside: Scalar = ALWAYS
        if first < low:
            inside = both(inside, step >= low - first)
        if low < 0:
            inside = both(inside, Name(row) >= 0)
        more = self.rows_of_step - 1 + (number < self.slide.copies) * self.rows_of_step
        if self.sizes["strip"] * self.rows + high + more > size:
            inside = both(inside, Name(row) < size)
        return part.row(axis, Name(row), inside, body, turn)


def _divided_axes(kernel: Kernel) -> set[str]:
    """The axes of which an index of a kernel has quotients."""
    reads = [let.expr for let in walk_lets(kernel.body) if isinstance(let.expr, Read)]
    exprs = [e for read in reads for e in (*read.index, *(g.expr for g in read.guards))]
    exprs += [let.expr.expr for let in kernel.body if isinstance(let.expr, AxisIndex)]
    exprs += [expr for output in kernel.outputs for expr in output.index]
    terms = (term for expr in exprs for term, _ in expr.terms if isinstance(term, FloorDiv))
    return {name for term in terms for name in axes_of(term.value)}


def _distance_from_axis(expr: Expr, name: str, scope: Scope) -> int:
    """How far an index is from an axis, at a point where windows stand at known taps."""
    known, total = scope.known(), expr.constant
    for term, factor in expr.terms:
        assert isinstance(term, Axis)
        if term.name == name:
            continue
        place = known[term.name]
        assert isinstance(place, Lit)
        total += factor * place.value
    assert coefficient(expr, name) == 1
    return total
