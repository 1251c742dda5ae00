"""A target: features, limits and measured numbers of a machine, as data.

Later stages ask a target; they never ask its name. A *unit* is what runs a block of work on its
own: a streaming multiprocessor, or a core. Numbers that a kind of machine does not have are 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass

PORTABLE_CLUSTER: Final = 8
"""Blocks of a cluster that every GPU with clusters can run."""
CLUSTERS: Final = (1, 2, 4, 8, 16)
"""Blocks that can run side by side."""


class Kind(Enum):
    """Which code generator serves a target."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class Limits:
    """What one block and one unit have."""

    units: int
    vector_bits: int
    shared_bytes_per_block: int = 0
    shared_bytes_per_unit: int = 0
    registers_per_unit: int = 0
    registers_per_thread: int = 0
    vector_registers: int = 0
    warps_per_unit: int = 1
    blocks_per_unit: int = 1
    threads_per_block: int = 1
    cache_bytes: tuple[int, ...] = ()
    """Cache sizes from the nearest to the last."""
    clusters: tuple[tuple[int, int], ...] = ()
    """Blocks of a cluster, and how many such clusters, a block to a unit, run at a time."""


@dataclass(frozen=True)
class Rates:
    """What a machine was measured to reach: operations and bytes in a second."""

    matrix_flops: Mapping[str, float] = field(hash=False)
    """By dtype name, through matrix instructions (or the vector units where there are none)."""
    vector_flops: Mapping[str, float] = field(hash=False)
    bandwidth: float = 0.0
    launch_seconds: float = 0.0
    """What starting one kernel inside a program costs."""
    seen: float = 0.0
    """Of computing and moving, how much of the shorter the longer does not hide: nothing where
    thousands of threads take turns."""


@dataclass(frozen=True)
class Target:
    """A machine to compile for."""

    name: str
    kind: Kind
    features: frozenset[str]
    limits: Limits
    rates: Rates
    machine: str = ""
    """The processors that code is for; nothing: this one."""
    code: tuple[str, str, str] = ("", "", "")
    """What LLVM calls them: triple, processor, features."""

    @property
    def is_here(self) -> bool:
        """Whether programs are for this process, and not for any machine of a kind."""
        return not self.machine

    def has(self, feature: str) -> bool:
        return feature in self.features

    def matrix_rate(self, dtype: DType) -> float:
        """Operations a second of a contraction over `dtype`; dtypes that have no instruction run as
        f32."""
        return self.rates.matrix_flops.get(dtype.name, self.rates.matrix_flops["f32"])

    def vector_rate(self, dtype: DType) -> float:
        """Operations a second of elementwise work on `dtype`."""
        return self.rates.vector_flops.get(dtype.name, self.rates.vector_flops["f32"])

    def lanes(self, dtype: DType) -> int:
        """How many elements of `dtype` one vector instruction carries."""
        return max(1, self.limits.vector_bits // (8 * dtype.storage_bytes))

    @property
    def blocks_per_row(self) -> int:
        """Blocks of a GPU, a cluster, that can keep one row among them."""
        return PORTABLE_CLUSTER if self.has("cluster") else 1

    def clusters(self, blocks: int) -> int:
        """How many clusters of so many blocks, one to a unit, a GPU has room for at a time."""
        known = dict(self.limits.clusters)
        return known.get(blocks, self.limits.units // blocks)

    @property
    def row_bytes(self) -> int:
        """How much of one row can be kept on chip between passes over it."""
        if self.kind is Kind.GPU:
            return self.limits.shared_bytes_per_block * self.blocks_per_row
        return self.limits.cache_bytes[1] // 2 if len(self.limits.cache_bytes) > 1 else 1 << 17

    @property
    def streams_attention(self) -> bool:
        """Whether there is a template that computes an attention without its scores in memory."""
        return self.kind is Kind.CPU or self.has("mma.sync")

    @property
    def fingerprint(self) -> str:
        """A digest of everything that can change generated code: part of every cache key."""
        parts = (
            *(self.name, self.kind.value, sorted(self.features), self.limits),
            *((self.machine,) if self.machine else ()),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
