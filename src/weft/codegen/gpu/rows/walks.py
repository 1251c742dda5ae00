"""Row reductions and column sums together: a block goes through rows one after the other and
accumulates the sums of their columns.

    part = block: rows that follow one another
    sums of the thread's columns, in registers, from 0
    for each turn: `rows_per_block` rows side by side, `rows_per_thread` times
        load, reduce, store                                      as in `row.py`
        add the thread's elements to its sums, where the row exists
    rows side by side leave their sums in shared memory; those of the first row add them to theirs,
    in order, and store the sums of the part

With a ring, of one row at a time, the copy engine brings the next ones (`ring.py`). What is one
number for each row is read a turn ahead. Partial results of a turn and of the next one have
different places in shared memory, so that one meeting in a turn is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import Group, Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import held_bytes
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANES,
    THREAD,
    Like,
    Lit,
    Name,
    Scalar,
    both,
    least,
    scalar,
)
from weft.codegen.gpu.rows.ring import RingRows
from weft.codegen.gpu.rows.ring import accepts as accepts_ring
from weft.codegen.gpu.rows.row import SLOT, Slots
from weft.codegen.gpu.rows.row import accepts as accepts_rows
from weft.codegen.gpu.rows.row_columns import ColumnRows
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import rows_together
from weft.plan.walked_rows import (
    MEETINGS,
    as_rows,
    column_sums,
    holds_columns,
    resident_walks,
    walked_registers,
)
from weft.region.ir import Kernel, Let, Output, Read, form_of
from weft.target import roofline
from weft.target.target import Target


def accepts(job: Job[RowPlan]) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    plan = job.plan
    if form_of(job.short).rows.walked is None:
        why = "walks=true needs rows that are reduced and whose columns are added up"
        return [refuse("PlanField", why, "use walks=false")]
    rows = as_rows(job.short)
    found = (
        accepts_ring(rows, job.tensors, job.refs, plan, job.target)
        if plan.ring
        else accepts_rows(rows, job.tensors, plan, job.target)
    )
    if plan.threads == 1 or plan.blocks_per_row > 1 or not plan.keep_row:
        found.append(refuse("PlanField", "walks=true needs rows that threads of one block keep"))
    if plan.across:
        found.append(refuse("PlanField", "rows that follow one another have no across=true"))
    if plan.threads > LANES and plan.rows_per_block > MEETINGS:
        why = f"{plan.rows_per_block} rows of several warps have more than {MEETINGS} barriers"
        found.append(refuse("PlanField", why, "use fewer rows_per_block"))
    if found:
        return found
    threads = plan.threads * plan.rows_per_block
    needed = walked_registers(job.short, plan)
    given = roofline.registers_given(job.target.limits, threads)
    if needed > given:
        why = f"a row and the sums of its columns take about {needed} registers of each thread, "
        found.append(refuse("Registers", f"{why}which has {given}", "use more threads"))
    return found


class _ColumnSums(ColumnRows):
    """Rows of which a thread adds up its columns."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        super().__init__(as_rows(kernel), refs, plan, target)
        walked = form_of(kernel).rows.walked
        assert walked is not None
        self.walked, self.length = walked, kernel.sizes[walked]
        self.parts = [name for name in self.outer if name != walked]
        self.outer = [*self.parts, walked]
        self.blocks = resident_walks(kernel, plan, target)
        names = [let.name for let in column_sums(kernel)]
        self.sums = list({id(self.reductions[n]): self.reductions[n] for n in names}.values())
        self.of_columns = [o for o in kernel.outputs if o.value in names]
        self.totals: dict[Scope, list[list[str]]] = {}
        """The sums of each column, those of every reduction."""
        self.keeps_columns = holds_columns(kernel, plan, target)

    @property
    def grid(self) -> int:
        return prod(self.kernel.sizes[name] for name in self.parts)

    @property
    def resident(self) -> int:
        return self.blocks

    @property
    def stored_by_row(self) -> Sequence[Output]:
        return [output for output in self.kernel.outputs if output not in self.of_columns]

    def begin_sums(self, group: Group) -> None:
        """The sums of a vector's columns before the first row."""
        for point in group.instances:
            self.totals[point] = [self.zeros(reduction) for reduction in self.sums]

    def zeros(self, reduction: Reduction) -> list[str]:
        names = [self.fresh("total") for _ in reduction.carries]
        for name, carry in zip(names, reduction.carries, strict=True):
            self.outside.body.append(values.Variable(name, carry.dtype, carry.start))
        return names

    def add_up(self, group: Group, exists: Scalar) -> None:
        """The elements of a row added to the sums of their columns."""
        for point in group.instances:
            for reduction, names in zip(self.sums, self.totals[self.column_of[point]], strict=True):
                following = reduction.step(self, point, names)
                for name, new in zip(names, following, strict=True):
                    point.body.append(values.Assign(name, new, both(exists, point.exists())))

    def store_sums(self, columns: Sequence[Group], stored: Scalar) -> None:
        """The sums of a part, after its last row."""
        for point, totals in self.totals.items():
            for reduction, names in zip(self.sums, totals, strict=True):
                point.made |= {found: names[place] for found, place in reduction.results.items()}
        for output in self.of_columns:
            for group in columns:
                self.store(output, group, stored)

    # -- numbers of rows -------------------------------------------------------------------------

    def read_by_row(self) -> list[Let]:
        """What is read once for a row."""
        reads = [let for let in self.kernel.body if isinstance(let.expr, Read)]
        plain = [let for let in reads if isinstance(let.expr, Read) and not let.expr.places]
        return [let for let in plain if self.walked in let.axes and {*let.axes} <= {*self.outer}]

    def ahead(self, row: Scope, first: Scalar, following: Scalar) -> list[ir.Stmt]:
        """Make the numbers of a row known, which were read a turn before, and read those of the
        `following` one; what is to be done at the end of the turn."""
        ends: list[ir.Stmt] = []
        for let in self.read_by_row():
            assert isinstance(let.expr, Read)
            held, begun, fetched = (self.fresh(stem) for stem in ("held", "v", "v"))
            start = Scope(self.outside, {self.walked: first}, self.outside.body)
            start.body.append(self.load(begun, let, let.expr, start))
            start.body.append(values.Variable(held, let.dtype, 0.0 if let.dtype.is_float else 0))
            start.body.append(values.Assign(held, begun, Lit(1)))
            row.made[let.name] = held
            after = Scope(self.outside, {self.walked: following}, row.body)
            row.body.append(self.load(fetched, let, let.expr, after))
            ends.append(values.Assign(held, fetched, Lit(1)))
        return ends


class WalkedRows(_ColumnSums):
    """The rows of a part to a block."""

    def work(self) -> Iterator[ir.Stmt]:
        body = self.outside.body
        body.append(ir.Let("member", THREAD % self.plan.threads))
        body.append(ir.Let("side", THREAD // self.plan.threads))
        self.outside.axes = self.places(self.outside, BLOCK, self.parts)
        columns = self.columns()
        for group in columns:
            self.begin_sums(group)
        turns = -(-self.length // rows_together(self.plan))
        turn = tuple(self.turn(columns))
        body.append(ir.For("turn", 0, turns, 1, turn))
        self.merge()
        self.store_sums(columns, self.is_first)
        yield from body

    def turn(self, columns: list[Group]) -> list[ir.Stmt]:
        """Everything for the rows that a thread takes at a time."""
        body: list[ir.Stmt] = []
        ends: list[ir.Stmt] = []
        found = []
        for number in range(self.plan.rows_per_thread):
            row, exists = self.row_at(number, body)
            following = self.inside(self.place_in(Name("turn") + 1, number))
            ends += self.ahead(row, self.inside(self.place_in(Lit(0), number)), following)
            found.append((row, exists))
        kept = [[self.points_at(group, row) for group in columns] for row, _ in found]
        self.load_all([group for groups in kept for group in groups])
        for (row, exists), groups in zip(found, kept, strict=True):
            self.kept = groups
            self.store_all(row, exists)
            for group in groups:
                self.add_up(group, exists)
        return body + ends

    def row_at(self, number: int, body: list[ir.Stmt]) -> tuple[Scope, Scalar]:
        """One of a thread's rows, and whether it exists."""
        whole = self.length % rows_together(self.plan) == 0
        place, row = (Name(self.fresh(stem)) for stem in ("number", "row"))
        body.append(ir.Let(place.name, self.place_in(Name("turn"), number)))
        body.append(ir.Let(row.name, place if whole else self.inside(place)))
        scope = Scope(self.outside, {self.walked: row}, body)
        return scope, Lit(1) if whole else place < self.length

    def place_in(self, turn: Scalar, number: int) -> Scalar:
        """Where one of a thread's rows is in the part."""
        return turn * rows_together(self.plan) + (Name("side") + number * self.plan.rows_per_block)

    def inside(self, place: Scalar) -> Scalar:
        return least(place, self.length - 1)

    @property
    def meeting(self) -> ir.Stmt:
        """Rows side by side do not wait for one another."""
        if self.plan.rows_per_block == 1:
            return ir.SyncThreads()
        return ir.NamedBarrier(Name("side") + 1, self.plan.threads)

    def new_slots(self, count: int) -> Slots:
        """Room for the partial results of two turns, in turn."""
        each = count * self.plan.rows_per_block
        tile = self.new_tile(2 * each * SLOT)
        first = (Name("turn") & 1) * each
        return lambda number: ir.Address(tile, (first + scalar(number)) * SLOT)

    # -- rows side by side -----------------------------------------------------------------------

    @property
    def is_first(self) -> Scalar:
        """Whether a thread has the first of the rows side by side."""
        return Lit(1) if self.plan.rows_per_block == 1 else Name("side").equals(0)

    def merge(self) -> None:
        """The sums of the rows side by side, added to those of the first."""
        rows = self.plan.rows_per_block
        if rows == 1:
            return
        carries = [carry for reduction in self.sums for carry in reduction.carries]
        names = [n for totals in self.totals.values() for found in totals for n in found]
        size = max(held_bytes(carry.dtype) for carry in carries)
        tile = self.new_tile((rows - 1) * len(names) * self.plan.threads * size)

        def at(side: Like, number: int) -> ir.Address:
            place = (scalar(side) * len(names) + number) * self.plan.threads + Name("member")
            return ir.Address(tile, place * size)

        puts = tuple(
            ir.StShared(at(Name("side") - 1, number), name, carries[number % len(carries)].dtype)
            for number, name in enumerate(names)
        )
        inner = Scope(self.outside, {}, [])
        for side in range(rows - 1):
            self.take(inner, [at(side, number) for number, _ in enumerate(names)])
        body = self.outside.body
        body += [ir.If(Name("side") > 0, puts), ir.SyncThreads()]
        body.append(ir.If(self.is_first, tuple(inner.body)))

    def take(self, scope: Scope, places: Sequence[ir.Address]) -> None:
        """What another row left, added to the sums of the first."""
        left = iter(places)
        for totals in self.totals.values():
            for reduction, names in zip(self.sums, totals, strict=True):
                others = [self.get(scope, carry.dtype, next(left)) for carry in reduction.carries]
                merged = reduction.combine(self, scope, names, others)
                for name, new in zip(names, merged, strict=True):
                    scope.body.append(values.Assign(name, new, Lit(1)))


class RingWalk(_ColumnSums, RingRows):
    """The rows of a part to a block, through a ring."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        super().__init__(kernel, refs, plan, target)
        self.teams = self.grid
        self.pins_places = False
        self.groups: list[Group] = []
        self.ends: list[ir.Stmt] = []

    @property
    def turns(self) -> Scalar:
        return Lit(self.length)

    def row_number(self, turn: Scalar) -> Scalar:
        return Name("team") * self.length + turn

    def work(self) -> Iterator[ir.Stmt]:
        self.outside.axes = self.places(self.outside, Name("team"), self.parts)
        yield from super().work()
        before = len(self.outside.body)
        self.store_sums(self.groups, Lit(1))
        yield from self.outside.body[before:]

    def column_group(self, row: Scope, number: int) -> Group:
        group = super().column_group(row, number)
        self.begin_sums(group)
        self.groups.append(group)
        return group

    def turn(self) -> list[ir.Stmt]:
        body = super().turn()
        assert self.kept is not None
        for group in self.kept:
            self.add_up(group, Lit(1))
        return body + self.ends

    def begin_row(self, row: Scope) -> None:
        following = least(Name("turn") + 1, self.length - 1)
        self.ends = self.ahead(row, Lit(0), following)


class WalksTemplate:
    """Rows one after the other, and the sums of their columns."""

    name: Final = "walks"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, RowPlan) and plan.walks

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        template = RingWalk if job.plan.ring else WalkedRows
        rows = template(job.short, job.refs, job.plan, job.target)
        return rows.kernel_called(name, job.tensors)


TEMPLATE: Final = WalksTemplate()
