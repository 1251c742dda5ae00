"""Reductions with a ring of TMA loads: while a row is being reduced, the next rows are loaded into
shared memory.

    team = a block, or a cluster, that stays; it takes every `teams`-th row
    for each row of the team:
        for each vector of the thread: wait for its piece of the ring, take it into registers
        meet: the pieces are free, and the copies of pieces ahead begin
        reduce, store                                            as in `row.py`

A *piece* is one vector of every thread of the block, of every operand that is brought along: those
that live over the whole row and lie in one run of memory. `ring` pieces wait in shared memory. What
does not depend on the row (the weights of a norm) is read once by a team and stays in registers,
where these hold it, and is read again for every row where they do not.

Blocks of a cluster send one another partial results, counted by a barrier of whoever receives them.
A barrier of the whole cluster would first wait for the stores of the row before. Those of a row and
of the next one have different slots and barriers: a block may send the next row's while another
one still waits for this row's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.body.neighbours import aligned
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import Group, Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir.formats import ACCESS_BYTES, held_bytes
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    LANES,
    THREAD,
    Like,
    Lit,
    Name,
    Scalar,
    least,
    scalar,
    wide,
)
from weft.codegen.gpu.rows.row import SLOT, Slots
from weft.codegen.gpu.rows.row import accepts as accepts_rows
from weft.codegen.gpu.rows.row_columns import ColumnRows
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.index_expr import linear
from weft.foundation.records import dataclass
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import (
    chunks_of,
    holds_shared,
    reduced_axes,
    ring_room,
    row_count,
    row_length,
    row_vector_axis,
    rows_together,
    shared_reads,
    teams,
)
from weft.region.ir import AxisIndex, Kernel, Let, Read, Tensor
from weft.target.target import Target


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], refs: Refs, plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [
        *accepts_rows(kernel, tensors, plan, target),
        *_ring_refusals(kernel, refs, plan, target),
    ]


def _ring_refusals(kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> Iterator[Finding]:
    if not target.has("tma"):
        yield refuse("PlanField", f"{target.name} has no copy engine for ring={plan.ring}")
    if plan.ring > plan.threads:
        yield refuse("PlanField", f"ring={plan.ring} pieces are more than threads ask for")
    if rows_together(plan) > 1 or plan.threads < LANES or not plan.keep_row:
        yield refuse(
            "PlanField", f"ring={plan.ring} needs one row a block, whole warps and keep_row"
        )
        return
    team = plan.threads * plan.blocks_per_row * plan.vector
    if not row_count(kernel) or not row_length(kernel) or row_length(kernel) % team:
        yield refuse("Ring", f"a row of {row_length(kernel)} is not made of pieces of {team}")
        return
    pieces = chunks_of(kernel, plan)
    if plan.ring < pieces:
        yield refuse("PlanField", f"ring={plan.ring} does not hold the {pieces} pieces of a row")
    found = streams(kernel, refs, plan)
    if not found:
        yield refuse("Ring", "no operand lies in runs of memory that the copy engine can bring")
        return
    size = sum(stream.bytes for stream in found) * plan.ring
    room = ring_room(target)
    if size > room:
        yield refuse("SharedMemory", f"ring={plan.ring} takes {size} bytes; there are {room}")


@dataclass(frozen=True)
class Stream:
    """An operand that the copy engine brings, and its share of a piece."""

    let: Let
    read: Read
    start: int
    count: int

    @property
    def dtype(self) -> DType:
        return self.let.dtype

    @property
    def bytes(self) -> int:
        return self.count * self.let.dtype.storage_bytes


def streams(kernel: Kernel, refs: Refs, plan: RowPlan) -> list[Stream]:
    """The operands that can be brought along."""
    found: list[Stream] = []
    start = 0
    for let in kernel.body:
        if isinstance(let.expr, Read) and _comes_in_runs(kernel, refs, plan, let, let.expr):
            found.append(Stream(let, let.expr, start, plan.threads * plan.vector))
            start += found[-1].bytes
    return found


def _comes_in_runs(kernel: Kernel, refs: Refs, plan: RowPlan, let: Let, read: Read) -> bool:
    """Whether the vectors of a block are neighbours in memory that begin at whole lines."""
    axis, ref = row_vector_axis(kernel), refs[read.tensor]
    reduced = [name for name in reduced_axes(kernel) if kernel.sizes[name] > 1]
    if axis is None or reduced != [axis] or axis not in let.axes or read.guards or read.places:
        return False
    if all(kernel.sizes[name] == 1 for name in let.axes if name != axis):
        return False
    if any(refs[output.tensor].buffer == ref.buffer for output in kernel.outputs):
        return False
    size = let.dtype.storage_bytes
    whole = plan.vector * size == ACCESS_BYTES and ref.alignment % ACCESS_BYTES == 0
    return whole and aligned(linear(read.index, ref.strides), axis, plan.vector, kernel.sizes)


class RingRows(ColumnRows):
    """A row after the other to a block, or to a cluster."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        super().__init__(kernel, refs, plan, target)
        self.streams = streams(kernel, refs, plan)
        self.pieces = chunks_of(kernel, plan)
        """Of one row."""
        self.piece_bytes = sum(stream.bytes for stream in self.streams)
        size = self.piece_bytes * plan.ring
        self.teams = min(self.rows, teams(kernel, plan, target, size))
        self.tiles.append(ir.SharedTile("ring", 0, size))
        self.barriers.append(ir.Barriers("full", size, plan.ring, 1))
        # Places alone are not worth registers: each is made anew by one addition.
        self.keeps_columns = bool(shared_reads(kernel)) and holds_shared(kernel, plan, target)
        self.pins_places = not self.keeps_columns and any(
            isinstance(let.expr, AxisIndex) and self.is_shared(let.axes) for let in kernel.body
        )

    @property
    def grid(self) -> int:
        return self.teams * self.plan.blocks_per_row

    @property
    def turns(self) -> Scalar:
        """Rows of a team."""
        return (Name("team") * -1 + (self.rows + self.teams - 1)) // self.teams

    def row_number(self, turn: Scalar) -> Scalar:
        """The row that a team takes in a turn."""
        return turn * self.teams + Name("team")

    # -- the ring --------------------------------------------------------------------------------

    def work(self) -> Iterator[ir.Stmt]:
        blocks = self.plan.blocks_per_row
        turn = tuple(self.turn())
        yield ir.Let("team", BLOCK // blocks if blocks > 1 else BLOCK)
        yield ir.Let("rank", BLOCK % blocks if blocks > 1 else Lit(0))
        yield ir.Let("member", Name("rank") * self.plan.threads + THREAD)
        yield ir.Let("turns", self.turns)
        yield ir.Let("pieces", Name("turns") * self.pieces)
        starts = [ir.MbarrierInit(array.name) for array in self.barriers]
        yield ir.If(THREAD.equals(0), (*starts, ir.MbarrierInitFence()))
        yield ir.SyncThreads()
        if blocks > 1:
            yield ir.ClusterArrive()
        yield self.fetch(0, least(Name("pieces"), self.plan.ring))
        if blocks > 1:
            yield ir.ClusterWait()
        yield from self.outside.body
        yield ir.For("turn", 0, Name("turns"), 1, turn)

    def fetch(self, first: Like, count: Scalar) -> ir.Stmt:
        """Threads ask for `count` pieces, one each."""
        scope = Scope(None, {}, [])
        piece = Name(self.fresh("piece"))
        scope.body += [
            ir.Let(piece.name, THREAD + first),
            ir.Let("fetched", self.row_number(piece // self.pieces)),
        ]
        axes: dict[str, Scalar] = dict.fromkeys(self.reduced, Lit(0))
        axes |= self.places(scope, Name("fetched"), self.outer)
        vector = piece % self.pieces * self.vectors_apart + Name("rank") * self.plan.threads
        assert self.axis is not None
        scope.body.append(ir.Let("begin", vector * self.plan.vector))
        axes[self.axis] = Name("begin")
        full = ir.BarrierAt("full", piece % self.plan.ring)
        scope.body.append(ir.MbarrierExpectTx(full, self.piece_bytes))
        for stream in self.streams:
            offset = wide(self.indexer.scalar(self.address(stream.read), axes))
            number = self.numbers[stream.read.tensor]
            place = ir.Address("ring", full.index * self.piece_bytes + stream.start)
            scope.body.append(ir.BulkLoad(place, number, stream.dtype, offset, stream.count, full))
        return ir.If(count > THREAD, tuple(scope.body))

    # -- a row -----------------------------------------------------------------------------------

    def turn(self) -> list[ir.Stmt]:
        """Everything for one row."""
        row = Scope(None, {}, [])
        row.body.append(ir.Let("row", self.row_number(Name("turn"))))
        row.axes = self.places(row, Name("row"), self.outer)
        self.begin_row(row)
        row.body.append(ir.Let("oldest", Name("turn") * self.pieces))
        if self.pins_places:
            row.body.append(ir.Let("here", Name("member"), pinned=True))
        self.kept = [self.taken(row, number) for number in range(self.pieces)]
        # A barrier does not wait for loads that are still on their way; the copy engine, which they
        # are not ordered with, would write over what they have not read yet.
        row.body += [ir.ProxyFence(), ir.SyncThreads()]
        ahead = Name("oldest") + self.plan.ring
        row.body.append(self.fetch(ahead, least(Name("pieces") - ahead, self.pieces)))
        self.store_all(row, Lit(1))
        return row.body

    def begin_row(self, row: Scope) -> None:
        """What is done before a row is waited for."""

    def taken(self, row: Scope, number: int) -> Group:
        """A thread's vector of a row, out of the ring."""
        group = self.points_at(self.column_group(row, number), row)
        slot, phase = self.slot_of(row, number)
        row.body.append(ir.MbarrierWait(ir.BarrierAt("full", slot), phase))
        for stream in self.streams:
            names = tuple(self.fresh() for _ in group.instances)
            place = slot * self.piece_bytes + stream.start
            mine = ir.Address("ring", place + THREAD * ACCESS_BYTES)
            row.body.append(ir.LoadStaged(names, stream.dtype, mine))
            for point, name in zip(group.instances, names, strict=True):
                point.made[stream.let.name] = name
        return group

    def slot_of(self, row: Scope, number: int) -> tuple[Scalar, Scalar]:
        """Where a piece of this row waits, and in which phase of its barrier. Where the ring holds
        whole rows, all pieces of one are in the same phase."""
        rows, rest = divmod(self.plan.ring, self.pieces)
        # Whole rows: row t lies in place t mod `rows`, for the t div `rows`-th time.
        if rest == 0:
            return Name("turn") % rows * self.pieces + number, Name("turn") // rows & 1
        piece = Name(self.fresh("piece"))
        row.body.append(ir.Let(piece.name, Name("oldest") + number))
        return piece % self.plan.ring, piece // self.plan.ring & 1

    def column_group(self, row: Scope, number: int) -> Group:
        """The places of a vector, which are the same in every row."""
        variable = self.fresh("q")
        scope, member = (row, "here") if self.pins_places else (self.outside, "member")
        scope.body.append(ir.Let(variable, Name(member) + number * self.vectors_apart))
        return self.chunk(scope, Name(variable), whole=True)

    def through_cluster(
        self, scope: Scope, reduction: Reduction, carries: Sequence[str]
    ) -> list[str]:
        """Merge the partial results of the blocks of a row: each sends its own to all."""
        blocks, name = self.plan.blocks_per_row, f"met{len(self.barriers)}"
        # Two sets of slots are enough. Who sends for row t + 2 has what all sent for row t + 1, and
        # they sent that after they had read row t.
        at = self.new_slots(len(carries) * blocks)
        self.barriers.append(ir.Barriers(name, self.free, 2, 1))
        # Each of the two is used every other row: its phase is that of the rows' pairs.
        met = ir.BarrierAt(name, Name("turn") & 1)
        sends: list[ir.Stmt] = []
        found = []
        for number, (value, carry) in enumerate(zip(carries, reduction.carries, strict=True)):
            here = at(number * blocks + Name("rank"))
            sends.append(ir.SendCluster(here, LANE, value, carry.dtype, met))
            found.append((carry.dtype, at(number * blocks + LANE % blocks)))
        size = blocks * sum(held_bytes(carry.dtype) for carry in reduction.carries)
        scope.body += [
            ir.If(THREAD.equals(0), (ir.MbarrierExpectTx(met, size),)),
            ir.If((THREAD // blocks).equals(0), tuple(sends)),
            ir.MbarrierWait(met, Name("turn") >> 1 & 1),
        ]
        merged = [self.get(scope, dtype, place) for dtype, place in found]
        return self.exchange(scope, reduction, merged, blocks)

    def new_slots(self, count: int) -> Slots:
        """Room for the partial results of two rows, in turn."""
        tile = self.new_tile(2 * count * SLOT)
        first = (Name("turn") & 1) * count
        return lambda number: ir.Address(tile, (first + scalar(number)) * SLOT)


class RingTemplate:
    """Rows that follow one another through a ring."""

    name: Final = "ring"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, RowPlan) and plan.ring != 0 and not plan.across and not plan.walks

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.refs, job.plan, job.target)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        return RingRows(job.short, job.refs, job.plan, job.target).kernel_called(name, job.tensors)


TEMPLATE: Final = RingTemplate()
