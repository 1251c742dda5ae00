"""Statements of TMA and mbarrier (SM90), and of cp.async (SM80)."""

from __future__ import annotations

from typing import TypeAlias

from weft.codegen.gpu.ir.frame import Address, BarrierAt
from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass


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
    each. `once`: nobody else will read the box, so it leaves the cache first. `taps`: of an image,
    how far from each place its element lies, along the axes that windows move over."""

    target: Address
    map: str
    coords: tuple[Scalar, ...]
    barrier: BarrierAt
    everywhere: bool = False
    once: bool = False
    taps: tuple[Scalar, ...] = ()


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
    """Order this thread's plain accesses of shared memory before later asynchronous ones: stores
    before reads, loads before writes."""


@dataclass(frozen=True)
class CpAsync:
    """Copy 16 bytes, or 8 or 4, from global to shared memory; where the guard fails, zeros. Both
    places are multiples of as many."""

    target: Address
    buffer: int
    offset: Scalar
    guard: Scalar
    bytes: int = 16
    constant: bool = False
    """Whether no kernel of the program writes the buffer, so that kernels ahead may still run."""


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
    constant: bool = True
    """Whether nobody writes the buffer while the kernel runs."""


@dataclass(frozen=True)
class CommitGroup:
    """Close a group of copies."""


@dataclass(frozen=True)
class WaitGroup:
    """Wait until at most `pending` groups of this thread's copies are unfinished."""

    pending: int


Sm80Copy: TypeAlias = CpAsync | Gather | CommitGroup | WaitGroup
Sm90Copy: TypeAlias = (
    MbarrierInit | MbarrierInitFence | MbarrierExpectTx | MbarrierArrive | MbarrierWait
    | PrefetchMap | TmaLoad | BulkLoad | TmaStore | TmaCommit | TmaWaitRead | ProxyFence
)  # fmt: skip
