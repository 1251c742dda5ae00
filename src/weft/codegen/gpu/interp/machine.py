"""The scheduler of the interpreter: clusters of blocks one after the other, and their warps
statement by statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, get_args

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.dependent_launch import reaches_memory
from weft.codegen.gpu.interp import partial_sums
from weft.codegen.gpu.interp.blocks import (
    WARP,
    Block,
    Blocked,
    Budget,
    Cluster,
    Launch,
    Running,
    Spent,
    Timing,
    run_side_by_side,
)
from weft.codegen.gpu.interp.memory import (
    Array,
    NamedBarrier,
    join_knowledge,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import (
    ALL_LANES,
    Lanes,
    Value,
    each_lane,
    is_whole,
    only,
    truth,
)
from weft.codegen.gpu.interp.shared import Elements
from weft.codegen.gpu.interp.values import run_value
from weft.codegen.gpu.interp.workspace import Workspace
from weft.codegen.gpu.ir.formats import held_bytes
from weft.codegen.gpu.ir.values import ValueStmt
from weft.foundation import functions

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
    others: Sequence[Mapping[str, Array]] = (),
) -> None:
    """Run every block of a kernel on flat arrays, which it changes; `others` are those of further
    sets of buffers. `Spent` where that takes more statements of warps than `budget`."""
    left = Budget(budget)
    arrays = [found[name] for found in (buffers, *others) for name in kernel.buffers]
    space = Workspace(kernel.workspace) if kernel.workspace else None
    shared = Launch(
        kernel, arrays, timing, space, left, frozenset(_addresses_of_waits(kernel.body))
    )
    clusters = (
        Cluster([Block(shared, first + n) for n in range(size)])
        for size in [kernel.cluster]
        for first in range(0, kernel.grid, size)
    )
    # All blocks of a workspace are made before the first statement: a grid beyond the budget would
    # cost memory before it costs statements.
    if space and budget is not None and kernel.grid > budget:
        raise Spent(0)
    # Blocks that hand parts of sums on may wait for one another; others run in turn.
    with np.errstate(**functions.QUIET):
        for together in [list(clusters)] if space else ([cluster] for cluster in clusters):
            run_side_by_side(together, Random(seed), Strand)  # noqa: S311 - a test order
    if space:
        space.finish()


def _addresses_of_waits(statements: Sequence[ir.Stmt]) -> Iterator[int]:
    """The addresses of statements in which a warp may have to wait."""
    for statement in statements:
        match statement:
            case ir.For(body=body):
                inside = set(_addresses_of_waits(body))
            case ir.If(then=then, otherwise=otherwise):
                inside = {*_addresses_of_waits(then), *_addresses_of_waits(otherwise)}
            case ir.Roles(cases=cases):
                inside = {found for case in cases for found in _addresses_of_waits(case.body)}
            case _:
                inside = {id(statement)} if isinstance(statement, _WAITING) else set()
        if inside:
            yield from (id(statement), *inside)


def _agree(values: Array) -> bool:
    return bool((values == values[0]).all())


class Strand(Elements):
    """A warp that runs."""

    def start(self) -> Running:
        return self.body(self.block.kernel.body, ALL_LANES)

    def body(self, statements: Sequence[ir.Stmt], mask: Lanes) -> Running:
        """What may have to wait, in a generator; all else at once."""
        for statement in statements:
            if id(statement) in self.block.waiting:
                self.enter(statement)
                yield from self.waiting(statement, mask)
            else:
                self.statement(statement, mask)

    def enter(self, statement: ir.Stmt) -> None:
        if self.block.budget.left is not None:
            self.block.budget.spend()
        if not self.awaited and reaches_memory(statement):
            raise Hazard("memory is touched before the kernels ahead of this one have ended")

    def statement(self, statement: ir.Stmt, mask: Lanes) -> None:
        """A statement in which nobody waits."""
        if not self.awaited or self.block.budget.left is not None:
            self.enter(statement)
        _DO[type(statement)](self, statement, mask)

    def waiting(self, statement: ir.Stmt, mask: Lanes) -> Running:
        match statement:
            case ir.For(var=var):
                for number, lanes in self.turns(statement, mask):
                    self.names[var] = number
                    yield from self.body(statement.body, lanes)
            case ir.If() | ir.Roles():
                for body, lanes in self.branches(statement, mask):
                    yield from self.body(body, lanes)
            case ir.NamedBarrier(number=number, threads=threads):
                yield from self.meet(self.one(number, mask), threads, mask)
            case ir.SyncThreads():
                yield from self.meet(0, self.block.kernel.threads, mask)
            case ir.ClusterWait():
                cluster, goal = self.block.cluster, self.met
                if not cluster.have_met(goal):
                    yield Blocked(lambda: cluster.have_met(goal), "the cluster")
                self.learn(self.block.gathering.known)
            case ir.MbarrierWait(barrier=barrier, parity=parity):
                found, wanted = self.barrier(barrier, mask), self.one(parity, mask)
                if not found.passes(wanted):
                    what = f"{barrier.barriers} parity {wanted}"
                    yield Blocked(lambda: found.passes(wanted), what)
                self.learn_of_blocks(found.known)
            case _ if isinstance(statement, ir.PartStmt):
                yield from self.hand_on(statement, mask)

    def at_once(self, statement: ir.For | ir.If | ir.Roles, mask: Lanes) -> None:
        """Loops and branches in which nobody waits."""
        if isinstance(statement, ir.For):
            for number, lanes in self.turns(statement, mask):
                self.names[statement.var] = number
                self.each(statement.body, lanes)
            return
        for body, lanes in self.branches(statement, mask):
            self.each(body, lanes)

    def each(self, statements: Sequence[ir.Stmt], mask: Lanes) -> None:
        for statement in statements:
            self.statement(statement, mask)

    def let(self, statement: ir.Let | ir.Set, mask: Lanes) -> None:
        self.assign(statement.name, self.value(statement.value), mask)

    def take_set(self, statement: ir.TakeSet, mask: Lanes) -> None:
        number, count = self.one(statement.number, mask), len(self.block.kernel.buffers)
        if not 0 <= number < self.block.kernel.sets:
            raise Hazard(f"there is no set {number} of buffers")
        self.block.take(number * count, count)

    def make_registers(self, statement: ir.Registers, mask: Lanes) -> None:
        made = np.empty((statement.count, WARP), _REGISTERS[statement.kind])
        # All ones is NaN in every float dtype: what is read before it is written shows.
        made.view(np.uint8)[...] = 0 if statement.zero else 0xFF
        self.registers[statement.name] = made

    def await_previous(self, statement: ir.AwaitPrevious, mask: Lanes) -> None:
        if not is_whole(mask):
            raise Hazard("part of a warp waits for the kernels before")
        self.awaited = True

    def sync_warp(self, statement: ir.SyncWarp, mask: Lanes) -> None:
        if not is_whole(mask):
            raise Hazard("part of a warp meets the others")
        self.block.memory.races.meet(self.warp)

    def fence(self, statement: ir.ProxyFence, mask: Lanes) -> None:
        self.block.memory.fence(self.warp)

    def single(self, statement: ValueStmt, mask: Lanes) -> None:
        run_value(statement, self, mask)

    def pass_by(self, statement: ir.Stmt, mask: Lanes) -> None:
        """What changes nothing that is modelled."""

    def assign(self, name: str, value: Value, mask: Lanes) -> None:
        if is_whole(mask):
            self.names[name] = value
        else:
            old = self.names.get(name, 0)
            self.names[name] = np.where(mask, value, old)

    def branches(
        self, statement: ir.If | ir.Roles, mask: Lanes
    ) -> Iterator[tuple[Sequence[ir.Stmt], Lanes]]:
        """Bodies that are run, and the lanes that run them."""
        if isinstance(statement, ir.Roles):
            for case in statement.cases:
                if case.first <= self.warp < case.first + case.count:
                    yield case.body, mask
            return
        cond = self.value(statement.cond)
        if isinstance(cond, int):
            yield (statement.then if cond else statement.otherwise), mask
            return
        holds = truth(cond)
        for lanes, body in ((mask & holds, statement.then), (mask & ~holds, statement.otherwise)):
            if body and np.count_nonzero(lanes):
                yield body, (ALL_LANES if is_whole(lanes) else lanes)

    def turns(self, loop: ir.For, mask: Lanes) -> Iterator[tuple[Value, Lanes]]:
        """The numbers of a loop's turns; lanes with fewer turns wait for the others."""
        bounds = [self.value(bound) for bound in (loop.start, loop.stop, loop.step)]
        budget = self.block.budget
        if all(isinstance(bound, int) or _agree(bound[mask]) for bound in bounds):
            for number in range(*(only(bound, mask) for bound in bounds)):
                budget.spend()
                yield number, mask
            return
        place, stop, step = (np.broadcast_to(bound, (WARP,)) for bound in bounds)
        while np.count_nonzero(active := mask & (place < stop)):
            budget.spend()
            yield place, active
            place = place + step

    def meet(self, number: int, threads: int, mask: Lanes) -> Running:
        if not is_whole(mask):
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
        if space is None or not is_whole(mask):
            raise Hazard("part of a warp hands on a sum, or there is no workspace for it")
        match statement:
            case ir.KeepSums(source=array):
                partial_sums.keep(statement, self, space, self.settled(array))
                return
            case ir.AddSums(target=array) | ir.GatherSums(target=array):
                partial_sums.add(statement, self, space, self.settled(array))
                return
        first = partial_sums.is_first(self, statement.member)
        number, threads = self.one(statement.number, mask), statement.threads
        counter = space.counter(self.one(statement.counter, mask))
        match statement:
            case ir.AwaitTurn(value=value):
                # One thread of the group watches the counter, and all learn from the meeting what
                # it has learned from the counter.
                wanted = self.one(value, mask)
                if first:
                    if counter.value != wanted:
                        yield Blocked(lambda: counter.value == wanted, f"turn {wanted} of a sum")
                    self.learn_of_blocks(counter.known)
                yield from self.meet(number, threads, mask)
            case ir.PassTurn(value=value):
                yield from self.meet(number, threads, mask)
                if first:
                    counter.value, counter.known = (
                        self.one(value, mask),
                        partial_sums.released(self),
                    )
            case ir.CountOff(name=name):
                last = self.one(statement.last, mask)
                yield from self.meet(number, threads, mask)
                if first:
                    self.learn_of_blocks(counter.known)
                    counter.known = partial_sums.released(self)
                    # The counter goes back to 0 with the last one, so that the next launch finds it
                    # so.
                    self.block.votes[number] = int(counter.value == last)
                    counter.value = 0 if counter.value == last else counter.value + 1
                yield from self.meet(number, threads, mask)
                self.names[name] = self.block.votes[number]

    def in_cluster(
        self, statement: ir.StCluster | ir.SendCluster | ir.ClusterArrive, mask: Lanes
    ) -> None:
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

    def learn_of_blocks(self, known: Mapping[int, Array]) -> None:
        """Go on where warps of this block and of others have arrived."""
        for number, seen in known.items():
            if number == self.block.number:
                self.learn(seen)
            else:
                self.afar[number] = join_knowledge(self.afar.get(number), seen)

    def sendings(
        self, statement: ir.StCluster | ir.SendCluster, mask: Lanes
    ) -> Iterator[tuple[int, int, Array, Lanes]]:
        """What each lane sends: to which block, where, the bytes; and the lane."""
        # A block of the cluster may not have begun: writing to its memory is allowed after a
        # meeting of all.
        if not self.met:
            raise Hazard("a block is written to before it is known to run")
        dtype = statement.dtype
        held = np.zeros((WARP, held_bytes(dtype)), np.uint8)
        data = np.ascontiguousarray(self.elements[statement.source].astype(dtype.numpy))
        held[:, : dtype.storage_bytes] = data[:, None].view(np.uint8)
        for lane in each_lane(mask):
            number = self.one(statement.block, lane)
            start = self.address(statement.target, lane)
            yield number, start, held[np.argmax(lane)], lane


_DO: Final[Mapping[type, Callable[[Strand, Any, Lanes], None]]] = {
    **dict.fromkeys(
        get_args(ValueStmt), lambda warp, statement, mask: run_value(statement, warp, mask)
    ),
    **dict.fromkeys(get_args(ir.Sm80Stmt), Strand.sm80),
    **dict.fromkeys(get_args(ir.RowStmt), Strand.rows),
    **dict.fromkeys(get_args(ir.SharedStmt), Strand.shared),
    **dict.fromkeys((ir.For, ir.If, ir.Roles), Strand.at_once),
    **dict.fromkeys((ir.Let, ir.Set), Strand.let),
    **dict.fromkeys((ir.StCluster, ir.SendCluster, ir.ClusterArrive), Strand.in_cluster),
    **dict.fromkeys((ir.MbarrierInit, ir.MbarrierExpectTx, ir.MbarrierArrive), Strand.mbarrier),
    **dict.fromkeys(
        (ir.TmaLoad, ir.BulkLoad, ir.TmaStore, ir.TmaCommit, ir.TmaWaitRead), Strand.copy_engine
    ),
    **dict.fromkeys((ir.Descriptor, ir.Wgmma, ir.WgmmaCommit, ir.WgmmaWait), Strand.wgmma),
    **dict.fromkeys(
        (ir.LoadElement, ir.StMatrix, ir.DrawBits, ir.Epilogue, ir.StGlobalVec, ir.StGlobalRow),
        Strand.element,
    ),
    **dict.fromkeys(
        (ir.AdmitNext, ir.PrefetchMap, ir.MbarrierInitFence, ir.SetMaxNReg, ir.WgmmaFence),
        Strand.pass_by,
    ),
    ir.Registers: Strand.make_registers,
    ir.TakeSet: Strand.take_set,
    ir.AwaitPrevious: Strand.await_previous,
    ir.SyncWarp: Strand.sync_warp,
    ir.ProxyFence: Strand.fence,
    ir.AddRegisters: Strand.add_registers,
}
"""What statements do in which nobody waits."""
_WAITING: Final = (
    ir.NamedBarrier,
    ir.SyncThreads,
    ir.ClusterWait,
    ir.MbarrierWait,
    *get_args(ir.PartStmt),
)
