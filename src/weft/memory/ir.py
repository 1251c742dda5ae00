"""BufferMap: the buffer and address of every tensor of a module.

    BufferMap = tensor -> MemRef, arena bytes, copies, lives, shares
    MemRef    = buffer, strides (elements), alignment, noalias
    Buffer    = input n | output n | state n | constant n | run n | arena [offset, bytes)

Semantics. A tensor's element at index i is at `dot(i, strides)` elements from the start of its
buffer; an arena buffer starts `offset` bytes into the arena. Two tensors may share a buffer when
one is dead before the other is written, or when the second is the first with some elements replaced
(`base`), or the same elements under another shape. An output with a `base` shares the base's buffer
if the base is donated, state, or internal and dead; otherwise a copy is listed, to be made before
the kernel runs. Arena ranges of tensors that live at the same time do not overlap.

A tensor's life is a pair of kernel numbers, first write to last read, both counted; what is handed
in lives from -1, what is handed out lives to the number of kernels. Two tensors that share a buffer
meet in at most one kernel, the one that reads the first and writes the second, and are listed under
`shares` with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field, replace
from enum import Enum

from weft.foundation.json_records import SAID
from weft.foundation.records import dataclass


class Space(Enum):
    """What kind of memory a buffer is."""

    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    CONSTANT = "constant"
    RUN = "run"
    """What the random numbers of a run depend on."""
    ARENA = "arena"


@dataclass(frozen=True)
class Buffer:
    """A piece of memory: the n-th of its space, or a range of the arena."""

    space: Space
    number: int
    offset: int
    bytes: int

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two have bytes in common."""
        if self.space is not other.space or self.number != other.number:
            return False
        if self.space is not Space.ARENA:
            return True
        return self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes


@dataclass(frozen=True)
class MemRef:
    """How a tensor lies in a buffer. Strides are in elements."""

    tensor: str
    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    noalias: bool
    element_bytes: int = field(default=1, metadata=SAID)


def lie_alike(refs: Iterable[MemRef]) -> Hashable:
    """All of how tensors lie but which buffers they are in: kernels of one structure whose tensors
    lie alike are carried out alike."""
    places: dict[Buffer, int] = {}
    return tuple(
        (
            places.setdefault(ref.buffer, len(places)),
            ref.buffer.space,
            ref.shape,
            ref.strides,
            ref.alignment,
            ref.noalias,
            ref.element_bytes,
        )
        for ref in refs
    )


@dataclass(frozen=True)
class Copy:
    """A copy that had to be made before a kernel, and why."""

    before: str
    source: str
    target: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Share:
    """A tensor that took over the buffer of another one, in which kernel, and why it may."""

    kernel: str
    first: str
    second: str
    why: str


@dataclass(frozen=True)
class BufferMap:
    """Where everything lives."""

    refs: dict[str, MemRef]
    arena_bytes: int
    copies: tuple[Copy, ...] = field(default=(), metadata=SAID)
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    shares: tuple[Share, ...] = field(default=(), metadata=SAID)

    def refs_of(self, names: Iterable[str]) -> dict[str, MemRef]:
        """The tensors of one kernel. Those that share no bytes with another one of them are
        `noalias`, whatever other kernels do with their buffers."""
        refs = [self.refs[name] for name in names]
        own = (
            ref if ref.noalias or not _overlaps_no_other(ref, refs) else replace(ref, noalias=True)
            for ref in refs
        )
        return {ref.tensor: ref for ref in own}


def _overlaps_no_other(ref: MemRef, others: Sequence[MemRef]) -> bool:
    return not any(o is not ref and o.buffer.overlaps(ref.buffer) for o in others)
