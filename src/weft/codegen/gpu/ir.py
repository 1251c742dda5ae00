"""The GPU dialect: what the threads of one block do, as data. CUDA C is printed from it.

    Kernel = grid, threads, buffers, maps [TensorMap], tiles [SharedTile], barriers [Barriers],
             tables, body
    Stmt   = Let | Set | Registers | For | If | Roles(case, ...)                     control
           | LoadElement | StShared | LoadShared | LoadSharedVector | LoadStaged      elements
           | Epilogue | StGlobalVec | StGlobalRow
           | statements on single values (`values.py`)                               map, row
           | CpAsync | Gather | CommitGroup | WaitGroup | LdMatrix | LdRegister | MmaSync    SM80
           | MbarrierInit | MbarrierInitFence | MbarrierExpectTx | MbarrierArrive | MbarrierWait
           | PrefetchMap | TmaLoad | BulkLoad | TmaStore | TmaCommit | TmaWaitRead | ProxyFence
           | Descriptor | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait
           | StMatrix | SetMaxNReg                                                   SM90
           | NamedBarrier | SyncThreads | AddRegisters                               both
           | ClusterArrive | ClusterWait | StCluster | SendCluster                   clusters
           | AdmitNext | AwaitPrevious                                               chains

Semantics. Every statement is executed by all threads that reach it, each with its own variables
and register arrays; `Roles` sends ranges of warps (whole warpgroups) to different bodies. Shared
memory is one array of bytes: a `SharedTile` is a range of it, and addresses are a tile plus a byte
offset. Register arrays are indexed by numbers: they stay in registers.

Asynchronous statements take effect late, between their issue and the wait that covers them:
`TmaLoad` writes its box (zeros outside the tensor), `BulkLoad` its elements, and then each counts
its bytes on its barrier;
`Wgmma` reads its operands and updates its accumulators by the `WgmmaWait` that covers its group;
`CpAsync` writes by the `WaitGroup` that covers its group; `TmaStore` reads by the `TmaWaitRead`
that covers its group. What an asynchronous statement reads must be written before (with a
`ProxyFence` where plain stores wrote it) and not overwritten until then.

Blocks of a cluster run side by side. `StCluster` writes into another block's shared memory; what
was written before a `ClusterArrive` is there after the `ClusterWait` that follows in that block.
`SendCluster` writes there too, late, and then counts its bytes on a barrier of that block: nobody
waits for stores to memory meanwhile.

A kernel with an `AwaitPrevious` may be launched while the kernels before it still run: it touches
no memory that others can see before it has waited for them.

A barrier has a phase, which completes when all arrivals have come and all announced bytes have been
counted; `MbarrierWait(parity)` passes when the phase of that parity is complete. Waiting for a
phase more than one ahead passes by mistake: templates never do it, and the interpreter checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from weft.codegen.gpu.element import ElementOp, Number
from weft.codegen.gpu.scalar import Like, Scalar, scalar
from weft.codegen.gpu.swizzle import Major, Swizzle, TileLayout
from weft.codegen.gpu.values import ValueStmt
from weft.foundation.dtypes import F32, F64, DType


@dataclass(frozen=True)
class SharedTile:
    """A range of shared memory. `layout` is that of one matrix in it, where it holds matrices."""

    name: str
    offset: int
    bytes: int
    layout: TileLayout | None = None


@dataclass(frozen=True)
class Barriers:
    """An array of mbarriers, each completed by `arrivals` arrivals."""

    name: str
    offset: int
    count: int
    arrivals: int

    @property
    def bytes(self) -> int:
        return 8 * self.count


@dataclass(frozen=True)
class Table:
    """Constants the kernel looks up."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the copy engine sees it: contiguous axis first.

    `offset` is in elements from the start of the buffer; `strides` (elements) has no entry for the
    first axis. `box` is what one copy moves.
    """

    name: str
    buffer: int
    dtype: DType
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle


@dataclass(frozen=True)
class Address:
    """A byte of a shared tile."""

    tile: str
    offset: Scalar


@dataclass(frozen=True)
class BarrierAt:
    """One barrier of an array."""

    barriers: str
    index: Scalar


class RegisterKind(Enum):
    """What a register array holds: numbers, or 32 bits of anything (pairs of 16-bit floats)."""

    F32 = "float"
    F64 = "double"
    S32 = "int"
    B32 = "u32"

    @classmethod
    def for_sums(cls, dtype: DType) -> RegisterKind:
        """Of accumulators of a dtype; unsigned sums are made as signed ones."""
        return {F32: cls.F32, F64: cls.F64}.get(dtype, cls.S32)

    @classmethod
    def for_results(cls, dtype: DType) -> RegisterKind:
        """Of what an element program makes."""
        return {F32: cls.F32, F64: cls.F64}.get(dtype, cls.B32)


@dataclass(frozen=True)
class RegAt:
    """An element of a register array."""

    array: str
    index: int = 0


# Control


@dataclass(frozen=True)
class Let:
    """A new integer variable."""

    name: str
    value: Scalar


@dataclass(frozen=True)
class Set:
    """A new value for a variable."""

    name: str
    value: Scalar


@dataclass(frozen=True)
class Registers:
    """A register array, of undefined content unless it starts as zeros."""

    name: str
    kind: RegisterKind
    count: int
    zero: bool = False


@dataclass(frozen=True)
class For:
    """`for var in range(start, stop, step)`; the compiler may interleave `times` turns."""

    var: str
    start: Like
    stop: Like
    step: Like
    body: tuple[Stmt, ...]
    times: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "stop", "step"):
            object.__setattr__(self, name, scalar(getattr(self, name)))


@dataclass(frozen=True)
class If:
    """The threads for which `cond` holds do `then`, the others `otherwise`."""

    cond: Scalar
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True)
class Role:
    """What the warps `first .. first + count - 1` do."""

    name: str
    first: int
    count: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Roles:
    """Warps part ways, for good. The cases cover all warps."""

    cases: tuple[Role, ...]


# Elements


@dataclass(frozen=True)
class LoadElement:
    """`name = buffer[offset]`, or `fill` where the guard fails."""

    name: str
    buffer: int
    dtype: DType
    offset: Scalar
    guard: Scalar
    fill: Number = 0
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""


@dataclass(frozen=True)
class StShared:
    """Store a value as `dtype`, in whole words."""

    target: Address
    source: str
    dtype: DType


@dataclass(frozen=True)
class LoadShared:
    """A value that was stored as `dtype`."""

    name: str
    dtype: DType
    source: Address


@dataclass(frozen=True)
class LoadSharedVector:
    """Values that were stored as `dtype` one after the other, by one access."""

    names: tuple[str, ...]
    dtype: DType
    source: Address


@dataclass(frozen=True)
class LoadStaged:
    """Elements that a copy has put one after the other into shared memory, packed as in global
    memory, by one access."""

    names: tuple[str, ...]
    dtype: DType
    source: Address


@dataclass(frozen=True)
class StSharedVec:
    """Store consecutive registers of 32 bits."""

    target: Address
    source: RegAt
    count: int


@dataclass(frozen=True)
class SharedColumns:
    """A value per column, from f32s in shared memory that begin with this thread's first column."""

    name: str
    dtype: DType
    source: Address


@dataclass(frozen=True)
class GlobalElements:
    """A value per element, from `buffer[base + row * row_stride + column * column_stride]`."""

    name: str
    dtype: DType
    buffer: int
    base: Scalar
    row_stride: int
    column_stride: int


@dataclass(frozen=True)
class IndexElements:
    """`base + row * row_factor + column * column_factor` as a number."""

    name: str
    dtype: DType
    base: Scalar
    row_factor: int
    column_factor: int


@dataclass(frozen=True)
class StagedElements:
    """A value per element, from a panel in shared memory whose rows follow one another, pieces
    permuted: where this thread's first row begins, and its first column in bytes."""

    name: str
    dtype: DType
    row: Address
    column: Scalar
    swizzle: Swizzle


ElementSource: TypeAlias = SharedColumns | StagedElements | GlobalElements | IndexElements


@dataclass(frozen=True)
class Fragment:
    """Where a thread's share of a 16-row accumulator lies in the result.

    Accumulators come in groups of 8 columns; of each, a thread holds four elements: (row, column),
    (row, column + 1), (row + 8, column), (row + 8, column + 1). The next group is 8 columns on.
    Elements outside `rows x columns` are neither read from memory nor stored.
    """

    groups: int
    row: Scalar
    column: Scalar
    rows: int
    columns: int


@dataclass(frozen=True)
class Epilogue:
    """Apply `ops` to every element of an accumulator and keep the results in registers.

    `value` names the accumulator's element, of `value_dtype`, in `ops`, `result` the op whose value
    is kept: results of 32 and 64 bits as they are (four registers a group), narrower ones in pairs,
    the first in the lower bits (two registers a group).
    """

    acc: RegAt
    fragment: Fragment
    value: str
    sources: tuple[ElementSource, ...]
    ops: tuple[ElementOp, ...]
    result: str
    out: RegAt
    out_dtype: DType
    value_dtype: DType = F32


@dataclass(frozen=True)
class StGlobalVec:
    """Store a fragment of results, `width` elements at a time, at
    `buffer[base + row * row_stride + column * column_stride]`."""

    source: RegAt
    dtype: DType
    fragment: Fragment
    buffer: int
    base: Scalar
    row_stride: int
    column_stride: int
    width: int


@dataclass(frozen=True)
class StGlobalRow:
    """Store a piece of a row, of which each lane has a word in shared memory.

    Lanes with the same `offset` share a piece: the one with `place` p has the p-th word, and stores
    its elements to `buffer[offset + i]` where their number i in the piece is below `count`. The
    whole warp stores at once. Results need not begin at whole words.
    """

    source: Address
    dtype: DType
    buffer: int
    offset: Scalar
    place: Scalar
    count: Scalar


# SM90


@dataclass(frozen=True)
class MbarrierInit:
    """Make every barrier of an array ready for its first phase."""

    barriers: str


@dataclass(frozen=True)
class MbarrierInitFence:
    """Make initialised barriers visible to the copy engine."""


@dataclass(frozen=True)
class MbarrierExpectTx:
    """Arrive, and announce bytes that must be counted before the phase completes."""

    barrier: BarrierAt
    bytes: int


@dataclass(frozen=True)
class MbarrierArrive:
    """Arrive once; `everywhere`, on the barrier at that place of every block of the cluster."""

    barrier: BarrierAt
    everywhere: bool = False


@dataclass(frozen=True)
class MbarrierWait:
    """Wait until the phase of the given parity is complete."""

    barrier: BarrierAt
    parity: Scalar


@dataclass(frozen=True)
class PrefetchMap:
    """Bring a tensor map near; no meaning."""

    map: str


@dataclass(frozen=True)
class TmaLoad:
    """Copy one box of a tensor into shared memory. Its first coordinate is a multiple of 16
    bytes. `everywhere`: to that place of every block of the cluster, counted on the barrier of
    each. `once`: nobody else will read the box, so it leaves the cache first."""

    target: Address
    map: str
    coords: tuple[Scalar, ...]
    barrier: BarrierAt
    everywhere: bool = False
    once: bool = False


@dataclass(frozen=True)
class BulkLoad:
    """Copy `count` elements from `buffer[offset]` on into shared memory. Both ends begin at, and
    the size is, a multiple of 16 bytes."""

    target: Address
    buffer: int
    dtype: DType
    offset: Scalar
    count: int
    barrier: BarrierAt


@dataclass(frozen=True)
class TmaStore:
    """Copy one box from shared memory into a tensor. Its first coordinate is a multiple of 16
    bytes."""

    source: Address
    map: str
    coords: tuple[Scalar, ...]


@dataclass(frozen=True)
class TmaCommit:
    """Close a group of stores."""


@dataclass(frozen=True)
class TmaWaitRead:
    """Wait until at most `pending` groups of stores still read shared memory."""

    pending: int


@dataclass(frozen=True)
class ProxyFence:
    """Order this thread's plain stores to shared memory before later asynchronous reads."""


@dataclass(frozen=True)
class Descriptor:
    """A wgmma descriptor: where a matrix operand begins, and how it lies."""

    name: str
    address: Address
    layout: TileLayout
    major: Major


@dataclass(frozen=True)
class WgmmaFence:
    """Order register accesses before the following wgmmas."""


@dataclass(frozen=True)
class WgmmaOperand:
    """The slice, 32 bytes deep, that begins `offset` bytes after a descriptor's start."""

    descriptor: str
    offset: int
    major: Major


@dataclass(frozen=True)
class Wgmma:
    """`acc[64 x n] (+)= a[64 x k] b[k x n]`, k being 32 bytes of an operand; without `accumulate`
    the old content is ignored. Integers are added up in 32 bits and wrap, floats in f32; of sums of
    8-bit floats only some 14 bits are kept."""

    acc: str
    n: int
    a: WgmmaOperand
    b: WgmmaOperand
    a_dtype: DType
    b_dtype: DType
    accumulate: bool


@dataclass(frozen=True)
class WgmmaCommit:
    """Close a group of wgmmas."""


@dataclass(frozen=True)
class WgmmaWait:
    """Wait until at most `pending` groups of wgmmas are unfinished.

    Accumulators named in `acc` are read or written next.
    """

    pending: int
    acc: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetMaxNReg:
    """Change how many registers each thread of the warpgroup has."""

    count: int
    grow: bool


@dataclass(frozen=True)
class StMatrix:
    """Store two or four 8 x 8 matrices of 16-bit elements, one row address per lane."""

    target: Address
    source: RegAt
    count: int


# SM80


@dataclass(frozen=True)
class CpAsync:
    """Copy 16 bytes from global to shared memory; where the guard fails, zeros."""

    target: Address
    buffer: int
    offset: Scalar
    guard: Scalar


@dataclass(frozen=True)
class Gather:
    """Copy `count` elements, 16 bytes, that are `step` apart to neighbours in shared memory, at
    once.

    Element i comes from `buffer[offset + i * step]`, or is zero where the guard fails or i is not
    below `limit`.
    """

    target: Address
    buffer: int
    dtype: DType
    offset: Scalar
    step: int
    count: int
    limit: Scalar
    guard: Scalar


@dataclass(frozen=True)
class CommitGroup:
    """Close a group of copies."""


@dataclass(frozen=True)
class WaitGroup:
    """Wait until at most `pending` groups of this thread's copies are unfinished."""

    pending: int


@dataclass(frozen=True)
class LdMatrix:
    """Load four matrices of 8 rows of 16 bytes, one row address per lane: a lane gets the fourth of
    a row. Transposed are matrices of 8 x 8 16-bit elements."""

    target: RegAt
    source: Address
    transposed: bool


@dataclass(frozen=True)
class LdRegister:
    """An element of an operand, of 32 or 64 bits, into a register, as each lane points at one."""

    target: RegAt
    source: Address
    dtype: DType


@dataclass(frozen=True)
class MmaSync:
    """`acc[16 x 8] += a[16 x k] b[k x 8]`, fragments in registers of the warp.

    16-bit floats have k = 16 and are added up in f32, 8-bit integers k = 32, in 32 bits, where they
    wrap; f64 has k = 4. An f32 (k = 8) is multiplied as the sum of two numbers of 11 bits, without
    the product of both lower ones.
    """

    acc: RegAt
    a: RegAt
    b: RegAt
    a_dtype: DType
    b_dtype: DType


# Both


@dataclass(frozen=True)
class AddRegisters:
    """`target += source`, whole arrays; with `first` the target's old content is ignored, with
    `clear` the source then holds zeros."""

    target: str
    source: str
    first: bool = False
    clear: bool = False


@dataclass(frozen=True)
class NamedBarrier:
    """Meet the other threads that use the same number."""

    number: Scalar
    threads: int


@dataclass(frozen=True)
class SyncThreads:
    """Meet all threads of the block."""


# Clusters


@dataclass(frozen=True)
class ClusterArrive:
    """Let the other blocks of the cluster know; every thread does, before it waits. What was
    written before is there for those that have waited, unless it is `relaxed`."""

    relaxed: bool = False


@dataclass(frozen=True)
class ClusterWait:
    """Wait until all threads of the cluster have arrived."""


@dataclass(frozen=True)
class StCluster:
    """Store a value as `dtype`, in whole words, at the same place of a block of the cluster."""

    target: Address
    block: Scalar
    source: str
    dtype: DType


@dataclass(frozen=True)
class SendCluster:
    """Store a value as `dtype`, in whole words, at the same place of a block of the cluster, and
    count its bytes on the same barrier of that block."""

    target: Address
    block: Scalar
    source: str
    dtype: DType
    barrier: BarrierAt


SharedStmt: TypeAlias = StShared | StSharedVec | LoadShared | LoadSharedVector | LoadStaged
# Chains of kernels


@dataclass(frozen=True)
class AdmitNext:
    """Let the next kernel start, once all blocks have said so or have ended."""


@dataclass(frozen=True)
class AwaitPrevious:
    """Wait until the kernels before this one have ended; every thread does."""


ChainStmt: TypeAlias = AdmitNext | AwaitPrevious
ClusterStmt: TypeAlias = ClusterArrive | ClusterWait | StCluster | SendCluster
Sm80Stmt: TypeAlias = CpAsync | Gather | CommitGroup | WaitGroup | LdMatrix | LdRegister | MmaSync
Sm90Stmt: TypeAlias = (
    MbarrierInit | MbarrierInitFence | MbarrierExpectTx | MbarrierArrive | MbarrierWait
    | PrefetchMap | TmaLoad | BulkLoad | TmaStore | TmaCommit | TmaWaitRead | ProxyFence
    | Descriptor | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait | SetMaxNReg | StMatrix
)  # fmt: skip
Stmt: TypeAlias = (
    Let | Set | Registers | For | If | Roles
    | LoadElement | SharedStmt | Epilogue | StGlobalVec | StGlobalRow
    | ValueStmt | Sm80Stmt | Sm90Stmt | ClusterStmt | ChainStmt | NamedBarrier | SyncThreads
    | AddRegisters
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """What one launch runs. Parameters are the tensor maps, then one pointer per buffer, then, in
    kernels that report violations, that of the error word."""

    name: str
    grid: int
    threads: int
    buffers: tuple[str, ...]
    """Tensors, by the position of their pointer."""
    maps: tuple[TensorMap, ...]
    tiles: tuple[SharedTile, ...]
    barriers: tuple[Barriers, ...]
    tables: tuple[Table, ...]
    body: tuple[Stmt, ...]
    reports: bool = False
    """Whether it can find a violation."""
    cluster: int = 1
    """Neighbouring blocks that run side by side."""

    @property
    def shared_bytes(self) -> int:
        ends = [tile.offset + tile.bytes for tile in self.tiles]
        ends += [array.offset + array.bytes for array in self.barriers]
        return max(ends, default=0)

    @property
    def waits(self) -> bool:
        """Whether it waits for the kernels before it, and may be launched while they end."""
        return any(isinstance(statement, AwaitPrevious) for statement in self.body)

    def tile(self, name: str) -> SharedTile:
        return next(tile for tile in self.tiles if tile.name == name)

    def map(self, name: str) -> TensorMap:
        return next(found for found in self.maps if found.name == name)
