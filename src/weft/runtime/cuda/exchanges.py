"""Exchanges between ranks that GPUs carry out themselves, through NCCL.

A collective is a step of the host where nothing else is there. With NCCL it is work in the stream,
and part of the graph in which it stands: replaying that asks the host for nothing. Ranks meet
through MPI once before: a group's first communicator needs an id that its first member makes, and a
program's first run compares what all members are about to exchange, so that a mismatch is a
sentence before anything waits. From then on a rank that never comes is known by its absence alone:
whoever waits for the stream gives up after `WEFT_COLLECTIVE_TIMEOUT` seconds.

Ranks that share a GPU meet through the host. NCCL has no 4-bit numbers and no pairs, which stay the
host's. i1 travels as bytes, of which the largest is "or" and the smallest "and". Sums of 16 and 8
bits are rounded by NCCL as it goes.
"""

from __future__ import annotations

import hashlib
import importlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.ranks import (
    Exchange,
    Meeting,
    RankFailed,
    World,
    collective_timeout,
    world_here,
)
from weft.runtime.artifact import Artifact, HostCall, HostFunction
from weft.runtime.cuda.driver import Stream
from weft.runtime.cuda.gpu import Gpu

_TYPES: Final = {
    "si8": "Int8", "ui8": "Uint8", "si32": "Int32", "ui32": "Uint32", "si64": "Int64",
    "ui64": "Uint64", "f16": "Float16", "f32": "Float32", "f64": "Float64", "bf16": "Bfloat16",
    "i1": "Uint8",
}  # fmt: skip
_FUNCTIONS: Final = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max"}
_LOGICAL: Final = {"sum": "Max", "prod": "Min", "min": "Min", "max": "Max"}


@runtime_checkable
class Exchangeable(Protocol):
    """A function of the host that devices may carry out for it."""

    @property
    def exchange(self) -> Callable[[DType, Sequence[int]], Exchange | None]:
        """What it exchanges for tensors of a type."""
        ...


@cache
def bindings() -> Any:
    """NCCL's Python bindings; None where they, or the library, are not installed."""
    try:
        found = importlib.import_module("nccl.bindings.nccl")
        found.get_version()
    except Exception:  # The package says in several ways that the library is missing.
        return None
    return found


def device_exchanges(
    gpu: Gpu, artifact: Artifact, functions: Mapping[str, HostFunction]
) -> dict[int, Exchange]:
    """The steps that GPUs exchange themselves, by position; all ranks come to the same."""
    if bindings() is None or not world_here().is_process:
        return {}
    found = {}
    for position, step in enumerate(artifact.steps):
        exchange = _exchange(step, functions) if isinstance(step, HostCall) else None
        if exchange is not None:
            found[position] = exchange
    return found if found and _has_each_its_own(gpu, world_here()) else {}


def _has_each_its_own(gpu: Gpu, world: World) -> bool:
    """Whether no two ranks share a GPU: NCCL knows none of two."""
    if world.count == 1:
        return True
    known = (id(gpu), id(world))
    if known not in _SHARING:
        place = f"{socket.gethostname()} {gpu.device.place}".encode()
        mine = np.frombuffer(hashlib.sha256(place).digest(), np.uint8)
        everybody = Meeting("which GPU each rank has", tuple(range(world.count)))
        # Ranks that share a GPU are known by equal digests of machine and place: every rank learns
        # the same, so that all choose the same way.
        _SHARING[known] = len({bytes(one) for one in world.meet(everybody, mine)}) < world.count
    return not _SHARING[known]


_SHARING: Final[dict[tuple[int, int], bool]] = {}


def _exchange(step: HostCall, functions: Mapping[str, HostFunction]) -> Exchange | None:
    function, given = functions[step.call], [spec for _, spec in step.inputs]
    if not (given and isinstance(function, Exchangeable)):
        return None
    if any(spec.dtype not in _TYPES for spec in given):
        return None
    found = function.exchange(BY_NAME[given[0].dtype], given[0].shape)
    if found is None or len(given) == 1:
        return found
    # Of several tensors, which and in which order: the step's name stands for that.
    meeting = replace(found.meeting, name=f"{found.meeting.name}, {step.label}")
    return replace(found, meeting=meeting)


@dataclass(frozen=True)
class Piece:
    """Tensors of one exchange: where its elements are, where they go, and how many are given."""

    source: int
    target: int
    count: int
    given: int


class Nccl:
    """The communicators of this process."""

    def __init__(self, gpu: Gpu, world: World) -> None:
        self.gpu, self.world, self.nccl = gpu, world, bindings()
        self._groups: dict[tuple[int, ...], Any] = {}
        self._last: Meeting | None = None
        gpu.stream.watch = self.watch

    def agree(self, exchanges: Sequence[Exchange]) -> None:
        """All members are about to run the same; from now on their GPUs know each other."""
        # In the order of the steps, which is the same on all ranks: whoever is about to exchange
        # something else is named here, before a GPU waits for it.
        for exchange in exchanges:
            self.world.meet(exchange.meeting, np.zeros((), np.uint8))
        for members in dict.fromkeys(exchange.meeting.members for exchange in exchanges):
            if members not in self._groups:
                self._groups[members] = self._join_communicator(members)

    def _join_communicator(self, members: tuple[int, ...]) -> Any:
        nccl, place = self.nccl, members.index(self.world.rank)
        mine = np.frombuffer(bytes(nccl.get_unique_id()), np.uint8)
        said = self.world.broadcast(Meeting("the id of a communicator", members), mine)
        shared = nccl.UniqueId.from_buffer(bytearray(said.tobytes()))
        with _translate_errors(nccl):
            comm = nccl.comm_init_rank(len(members), shared, place)
        # The first exchange takes memory and makes connections, which no recording allows.
        word = self.gpu.pool.take(4, "exchanges")
        stream, address = self.gpu.stream, word.address
        stream.set_word(address, 1)
        nccl.all_reduce(address, address, 1, nccl.DataType.Int32, 0, comm, int(stream.handle))
        stream.synchronize()
        word.free()
        return comm

    def put(self, exchange: Exchange, dtype: str, pieces: Sequence[Piece], stream: Stream) -> None:
        """Put an exchange into a stream."""
        nccl, handle = self.nccl, int(stream.handle)
        comm = self._groups[exchange.meeting.members]
        kind = getattr(nccl.DataType, _TYPES[dtype])
        names = _LOGICAL if dtype == "i1" else _FUNCTIONS
        op = getattr(nccl.RedOp, names[exchange.fn]) if exchange.fn else 0
        self._last = exchange.meeting
        with _translate_errors(nccl), self._together():
            for p in pieces:
                match exchange.kind:
                    case "all_reduce":
                        nccl.all_reduce(p.source, p.target, p.given, kind, op, comm, handle)
                    case "all_gather":
                        nccl.all_gather(p.source, p.target, p.given, kind, comm, handle)
                    case "reduce_scatter":
                        nccl.reduce_scatter(p.source, p.target, p.count, kind, op, comm, handle)
                    case "all_to_all":
                        each = p.given // len(exchange.meeting.members)
                        nccl.allto_all(p.source, p.target, each, kind, comm, handle)
                    case "broadcast":
                        nccl.broadcast(p.source, p.target, p.given, kind, 0, comm, handle)
                    case _:
                        self._send(exchange, p, kind, comm, stream, BY_NAME[dtype].storage_bytes)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What is asked for inside is one exchange."""
        self.nccl.group_start()
        try:
            yield
        finally:
            self.nccl.group_end()

    def _send(
        self, exchange: Exchange, piece: Piece, kind: Any, comm: Any, stream: Stream, size: int
    ) -> None:
        """Mine to one member, and another's to me; zeros where nobody sends."""
        nccl, handle = self.nccl, int(stream.handle)
        if exchange.target >= 0:
            nccl.send(piece.source, piece.given, kind, exchange.target, comm, handle)
        if exchange.source >= 0:
            nccl.recv(piece.target, piece.count, kind, exchange.source, comm, handle)
        else:
            stream.fill(piece.target, piece.count * size)

    def watch(self, seconds: float) -> None:
        """Whoever waits for the stream asks now and then; it raises where that is in vain."""
        for members, comm in self._groups.items():
            status = int(self.nccl.comm_get_async_error(comm))
            if status not in (0, _IN_PROGRESS):
                raise self._given_up(f"NCCL reports {status} between the ranks {list(members)}")
        if self._groups and seconds > collective_timeout():
            at = f", the last exchange being {self._last}" if self._last else ""
            raise self._given_up(
                f"rank {self.world.rank} waited {seconds:.0f} s for its GPU{at}; "
                "WEFT_COLLECTIVE_TIMEOUT sets the limit"
            )

    def _given_up(self, why: str) -> RankFailed:
        """The communicators are of no use any more, and the GPU must not wait in them."""
        # A kernel of NCCL's that waits for a rank that is gone would keep the stream, and with it
        # the process.
        for comm in self._groups.values():
            self.nccl.comm_abort(comm)
        self._groups.clear()
        return RankFailed(why)


_IN_PROGRESS: Final = 7
"""What NCCL answers while it works."""


@contextmanager
def _translate_errors(nccl: Any) -> Iterator[None]:
    """NCCL's errors as a sentence."""
    try:
        yield
    except nccl.NCCLError as error:
        why = f"the GPUs of the ranks cannot reach each other: NCCL says {error}"
        raise RankFailed(why) from None


_MADE: Final[dict[tuple[int, int], Nccl]] = {}


def transport(gpu: Gpu) -> Nccl:
    """The communicators of this process on a GPU, as the rank that it is now."""
    world = world_here()
    key = (id(gpu), id(world) if world.count > 1 else 0)
    if key not in _MADE:
        _MADE[key] = Nccl(gpu, world)
    return _MADE[key]
