"""Ranks that are processes, which meet through MPI.

Every collective begins with a word of each member about what it is at: members that are at
different ones, or at one with different shapes, say so at once. Waiting is polling with a deadline
(`WEFT_COLLECTIVE_TIMEOUT` seconds), so that a rank that never comes is named. A rank that fails
says why, in one sentence, and ends the whole job: nobody waits for it.

Exchanges that were begun go on one after the other, in the order in which they were begun: MPI
wants the members of a group to begin in one order, and when a rank polls is its own affair.

Buffers go as they are. MPI has no 16-bit floats of Google's and no 4 and 8-bit ones: they are
combined in f32; 4-bit integers in 8 bits. i1 travels as bytes.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import hashlib
import importlib
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import I1, as_dtype
from weft.foundation.errors import UserError, WeftError
from weft.foundation.lines import failing_line, shown
from weft.foundation.ranks import Begun, Meeting, RankFailed, World, collective_timeout
from weft.runtime.board import ENDED, FAILED, STARTING, Board
from weft.runtime.host_memory import address_of

Array = NDArray[Any]
T = TypeVar("T")
Steps: TypeAlias = Generator[Any, None, T]
"""An exchange: the requests of MPI that it waits for, one after the other."""
_SPIN = 200e-6
"""Seconds of polling without a pause: most collectives are over by then."""
_OF_MPI = frozenset("bBhHiIlLqQfdFD")
"""The dtypes that MPI combines as they are, by NumPy's letters."""
_ENDED_FOR = 1.0
"""Seconds for which a rank must have ended before others give up."""
_ENDED_BY = 5.0
"""Seconds in which a launcher of Weft's ends a job that has failed."""
_BUSY = 0.02
"""Seconds of polling in turn with other processes; from then on a rank sleeps between."""


def join_world(count: int, place: int | None = None) -> MpiRank:
    """This process as a rank of MPI's world, of so many ranks, which fails as a whole from now
    on. `place` is its number, where the launcher says it."""
    with _wait_for_start(count, place):
        try:
            mpi = importlib.import_module("mpi4py.MPI")
        except ModuleNotFoundError:
            why = f"the launcher started {count} ranks, which meet through MPI: install weft[mpi]"
            raise UserError(why) from None
    made = MpiRank(mpi)
    sys.excepthook = made.failed
    atexit.register(made.left)
    return made


@contextmanager
def _wait_for_start(count: int, place: int | None) -> Iterator[None]:
    """MPI waits in the block until all ranks are there. A launcher of Weft's reads on the board who
    waits; without one a rank ends by itself after the deadline, and says where it was."""
    path = os.environ.get("WEFT_BOARD", "")
    if path and place is not None and Path(path).is_file():
        Board(path, count).write(place, STARTING)
        yield
        return
    watched = False
    with suppress(AttributeError, OSError, ValueError, RuntimeError):
        # A thread of Python's would wait with MPI, which lets go of nothing.
        faulthandler.dump_traceback_later(collective_timeout(), exit=True)
        watched = True
    try:
        yield
    finally:
        if watched:
            faulthandler.cancel_dump_traceback_later()


class MpiRank(World):
    """One process of an MPI job."""

    is_process = True

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.comm = mpi, mpi.COMM_WORLD
        self.rank, self.count = self.comm.Get_rank(), self.comm.Get_size()
        self.timeout = collective_timeout()
        self.board = self._board()
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.count)): self.comm.Dup()}
        self._begun: deque[_Exchange] = deque()
        """Exchanges that are not over, in the order in which they were begun."""
        self._turn = threading.RLock()
        self._inside: tuple[float, Meeting] | None = None
        """Since when this rank is in a call of MPI that does not return before it is over."""
        self._watcher: threading.Thread | None = None
        self.board.write(self.rank, "has started")

    def _board(self) -> Board:
        """The board of this machine's ranks: the launcher's, or one that rank 0 makes."""
        given = os.environ.get("WEFT_BOARD", "")
        self._is_watched = bool(given)
        path = given if self.rank == 0 else ""
        if self.rank == 0 and not given:
            folder = Path(tempfile.mkdtemp(prefix="weft-ranks-"))
            path = str(folder / "board")
            Board.made(path, self.count)
        here = f"{socket.gethostname()}\n{path}".encode().ljust(4096, b"\0")
        said = bytearray(here)
        self.comm.Bcast(said, 0)
        host, path = bytes(said).rstrip(b"\0").decode().split("\n", 1)
        if host != socket.gethostname():
            # Of another machine: this rank has a board of its own, and knows nobody's place.
            path = str(Path(tempfile.mkdtemp(prefix="weft-ranks-")) / "board")
            Board.made(path, self.count)
            self._is_watched = False
        return Board(path, self.count)

    # -- the end ---------------------------------------------------------------------------------

    def failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """What an exception that nobody caught does: one sentence, and the end of the job."""
        line = shown(failing_line(error.with_traceback(trace)))
        said = str(error) if isinstance(error, WeftError) else f"{kind.__name__}: {error}"
        place = f" at {line}" if line and line not in said else ""
        if not isinstance(error, WeftError | KeyboardInterrupt):
            traceback.print_exception(kind, error, trace)
        self.abort(f"rank {self.rank} failed{place}: {said}")

    def abort(self, why: str) -> None:
        """End the job, with one sentence. A launcher of Weft's says it, after all that others have
        to say, and ends the job without words of MPI's; no other launcher is waited for."""
        sys.stdout.flush()
        if self._is_watched:
            self.board.tell(why)
            self.board.write(self.rank, FAILED)
            time.sleep(_ENDED_BY)
        self.board.write(self.rank, FAILED)
        print(f"weft: {why}", file=sys.stderr, flush=True)
        self.comm.Abort(1)

    def left(self) -> None:
        """The program of this rank is over."""
        if self.board.read(self.rank) != FAILED:
            self.board.write(self.rank, ENDED)

    # -- meeting ---------------------------------------------------------------------------------

    def _group(self, members: tuple[int, ...]) -> Any:
        """The communicator of a group; all its members come here at their first meeting."""
        found = self._groups.get(members)
        if found is None:
            world = self.comm.Get_group()
            # All members work out the same tag, and two groups that are made at the same time by
            # overlapping ranks most likely differ in it. MPI promises tags up to 32,767.
            tag = int.from_bytes(_digest(str(members))[:3], "little") % 30_000
            found = self.comm.Create_group(world.Incl(list(members)), tag)
            self._groups[members] = found
        return found

    def _agree_on_meeting(self, meeting: Meeting) -> Any:
        """The communicator of a meeting to which all members have come; nothing else is under
        way."""
        # MPI wants all collectives of a communicator in one order on all members: what was begun
        # comes before.
        while self._begun:
            self._begun[-1].wait()
        self.board.write(self.rank, f"is at {meeting}")
        agreeing = self._agree_stepwise(meeting)
        try:
            while True:
                self._wait(next(agreeing), meeting)
        except StopIteration as over:
            return over.value

    def _agree_stepwise(self, meeting: Meeting, how: str = "") -> Steps[Any]:
        """The communicator of a meeting, once all members have come to it, in the same way."""
        comm = self._group(meeting.members)
        # Sixteen bytes, whatever the name: the word that goes before an exchange stays as cheap as
        # an empty one.
        mine = _digest(meeting.name + how)
        said = bytearray(len(mine) * len(meeting.members))
        yield comm.Iallgather(mine, said)
        for place, member in enumerate(meeting.members):
            if not said.startswith(mine, place * len(mine)):
                raise RankFailed(self._apart(meeting, member))
        return comm

    def _over(self, meeting: Meeting, result: T) -> T:
        self.board.write(self.rank, f"is past {meeting}")
        return result

    def _apart(self, meeting: Meeting, other: int) -> str:
        """Two ranks that are at different collectives."""
        end = time.monotonic() + 0.5
        theirs = self.board.read(other)
        while not theirs.startswith(("is at", "has begun")) and time.monotonic() < end:
            time.sleep(0.01)
            theirs = self.board.read(other)
        return f"rank {self.rank} is at {meeting}, and rank {other} {theirs or 'elsewhere'}"

    def _wait(self, request: Any, meeting: Meeting) -> None:
        """Until a request is done."""
        self._wait_until(request.Test, meeting)

    def _wait_until(self, over: Callable[[], bool], meeting: Meeting) -> None:
        """Until something is over; an error after the deadline, which names who is missing."""
        start, gone = time.monotonic(), 0.0
        while not over():
            waited = time.monotonic() - start
            if waited > self.timeout:
                raise RankFailed(self._late(meeting))
            if waited > gone + _ENDED_FOR:
                # A rank that ended has done its part of what was under way, which arrives.
                # Twice in a row, a second apart: a rank writes that it has ended right after its
                # last exchange, whose bytes may still be on the way.
                if gone and (ended := self._find_ended(meeting)) is not None:
                    raise RankFailed(f"rank {self.rank} is at {meeting}, and rank {ended} {ENDED}")
                gone = waited if self._find_ended(meeting) is not None else 0.0
            if waited > _SPIN:
                # Exchanges go on only while somebody asks: the longer it takes, the less often.
                time.sleep(0 if waited < _BUSY else 2e-4)

    def _find_ended(self, meeting: Meeting) -> int | None:
        """A member whose program is over."""
        return next((m for m in meeting.members if self.board.read(m) == ENDED), None)

    def _late(self, meeting: Meeting) -> str:
        others = [m for m in meeting.members if m != self.rank]
        mine = self.board.read(self.rank)
        found = {m: self.board.read(m) for m in others}
        away = [f"rank {m} {at or 'is elsewhere'}" for m, at in found.items() if at != mine]
        why = ", ".join(away) or "the exchange did not end"
        return (
            f"rank {self.rank} waited {self.timeout:g} s at {meeting}, and {why}; "
            "WEFT_COLLECTIVE_TIMEOUT sets the limit"
        )

    def _at_once(self, call: Callable[[], None], meeting: Meeting) -> None:
        """A call of MPI that returns when the exchange is over: faster than polling. All members
        have come; should one get no further, a watching thread ends the job."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        self._inside = time.monotonic(), meeting
        try:
            call()
        finally:
            self._inside = None

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, max(0.05, self.timeout / 4)))
            inside = self._inside
            if inside is not None and time.monotonic() - inside[0] > self.timeout:
                self.abort(f"rank {self.rank} failed: {self._late(inside[1])}")

    def _op(self, array: Array, fn: str) -> Any:
        """The reduction; of truth values or and and, which are their extremes."""
        if array.dtype == np.bool_:
            fn = {"sum": "max", "prod": "min"}.get(fn, fn)
        return getattr(self.mpi, fn.upper())

    # -- exchanges -------------------------------------------------------------------------------

    def meet(self, meeting: Meeting, array: Array) -> list[Array]:
        comm = self._agree_on_meeting(meeting)
        mine = np.asarray(array, order="C")
        found = np.empty((len(meeting.members), *mine.shape), mine.dtype)
        self._wait(comm.Iallgather(_as_bytes(mine), _as_bytes(found)), meeting)
        return self._over(meeting, list(found))

    def all_reduce(self, meeting: Meeting, array: Array, fn: str) -> Array:
        result = np.empty_like(array, order="C")
        self._reduce(meeting, [np.ascontiguousarray(array)], [result], fn)
        return result

    def begin_all_reduce(
        self,
        meeting: Meeting,
        parts: Sequence[Array],
        results: Sequence[Array],
        fn: str,
        at_once: bool,
    ) -> Begun:
        if at_once:
            self._reduce(meeting, parts, results, fn)
            return Begun()
        made = _Exchange(self, meeting, self._reduce_stepwise(meeting, parts, results, fn))
        self.board.write(self.rank, f"has begun {meeting}")
        with self._turn:
            self._begun.append(made)
        made.poll()
        return made

    def _reduce(
        self, meeting: Meeting, parts: Sequence[Array], results: Sequence[Array], fn: str
    ) -> None:
        """Reduce some arrays into others, with nothing else under way."""
        comm = self._agree_on_meeting(meeting)
        row = Row(parts, results)
        sent, op = self.mpi.IN_PLACE if row.sent is None else row.sent, self._op(parts[0], fn)
        self._at_once(lambda: comm.Allreduce(sent, row.elements, op), meeting)
        row.hand_out()
        self._over(meeting, None)

    def _reduce_stepwise(
        self, meeting: Meeting, parts: Sequence[Array], results: Sequence[Array], fn: str
    ) -> Steps[None]:
        """The same, while kernels run."""
        comm = yield from self._agree_stepwise(meeting, " begun")
        row = Row(parts, results)
        sent, op = self.mpi.IN_PLACE if row.sent is None else row.sent, self._op(parts[0], fn)
        yield comm.Iallreduce(sent, row.elements, op)
        row.hand_out()

    def advance(self, wanted: _Exchange) -> bool:
        """Let what was begun go on as far as it does by itself; whether one of them is over."""
        with self._turn:
            # Only the oldest goes on: all members take them in the order in which they were begun,
            # whoever asks for which.
            while self._begun and not wanted.over and self._begun[0].step():
                self.board.write(self.rank, f"is past {self._begun.popleft().meeting}")
            return wanted.over

    def reduce_scatter(self, meeting: Meeting, array: Array, axis: int, fn: str) -> Array:
        comm = self._agree_on_meeting(meeting)
        parts = np.split(array, len(meeting.members), axis)
        sent = np.stack([_combinable(part) for part in parts])
        got = np.empty_like(sent[0])
        request = comm.Ireduce_scatter_block(sent, got, self._op(array, fn))
        self._wait(request, meeting)
        return self._over(meeting, _as_before(got, parts[0]))

    def all_to_all(self, meeting: Meeting, array: Array, axis: int) -> list[Array]:
        comm = self._agree_on_meeting(meeting)
        sent = np.stack(np.split(array, len(meeting.members), axis))
        got = np.empty_like(sent)
        self._wait(comm.Ialltoall(_as_bytes(sent), _as_bytes(got)), meeting)
        return self._over(meeting, list(got))

    def permute(self, meeting: Meeting, array: Array, source: int, target: int) -> Array:
        comm = self._agree_on_meeting(meeting)
        sent, got = np.ascontiguousarray(array), np.zeros_like(array, order="C")
        requests = []
        if source >= 0:
            requests.append(comm.Irecv(_as_bytes(got), source))
        if target >= 0:
            requests.append(comm.Isend(_as_bytes(sent), target))
        for request in requests:
            self._wait(request, meeting)
        return self._over(meeting, got)

    def broadcast(self, meeting: Meeting, array: Array) -> Array:
        comm = self._agree_on_meeting(meeting)
        got = np.array(array, order="C")
        self._wait(comm.Ibcast(_as_bytes(got), 0), meeting)
        return self._over(meeting, got)


class _Exchange(Begun):
    """An exchange of a rank that was begun."""

    def __init__(self, rank: MpiRank, meeting: Meeting, steps: Steps[None]) -> None:
        self.rank, self.meeting, self.over = rank, meeting, False
        self._steps, self._request = steps, None

    def poll(self) -> None:
        self.rank.advance(self)

    def wait(self) -> None:
        if not self.rank.advance(self):
            self.rank.board.write(self.rank.rank, f"is at {self.meeting}")
            self.rank._wait_until(lambda: self.rank.advance(self), self.meeting)

    def step(self) -> bool:
        """Go on as far as it does by itself; whether it is over."""
        while self._request is None or self._request.Test():
            try:
                self._request = next(self._steps)
            except StopIteration:
                self.over = True
                return True
        return False


class Row:
    """The elements of one exchange, one tensor after the other, each from a multiple of `APART`
    bytes on: the results themselves where they lie so, else a copy. All ranks have the same row,
    whatever memory each has its tensors in."""

    APART = 128

    def __init__(self, parts: Sequence[Array], results: Sequence[Array]) -> None:
        self.results = results
        self.sent: Array | None = None
        """A single tensor that is elsewhere; else the elements are sent, too."""
        if len(parts) == 1 and parts[0].size and parts[0].dtype.char in _OF_MPI:
            self.lies, self._places, self.elements = True, [0], results[0].reshape(-1)
            if address_of(parts[0]) != address_of(results[0]):
                self.sent = parts[0].reshape(-1)
            return
        like = _combinable(parts[0].reshape(-1)[:0])
        sizes = [part.size * like.itemsize for part in parts]
        ends = [-(-size // self.APART) * self.APART for size in sizes]
        starts = [sum(ends[:number]) for number in range(len(ends))]
        total = (starts[-1] + sizes[-1]) // like.itemsize
        first = results[0].ctypes.data
        self.lies = (
            total > 0
            and like.dtype == results[0].dtype
            and all(
                result.ctypes.data == first + start
                for result, start in zip(results, starts, strict=True)
            )
        )
        self.elements = _from(results[0], total) if self.lies else np.zeros(total, like.dtype)
        self._places = [start // like.itemsize for start in starts]
        for part, place, result in zip(parts, self._places, results, strict=True):
            if not (self.lies and part.ctypes.data == result.ctypes.data):
                self.elements[place : place + part.size] = _combinable(part).reshape(-1)

    def hand_out(self) -> None:
        """Put the elements where the results are wanted."""
        if self.lies:
            return
        for result, place in zip(self.results, self._places, strict=True):
            result[...] = _as_before(self.elements[place : place + result.size], result)


def _from(first: Array, count: int) -> Array:
    """So many elements from the first one of an array on."""
    if count == first.size:
        return first.reshape(-1)
    raw: Any = (ctypes.c_uint8 * (count * first.itemsize)).from_address(first.ctypes.data)
    raw.owner = first
    return np.frombuffer(raw, first.dtype, count)


@cache
def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _as_bytes(array: Array) -> Any:
    return array.reshape(-1).view(np.uint8)


def _combinable(array: Array) -> Array:
    """Elements that MPI can combine."""
    dtype = as_dtype(array.dtype)
    wide = array.view(np.uint8) if dtype is I1 else numeric.widen(array, dtype)
    return np.ascontiguousarray(wide)


def _as_before(wide: Array, like: Array) -> Array:
    dtype = as_dtype(like.dtype)
    if dtype is I1:
        return wide.astype(np.bool_).reshape(like.shape)
    found = wide if wide.dtype == like.dtype else numeric.narrow(wide, dtype)
    return found.reshape(like.shape)
