"""Statements of split-K: blocks that compute parts of one sum pass them on through the workspace of
the kernel, which is global memory with counters and words.

In each of them threads meet at a named barrier, as in `NamedBarrier`; `member` numbers them from 0.
What any of them did before the meeting of a `PassTurn` or a `CountOff` is seen by all threads that
go on from the `AwaitTurn`, or the later `CountOff`, that finds its counter so.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class KeepSums:
    """Store a register array in the workspace, from the word `start` on: of every four registers
    16 bytes for each of `threads` threads, side by side."""

    source: str
    start: Scalar
    member: Scalar
    threads: int


@dataclass(frozen=True)
class AddSums:
    """Add what `KeepSums` stored to a register array."""

    target: str
    start: Scalar
    member: Scalar
    threads: int


@dataclass(frozen=True)
class GatherSums:
    """Make a register array the sum of `count` that `KeepSums` stored, the second `stride` words
    behind the first, and so on: they are added up in this order."""

    target: str
    start: Scalar
    stride: int
    count: int
    member: Scalar
    threads: int


@dataclass(frozen=True)
class AwaitTurn:
    """Wait until a counter has a value, and meet."""

    counter: Scalar
    value: Scalar
    member: Scalar
    number: Scalar
    threads: int


@dataclass(frozen=True)
class PassTurn:
    """Meet, and give a counter a value."""

    counter: Scalar
    value: Scalar
    member: Scalar
    number: Scalar
    threads: int


@dataclass(frozen=True)
class CountOff:
    """Meet, and add one to a counter, which after `last` begins again at 0; `name` is whether it
    did."""

    name: str
    counter: Scalar
    last: Scalar
    member: Scalar
    number: Scalar
    threads: int


PartStmt: TypeAlias = KeepSums | AddSums | GatherSums | AwaitTurn | PassTurn | CountOff
