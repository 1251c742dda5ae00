"""BufferMap: where every tensor of a module lives.

    BufferMap = tensor -> MemRef, arena bytes, copies
    MemRef    = buffer, strides (elements), offset, alignment, noalias
    Buffer    = input n | output n | state n | constant n | arena [offset, bytes)

Semantics. A tensor's element at index i is at `offset + dot(i, strides)` elements from the start of
its buffer. Two tensors may share a buffer when one is dead before the other is written, or when the
second is the first with some elements replaced (`base`), or the same elements under another shape.
An output with a `base` shares the base's buffer if the base is donated, state, or internal and
dead; otherwise a copy is listed, to be made before the kernel runs. Arena ranges of tensors that
live at the same time do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Space(Enum):
    """What kind of memory a buffer is."""

    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    CONSTANT = "constant"
    ARENA = "arena"


@dataclass(frozen=True)
class Buffer:
    """A piece of memory: the n-th of its space, or a range of the arena."""

    space: Space
    number: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class MemRef:
    """How a tensor lies in a buffer. Strides are in elements."""

    tensor: str
    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    noalias: bool


@dataclass(frozen=True)
class Copy:
    """A copy that had to be made before a kernel, and why."""

    before: str
    source: str
    target: str
    bytes: int
    why: str


@dataclass(frozen=True)
class BufferMap:
    """Where everything lives."""

    refs: dict[str, MemRef]
    arena_bytes: int
    copies: tuple[Copy, ...] = ()
