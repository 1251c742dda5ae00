"""Fused kernels with stages whose intermediate rows are kept in ring buffers in shared memory.

    tile   = block % tiles of columns                       its columns
    strip  = block / tiles of columns % strips              its rows
    first  = tile * columns + thread * vector               the first column of each thread
    for step in range((rows + warm_up) / rows of a step):
        each copy of memory: rows that were loaded a step before go into their ring; those that the
                             next step needs are on their way
        each stage: the rows that are the newest somebody needs go into its ring; threads meet
        the results: rows `step * rows of a step - warm_up` and on of the strip, if there are any

A ring has places for the rows that are alive and for those that a step makes beside them; `line` is
the place of the first of these (`region.forms.shared_slides`). Threads that no reader needs of a
part leave it out, and all do before its first row.

What a thread takes from a ring it takes by whole vectors, once for all of its points in a step; a
part is computed value by value, each for all points, so that few rows are in registers at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.scopes import ALWAYS, Group, Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, both
from weft.codegen.gpu.maps.walk import Part, Walk, Wanted
from weft.plan.ir import StagedPlan
from weft.plan.shared_slides import columns_of_block, ring_depths
from weft.region.forms.shared_slides import SharedSlide, word_bytes
from weft.region.ir import Kernel, Reduce, operands


class Rings(Walk):
    """Rows in shared memory, of which a step makes several."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: StagedPlan, slide: SharedSlide) -> None:
        super().__init__(kernel, refs, plan, slide)
        self.rows_of_step = plan.unroll
        self.columns = columns_of_block(kernel, plan, slide)
        self.depths = ring_depths(kernel, plan, slide)
        self.spans = slide.spans(self.vector, self.columns)
        self.threads = slide.threads(self.vector, self.columns)
        self.shifts = [span.first for span in self.spans]
        self.sizes["tile"] = -(-slide.kernel.sizes[slide.columns[-1]] // self.columns)
        self.meetings = slide.meetings(plan.unroll, self.depths)
        self.tiles: list[ir.SharedTile] = []
        start = 0
        for number, (stage, depth) in enumerate(zip(slide.kernel.stages, self.depths, strict=True)):
            size = depth * self.spans[number].count * word_bytes(stage.local.dtype)
            self.tiles.append(ir.SharedTile(f"ring{number}", start, size))
            start += -(-size // 16) * 16
        self.parts[-1].tiles = self.tiles
        self.taken_already: dict[Wanted, str] = {}
        """What the thread has taken from rings in a part of a step: elements of whole vectors."""
        self.lines: dict[tuple[int, int], Scalar] = {}
        """Where rows of stages begin, by how many rows before the first of the step they are."""

    def columns_of(self, number: int) -> tuple[int, int]:
        last = (self.sizes["tile"] - 1) * self.columns
        span = self.spans[number]
        return span.first, span.first + last + span.count - self.vector

    @property
    def steps(self) -> int:
        return -(-(self.rows + self.slide.form.warm_up) // self.rows_of_step)

    def work(self) -> Iterator[ir.Stmt]:
        before: list[ir.Stmt] = []
        body: list[ir.Stmt] = []
        found = unflatten(BLOCK, [*self.sizes], self.sizes)
        column = found.pop("tile") * self.columns + THREAD * self.vector
        before.append(ir.Let("first", column))
        self.stand(before, found)
        for depth in self.turning():
            before.append(ir.Let(f"line{depth}", Lit(0)))
        for number in range(len(self.parts)):
            if number in self.meetings.before:
                body.append(ir.SyncThreads())
            if number < self.slide.copies:
                self.copy(number, before, body)
            elif not self.ends(number):
                self.step(number, body)
        self.results(body)
        if self.meetings.at_the_end:
            body.append(ir.SyncThreads())
        for depth in self.turning():
            line = Name(f"line{depth}") + self.rows_of_step
            body.append(ir.Set(f"line{depth}", line))
            wraps = Name(f"line{depth}") >= depth
            body.append(ir.Set(f"line{depth}", Name(f"line{depth}") - wraps * depth))
        yield from before
        yield ir.For("step", 0, self.steps, 1, tuple(body))

    def turning(self) -> list[int]:
        """The depths of rings whose first place moves from step to step."""
        return [depth for depth in dict.fromkeys(self.depths) if depth > self.rows_of_step]

    # -- parts -----------------------------------------------------------------------------------

    def step(self, number: int, body: list[ir.Stmt]) -> None:
        """Rows of a stage, into its ring."""
        part, stage = self.parts[number], self.slide.kernel.stages[number]
        inner: list[ir.Stmt] = []
        groups = self.groups(number, Name("step"), inner)
        self.in_turn(part, [stage.value], groups)
        for turn, group in enumerate(groups):
            made = [part.value(stage.value, point) for point in group.instances]
            self.put(number, turn, made, inner)
        body += _where(self.active(number), inner)

    def copy(self, number: int, before: list[ir.Stmt], body: list[ir.Stmt]) -> None:
        """Rows of memory, which were loaded a step before, into their ring: those of the next step
        are."""
        part, stage = self.parts[number], self.slide.kernel.stages[number]
        early: list[ir.Stmt] = []
        inner: list[ir.Stmt] = []
        coming = []
        for group in self.groups(number, Lit(0), early):
            names = [part.fresh("coming") for _ in group.instances]
            for name, point in zip(names, group.instances, strict=True):
                before.append(values.Variable(name, stage.local.dtype, 0))
                early.append(values.Assign(name, part.value(stage.value, point), ALWAYS))
            coming.append(names)
        for turn, names in enumerate(coming):
            self.put(number, turn, names, inner)
        following = self.groups(number, Name("step") + 1, inner)
        for names, group in zip(coming, following, strict=True):
            for name, point in zip(names, group.instances, strict=True):
                inner.append(values.Assign(name, part.value(stage.value, point), ALWAYS))
        before += _where(self.takes_part(number), early)
        body += _where(self.takes_part(number), inner)

    def results(self, body: list[ir.Stmt]) -> None:
        number, final = len(self.slide.rings), self.parts[-1]
        inner: list[ir.Stmt] = []
        groups = self.groups(number, Name("step"), inner)
        self.in_turn(final, [output.value for output in final.kernel.outputs], groups)
        left = self.rows + self.slide.form.warm_up - (self.steps - 1) * self.rows_of_step
        for turn, group in enumerate(groups):
            # Rows behind the strip are those of the next one.
            guard = ALWAYS if turn < left else Name("step") < self.steps - 1
            for output in final.kernel.outputs:
                final.store(output, group, guard)
        body += _where(self.active(number), inner)

    def groups(self, number: int, step: Scalar, body: list[ir.Stmt]) -> list[Group]:
        """The points of a part in a step, row by row."""
        self.taken_already.clear()
        self.lines.clear()
        turns = range(self.rows_of_step)
        return [self.row_of(number, step * len(turns) + turn, body, turn) for turn in turns]

    def in_turn(self, part: Part, names: Sequence[str], groups: Sequence[Group]) -> None:
        """Values of all points, those of one Let after the other."""
        windows = {name for let in part.lets.values() for name in _reduced_axes(let.expr)}
        wanted: dict[str, None] = {}

        def visit(name: str) -> None:
            let = part.lets[name]
            if name in wanted or windows & set(let.axes):
                return
            for operand in operands(let):
                visit(operand)
            wanted[name] = None

        for name in names:
            visit(name)
        for name in wanted:
            for group in groups:
                for point in group.instances:
                    part.value(name, point)

    def takes_part(self, number: int) -> Scalar:
        """Whether a thread has columns of a part."""
        count = self.spans[number].count
        return ALWAYS if count == self.threads * self.vector else THREAD * self.vector < count

    def active(self, number: int) -> Scalar:
        """Whether a thread has columns of a part, and a step rows that somebody needs."""
        form = self.slide.form
        ring = None if self.ends(number) else self.slide.rings[number]
        again = ring.high - ring.low if ring else 0
        first = (form.warm_up - again) // self.rows_of_step
        needed: Scalar = Name("step") >= first if first else ALWAYS
        return both(self.takes_part(number), needed)

    # -- rings -----------------------------------------------------------------------------------

    def put(self, number: int, turn: int, made: Sequence[str], body: list[ir.Stmt]) -> None:
        """A row that a step makes, into its place."""
        dtype = self.slide.kernel.stages[number].local.dtype
        line = self.line(number, -turn, body)
        for place, name in enumerate(made):
            at = line + place * word_bytes(dtype)
            body.append(ir.StShared(ir.Address(f"ring{number}", at), name, dtype))

    def line(self, number: int, age: int, body: list[ir.Stmt]) -> Scalar:
        """Where the thread's columns of a row begin, so many rows before the first of the step."""
        if (number, age) in self.lines:
            return self.lines[number, age]
        depth, word = self.depths[number], word_bytes(self.slide.kernel.stages[number].local.dtype)
        if depth > self.rows_of_step:
            place: Scalar = Name(f"line{depth}") - age
            if age > 0:
                place = place + (place < 0) * depth
            elif depth % self.rows_of_step and age < 0:
                place = place - (place >= depth) * depth
        else:
            place = Lit(-age)
        name = self.parts[0].fresh("at")
        at = place * (self.spans[number].count * word) + THREAD * (self.vector * word)
        body.append(ir.Let(name, at))
        self.lines[number, age] = Name(name)
        return Name(name)

    def taken(self, wanted: Wanted, home: Scope) -> str:
        if wanted not in self.taken_already:
            number, age, column = wanted
            dtype = self.slide.kernel.stages[number].local.dtype
            first = column // self.vector * self.vector
            names = tuple(self.parts[0].fresh() for _ in range(self.vector))
            at = self.line(number, age, home.body) + first * word_bytes(dtype)
            source = ir.Address(f"ring{number}", at)
            home.body.append(
                ir.LoadSharedVector(names, dtype, source)
                if self.vector > 1
                else ir.LoadShared(names[0], dtype, source)
            )
            for place, name in enumerate(names):
                self.taken_already[Wanted(number, age, first + place)] = name
        return self.taken_already[wanted]


def _where(cond: Scalar, body: list[ir.Stmt]) -> list[ir.Stmt]:
    """Statements for the threads of which something holds."""
    return body if cond == ALWAYS else [ir.If(cond, tuple(body))]


def _reduced_axes(expr: object) -> tuple[str, ...]:
    return expr.axes if isinstance(expr, Reduce) else ()
