"""Ranks that are processes, which meet through MPI.

Every collective begins with a word of each member about what it is at: members that are at
different ones, or at one with different shapes, say so at once. Waiting is polling with a deadline
(`WEFT_COLLECTIVE_TIMEOUT` seconds), so that a rank that never comes is named. A rank that fails
says why, in one sentence, and ends the whole job: nobody waits for it.

Buffers go as they are. MPI has no 16-bit floats of Google's and no 4 and 8-bit ones: they are
combined in f32; 4-bit integers in 8 bits. i1 travels as bytes.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import socket
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import I1, as_dtype
from weft.foundation.errors import UserError, WeftError
from weft.foundation.lines import failing_line, shown
from weft.foundation.ranks import Meeting, RankFailed, World
from weft.runtime.board import ENDED, FAILED, Board

Array = NDArray[Any]
T = TypeVar("T")
_SPIN = 200e-6
"""Seconds of polling without a pause: most collectives are over by then."""
_BUSY = 0.02
"""Seconds of polling in turn with other processes; from then on a rank sleeps between."""


def joined(count: int) -> MpiRank:
    """This process as a rank of MPI's world, of so many ranks, which fails as a whole from now
    on."""
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except ModuleNotFoundError:
        why = f"the launcher started {count} ranks, and they meet through MPI: install weft[mpi]"
        raise UserError(why) from None
    made = MpiRank(mpi)
    sys.excepthook = made.failed
    atexit.register(made.left)
    return made


def _deadline() -> float:
    text = os.environ.get("WEFT_COLLECTIVE_TIMEOUT", "300")
    try:
        return float(text)
    except ValueError:
        raise UserError(f"WEFT_COLLECTIVE_TIMEOUT is {text!r}; give seconds") from None


class MpiRank(World):
    """One process of an MPI job."""

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.comm = mpi, mpi.COMM_WORLD
        self.rank, self.count = self.comm.Get_rank(), self.comm.Get_size()
        self.timeout = _deadline()
        self.board = self._board()
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.count)): self.comm.Dup()}
        self.board.write(self.rank, "has started")

    def _board(self) -> Board:
        """The board of this machine's ranks: the launcher's, or one that rank 0 makes."""
        given = os.environ.get("WEFT_BOARD", "")
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
        """End the job, with one sentence."""
        self.board.write(self.rank, FAILED)
        print(f"weft: {why}", file=sys.stderr, flush=True)
        sys.stdout.flush()
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
            tag = int.from_bytes(_digest(str(members))[:3], "little") % 30_000
            found = self.comm.Create_group(world.Incl(list(members)), tag)
            self._groups[members] = found
        return found

    def _agreed(self, meeting: Meeting) -> Any:
        """The communicator of a meeting to which all members have come."""
        self.board.write(self.rank, f"is at {meeting}")
        comm = self._group(meeting.members)
        mine = np.frombuffer(_digest(meeting.name), np.uint8)
        said = np.empty((len(meeting.members), 16), np.uint8)
        self._wait(comm.Iallgather(mine, said), meeting)
        if (said != mine).any():
            other = next(
                m for m, row in zip(meeting.members, said, strict=True) if (row != mine).any()
            )
            raise RankFailed(self._apart(meeting, other))
        return comm

    def _over(self, meeting: Meeting, result: T) -> T:
        self.board.write(self.rank, f"is past {meeting}")
        return result

    def _apart(self, meeting: Meeting, other: int) -> str:
        """Two ranks that are at different collectives."""
        end = time.monotonic() + 0.5
        theirs = self.board.read(other)
        while not theirs.startswith("is at") and time.monotonic() < end:
            time.sleep(0.01)
            theirs = self.board.read(other)
        return f"rank {self.rank} is at {meeting}, and rank {other} {theirs or 'elsewhere'}"

    def _wait(self, request: Any, meeting: Meeting) -> None:
        """Until a request is done; an error after the deadline, which names who is missing."""
        start = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - start
            if waited > self.timeout:
                raise RankFailed(self._late(meeting))
            if waited > _SPIN:
                # Exchanges go on only while somebody asks: the longer it takes, the less often.
                time.sleep(0 if waited < _BUSY else 2e-4)

    def _late(self, meeting: Meeting) -> str:
        others = [m for m in meeting.members if m != self.rank]
        mine = self.board.read(self.rank)
        found = {m: self.board.read(m) for m in others}
        away = [f"rank {m} {at or 'is elsewhere'}" for m, at in found.items() if at != mine]
        why = ", ".join(away) or "the exchange did not end"
        return (
            f"rank {self.rank} waited {self.timeout:g} s at {meeting}, and {why}; "
            "WEFT_COLLECTIVE_TIMEOUT says how long"
        )

    def _op(self, array: Array, fn: str) -> Any:
        """The reduction; of truth values or and and, which are their extremes."""
        if as_dtype(array.dtype) is I1:
            fn = {"sum": "max", "prod": "min"}.get(fn, fn)
        return getattr(self.mpi, fn.upper())

    # -- exchanges -------------------------------------------------------------------------------

    def meet(self, meeting: Meeting, array: Array) -> list[Array]:
        comm = self._agreed(meeting)
        mine = np.ascontiguousarray(array)
        found = np.empty((len(meeting.members), *mine.shape), mine.dtype)
        self._wait(comm.Iallgather(_bytes(mine), _bytes(found)), meeting)
        return self._over(meeting, list(found))

    def all_reduce(self, meeting: Meeting, array: Array, fn: str) -> Array:
        comm = self._agreed(meeting)
        sent = _wide(array)
        got = np.empty_like(sent)
        self._wait(comm.Iallreduce(sent, got, self._op(array, fn)), meeting)
        return self._over(meeting, _narrow(got, array))

    def reduce_scatter(self, meeting: Meeting, array: Array, axis: int, fn: str) -> Array:
        comm = self._agreed(meeting)
        parts = np.split(array, len(meeting.members), axis)
        sent = np.stack([_wide(part) for part in parts])
        got = np.empty_like(sent[0])
        request = comm.Ireduce_scatter_block(sent, got, self._op(array, fn))
        self._wait(request, meeting)
        return self._over(meeting, _narrow(got, parts[0]))

    def all_to_all(self, meeting: Meeting, array: Array, axis: int) -> list[Array]:
        comm = self._agreed(meeting)
        sent = np.stack(np.split(array, len(meeting.members), axis))
        got = np.empty_like(sent)
        self._wait(comm.Ialltoall(_bytes(sent), _bytes(got)), meeting)
        return self._over(meeting, list(got))

    def permute(self, meeting: Meeting, array: Array, source: int, target: int) -> Array:
        comm = self._agreed(meeting)
        sent, got = np.ascontiguousarray(array), np.zeros_like(array, order="C")
        requests = []
        if source >= 0:
            requests.append(comm.Irecv(_bytes(got), source))
        if target >= 0:
            requests.append(comm.Isend(_bytes(sent), target))
        for request in requests:
            self._wait(request, meeting)
        return self._over(meeting, got)

    def broadcast(self, meeting: Meeting, array: Array) -> Array:
        comm = self._agreed(meeting)
        got = np.array(array, order="C")
        self._wait(comm.Ibcast(_bytes(got), 0), meeting)
        return self._over(meeting, got)


@cache
def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _bytes(array: Array) -> Any:
    return array.reshape(-1).view(np.uint8)


def _wide(array: Array) -> Array:
    """Elements that MPI can combine."""
    dtype = as_dtype(array.dtype)
    wide = array.view(np.uint8) if dtype is I1 else numeric.widen(array, dtype)
    return np.ascontiguousarray(wide)


def _narrow(wide: Array, like: Array) -> Array:
    dtype = as_dtype(like.dtype)
    if dtype is I1:
        return wide.astype(np.bool_)
    found = wide if wide.dtype == like.dtype else numeric.narrow(wide, dtype)
    return found.reshape(like.shape)
