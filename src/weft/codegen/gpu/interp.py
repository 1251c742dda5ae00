"""Running the dialect: what a kernel means, over all threads of its blocks, with NumPy.

Each warp is a strand: a generator that runs until it must wait. Values of a warp's lanes are
vectors of 32; numbers that are the same for all lanes are plain integers. Strands run one at a
time, as far as they get, in an order that a seed decides. Asynchronous statements take effect as
late as their waits allow (`Timing.LATE`), or at once (`Timing.EARLY`): a kernel that is right in
both, for several orders, has its waits and barriers in place. Touching what an asynchronous
statement still owns, and waiting for ever, are `Hazard`s.

Shared memory is modelled byte by byte, with the permutations of the copy engine and of the matrix
instructions applied to addresses, independently of the layouts that the templates use.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Final, TypeAlias

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.chain import reaches_memory
from weft.codegen.gpu.formats import held_bytes
from weft.codegen.gpu.interp_elements import (
    epilogue,
    in_range,
    load_element,
    store_row,
    store_vectors,
)
from weft.codegen.gpu.interp_matrix import (
    apply_mma,
    apply_wgmma,
    load_matrices,
    matrix_rows,
    operand_places,
)
from weft.codegen.gpu.interp_memory import (
    COPY_LINE,
    Array,
    Mbarrier,
    NamedBarrier,
    SharedMemory,
    as_bytes,
    box_elements,
    box_places,
    from_bytes,
    joined,
)
from weft.codegen.gpu.interp_races import Hazard
from weft.codegen.gpu.interp_scalars import Lanes, Value, each_lane, evaluate, only, truth
from weft.codegen.gpu.interp_values import keep
from weft.codegen.gpu.interp_values import run as run_value
from weft.codegen.gpu.scalar import scalar
from weft.codegen.gpu.swizzle import descriptor
from weft.codegen.gpu.values import ValueStmt
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError

WARP = 32
_REGISTERS: Final = {
    ir.RegisterKind.F32: np.float32,
    ir.RegisterKind.F64: np.float64,
    ir.RegisterKind.S32: np.int32,
    ir.RegisterKind.B32: np.uint32,
}


class Timing(Enum):
    """When asynchronous statements take effect."""

    EARLY = "early"
    LATE = "late"


@dataclass(frozen=True)
class _Blocked:
    """What a strand waits for."""

    ready: Callable[[], bool]
    what: str


Running: TypeAlias = Generator[_Blocked, None, None]


def run(
    kernel: ir.Kernel,
    buffers: Mapping[str, Array],
    timing: Timing = Timing.LATE,
    seed: int = 0,
) -> None:
    """Run every block of a kernel on flat arrays, which it changes."""
    arrays = [buffers[name] for name in kernel.buffers]
    for first in range(0, kernel.grid, kernel.cluster):
        order = Random(seed)  # noqa: S311 - a test order
        numbers = range(first, first + kernel.cluster)
        _Cluster([_Block(kernel, arrays, n, timing, order) for n in numbers], order).run()


@dataclass
class _Copy:
    """An asynchronous load on its way."""

    places: Array
    data: Array
    barrier: Mbarrier


@dataclass
class _Block:
    """The state that the threads of a block share."""

    kernel: ir.Kernel
    arrays: list[Array]
    number: int
    timing: Timing
    order: Random
    memory: SharedMemory = field(init=False)
    barriers: dict[str, list[Mbarrier]] = field(default_factory=dict)
    meetings: dict[int, NamedBarrier] = field(default_factory=dict)
    copies: list[_Copy] = field(default_factory=list)
    strands: list[_Strand] = field(default_factory=list)
    gathering: NamedBarrier = field(default_factory=NamedBarrier)
    """Where its threads meet those of the cluster."""
    cluster: _Cluster = field(init=False)
    running: int = 0
    """Warps that have not ended."""

    def begin(self, cluster: _Cluster) -> list[_Strand]:
        self.cluster = cluster
        warps = range(self.kernel.threads // WARP)
        self.memory = SharedMemory(self.kernel.shared_bytes, len(warps))
        self.strands = [_Strand(self, warp) for warp in warps]
        self.running = len(warps)
        return self.strands

    def receive(self, start: int, data: Array, barrier: Mbarrier) -> None:
        """Bytes from another block of the cluster, counted on a barrier of this one."""
        places = self.memory.places(start, data.size)
        if self.memory.awaited[places].any():
            raise Hazard("two blocks write the same shared memory")
        self.memory.announce(places, 0)
        self.expect(_Copy(places, data, barrier))

    def expect(self, copy: _Copy) -> None:
        """A copy that comes now, or later."""
        if self.timing is Timing.EARLY:
            self.arrive(copy)
        else:
            self.copies.append(copy)

    def arrive(self, copy: _Copy) -> None:
        self.memory.arrive(copy.places, copy.data)
        copy.barrier.counted(len(copy.data))

    def finish(self) -> None:
        for strand in self.strands:
            if any(group for group in strand.stores):
                raise Hazard("a store was still reading shared memory when the block ended")
        if self.copies:
            raise Hazard("a copy was still on its way when the block ended")


@dataclass
class _Cluster:
    """Blocks that run side by side; a block of its own is a cluster of one."""

    blocks: list[_Block]
    order: Random
    sent: list[tuple[SharedMemory, Array, Array]] = field(default_factory=list)
    """What blocks have written into one another's memory since they last met."""

    def run(self) -> None:
        strands = [strand for block in self.blocks for strand in block.begin(self)]
        self.order.shuffle(strands)
        waiting = [(strand, strand.start()) for strand in strands]
        blocked: dict[int, _Blocked] = {}
        while waiting:
            chosen = next((p for p in waiting if self.may_run(p[0], blocked)), None)
            if chosen is None:
                self.complete_a_copy(blocked)
                continue
            strand, running = chosen
            try:
                blocked[id(strand)] = next(running)
            except StopIteration:
                waiting.remove(chosen)
                strand.block.running -= 1
        for block in self.blocks:
            block.finish()

    @staticmethod
    def may_run(strand: _Strand, blocked: Mapping[int, _Blocked]) -> bool:
        reason = blocked.get(id(strand))
        return reason is None or reason.ready()

    def complete_a_copy(self, blocked: Mapping[int, _Blocked]) -> None:
        """Nobody can go on: the next copy arrives. Copies of one barrier may overtake others."""
        copying = [block for block in self.blocks if block.copies]
        if not copying:
            reasons = ", ".join(sorted({reason.what for reason in blocked.values()}))
            raise Hazard(f"every warp waits for ever: {reasons}")
        block = copying[self.order.randrange(len(copying))]
        block.arrive(block.copies.pop(self.order.randrange(len(block.copies))))

    def have_met(self, times: int) -> bool:
        return all(block.gathering.meetings >= times for block in self.blocks)

    def send(self, block: int, start: int, data: Array) -> None:
        """Bytes for another block's memory, there when all have met."""
        self.check_block(block)
        memory = self.blocks[block].memory
        places = memory.places(start, data.size)
        if memory.awaited[places].any():
            raise Hazard("two blocks write the same shared memory")
        # As if a warp of that block had asked for a copy: clocks of two blocks do not compare.
        memory.announce(places, 0)
        self.sent.append((memory, places, data))

    def check_block(self, block: int) -> None:
        if not 0 <= block < len(self.blocks):
            raise Hazard(f"there is no block {block} in a cluster of {len(self.blocks)}")

    def deliver(self) -> None:
        for memory, places, data in self.sent:
            memory.arrive(places, data)
        self.sent.clear()


@dataclass
class _Pending:
    """A matrix instruction that was issued."""

    statement: ir.Wgmma
    a_places: Array
    b_places: Array
    done: bool = False


@dataclass
class _Strand:
    """One warp."""

    block: _Block
    warp: int
    names: dict[str, Value] = field(default_factory=dict)
    registers: dict[str, Array] = field(default_factory=dict)
    elements: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    descriptors: dict[str, tuple[int, int]] = field(default_factory=dict)
    matrix: list[list[_Pending]] = field(default_factory=list)
    matrix_open: list[_Pending] = field(default_factory=list)
    stores: list[list[Callable[[], None]]] = field(default_factory=list)
    stores_open: list[Callable[[], None]] = field(default_factory=list)
    copies: list[list[tuple[Array, Array]]] = field(default_factory=list)
    copies_open: list[tuple[Array, Array]] = field(default_factory=list)
    met: int = 0
    """Meetings of the cluster that this warp has arrived at."""
    afar: dict[int, Array] = field(default_factory=dict)
    """What this warp knows of the warps of other blocks."""
    awaited: bool = False
    """Whether the kernels before this one have ended."""

    def __post_init__(self) -> None:
        self.awaited = not self.block.kernel.waits

    def start(self) -> Running:
        return self.body(self.block.kernel.body, np.ones(WARP, bool))

    def body(self, statements: Sequence[ir.Stmt], mask: Lanes) -> Running:
        for statement in statements:
            yield from self.statement(statement, mask)

    def value(self, expression: Any) -> Value:
        return evaluate(scalar(expression), self.names, self.warp, self.block)

    def one(self, expression: Any, mask: Lanes) -> int:
        """A number on which the active lanes agree."""
        return only(self.value(expression), mask)

    def statement(self, statement: ir.Stmt, mask: Lanes) -> Running:
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
            case ir.NamedBarrier(number=number, threads=threads):
                yield from self.meet(self.one(number, mask), threads, mask)
            case ir.SyncThreads():
                yield from self.meet(0, self.block.kernel.threads, mask)
            case ir.ClusterArrive() | ir.ClusterWait() | ir.StCluster() | ir.SendCluster():
                yield from self.in_cluster(statement, mask)
            case ir.AwaitPrevious():
                if not mask.all():
                    raise Hazard("part of a warp waits for the kernels before")
                self.awaited = True
            case ir.AdmitNext():
                pass
            case ir.MbarrierWait(barrier=barrier, parity=parity):
                found, wanted = self.barrier(barrier, mask), self.one(parity, mask)
                if not found.passes(wanted):
                    what = f"{barrier.barriers} parity {wanted}"
                    yield _Blocked(lambda: found.passes(wanted), what)
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
            case ir.AddRegisters(target=total, source=part):
                old = 0 if statement.first else self.registers[total]
                self.registers[total][...] = old + self.settled(part)
                if statement.clear:
                    self.registers[part][...] = 0
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

    # Control

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
        if all(len(np.unique(np.broadcast_to(b, (WARP,))[mask])) == 1 for b in bounds):
            for number in range(*(only(bound, mask) for bound in bounds)):
                self.names[var] = number
                yield from self.body(body, mask)
            return
        place, stop, step = (np.broadcast_to(bound, (WARP,)) for bound in bounds)
        while (active := mask & (place < stop)).any():
            self.names[var] = place
            yield from self.body(body, active)
            place = place + step

    def meet(self, number: int, threads: int, mask: Lanes) -> Running:
        if not mask.all():
            raise Hazard("a barrier is reached by part of a warp")
        barrier = self.block.meetings.setdefault(number, NamedBarrier())
        goal = barrier.arrive(WARP, threads, self.block.memory.races.meet(self.warp))
        if barrier.meetings < goal:
            yield _Blocked(lambda: barrier.meetings >= goal, f"named barrier {number}")
        self.learn(barrier.known)

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
                    yield _Blocked(lambda: cluster.have_met(goal), "the cluster")
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

    def learn(self, known: Array | None) -> None:
        """Go on where others have arrived."""
        if known is not None:
            self.block.memory.races.acquire(self.warp, known)

    # Barriers and the copy engine

    def barrier(self, place: ir.BarrierAt, mask: Lanes, block: _Block | None = None) -> Mbarrier:
        block = block or self.block
        if not block.running:
            raise Hazard("a block of the cluster is reached that has ended")
        array = block.barriers.get(place.barriers)
        if array is None:
            raise Hazard(f"the barriers {place.barriers} are used before they are made")
        index = self.one(place.index, mask)
        if not 0 <= index < len(array):
            raise Hazard(f"there is no barrier {place.barriers}[{index}]")
        return array[index]

    def mbarrier(
        self, statement: ir.MbarrierInit | ir.MbarrierExpectTx | ir.MbarrierArrive, mask: Lanes
    ) -> None:
        lanes, races = int(mask.sum()), self.block.memory.races
        match statement:
            case ir.MbarrierInit(barriers=name):
                found = next(a for a in self.block.kernel.barriers if a.name == name)
                self.block.barriers[name] = [Mbarrier(found.arrivals) for _ in range(found.count)]
            case ir.MbarrierExpectTx(barrier=barrier, bytes=count):
                known = races.release(self.warp)
                for lane in each_lane(mask):
                    found_barrier = self.barrier(barrier, lane)
                    found_barrier.expect(count)
                    found_barrier.arrive(1, barrier.barriers, known, self.block.number)
            case ir.MbarrierArrive(barrier=barrier, everywhere=everywhere):
                known = races.release(self.warp)
                for block in self.blocks(everywhere=everywhere):
                    reached = self.barrier(barrier, mask, block)
                    reached.arrive(lanes, barrier.barriers, known, self.block.number)

    def copy_engine(
        self,
        statement: ir.TmaLoad | ir.BulkLoad | ir.TmaStore | ir.TmaCommit | ir.TmaWaitRead,
        mask: Lanes,
    ) -> None:
        if isinstance(statement, ir.BulkLoad):
            for lane in each_lane(mask):
                self.bulk_load(statement, lane)
            return
        if mask.sum() != 1:
            raise Hazard(f"{type(statement).__name__} is issued by {int(mask.sum())} lanes")
        match statement:
            case ir.TmaLoad():
                self.tma_load(statement, mask)
            case ir.TmaStore():
                self.stores_open.append(self.tma_store(statement, mask))
            case ir.TmaCommit():
                self.stores.append(self.stores_open)
                self.stores_open = []
            case ir.TmaWaitRead(pending=pending):
                while len(self.stores) > pending:
                    for store in self.stores.pop(0):
                        store()

    def tma_load(self, statement: ir.TmaLoad, mask: Lanes) -> None:
        found = self.block.kernel.map(statement.map)
        coords = tuple(self.one(c, mask) for c in statement.coords)
        offsets, inside = box_elements(found, coords)
        source = self.block.arrays[found.buffer]
        data = np.where(inside, source[np.where(inside, offsets, 0)], source.dtype.type(0))
        places = box_places(found, self.one(self.address(statement.target), mask))
        for block in self.blocks(everywhere=statement.everywhere):
            self.copy(places, as_bytes(data), self.barrier(statement.barrier, mask, block), block)

    def blocks(self, *, everywhere: bool) -> Sequence[_Block]:
        """This block, or all of its cluster."""
        return self.block.cluster.blocks if everywhere else (self.block,)

    def bulk_load(self, statement: ir.BulkLoad, mask: Lanes) -> None:
        first = self.one(statement.offset, mask)
        start = self.one(self.address(statement.target), mask)
        size = statement.dtype.storage_bytes
        if first * size % COPY_LINE or start % COPY_LINE:
            raise Hazard("a copy begins at an address that is no whole line of 16 bytes")
        source = self.block.arrays[statement.buffer]
        index = first + np.arange(statement.count)
        in_range(source, index)
        places = start + np.arange(statement.count * size)
        self.copy(places, as_bytes(source[index]), self.barrier(statement.barrier, mask))

    def copy(
        self, places: Array, data: Array, barrier: Mbarrier, block: _Block | None = None
    ) -> None:
        """Bytes that the copy engine brings to a block, now or later."""
        block = block or self.block
        block.memory.places(places, 1)
        if block.memory.awaited[places].any():
            raise Hazard("two copies write the same shared memory")
        if block is self.block:
            block.memory.announce(places, self.warp)
        else:
            block.memory.announce_from_afar(places, self.afar.get(block.number))
        block.expect(_Copy(places, data, barrier))

    def tma_store(self, statement: ir.TmaStore, mask: Lanes) -> Callable[[], None]:
        found = self.block.kernel.map(statement.map)
        coords = tuple(self.one(c, mask) for c in statement.coords)
        offsets, inside = box_elements(found, coords)
        places = box_places(found, self.one(self.address(statement.source), mask))
        memory, target = self.block.memory, self.block.arrays[found.buffer]
        memory.check_fenced(places, "a store by the copy engine")
        memory.note_load(places, 1, self.warp, "a store by the copy engine")

        def store() -> None:
            memory.note_load(places, 1, self.warp, "a store by the copy engine")
            data = memory.bytes[places].view(target.dtype).reshape(offsets.shape)
            target[offsets[inside]] = data[inside]

        if self.block.timing is Timing.EARLY:
            store()
            return lambda: None
        return store

    def address(self, address: ir.Address) -> Any:
        return address.offset + self.block.kernel.tile(address.tile).offset

    def places(self, address: ir.Address) -> Array:
        """A byte address for every lane."""
        return np.broadcast_to(np.asarray(self.value(self.address(address))), (WARP,))

    # Matrix instructions

    def wgmma(self, statement: ir.Stmt, mask: Lanes) -> None:
        if not mask.all():
            raise Hazard("a matrix instruction is reached by part of a warp")
        match statement:
            case ir.Descriptor(name=name, layout=layout, major=major):
                start = self.one(self.address(statement.address), mask)
                self.descriptors[name] = (start, descriptor(layout, major))
            case ir.Wgmma():
                self.matrix_open.append(self.issue(statement))
            case ir.WgmmaCommit():
                self.matrix.append(self.matrix_open)
                self.matrix_open = []
            case ir.WgmmaWait(pending=pending):
                while len(self.matrix) > pending:
                    for instruction in self.matrix.pop(0):
                        self.multiply(instruction)

    def issue(self, statement: ir.Wgmma) -> _Pending:
        sides = ((statement.a, 64), (statement.b, statement.n))
        size = statement.a_dtype.storage_bytes
        a, b = (
            operand_places(*self.descriptors[side.descriptor], side.offset, side.major, count, size)
            for side, count in sides
        )
        # The warp's own rows of A, all of B.
        rows = a[16 * (self.warp % 4) : 16 * (self.warp % 4) + 16]
        pending = _Pending(statement, rows, b)
        for places in (rows, b):
            self.block.memory.load(places, size, "a matrix instruction")
            self.block.memory.check_fenced(places, "a matrix instruction")
        if self.block.timing is Timing.EARLY:
            self.multiply(pending)
        return pending

    def multiply(self, pending: _Pending) -> None:
        if pending.done:
            return
        pending.done = True
        memory, statement = self.block.memory, pending.statement
        what, size = "a matrix instruction", statement.a_dtype.storage_bytes
        a, b = (memory.load(places, size, what) for places in (pending.a_places, pending.b_places))
        for places in (pending.a_places, pending.b_places):
            memory.note_load(places, size, self.warp, what)
        dtypes = (statement.a_dtype, statement.b_dtype)
        acc = self.registers[statement.acc]
        apply_wgmma(acc, (a, b), dtypes, accumulate=statement.accumulate)

    def settled(self, array: str) -> Array:
        """A register array that no matrix instruction is still going to write."""
        groups = [*self.matrix, self.matrix_open]
        if any(p.statement.acc == array for group in groups for p in group):
            raise Hazard(f"{array} is used while matrix instructions write it")
        return self.registers[array]

    def sm80(self, statement: ir.Stmt, mask: Lanes) -> None:
        match statement:
            case ir.CpAsync():
                self.cp_async(statement, mask)
            case ir.CommitGroup():
                self.copies.append(self.copies_open)
                self.copies_open = []
            case ir.WaitGroup(pending=pending):
                while len(self.copies) > pending:
                    for places, data in self.copies.pop(0):
                        self.block.memory.arrive(places, data)
            case ir.LdMatrix(target=target, source=source, transposed=transposed):
                rows = self.block.memory.load(self.places(source), 16, "ldmatrix")
                self.block.memory.note_load(self.places(source), 16, self.warp, "ldmatrix")
                first = target.index
                load_matrices(self.registers[target.array], first, rows, transposed=transposed)
            case ir.LdRegister(target=target, source=source, dtype=dtype):
                size, places = dtype.storage_bytes, self.places(source)
                raw = self.block.memory.load(places, size, "a fragment's load")
                self.block.memory.note_load(places, size, self.warp, "a fragment's load")
                self.registers[target.array][target.index] = from_bytes(raw, dtype)[:, 0]
            case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
                at = [part.index for part in (acc, a, b)]
                arrays = [self.registers[part.array] for part in (acc, a, b)]
                apply_mma(arrays, at, (a_dtype, b_dtype))
            case ir.Gather():
                self.gather(statement, mask)

    def cp_async(self, statement: ir.CpAsync, mask: Lanes) -> None:
        guard = mask & truth(self.value(statement.guard))
        offsets = np.broadcast_to(np.asarray(self.value(statement.offset)), (WARP,))
        source = self.block.arrays[statement.buffer].view(np.uint8)
        if guard.any() and (offsets[guard] % 16).any():
            raise Hazard("an asynchronous copy begins at an address that is no multiple of 16")
        index = np.where(guard, offsets, 0)[:, None] + np.arange(16)
        in_range(source, index[guard])
        data = np.where(guard[:, None], source[index], 0).astype(np.uint8)[mask]
        places = self.block.memory.places(self.places(statement.target)[mask], 16)
        if self.block.memory.awaited[places].any():
            raise Hazard("two copies write the same shared memory")
        self.block.memory.announce(places, self.warp)
        if self.block.timing is Timing.EARLY:
            self.block.memory.arrive(places, data)
        else:
            self.copies_open.append((places, data))

    def gather(self, statement: ir.Gather, mask: Lanes) -> None:
        source = self.block.arrays[statement.buffer]
        guard = mask & truth(self.value(statement.guard))
        limit = np.broadcast_to(np.asarray(self.value(statement.limit)), (WARP,))
        start = np.asarray(self.value(statement.offset))
        columns = [
            load_element(source, start + i * statement.step, guard & (limit > i), 0)
            for i in range(statement.count)
        ]
        rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)[mask]
        self.block.memory.store(self.places(statement.target)[mask], rows, self.warp, "a gather")

    # Elements

    def element(self, statement: ir.Stmt, mask: Lanes) -> None:
        memory = self.block.memory
        match statement:
            case ir.LoadElement(name=name, offset=offset, guard=guard):
                lanes = mask & truth(self.value(guard))
                source = self.block.arrays[statement.buffer]
                found = load_element(source, self.value(offset), lanes, statement.fill)
                keep(self, name, statement.dtype, found)
            case ir.StMatrix(target=target, source=source_at, count=count):
                first = source_at.index
                rows = matrix_rows(self.registers[source_at.array], first, count)
                places = self.places(target)[: 8 * count]
                memory.store(places, rows, self.warp, "stmatrix")
            case ir.Epilogue(acc=acc):
                self.settled(acc.array)
                epilogue(statement, self, mask)
            case ir.StShared() | ir.StSharedVec() | ir.LoadShared():
                self.shared(statement, mask)
            case ir.LoadSharedVector() | ir.LoadStaged():
                self.shared(statement, mask)
            case ir.StGlobalVec():
                store_vectors(statement, self, mask)
            case ir.StGlobalRow(source=place):
                if not mask.all():
                    raise Hazard("a row is stored by part of a warp")
                each = np.arange(WARP)
                memory.note_load(self.places(place), 4, self.warp, "storing a row", each)
                store_row(statement, self, memory.load(self.places(place), 4, "storing a row"))
            case _:
                raise InternalError(f"no meaning for {type(statement).__name__}")

    def shared(self, statement: ir.SharedStmt, mask: Lanes) -> None:
        memory = self.block.memory
        match statement:
            case ir.StShared(target=target, source=name, dtype=dtype):
                data = self.elements[name].astype(dtype.numpy)[mask]
                rows = np.ascontiguousarray(data)[:, None].view(np.uint8)
                each = np.flatnonzero(mask)
                memory.store(self.places(target)[mask], rows, self.warp, "a store", each)
            case ir.LoadShared(name=name, dtype=dtype, source=place):
                raw = memory.load(self.places(place), dtype.storage_bytes, "a load")
                where, each = self.places(place)[mask], np.flatnonzero(mask)
                memory.note_load(where, dtype.storage_bytes, self.warp, "a load", each)
                keep(self, name, dtype, from_bytes(raw, dtype)[:, 0])
            case ir.LoadSharedVector(names=names, dtype=dtype, source=place):
                places, word = self.places(place), held_bytes(dtype)
                if (places % (word * len(names))).any():
                    raise Hazard(f"a vector of {len(names)} words begins inside another")
                for number, name in enumerate(names):
                    raw = memory.load(places + number * word, dtype.storage_bytes, "a load")
                    keep(self, name, dtype, from_bytes(raw, dtype)[:, 0])
            case ir.LoadStaged(names=names, dtype=dtype, source=place):
                size, each = dtype.storage_bytes, np.flatnonzero(mask)
                places = self.places(place)
                if (places % (size * len(names))).any():
                    raise Hazard(f"a vector of {len(names)} elements begins inside another")
                memory.note_load(places[mask], size * len(names), self.warp, "a load", each)
                for number, name in enumerate(names):
                    raw = memory.load(places + number * size, size, "a load")
                    keep(self, name, dtype, from_bytes(raw, dtype)[:, 0])
            case ir.StSharedVec(target=target, source=source_at, count=count):
                first = source_at.index
                values = self.settled(source_at.array)[first : first + count]
                rows = np.ascontiguousarray(values.T).view(np.uint8)[mask]
                each = np.flatnonzero(mask)
                memory.store(self.places(target)[mask], rows, self.warp, "a store", each)

    def shared_values(self, places: Array, dtype: DType) -> Array:
        """Values that begin at these bytes of shared memory."""
        data = self.block.memory.load(places, dtype.storage_bytes, "an epilogue")
        self.block.memory.note_load(places, dtype.storage_bytes, self.warp, "an epilogue")
        return from_bytes(data, dtype)[..., 0]
