"""Overlap of exchanges between ranks with kernels.

An exchange begins when its operands are there, and has to be over before the first step that
touches its memory, before control flow, and before the end of the run: where that is follows from
the steps. Between kernels it is polled, since MPI gets on only while somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from weft.foundation.ranks import Begun
from weft.runtime.artifact import Artifact, BufferSlot, CopyBuffer, HostCall, Launch, Step

Array = NDArray[Any]

Begin: TypeAlias = Callable[[Sequence[Array], Sequence[Array], bool, str], Begun]


@runtime_checkable
class Exchanging(Protocol):
    """A function of the host that can be begun, and be waited for later."""

    @property
    def begin(self) -> Begin:
        """From operands into results; whether it is waited for at once; the step's name."""
        ...


def needed_at(artifact: Artifact, begun: Sequence[int]) -> Mapping[int, int]:
    """For each step that begins an exchange the position before which it must be over."""
    return {position: _first_after(artifact, position) for position in begun}


def _first_after(artifact: Artifact, position: int) -> int:
    mine = _slots(artifact, artifact.steps[position]) or []
    for number in range(position + 1, len(artifact.steps)):
        theirs = _slots(artifact, artifact.steps[number])
        # Control flow may lead to any step: what is under way is waited for before it, so that what
        # follows can be read from the list in order.
        if theirs is None or any(_may_share_bytes(a, b) for a in mine for b in theirs):
            return number
    return len(artifact.steps)


def _slots(artifact: Artifact, step: Step) -> list[BufferSlot] | None:
    """The memory that a step touches; None for control flow, which may lead anywhere."""
    match step:
        case Launch(buffers=numbers):
            pass
        case CopyBuffer(source=source, target=target):
            numbers = (source, target)
        case HostCall(inputs=inputs, outputs=outputs):
            numbers = tuple(number for number, _ in (*inputs, *outputs))
        case _:
            return None
    return [artifact.buffers[number] for number in numbers]


def _may_share_bytes(a: BufferSlot, b: BufferSlot) -> bool:
    """Whether two pieces of memory may have bytes in common. Pieces of the arena have offsets."""
    if a.space != b.space or (a.space != "arena" and a.number != b.number):
        return False
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


@dataclass
class Flight:
    """The exchanges of one run that are under way, and where each has to be over."""

    under_way: list[tuple[int, Begun]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.under_way)

    def add(self, until: int, begun: Begun) -> None:
        self.under_way.append((until, begun))

    def land(self, position: int) -> None:
        """Wait for what has to be over before a step."""
        if not self.under_way:
            return
        due = [begun for until, begun in self.under_way if until <= position]
        self.under_way = [pair for pair in self.under_way if pair[0] > position]
        for begun in due:
            begun.wait()

    def poll(self) -> None:
        if self.under_way:
            # Polling the oldest is enough: exchanges go on one after the other.
            self.under_way[0][1].poll()
