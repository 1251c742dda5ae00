"""Kernels with stages: a warp walks down a strip of rows, and keeps what it needs in registers.

    tile   = block % tiles of columns * warps + warp        its columns, `width` of the results
    strip  = block / tiles of columns % strips              its rows
    column = tile * width + lane * vector                   the first of each lane
    for step in range(rows + warm_up):
        each copy of memory: the row that the next step needs is on its way
        each stage: the row that is the newest somebody needs; older ones move up
        the results: row `step - warm_up` of the strip, if there is one

Rows that no result needs, before the first and behind the last, are computed from nothing: nothing
is loaded where a point does not exist. A value of another column comes from a lane behind
(`region.forms.slides`); the last lanes, which know too little, store nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import frexp, prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.across import Run
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import ALWAYS, Group, Scope, Sweep
from weft.codegen.gpu.body.thread import Emitter, Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, WARP, Lit, Name, Scalar, both
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import Finding, InternalError
from weft.foundation.index_expr import Axis, Expr, coefficient
from weft.plan.ir import Plan, StagedPlan
from weft.plan.slides import slide_of, slide_refusals, warps_of
from weft.plan.staged import strip_of
from weft.region.form import Ring
from weft.region.forms.slides import LANES, Slide
from weft.region.ir import Binary, Const, Kernel, Let, Read
from weft.region.structure import buffers


class _Part(Emitter):
    """A stage, or the results: its rows come one after the other."""

    def __init__(self, kernel: Kernel, refs: Refs, warps: _Warps, number: int) -> None:
        outputs = kernel.outputs if warps.ends(number) else ()
        super().__init__(replace(kernel, outputs=outputs), refs)
        self.of, self.number = warps, number
        self.column = warps.slide.columns[number]
        self.names, self.numbers = warps.names, warps.numbers
        self.written = warps.written
        if not warps.ends(number):
            # The rows of a stage are read again: they are rounded as if they were in memory.
            self.only_stored = set()
        self.lanes: Group = Group(self.column)
        self.at: dict[int, int] = {}
        """The places within their vector of points, by scope."""

    # -- the kernel ------------------------------------------------------------------------------

    @property
    def grid(self) -> int:
        return self.of.grid

    @property
    def threads(self) -> int:
        return self.of.warps * LANES

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
        for step in range(self.of.vector):
            place, inside = Name(name) + step, both(ALWAYS, ALWAYS)
            if low + step < 0:
                inside = both(inside, place >= 0)
            if high + step >= size:
                inside = both(inside, place < size)
            group.instances.append(Scope(root, {self.column: place}, before, inside, group))

    def row(self, axis: str, place: Scalar, inside: Scalar, body: list[ir.Stmt]) -> Group:
        """The points of the thread in one row."""
        group = Group(self.column)
        for step, parent in enumerate(self.lanes.instances):
            scope = Scope(parent, {axis: place}, body, inside, group)
            group.instances.append(scope)
            self.at[id(scope)] = step
        return group

    # -- values ----------------------------------------------------------------------------------

    def read(self, let: Let, read: Read, home: Scope) -> None:
        """What a stage made comes from the rows that are kept of it."""
        if read.tensor not in self.of.places:
            super().read(let, read, home)
            return
        value = self.of.taken(self, read, home)
        guards = self.kernel.open_guards(read)
        if guards:
            fill = ElementOp(self.fresh(), let.dtype, "const", (), read.fill or 0)
            inside = self.indexer.holds(guards, home.known())
            name = self.fresh()
            home.body.append(values.Compute(fill))
            home.body.append(values.Choose(name, let.dtype, inside, value, fill.name))
            value = name
        home.made[let.name] = value

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


class _Warps:
    """All parts of a kernel together, and the rows that are kept of its stages."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: StagedPlan, slide: Slide) -> None:
        self.slide, self.plan, self.vector = slide, plan, plan.vector
        self.names = buffers(kernel)
        self.numbers = {tensor: number for number, tensor in enumerate(self.names)}
        self.written = {refs[output.tensor].buffer for output in kernel.outputs}
        self.count = 0
        self.width, self.warps = slide.width(plan.vector), warps_of(kernel, plan, slide)
        self.shifts = slide.shifts(plan.vector)
        self.places = {stage.name: n for n, stage in enumerate(slide.kernel.stages)}
        self.rows, self.height = strip_of(kernel, plan), kernel.sizes[slide.form.slide]
        self.tiles = -(-kernel.sizes[slide.columns[-1]] // self.width)
        self.sizes = {name: kernel.sizes[name] for name in slide.form.batch}
        self.sizes["strip"] = -(-self.height // self.rows)
        self.sizes["tile"] = -(-self.tiles // self.warps)
        self.kept: list[list[list[str]]] = []
        """Of each stage, the rows of before, the last first, and the columns of each."""
        self.made: list[list[str]] = []
        """Of each stage, what it has made of the row of this step."""
        self.coming: dict[str, str] = {}
        """Rows of memory that are copied, and what they are in the next step."""
        self.shuffled: dict[tuple[int, int, int, int], str] = {}
        parts = slide.kernel.parts
        self.parts = [_Part(recognise(part), refs, self, n) for n, part in enumerate(parts)]

    def ends(self, number: int) -> bool:
        """Whether a part makes the results."""
        return number == len(self.places)

    @property
    def grid(self) -> int:
        return prod(self.sizes.values())

    def columns_of(self, number: int) -> tuple[int, int]:
        """The first and the last column at which a vector of a part may begin."""
        tiles = self.sizes["tile"] * self.warps
        last = (tiles - 1) * self.width + (LANES - 1) * self.vector
        return self.shifts[number], self.shifts[number] + last

    def work(self) -> Iterator[ir.Stmt]:
        form, vector = self.slide.form, self.vector
        before: list[ir.Stmt] = []
        body: list[ir.Stmt] = []
        found = unflatten(BLOCK, [*self.sizes], self.sizes)
        before.append(ir.Let("tile", found.pop("tile") * self.warps + WARP))
        before.append(ir.Let("first", Name("tile") * self.width + LANE * vector))
        before.append(ir.Let("row", found.pop("strip") * self.rows))
        batch = []
        for number, place in enumerate(found.values()):
            before.append(ir.Let(f"batch{number}", place))
            batch.append(Name(f"batch{number}"))
        rings = self.slide.rings
        names = [*(ring.batch for ring in rings), form.batch]
        for part, own, shift in zip(self.parts, names, self.shifts, strict=True):
            part.stand(before, dict(zip(own, batch, strict=True)), Name("first") + shift)
        for number, ring in enumerate(rings):
            if number < self.slide.copies:
                self.copy(number, ring, before, body)
            else:
                self.step(number, ring.axis, ring.high, ring.low, body)
        results = self.step(len(rings), form.slide, 0, 0, body)
        final = self.parts[-1]
        for output in final.kernel.outputs:
            final.store(output, results, LANE * vector < self.width)
        self.move_on(before, body)
        yield from before
        steps = self.rows + form.warm_up
        loop = ir.For("step", 0, steps, 1, tuple(body), times=min(steps, self.plan.unroll))
        tiles = self.sizes["tile"] * self.warps
        yield loop if tiles == self.tiles else ir.If(Name("tile") < self.tiles, (loop,))

    def move_on(self, before: list[ir.Stmt], body: list[ir.Stmt]) -> None:
        """Every row that is kept is a step older. The value of a stage may be one that is kept of a
        stage before it, which moves on after it."""
        stages = [*zip(self.slide.kernel.stages, self.made, self.kept, strict=True)]
        for stage, made, kept in reversed(stages):
            for older, newer in reversed([*zip(kept, [made, *kept], strict=False)]):
                for name, value in zip(older, newer, strict=True):
                    before.append(values.Variable(name, stage.local.dtype, 0))
                    body.append(values.Assign(name, value, ALWAYS))
        for name, value in self.coming.items():
            body.append(values.Assign(name, value, ALWAYS))

    def copy(self, number: int, ring: Ring, before: list[ir.Stmt], body: list[ir.Stmt]) -> None:
        """A row of memory, which was loaded a step before: the row of the next step is."""
        part, stage = self.parts[number], self.slide.kernel.stages[number]
        places = (Lit(0), before), (Name("step") + 1, body)
        first, following = (self.row_of(number, ring.axis, ring.high, ring.low, *p) for p in places)
        made = [part.fresh("copied") for _ in first.instances]
        for name, point in zip(made, first.instances, strict=True):
            value = part.value(stage.value, point)
            before.append(values.Variable(name, stage.local.dtype, 0))
            before.append(values.Assign(name, value, ALWAYS))
        for name, point in zip(made, following.instances, strict=True):
            self.coming[name] = part.value(stage.value, point)
        self.keep(number, made)

    def step(self, number: int, axis: str, high: int, low: int, body: list[ir.Stmt]) -> Group:
        """A row of a part: the values of a stage are made, those of the results as they are
        stored."""
        part = self.parts[number]
        group = self.row_of(number, axis, high, low, Name("step"), body)
        if not self.ends(number):
            value = self.slide.kernel.stages[number].value
            self.keep(number, [part.value(value, point) for point in group.instances])
        return group

    def keep(self, number: int, made: list[str]) -> None:
        """The newest row of a stage, with names for the older ones."""
        part, depth = self.parts[number], self.slide.rings[number].depth
        self.made.append(made)
        self.kept.append([[part.fresh("kept") for _ in made] for _ in range(depth - 1)])

    def row_of(
        self, number: int, axis: str, high: int, low: int, step: Scalar, body: list[ir.Stmt]
    ) -> Group:
        """The points of a part in a step. Those exist that the strip needs."""
        part, warm_up = self.parts[number], self.slide.form.warm_up
        size = part.kernel.sizes[axis]
        row, behind = part.fresh("row"), high - warm_up
        body.append(ir.Let(row, Name("row") + step + behind))
        inside: Scalar = ALWAYS
        if behind < low:
            inside = both(inside, step >= warm_up + low - high)
        if low < 0:
            inside = both(inside, Name(row) >= 0)
        if self.sizes["strip"] * self.rows + high + (number < self.slide.copies) > size:
            inside = both(inside, Name(row) < size)
        return part.row(axis, Name(row), inside, body)

    def taken(self, part: _Part, read: Read, home: Scope) -> str:
        """The value of a stage that a point of another part reads."""
        number = self.places[read.tensor]
        stage, ring = self.slide.kernel.stages[number], self.slide.rings[number]
        index = {a.name: e for a, e in zip(stage.outer, read.index, strict=True)}
        point = next(scope for scope in reversed(home.chain()) if id(scope) in part.at)
        own = self.slide.rings[part.number] if not self.ends(part.number) else None
        slide, high = (own.axis, own.high) if own else (self.slide.form.slide, 0)
        age = ring.high - high - _distance_from_axis(index[ring.axis], slide, home)
        column = _distance_from_axis(index[self.slide.columns[number]], part.column, home)
        column += self.shifts[part.number] - self.shifts[number] + part.at[id(point)]
        if not 0 <= age < ring.depth or column < 0:
            raise InternalError(f"{part.kernel.name} reads {stage.name} where it is not kept")
        lanes, place = divmod(column, self.vector)
        value = self.made[number][place] if not age else self.kept[number][age - 1][place]
        if not lanes:
            return value
        if lanes >= LANES:
            # Nothing that is stored is made of it.
            lanes = LANES - 1
        key = (number, age, place, lanes)
        if key not in self.shuffled:
            name = part.fresh()
            home.body.append(values.ShuffleDown(name, stage.local.dtype, value, lanes))
            self.shuffled[key] = name
        return self.shuffled[key]


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


class SlidesTemplate:
    """Rows of stages that slide through registers."""

    name: Final = "slides"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, StagedPlan)

    def accepts(self, job: Job[StagedPlan]) -> list[Finding]:
        refusals = slide_refusals(job.kernel, job.tensors, job.plan)
        found = [refuse("PlanField", why) for why in refusals]
        if found:
            return found
        known = job.kernel.with_locals(job.tensors)
        for part in job.kernel.parts:
            found += kernel_refusals(part, known)
        blocks = prod(job.kernel.sizes.values()) if job.kernel.axes else 0
        return [*dict.fromkeys(found), *too_many(*job.kernel.sizes.values(), blocks=blocks)]

    def build(self, job: Job[StagedPlan], name: str) -> ir.Kernel:
        slide = slide_of(job.kernel, job.tensors)
        warps = _Warps(job.kernel, job.refs, job.plan, slide)
        return warps.parts[-1].kernel_called(name, job.tensors)


TEMPLATE: Final = SlidesTemplate()
