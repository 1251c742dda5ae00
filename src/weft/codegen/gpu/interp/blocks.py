"""State of thread blocks, clusters and warps in the interpreter: shared memory, barriers, copies in
flight, and who waits for what.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import InitVar, field
from enum import Enum
from random import Random
from typing import TypeAlias

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.memory import (
    Array,
    Expansions,
    Mbarrier,
    NamedBarrier,
    SharedMemory,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes, Memo, Value, only
from weft.codegen.gpu.interp.workspace import Workspace
from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass

WARP = 32


class Timing(Enum):
    """When asynchronous statements take effect."""

    EARLY = "early"
    LATE = "late"


class Spent(Exception):
    """A kernel has more statements than may be run; so many of its blocks have ended."""

    def __init__(self, blocks: int) -> None:
        super().__init__(f"{blocks} blocks have ended")
        self.blocks = blocks


@dataclass
class Budget:
    """How many statements of warps may still be run, and how many blocks have ended."""

    left: int | None = None
    """None: any number."""
    blocks: int = 0

    def spend(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Spent(self.blocks)


@dataclass(frozen=True)
class Blocked:
    """What a strand waits for."""

    ready: Callable[[], bool]
    what: str


Running: TypeAlias = Generator[Blocked, None, None]


@dataclass
class Copy:
    """An asynchronous load on its way."""

    places: Array
    data: Array
    barrier: Mbarrier


@dataclass
class Launch:
    """What all blocks of a kernel share."""

    kernel: ir.Kernel
    arrays: list[Array]
    timing: Timing
    workspace: Workspace | None
    budget: Budget
    waiting: frozenset[int]
    """The addresses of the kernel's statements in which a warp may have to wait."""
    memo: Memo = field(default_factory=Memo)
    expansions: Expansions = field(default_factory=Expansions)


@dataclass
class Block:
    """The state that the threads of a block share."""

    launch: InitVar[Launch]
    number: int
    kernel: ir.Kernel = field(init=False)
    arrays: list[Array] = field(init=False)
    every: list[Array] = field(init=False)
    """Those of all sets."""
    timing: Timing = field(init=False)
    workspace: Workspace | None = field(init=False)
    budget: Budget = field(init=False)
    waiting: frozenset[int] = field(init=False)
    memo: Memo = field(init=False)
    expansions: Expansions = field(init=False)
    memory: SharedMemory = field(init=False)
    barriers: dict[str, list[Mbarrier]] = field(default_factory=dict)
    meetings: dict[int, NamedBarrier] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    strands: list[Warp] = field(default_factory=list)
    gathering: NamedBarrier = field(default_factory=NamedBarrier)
    """Where its threads meet those of the cluster."""
    cluster: Cluster = field(init=False)
    running: int = 0
    """Warps that have not ended."""
    tiles: dict[str, int] = field(default_factory=dict)
    """Where the tiles of shared memory begin."""
    votes: dict[int, int] = field(default_factory=dict)
    """What those who meet at a named barrier tell one another there."""

    def __post_init__(self, launch: Launch) -> None:
        # Statements ask for these again and again, each time through one object less.
        for name, found in vars(launch).items():
            setattr(self, name, found)
        self.every = self.arrays

    def take(self, first: int, count: int) -> None:
        """Work on `count` buffers of all."""
        self.arrays = self.every[first : first + count]

    def begin(self, cluster: Cluster, make: MakeWarp) -> list[Warp]:
        self.cluster = cluster
        warps = range(self.kernel.threads // WARP)
        self.tiles = {tile.name: tile.offset for tile in self.kernel.tiles}
        self.memory = SharedMemory(self.kernel.shared_bytes, len(warps), self.expansions)
        self.strands = [make(self, warp) for warp in warps]
        self.running = len(warps)
        return self.strands

    def receive(self, start: int, data: Array, barrier: Mbarrier) -> None:
        """Bytes from another block of the cluster, counted on a barrier of this one."""
        places = self.memory.places(start, data.size)
        if self.memory.awaited[places].any():
            raise Hazard("two blocks write the same shared memory")
        self.memory.announce(places, 0)
        self.expect(Copy(places, data, barrier))

    def expect(self, copy: Copy) -> None:
        """A copy that comes now, or later."""
        if self.timing is Timing.EARLY:
            self.arrive(copy)
        else:
            self.copies.append(copy)

    def arrive(self, copy: Copy) -> None:
        self.memory.arrive(copy.places, copy.data)
        copy.barrier.counted(len(copy.data))

    def finish(self) -> None:
        for strand in self.strands:
            if any(group for group in strand.stores):
                raise Hazard("a store was still reading shared memory when the block ended")
        # What was on its way would be written into memory that by then belongs to another block.
        if self.copies:
            raise Hazard("a copy was still on its way when the block ended")
        self.budget.blocks += 1


@dataclass
class Cluster:
    """Blocks that run side by side; a block of its own is a cluster of one."""

    blocks: list[Block]
    sent: list[tuple[SharedMemory, Array, Array]] = field(default_factory=list)
    """What blocks have written into one another's memory since they last met."""

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


def run_side_by_side(clusters: Sequence[Cluster], order: Random, make: MakeWarp) -> None:
    """Run the warps of clusters, whichever can go on."""
    blocks = [block for cluster in clusters for block in cluster.blocks]
    strands = [s for cluster in clusters for b in cluster.blocks for s in b.begin(cluster, make)]
    order.shuffle(strands)
    waiting = [(strand, strand.start()) for strand in strands]
    blocked: dict[int, Blocked] = {}
    while waiting:
        # Always the first that can go on, in an order that was shuffled once: a strand runs as far
        # as it gets, which is the case that is furthest from all running evenly. Other seeds put
        # other strands first.
        chosen = next((p for p in waiting if _may_run(p[0], blocked)), None)
        if chosen is None:
            _complete_a_copy(blocks, order, blocked)
            continue
        strand, running = chosen
        try:
            blocked[id(strand)] = next(running)
        except StopIteration:
            waiting.remove(chosen)
            strand.block.running -= 1
    for block in blocks:
        block.finish()


def _may_run(strand: Warp, blocked: Mapping[int, Blocked]) -> bool:
    reason = blocked.get(id(strand))
    return reason is None or reason.ready()


def _complete_a_copy(
    blocks: Sequence[Block], order: Random, blocked: Mapping[int, Blocked]
) -> None:
    """Nobody can go on: the next copy arrives. Copies of one barrier may overtake others."""
    # Copies that are late arrive one at a time, in any order, and only when nobody can go on
    # without: a wait that is missing reads what was there before.
    copying = [block for block in blocks if block.copies]
    if not copying:
        reasons = ", ".join(sorted({reason.what for reason in blocked.values()}))
        raise Hazard(f"every warp waits for ever: {reasons}")
    block = copying[order.randrange(len(copying))]
    block.arrive(block.copies.pop(order.randrange(len(block.copies))))


@dataclass
class Pending:
    """A matrix instruction that was issued."""

    statement: ir.Wgmma
    a_places: Array | None
    """None where A lies in registers."""
    b_places: Array
    done: bool = False


@dataclass
class Warp(ABC):
    """What one warp knows and has begun."""

    block: Block
    warp: int
    names: dict[str, Value] = field(default_factory=dict)
    registers: dict[str, Array] = field(default_factory=dict)
    elements: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    descriptors: dict[str, tuple[int, int]] = field(default_factory=dict)
    matrix: list[list[Pending]] = field(default_factory=list)
    matrix_open: list[Pending] = field(default_factory=list)
    stores: list[list[Callable[[], None]]] = field(default_factory=list)
    stores_open: list[Callable[[], None]] = field(default_factory=list)
    copies: list[list[tuple[Array, Array, Array]]] = field(default_factory=list)
    """Groups of copies: where to, what, and which lanes asked for them."""
    copies_open: list[tuple[Array, Array, Array]] = field(default_factory=list)
    met: int = 0
    """Meetings of the cluster that this warp has arrived at."""
    afar: dict[int, Array] = field(default_factory=dict)
    """What this warp knows of the warps of other blocks."""
    awaited: bool = False
    """Whether the kernels before this one have ended."""

    def __post_init__(self) -> None:
        self.awaited = not self.block.kernel.waits

    @abstractmethod
    def start(self) -> Running:
        """Everything that the warp does, up to where it must wait, again and again."""

    def value(self, expression: Scalar | int) -> Value:
        if isinstance(expression, int):
            return expression
        return self.block.memo.value(expression, self.names, self.warp, self.block)

    def one(self, expression: Scalar | int, mask: Lanes) -> int:
        """A number on which the active lanes agree."""
        return only(self.value(expression), mask)

    def address(self, address: ir.Address, mask: Lanes) -> int:
        """A byte address on which the active lanes agree."""
        return self.one(address.offset, mask) + self.block.tiles[address.tile]

    def places(self, address: ir.Address) -> Array:
        """A byte address for every lane."""
        return self.block.expansions.addresses(
            self.value(address.offset), self.block.tiles[address.tile]
        )

    def barrier(self, place: ir.BarrierAt, mask: Lanes, block: Block | None = None) -> Mbarrier:
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

    def learn(self, known: Array | None) -> None:
        """Go on where others have arrived."""
        if known is not None:
            self.block.memory.races.acquire(self.warp, known)

    def blocks(self, *, everywhere: bool) -> Sequence[Block]:
        """This block, or all of its cluster."""
        return self.block.cluster.blocks if everywhere else (self.block,)


MakeWarp: TypeAlias = Callable[[Block, int], Warp]
