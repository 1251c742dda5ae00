"""Fused kernels with stages: a warp slides down a strip of rows, and keeps the intermediate rows in
registers.

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

from collections.abc import Iterator
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.scopes import ALWAYS, Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, WARP, Lit, Name
from weft.codegen.gpu.maps.rings import Rings
from weft.codegen.gpu.maps.walk import Walk, Wanted
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding, InternalError
from weft.plan.ir import Plan, StagedPlan
from weft.plan.slides import place_of, slide_refusals, warps_of
from weft.region.forms.shared_slides import SharedSlide
from weft.region.forms.slides import LANES, Slide
from weft.region.ir import Kernel


class Warps(Walk):
    """Rows in registers: those of before move on, and neighbours come from the lanes behind."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: StagedPlan, slide: Slide) -> None:
        super().__init__(kernel, refs, plan, slide)
        self.width, self.warps = slide.width(plan.vector), warps_of(kernel, plan, slide)
        self.shifts, self.threads = slide.shifts(plan.vector), self.warps * LANES
        self.tiles = -(-slide.kernel.sizes[slide.columns[-1]] // self.width)
        self.sizes["tile"] = -(-self.tiles // self.warps)
        self.kept: list[list[list[str]]] = []
        """Of each stage, the rows of before, the last first, and the columns of each."""
        self.made: list[list[str]] = []
        """Of each stage, what it has made of the row of this step."""
        self.coming: dict[str, str] = {}
        """Rows of memory that are copied, and what they are in the next step."""
        self.shuffled: dict[tuple[int, int, int, int], str] = {}

    def columns_of(self, number: int) -> tuple[int, int]:
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
        self.stand(before, found)
        for number in range(len(self.slide.rings)):
            if number < self.slide.copies:
                self.copy(number, before, body)
            else:
                self.step(number, body)
        results = self.row_of(len(self.slide.rings), Name("step"), body)
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

    def copy(self, number: int, before: list[ir.Stmt], body: list[ir.Stmt]) -> None:
        """A row of memory, which was loaded a step before: the row of the next step is."""
        part, stage = self.parts[number], self.slide.kernel.stages[number]
        places = (Lit(0), before), (Name("step") + 1, body)
        first, following = (self.row_of(number, *place) for place in places)
        made = [part.fresh("copied") for _ in first.instances]
        for name, point in zip(made, first.instances, strict=True):
            value = part.value(stage.value, point)
            before.append(values.Variable(name, stage.local.dtype, 0))
            before.append(values.Assign(name, value, ALWAYS))
        for name, point in zip(made, following.instances, strict=True):
            self.coming[name] = part.value(stage.value, point)
        self.keep(number, made)

    def step(self, number: int, body: list[ir.Stmt]) -> None:
        """A row of a stage."""
        part, stage = self.parts[number], self.slide.kernel.stages[number]
        group = self.row_of(number, Name("step"), body)
        self.keep(number, [part.value(stage.value, point) for point in group.instances])

    def keep(self, number: int, made: list[str]) -> None:
        """The newest row of a stage, with names for the older ones."""
        part, depth = self.parts[number], self.slide.rings[number].depth
        self.made.append(made)
        self.kept.append([[part.fresh("kept") for _ in made] for _ in range(depth - 1)])

    def taken(self, wanted: Wanted, home: Scope) -> str:
        number, age, column = wanted
        lanes, place = divmod(column, self.vector)
        value = self.made[number][place] if not age else self.kept[number][age - 1][place]
        if not lanes:
            return value
        if lanes >= LANES:
            # Nothing that is stored is made of it.
            lanes = LANES - 1
        key = (number, age, place, lanes)
        if key not in self.shuffled:
            name, dtype = self.parts[0].fresh(), self.slide.kernel.stages[number].local.dtype
            home.body.append(values.ShuffleDown(name, dtype, value, lanes))
            self.shuffled[key] = name
        return self.shuffled[key]


class SlidesTemplate:
    """Rows of stages that slide through registers, or through shared memory."""

    name: Final = "slides"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, StagedPlan)

    def accepts(self, job: Job[StagedPlan]) -> list[Finding]:
        refusals = slide_refusals(job.kernel, job.tensors, job.plan, job.target)
        found = [refuse("PlanField", why) for why in refusals]
        if found:
            return found
        known = job.kernel.with_locals(job.tensors)
        for part in job.kernel.parts:
            found += kernel_refusals(part, known)
        blocks = prod(job.kernel.sizes.values()) if job.kernel.axes else 0
        return [*dict.fromkeys(found), *too_many(*job.kernel.sizes.values(), blocks=blocks)]

    def build(self, job: Job[StagedPlan], name: str) -> ir.Kernel:
        place = place_of(job.kernel, job.tensors, job.plan, job.target)
        if isinstance(place, str):
            raise InternalError(f"kernel {job.kernel.name} has no place on a GPU: {place}")
        given = job.kernel, job.refs, job.plan
        walk = Rings(*given, place) if isinstance(place, SharedSlide) else Warps(*given, place)
        return walk.parts[-1].kernel_called(name, job.tensors)


TEMPLATE: Final = SlidesTemplate()
