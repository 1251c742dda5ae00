"""Synchronisation statements: barriers between threads, clusters and blocks, and waits between
kernels.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.codegen.gpu.ir.frame import Address, BarrierAt
from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class NamedBarrier:
    """Meet the other threads that use the same number."""

    number: Scalar
    threads: int


@dataclass(frozen=True)
class SyncThreads:
    """Meet all threads of the block."""


@dataclass(frozen=True)
class SyncWarp:
    """Meet the other lanes of the warp."""


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


ClusterStmt: TypeAlias = ClusterArrive | ClusterWait | StCluster | SendCluster


@dataclass(frozen=True)
class AdmitNext:
    """Let the next kernel start, once all blocks have said so or have ended."""


@dataclass(frozen=True)
class AwaitPrevious:
    """Wait until the kernels before this one have ended; every thread does."""


ChainStmt: TypeAlias = AdmitNext | AwaitPrevious
