"""Clusters of blocks in turn, and the warps that run in them, statement by statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.chain import reaches_memory
from weft.codegen.gpu.interp import parts
from weft.codegen.gpu.interp.blocks import (
    WARP,
    Block,
    Blocked,
    Budget,
    Cluster,
    Running,
    Spent,
    Timing,
    run_side_by_side,
)
from weft.codegen.gpu.interp.memory import (
    Array,
    NamedBarrier,
    joined,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes, Value, each_lane, only, truth
from weft.codegen.gpu.interp.shared import Elements
from weft.codegen.gpu.interp.values import run as run_value
from weft.codegen.gpu.interp.workspace import Workspace
from weft.codegen.gpu.ir.formats import held_bytes
from weft.codegen.gpu.ir.values import ValueStmt

_REGISTERS: Final = {
    ir.RegisterKind.F32: np.float32,
    ir.RegisterKind.F64: np.float64,
    ir.RegisterKind.S32: np.int32,
    ir.RegisterKind.B32: np.uint32,
}


def run(
    kernel: ir.Kernel,
    buffers: Mapping[str, Array],
    timing: Timing = Timing.LATE,
    seed: int = 0,
    budget: int | None = None,
) -> None:
    """Run every block of a kernel on flat arrays, which it changes; `Spent` where that takes more
    statements of warps than `budget`."""
    left = Budget(budget)
    arrays = [buffers[name] for name in kernel.buffers]
    space = Workspace(kernel.workspace) if kernel.workspace else None
    clusters = (
        Cluster([Block(kernel, arrays, first + n, timing, space, left) for n in range(size)])
        for size in [kernel.cluster]
        for first in range(0, kernel.grid, size)
    )
    if space and budget is not None and kernel.grid > budget:
        raise Spent(0)
    # Blocks that hand parts of sums on may wait for one another; others run in turn.
    for together in [list(clusters)] if space else ([cluster] for cluster in clusters):
        run_side_by_side(together, Random(seed), Strand)  # noqa: S311 - a test order
    if space:
        space.finish()


class Strand(Elements):
    """A warp that runs."""

    def start(self) -> Running:
        return self.body(self.block.kernel.body, np.ones(WARP, bool))

    def body(self, statements: Sequence[ir.Stmt], mask: Lanes) -> Running:
        for statement in statements:
            yield from self.statement(statement, mask)

    def statement(self, statement: ir.Stmt, mask: Lanes) -> Running:
        self.block.budget.spend()
        if not self.awaited and reaches_memory(statement):
            raise Hazard("memory is touched before the kernels ahead of this one have ended")
        match statement:
            case ir.Let(name=name, value=value) | ir.Set(name=name, value=value):
                self.assign(name, self.value(value), mask)
            case ir.Registers(name=name, kind=kind, count=count):
                made = np.full((count, WARP), 0xFF, _REGISTERS[kind])
                made.view(np.uint8)[...] = 0 if statement.zero else 0xFF
                self.registers[name] = made
            case ir.For() | ir.If() | ir.Roles():
                yield from self.control(statement, mask)
            case ir.NamedBarrier() | ir.SyncThreads() | ir.SyncWarp():
                yield from self.meeting(statement, mask)
            case ir.ClusterArrive() | ir.ClusterWait() | ir.StCluster() | ir.SendCluster():
                yield from self.in_cluster(statement, mask)
            case ir.AwaitPrevious():
                if not mask.all():
                    raise Hazard("part of a warp waits for the kernels before")
                self.awaited = True
            case _ if isinstance(statement, ir.PartStmt):
                yield from self.hand_on(statement, mask)
            case ir.AdmitNext():
                pass
            case ir.MbarrierWait(barrier=barrier, parity=parity):
                found, wanted = self.barrier(barrier, mask), self.one(parity, mask)
                if not found.passes(wanted):
                    what = f"{barrier.barriers} parity {wanted}"
                    yield Blocked(lambda: found.passes(wanted), what)
                self.learn_of_blocks(found.known)
            case ir.MbarrierInit() | ir.MbarrierExpectTx() | ir.MbarrierArrive():
                self.mbarrier(statement, mask)
            case ir.TmaLoad() | ir.BulkLoad() | ir.TmaStore() | ir.TmaCommit() | ir.TmaWaitRead():
                self.copy_engine(statement, mask)
            case ir.ProxyFence():
                self.block.memory.fence(self.warp)
            case ir.PrefetchMap() | ir.MbarrierInitFence() | ir.SetMaxNReg() | ir.WgmmaFence():
                pass
            case ir.Descriptor() | ir.Wgmma() | ir.WgmmaCommit() | ir.WgmmaWait():
                self.wgmma(statement, mask)
            case _ if isinstance(statement, ir.Sm80Stmt):
                self.sm80(statement, mask)
            case ir.AddRegisters():
                self.add_registers(statement)
            case _ if isinstance(statement, ir.RowStmt):
                self.rows(statement)
            case _ if isinstance(statement, ValueStmt):
                run_value(statement, self, mask)
            case _:
                self.element(statement, mask)

    def assign(self, name: str, value: Value, mask: Lanes) -> None:
        if mask.all():
            self.names[name] = value
        else:
            old = self.names.get(name, 0)
            self.names[name] = np.where(mask, value, old)

    def control(self, statement: ir.For | ir.If | ir.Roles, mask: Lanes) -> Running:
        match statement:
            case ir.For(var=var, start=start, stop=stop, step=step, body=body):
                yield from self.turns(var, [self.value(b) for b in (start, stop, step)], body, mask)
            case ir.If(cond=cond, then=then, otherwise=otherwise):
                holds = truth(self.value(cond))
                for lanes, body in ((mask & holds, then), (mask & ~holds, otherwise)):
                    if lanes.any():
                        yield from self.body(body, lanes)
            case ir.Roles(cases=cases):
                for case in cases:
                    if case.first <= self.warp < case.first + case.count:
                        yield from self.body(case.body, mask)

    def turns(
        self, var: str, bounds: Sequence[Value], body: Sequence[ir.Stmt], mask: Lanes
    ) -> Running:
        """A loop; lanes with fewer turns wait for the others."""
        if all(isinstance(b, int) or len(np.unique(b[mask])) == 1 for b in bounds):
            for number in range(*(only(bound, mask) for bound in bounds)):
                self.names[var] = number
                self.block.budget.spend()
                yield from self.body(body, mask)
            return
        place, stop, step = (np.broadcast_to(bound, (WARP,)) for bound in bounds)
        while (active := mask & (place < stop)).any():
            self.names[var] = place
            self.block.budget.spend()
            yield from self.body(body, active)
            place = place + step

    def meeting(
        self, statement: ir.NamedBarrier | ir.SyncThreads | ir.SyncWarp, mask: Lanes
    ) -> Running:
        match statement:
            case ir.NamedBarrier(number=number, threads=threads):
                yield from self.meet(self.one(number, mask), threads, mask)
            case ir.SyncThreads():
                yield from self.meet(0, self.block.kernel.threads, mask)
            case ir.SyncWarp() if not mask.all():
                raise Hazard("part of a warp meets the others")
            case ir.SyncWarp():
                self.block.memory.races.meet(self.warp)

    def meet(self, number: int, threads: int, mask: Lanes) -> Running:
        if not mask.all():
            raise Hazard("a barrier is reached by part of a warp")
        barrier = self.block.meetings.setdefault(number, NamedBarrier())
        known = self.block.memory.races.meet(self.warp)
        goal = barrier.arrive(WARP, threads, known, self.afar)
        if barrier.meetings < goal:
            yield Blocked(lambda: barrier.meetings >= goal, f"named barrier {number}")
        self.learn(barrier.known)
        self.learn_of_blocks(barrier.afar)

    def hand_on(self, statement: ir.PartStmt, mask: Lanes) -> Running:
        """Parts of sums through the workspace."""
        space = self.block.workspace
        if space is None or not mask.all():
            raise Hazard("part of a warp hands on a sum, or there is no workspace for it")
        match statement:
            case ir.KeepSums(source=array):
                parts.keep(statement, self, space, self.settled(array))
                return
            case ir.AddSums(target=array) | ir.GatherSums(target=array):
                parts.add(statement, self, space, self.settled(array))
                return
        first = parts.is_first(self, statement.member)
        number, threads = self.one(statement.number, mask), statement.threads
        counter = space.counter(self.one(statement.counter, mask))
        match statement:
            case ir.AwaitTurn(value=value):
                wanted = self.one(value, mask)
                if first:
                    if counter.value != wanted:
                        yield Blocked(lambda: counter.value == wanted, f"turn {wanted} of a sum")
                    self.learn_of_blocks(counter.known)
                yield from self.meet(number, threads, mask)
            case ir.PassTurn(value=value):
                yield from self.meet(number, threads, mask)
                if first:
                    counter.value, counter.known = self.one(value, mask), parts.released(self)
            case ir.CountOff(name=name, last=last):
                yield from self.meet(number, threads, mask)
                if first:
                    self.learn_of_blocks(counter.known)
                    counter.known = parts.released(self)
                    self.block.votes[number] = int(counter.value == last)
                    counter.value = 0 if counter.value == last else counter.value + 1
                yield from self.meet(number, threads, mask)
                self.names[name] = self.block.votes[number]

    def in_cluster(self, statement: ir.ClusterStmt, mask: Lanes) -> Running:
        block, cluster = self.block, self.block.cluster
        match statement:
            case ir.StCluster():
                for number, start, data, _ in self.sendings(statement, mask):
                    cluster.send(number, start, data)
            case ir.SendCluster(barrier=barrier):
                for number, start, data, lane in self.sendings(statement, mask):
                    cluster.check_block(number)
                    there = cluster.blocks[number]
                    there.receive(start, data, self.barrier(barrier, lane, there))
            case ir.ClusterArrive(relaxed=relaxed):
                if relaxed and cluster.sent:
                    raise Hazard("what a block has written is not there after a relaxed meeting")
                known = block.memory.races.meet(self.warp)
                self.met = block.gathering.arrive(WARP, block.kernel.threads, known)
                if cluster.have_met(self.met):
                    cluster.deliver()
            case ir.ClusterWait():
                goal = self.met
                if not cluster.have_met(goal):
                    yield Blocked(lambda: cluster.have_met(goal), "the cluster")
                self.learn(block.gathering.known)

    def learn_of_blocks(self, known: Mapping[int, Array]) -> None:
        """Go on where warps of this block and of others have arrived."""
        for number, seen in known.items():
            if number == self.block.number:
                self.learn(seen)
            else:
                self.afar[number] = joined(self.afar.get(number), seen)

    def sendings(
        self, statement: ir.StCluster | ir.SendCluster, mask: Lanes
    ) -> Iterator[tuple[int, int, Array, Lanes]]:
        """What each lane sends: to which block, where, the bytes; and the lane."""
        if not self.met:
            raise Hazard("a block is written to before it is known to run")
        dtype = statement.dtype
        held = np.zeros((WARP, held_bytes(dtype)), np.uint8)
        data = np.ascontiguousarray(self.elements[statement.source].astype(dtype.numpy))
        held[:, : dtype.storage_bytes] = data[:, None].view(np.uint8)
        for lane in each_lane(mask):
            number = self.one(statement.block, lane)
            start = self.one(self.address(statement.target), lane)
            yield number, start, held[np.argmax(lane)], lane
