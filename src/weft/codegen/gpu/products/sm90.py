"""The SM90 matrix product: TMA loads, a ring of mbarriers, asynchronous wgmma.

    producer    for each tile, for each k step: wait until the slot is empty, load A and B into it
    consumers   for each k step: wait until the slot is full, multiply, hand the slot back;
                then epilogue, staging in shared memory, store (`sm90_results.py`)

One warpgroup produces. Cooperative consumers share each tile; ping-pong consumers take tiles in
turn, so that one multiplies while another stores. With `swap_ab` the transposed product is made:
few rows of a problem become few columns of a tile. The grid is persistent: a block takes every
`grid`-th tile of the order, or part of a tile's sums (`split.py`). With a deferred epilogue a
tile's results wait in registers and are stored panel by panel during the first k steps of the next
tile. In a cluster two blocks make tiles that are neighbours, and share an operand: each loads half
of it, into both.

Who may touch a slot: the producer between `empty` and its copies, consumers between `full` and
their arrival on `empty` (that of both blocks of a cluster, since both write here), which comes
after `WgmmaWait` has retired the last instruction that reads the slot. Ping-pong consumers begin to
wait for a tile's slots only when the others have gone through all of theirs (`turn`): a wait for a
later use of a slot would pass by parity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Like,
    Lit,
    Name,
    Scalar,
    scalar,
    total,
)
from weft.codegen.gpu.ir.swizzle import Major, TileLayout, operand_offset
from weft.codegen.gpu.products.copy_positions import Carried, carried
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Problem, Refs, analyse
from weft.codegen.gpu.products.refusals import field_refusals
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.sm90_layout import ROW, WARPGROUP, Sm90Layout, refusals
from weft.codegen.gpu.products.sm90_results import (
    Results,
    batch_sizes,
    column_split,
    fetcher,
    row_split,
)
from weft.codegen.gpu.products.split import Handing, Meeting
from weft.codegen.gpu.products.tile_place import Place, locate, place_in
from weft.codegen.gpu.products.walks import Walk
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.ir import MmaPlan, Plan
from weft.plan.slabs import has_slabs
from weft.region.ir import Kernel
from weft.target.matrix_atoms import Atom
from weft.target.target import Target

Body = tuple[ir.Stmt, ...]
_STORING_STEPS: Final = 4
"""Steps, at most, during which a deferred epilogue is stored: each is written out."""


def accepts(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    try:
        layout = _make_layout(kernel, refs, plan, target)
    except Refusal as refusal:
        return [refusal.finding]
    return [*refusals(layout, target), *field_refusals(kernel, plan)]


def build(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target, name: str) -> ir.Kernel:
    """The dialect kernel, called `name` in the generated source."""
    findings = accepts(kernel, refs, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    return Sm90Builder(_make_layout(kernel, refs, plan, target), name).kernel()


def _make_layout(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> Sm90Layout:
    return Sm90Layout(problem_for(kernel, refs, plan), plan, target.limits.units)


def problem_for(kernel: Kernel, refs: Refs, plan: MmaPlan) -> Problem:
    """The problem that a kernel poses, as a plan sees it; raises `Refusal`."""
    problem = analyse(kernel, refs, folds=True, row=_copied_row(kernel, plan))
    return problem.swapped() if plan.swap_ab else problem


def _copied_row(kernel: Kernel, plan: MmaPlan) -> int:
    """Bytes of a row of a k step, at most those that shared memory is permuted within."""
    if kernel.roles is None:
        return ROW
    return min(ROW, plan.tile[2] * kernel.let(kernel.roles.lhs).dtype.storage_bytes)


@dataclass
class Sm90Builder:
    """Makes the statements of one kernel."""

    layout: Sm90Layout
    name: str
    problem: Problem = field(init=False)
    plan: MmaPlan = field(init=False)
    buffers: list[str] = field(init=False)
    ring: Ring = field(init=False)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        self.buffers = self.problem.tensors
        self.ring = Ring(self.plan.stages)
        self.results = Results(self.layout, self.buffers)

    def kernel(self) -> ir.Kernel:
        layout = self.layout
        return ir.Kernel(
            name=self.name,
            grid=layout.grid,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=tuple(self.maps()),
            tiles=tuple(self.tiles()),
            barriers=tuple(self.barriers()),
            tables=layout.order.tables,
            body=self.body(),
            cluster=layout.cluster,
            workspace=self.handing.workspace,
            together=layout.waits,
        )

    # Storage

    def maps(self) -> Iterator[ir.TensorMap]:
        problem, layout = self.problem, self.layout
        yield self.operand_map("a", problem.a, problem.m, layout.a)
        yield self.operand_map("b", problem.b, problem.n, layout.b)
        yield from self.results.maps()

    def operand_map(self, name: str, operand: Operand, rows: int, tile: TileLayout) -> ir.TensorMap:
        problem, layout = self.problem, self.layout
        pair = (problem.k, rows) if operand.major is Major.K else (rows, problem.k)
        sizes = (*pair, *batch_sizes(problem, operand.batch))
        strides = (operand.pitch, *(s for s in operand.batch if s))
        loaded = tile.rows // layout.cluster if name == layout.shared else tile.rows
        walk = operand.walk or Walk((), (), sizes, strides, ())
        rest = (1,) * (len(walk.sizes) - 2) if walk.window is None else ()
        return ir.TensorMap(
            name,
            self.buffers.index(operand.tensor),
            operand.dtype,
            operand.offset,
            walk.sizes,
            walk.strides,
            (tile.panel_columns, loaded, *rest),
            tile.swizzle,
            walk.window,
        )

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout, stages = self.layout, self.plan.stages
        yield ir.SharedTile("a", layout.a_offset, stages * layout.a.bytes, layout.a)
        yield ir.SharedTile("b", layout.b_offset, stages * layout.b.bytes, layout.b)
        yield from self.results.tiles()

    def barriers(self) -> Iterator[ir.Barriers]:
        start, stages = self.layout.barriers_offset, self.plan.stages
        # Each warp hands a slot back by itself: its own matrix instructions have retired.
        users = 4 * self.layout.sharing * self.layout.cluster
        yield ir.Barriers("full", start, stages, 1)
        yield ir.Barriers("empty", start + 8 * stages, stages, users)
        if self.layout.pingpong:
            # One for each consumer, on which the four warps of the one before it arrive.
            yield ir.Barriers("turn", start + 16 * stages, self.plan.consumers, 4)
        yield from self.results.barriers()

    # Roles

    def body(self) -> Body:
        prepare: list[ir.Stmt] = [ir.MbarrierInit(array.name) for array in self.barriers()]
        prepare.append(ir.MbarrierInitFence())
        prepare += [ir.PrefetchMap(found.name) for found in self.maps()]
        roles = ir.Roles(
            (
                ir.Role("producer", 0, 4, (*self.registers(0), *self.producer(), *self.parting())),
                ir.Role(
                    "consumer",
                    4,
                    4 * self.plan.consumers,
                    (*self.registers(1), *self.consumer(), *self.parting()),
                ),
            )
        )
        # Nobody may wait for a barrier, or arrive on one, before it is set up: all threads meet the
        # one that does, and in a cluster those of the other block do, which arrive here too.
        met: Body = self.parting() or (ir.SyncThreads(),)
        return (ir.If(THREAD.equals(0), tuple(prepare)), *met, roles)

    def parting(self) -> Body:
        """The blocks of a cluster meet before they reach into one another, and after: a fence has
        made the barriers known, and nothing is left to be seen at the end."""
        if self.layout.cluster == 1:
            return ()
        return (ir.ClusterArrive(relaxed=True), ir.ClusterWait())

    def registers(self, role: int) -> Body:
        count = self.plan.registers[role]
        return (ir.SetMaxNReg(count, grow=role == 1),) if count else ()

    def producer(self) -> Iterator[ir.Stmt]:
        ring = self.ring
        place, located = self.locate()
        step: Body = (
            ir.MbarrierWait(ir.BarrierAt("empty", ring.slot), ring.phase ^ 1),
            # All bytes that come to this block, also those that the other block of a cluster sends.
            # Its half may be the first to come: a phase ends when as many bytes have come as are
            # expected and this thread has arrived, which it does here.
            ir.MbarrierExpectTx(ir.BarrierAt("full", ring.slot), self.layout.slot_bytes),
            *self.loads(place, ring.slot, Name("k")),
            *(s for digits in self.digits for s in digits.advance()),
            *ring.advance(),
        )
        first = self.layout.split.first_step
        steps = ir.For("k", first, first + self.layout.split.steps, 1, step)
        start = (s for digits in self.digits for s in digits.start(first, place.batch))
        tiles = self.items(self.number, self.layout.at_work, (*located, *start, steps))
        yield ir.If(THREAD.equals(0), (*ring.start(), *self.tile_count(), tiles))
        yield from self.fetching()

    def fetching(self) -> Iterator[ir.Stmt]:
        """Other warps of the producer ask for what lies beside results."""
        place, located = self.locate()
        if self.layout.beside is not None:
            chosen, whose = fetcher(self.plan.consumers)
            fetches = self.layout.split.if_last(self.results.fetches(place))
            panels = self.own_tiles((*located, fetches))
            yield ir.If(chosen, (whose, *self.results.panels.start(), panels))

    @property
    def carried(self) -> dict[str, Carried]:
        """The digits of contracted axes that are counted on from step to step, by operand."""
        walks = {"a": self.problem.a.walk, "b": self.problem.b.walk}
        return carried(walks, self.layout.tile[2])

    @property
    def digits(self) -> list[Carried]:
        return list(dict.fromkeys(self.carried.values()))

    def own_tiles(self, body: Body) -> ir.Stmt:
        """A loop over the tiles, or parts of them, of the consumer `group`."""
        layout = self.layout
        stride = layout.at_work * (self.plan.consumers if layout.pingpong else 1)
        first = self.item(Name("group")) if layout.pingpong else self.number
        return self.items(first, stride, body)

    def items(self, first: Scalar, stride: int, body: Body) -> ir.Stmt:
        """A loop over every `stride`-th piece of work."""
        split = self.layout.split
        return ir.For(split.item.name, first, self.work, stride, (*split.locate(), *body))

    @property
    def work(self) -> Scalar:
        """How many pieces of work there are."""
        return Lit(self.layout.split.items)

    def tile_count(self) -> Body:
        """Statements that find that out, where it is known only at run time."""
        return ()

    def item(self, turn: Like) -> Scalar:
        """The number of the piece of work that this block takes in some turn."""
        return self.number + scalar(turn) * self.layout.at_work

    @property
    def number(self) -> Scalar:
        """The number of this block, or of its cluster."""
        return BLOCK // self.layout.cluster if self.layout.cluster > 1 else BLOCK

    @property
    def member(self) -> Scalar:
        """The number of this block in its cluster."""
        return BLOCK % self.layout.cluster

    def loads(self, place: Place, slot: Scalar, k: Scalar) -> Iterator[ir.Stmt]:
        yield from self.operand_loads("a", place, slot, k)
        yield from self.operand_loads("b", place, slot, k)

    def operand_loads(self, name: str, place: Place, slot: Scalar, k: Scalar) -> Iterator[ir.Stmt]:
        layout = self.layout
        bm, bn, _ = layout.tile
        operand, tile, outer = {
            "a": (self.problem.a, layout.a, place.first_read(bm)),
            "b": (self.problem.b, layout.b, place.n * bn),
        }[name]
        # Either block of a cluster loads half of the rows that both need, into the same place of
        # both: the second-level cache is asked for them once.
        part = tile.rows // layout.cluster
        split = self.member * part if name == layout.shared else Lit(0)
        for panel in range(tile.panels):
            start = slot * tile.bytes + panel * tile.panel_bytes + split * tile.swizzle.span
            across = panel * tile.panel_columns
            first, depth = outer + split, self.depth_of(k) + across
            if operand.major is not Major.K:
                first, depth = outer + across, self.depth_of(k)
            coords, taps = place_in(operand, first, depth, place.batch, self.inner_digits(name))
            yield ir.TmaLoad(
                ir.Address(name, start),
                name,
                coords,
                ir.BarrierAt("full", slot),
                everywhere=name == layout.shared,
                once=layout.read_once(name),
                taps=taps,
            )

    def inner_digits(self, name: str) -> Mapping[str, Scalar]:
        """Where along the contracted axes an operand that is no matrix is read."""
        return self.carried[name].digits if name in self.carried else {}

    def depth_of(self, k: Scalar) -> Scalar:
        """Where along the contracted axes a step begins."""
        return k * self.layout.tile[2]

    def prepare(self, *, first: bool) -> Iterator[ir.Stmt]:
        """What consumers do with a slot that is full before they multiply."""
        return iter(())

    def locate(self) -> tuple[Place, Body]:
        """Where the tile `tile` lies, and the statements that find out."""
        place, located = locate(self.problem, self.layout.order, Name("tile"))
        down, across = self.plan.cluster
        if down > 1:
            place = replace(place, m=place.m * down + self.member)
        if across > 1:
            place = replace(place, n=place.n * across + self.member)
        return place, located

    # Consumers

    def consumer(self) -> Body:
        layout, ring = self.layout, self.ring
        group = Name("group")
        place, located = self.locate()
        head: list[ir.Stmt] = [
            ir.Let("group", (WARP - 4) >> 2),
            ir.Let("member", THREAD & (WARPGROUP - 1)),
            ir.Let("quarter", WARP & 3),
            *self.start_rings(),
            *self.tile_count(),
            ir.Let("last_slot", Lit(0)),
        ]
        kind = ir.RegisterKind.for_sums(self.problem.total)
        head += [
            ir.Registers(name, kind, layout.warpgroup_tile[1] // 2)
            for name in dict.fromkeys((*self.totals, *self.accumulators))
        ]
        head += self.results.state(place)
        if layout.pingpong:
            # A wait for phase 1 passes before anything was completed: so the first consumer begins,
            # and each of the others waits for the one before it.
            head.append(ir.Let("turn_phase", group.equals(0)))
            head += [
                # The steps of all tiles follow one another in one ring: the n-th consumer begins
                # behind those of the tiles before its own.
                ir.If(group >= ahead, ring.skip(layout.split.steps_of(self.item(ahead - 1))))
                for ahead in range(1, self.plan.consumers)
            ]
        loop = self.own_tiles((*located, *self.tile_body(place)))
        return (*head, loop, *self.results.finish(place))

    def start_rings(self) -> Body:
        """Where a consumer begins."""
        return self.ring.start()

    def tile_body(self, place: Place) -> Body:
        layout = self.layout
        body: list[ir.Stmt] = [*self.results.load_columns(place)]
        turn = Name("turn_phase")
        if layout.pingpong:
            body.append(ir.MbarrierWait(ir.BarrierAt("turn", Name("group")), turn))
        body += self.k_loop(place)
        if layout.pingpong:
            # All waits for this tile's slots are behind this place, and the next consumer's are for
            # later steps. Products that still run read slots that are not handed back yet.
            following = (Name("group") + 1) % self.plan.consumers
            body.append(_once_per_warp(ir.MbarrierArrive(ir.BarrierAt("turn", following))))
            body.append(ir.Set("turn_phase", turn ^ 1))
        body.append(ir.WgmmaWait(0, self.totals))
        body += self.release_last()
        if layout.pingpong:
            body += self.ring.skip(self.others_steps)
        finish = (*self.results.stage_columns(), *self.results.store_tile(place))
        return (*body, *self.handing.handed_on(finish, tuple(self.results.store_none())))

    @property
    def others_steps(self) -> Scalar:
        """Steps that the other consumers take between two pieces of work of this one."""
        split, at_work = self.layout.split, self.layout.at_work
        ahead = range(1, self.plan.consumers)
        return total(*(split.steps_of(split.item + number * at_work) for number in ahead))

    @property
    def handing(self) -> Handing:
        """How this warpgroup's share of a tile's sums goes from part to part."""
        layout = self.layout
        share: Scalar = Name("tile")
        if layout.cluster > 1:
            share = share * layout.cluster + self.member
        if layout.sharing > 1:
            share = share * layout.sharing + Name("group")
        meeting = Meeting(Name("group") + 1, WARPGROUP, Name("member"), share)
        shares = layout.order.count * layout.cluster * layout.sharing
        words = layout.warpgroup_tile[1] // 2
        return Handing(layout.split, self.totals, words, shares, meeting)

    @property
    def atom(self) -> Atom:
        found = self.layout.atom
        assert found is not None  # `refusals` has refused the rest
        return found

    @property
    def totals(self) -> tuple[str, ...]:
        """The sums of a tile."""
        return tuple(f"acc{i}" for i in range(self.layout.blocks))

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The sums that matrix instructions make: those of a tile, or of one k step."""
        if not self.atom.in_parts:
            return self.totals
        return tuple(f"part{i}" for i in range(self.layout.blocks))

    def k_loop(self, place: Place) -> Iterator[ir.Stmt]:
        """The first steps stand alone: they start the accumulators and store the last tile."""
        split = self.layout.split
        storing = min(self.layout.chunks, split.fewest, _STORING_STEPS)
        alone = storing if self.plan.deferred_epilogue else 1
        stored = place.moved_to("stored")
        # The panel that a step stores lies in registers, which have no index at run time: each of
        # these steps is code of its own.
        for step in range(alone):
            yield from self.multiply(f"{step}", first=step == 0)
            if self.plan.deferred_epilogue:
                chunks = self.layout.chunks
                panels = range(step * chunks // alone, (step + 1) * chunks // alone)
                store = tuple(
                    s for panel in panels for s in self.results.store_panel(panel, stored)
                )
                yield ir.If(Name("waiting"), store)
            yield from self.retire(first=step == 0)
        if split.has(Lit(alone)) != Lit(0):
            rest = (*self.multiply("", first=False), *self.retire(first=False))
            yield ir.For("k", alone, split.steps, 1, rest)

    def multiply(self, suffix: str, *, first: bool) -> Iterator[ir.Stmt]:
        """One k step: wait for the slot, issue its matrix instructions."""
        layout = self.layout
        slot = self.ring.slot
        names = {side: f"{side}_tile{suffix}" for side in ("a", "b")}
        yield ir.MbarrierWait(ir.BarrierAt("full", slot), self.ring.phase)
        yield from self.prepare(first=first)
        for side, tile, operand in (
            ("a", layout.a, self.problem.a),
            ("b", layout.b, self.problem.b),
        ):
            start = ir.Address(side, self.operand_start(side))
            yield ir.Descriptor(names[side], start, tile, operand.major)
        # The registers of the sums may have been read or written since: the fence puts that before
        # the products, which are not ordered with it.
        yield ir.WgmmaFence()
        # The first product of all ignores what its registers hold, so that nobody has to clear
        # them.
        fresh = first or self.atom.in_parts
        for k in range(0, layout.tile[2], self.atom.k):
            for block in range(layout.blocks):
                yield self.wgmma(names, block, k, accumulate=not (fresh and k == 0))
        yield ir.WgmmaCommit()

    def operand_start(self, side: str) -> Scalar:
        """Where this warpgroup's part of an operand begins in a slot."""
        layout, problem = self.layout, self.problem
        tile, major, split = {
            "a": (layout.a, problem.a.major, row_split(layout)),
            "b": (layout.b, problem.b.major, column_split(layout)),
        }[side]
        part = operand_offset(tile, major, layout.warpgroup_tile[side == "b"], 0)
        return self.ring.slot * tile.bytes + split * part

    def block_offset(self, block: int, k: int) -> int:
        """How far behind that the rows of an accumulator begin, from some k on."""
        return operand_offset(self.layout.a, self.problem.a.major, 64 * block, k)

    def wgmma(self, names: dict[str, str], block: int, k: int, *, accumulate: bool) -> ir.Wgmma:
        a, b = self.problem.a, self.problem.b
        return ir.Wgmma(
            self.accumulators[block],
            self.layout.warpgroup_tile[1],
            ir.WgmmaOperand(names["a"], self.block_offset(block, k), a.major),
            ir.WgmmaOperand(names["b"], operand_offset(self.layout.b, b.major, 0, k), b.major),
            a.dtype,
            b.dtype,
            accumulate,
        )

    def retire(self, *, first: bool) -> Iterator[ir.Stmt]:
        """Hand back the slot whose matrix instructions are done, and go to the next."""
        if self.plan.in_flight == 0:
            # Sums of one step are added up by ordinary instructions, and so have to be there.
            parts = self.accumulators if self.atom.in_parts else ()
            yield ir.WgmmaWait(0, parts)
            yield self.release(self.ring.slot)
            for total, part in zip(self.totals, parts, strict=False):
                yield ir.AddRegisters(total, part, first=first)
        elif not first:
            # Products retire in the order in which they were issued. All but those of the newest
            # step are done, which go on while the next ones are issued: the slot before is free.
            yield ir.WgmmaWait(1)
            yield self.release(Name("last_slot"))
        if self.plan.in_flight:
            yield ir.Set("last_slot", self.ring.slot)
        yield from self.ring.advance()

    def release_last(self) -> Iterator[ir.Stmt]:
        """Hand back what the last step of a tile has read."""
        if self.plan.in_flight:
            yield self.release(Name("last_slot"))

    def release(self, slot: Scalar) -> ir.Stmt:
        everywhere = self.layout.cluster > 1
        return _once_per_warp(ir.MbarrierArrive(ir.BarrierAt("empty", slot), everywhere))


def _once_per_warp(statement: ir.Stmt) -> ir.Stmt:
    return ir.If(LANE.equals(0), (statement,))


class Sm90Template:
    """Matrix instructions of SM90."""

    name: Final = "sm90"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "sm90" and not has_slabs(plan)

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        return [
            *kernel_refusals(job.short, job.tensors),
            *accepts(job.kernel, job.refs, job.plan, job.target),
        ]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        layout = _make_layout(job.kernel, job.refs, job.plan, job.target)
        return Sm90Builder(layout, name).kernel()


TEMPLATE: Final = Sm90Template()
