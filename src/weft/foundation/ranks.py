"""The interface to the ranks that run one program together: what collectives call.

A `World` is one rank's view: its number, how many there are, and `meet`, by which the members of a
group hand each other arrays. Everything else a collective needs is written in terms of that; a
transport that has something faster overrides it. Sums are balanced trees over the ranks in order:
`(r0 + r1) + (r2 + r3)`. The world in force belongs to a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import ExecutionError, SpecViolation, UserError

Array = NDArray[Any]
COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
"""What a reduction makes of two ranks' elements; on i1 sums are or, and products and."""


@dataclass(frozen=True)
class Meeting:
    """One collective as a rank comes to it."""

    name: str
    """What it does, attributes that all members must agree in included."""
    members: tuple[int, ...]
    """The ranks of the group, in order."""
    line: str = ""
    """The line of the user's that asked for it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.line})" if self.line else self.name


@dataclass(frozen=True)
class Exchange:
    """A collective whose tensors are contiguous pieces, as a transport between devices knows it.
    Where members send to single others, `source` and `target` are the places of this one's."""

    kind: str
    meeting: Meeting
    fn: str = ""
    source: int = -1
    target: int = -1


def collective_timeout() -> float:
    """The seconds after which a rank gives up waiting for the others."""
    text = os.environ.get("WEFT_COLLECTIVE_TIMEOUT", "300")
    try:
        return float(text)
    except ValueError:
        raise UserError(f"WEFT_COLLECTIVE_TIMEOUT is {text!r}; give seconds") from None


class RankFailed(ExecutionError):
    """The ranks of a mesh do not come together: one failed, is late, or does something else."""


@runtime_checkable
class ReducesOverRanks(Protocol):
    """An op that makes one of the elements of several ranks, each for itself."""

    @property
    def ranks_and_fn(self) -> Hashable:
        """The groups of ranks and the function: ops that have the same can be one exchange."""
        ...


class Begun:
    """An exchange that may still go on. Until it is over nobody changes what it was given, or looks
    at what it gives."""

    def poll(self) -> None:
        """Let it go on for a moment."""

    def wait(self) -> None:
        """Return when it is over."""


class World:
    """One rank of a mesh."""

    rank: int
    count: int
    is_process = False
    """Whether no other rank is in this process, so that a device can be this rank's own."""

    @cached_property
    def agreed(self) -> set[bytes]:
        """Digests of the programs of which this rank knows that all ranks run them."""
        return set()

    def meet(self, meeting: Meeting, array: Array) -> list[Array]:
        """The arrays of all members, in their order; mine is among them. Nobody changes them."""
        raise NotImplementedError

    def all_reduce(self, meeting: Meeting, array: Array, fn: str) -> Array:
        return combined(self.meet(meeting, array), fn)

    def begin_all_reduce(
        self,
        meeting: Meeting,
        parts: Sequence[Array],
        results: Sequence[Array],
        fn: str,
        at_once: bool,
    ) -> Begun:
        """Begin to reduce some arrays of one dtype into others, which may be the same. `at_once` is
        whether it is waited for before anything else; all members say the same."""
        for part, result in zip(parts, results, strict=True):
            result[...] = self.all_reduce(meeting, part, fn)
        return Begun()

    def all_gather(self, meeting: Meeting, array: Array, axis: int) -> Array:
        return np.concatenate(self.meet(meeting, array), axis)

    def reduce_scatter(self, meeting: Meeting, array: Array, axis: int, fn: str) -> Array:
        parts = self.all_to_all(meeting, array, axis)
        return combined(parts, fn)

    def all_to_all(self, meeting: Meeting, array: Array, axis: int) -> list[Array]:
        """My part of each member's array, cut along an axis into as many parts as members."""
        place = meeting.members.index(self.rank)
        whole = self.meet(meeting, array)
        return [np.split(part, len(meeting.members), axis)[place] for part in whole]

    def permute(self, meeting: Meeting, array: Array, source: int, target: int) -> Array:
        """The array of the member at place `source`, and zeros for -1. Mine goes to the member at
        place `target`, or to nobody."""
        parts = self.meet(meeting, array)
        return np.zeros_like(array) if source < 0 else parts[source]

    def broadcast(self, meeting: Meeting, array: Array) -> Array:
        """The array of the first member."""
        return self.meet(meeting, array)[0]


class Alone(World):
    """A mesh of one rank."""

    rank, count = 0, 1
    is_process = True

    def meet(self, meeting: Meeting, array: Array) -> list[Array]:
        return [array]


def combined(parts: Sequence[Array], fn: str) -> Array:
    """The parts put together two by two, as a balanced tree. Narrow floats are summed in f32 and
    rounded once; integers wrap."""
    dtype = as_dtype(parts[0].dtype)
    combine = COMBINE[fn]
    level = [numeric.widen(part, dtype) for part in parts]
    while len(level) > 1:
        # A tree rounds log2 of the ranks many times, and its order depends on the ranks' numbers
        # alone: every transport that has parts in order gives the same bits.
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [combine(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    wide = np.asarray(level[0])
    return wide if wide.dtype == dtype.numpy else numeric.narrow(wide, dtype)


class _Here(threading.local):
    world: World | None = None


_here = _Here()
_process: list[World] = []
"""The world of this process, where it is one of several ranks."""


def settle(world: World) -> None:
    """From now on all threads of this process are this rank, unless they say otherwise."""
    _process[:] = [world]


@contextmanager
def as_rank(world: World) -> Iterator[World]:
    """What this thread runs in the block, it runs as a rank of that world."""
    before, _here.world = _here.world, world
    try:
        yield world
    finally:
        _here.world = before


def world_here() -> World:
    """The world in force."""
    return _here.world or (_process[0] if _process else Alone())


def world_of(count: int, what: str) -> World:
    """The world in force, which a program for `count` ranks needs."""
    found = world_here()
    if found.count != count:
        raise SpecViolation(
            "MeshMismatch",
            f"{what} is of a program for {count} ranks, and it runs on {found.count}",
            f"call weft.mesh() before, in a script that `weft launch -n {count} SCRIPT` starts, or "
            "call it through weft.spmd, on a mesh of that many ranks",
        )
    return found
