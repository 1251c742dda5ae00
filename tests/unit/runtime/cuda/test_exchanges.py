"""Collectives that GPUs carry out themselves, on a driver and an NCCL of our own."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.gpu_machine import Machine
from weft.driver.compile import Executable, compile_program
from weft.foundation.dtypes import BY_NAME
from weft.foundation.ranks import Meeting, RankFailed, World, as_rank
from weft.ptir import Builder, Program
from weft.runtime.cuda import driver, exchanges
from weft.runtime.cuda import gpu as gpus
from weft.runtime.cuda.gpu import open_gpu


class DataType(IntEnum):
    Int8 = 0
    Uint8 = 1
    Int32 = 2
    Int64 = 4
    Float32 = 7
    Bfloat16 = 9


SIZES = {
    DataType.Int8: 1, DataType.Uint8: 1, DataType.Int32: 4, DataType.Int64: 8,
    DataType.Float32: 4, DataType.Bfloat16: 2,
}  # fmt: skip


class Id:
    def __init__(self, raw: bytes = b"") -> None:
        self.raw = raw

    def __bytes__(self) -> bytes:
        return self.raw

    @staticmethod
    def from_buffer(raw: bytearray) -> Id:
        return Id(bytes(raw))


class OneRank:
    """NCCL between one rank: what is sent comes back, when the stream comes to it."""

    DataType, UniqueId, NCCLError = DataType, Id, ValueError
    RedOp = SimpleNamespace(Sum=0, Prod=1, Max=2, Min=3)

    def __init__(self, gpu: Machine) -> None:
        self.gpu = gpu
        self.asked: list[tuple[Any, ...]] = []
        self.done = 0
        self.open = 0
        self.status = 0
        self.aborted = 0

    def get_unique_id(self) -> Id:
        return Id(bytes(range(128)))

    def comm_init_rank(self, count: int, shared: Id, rank: int) -> str:
        assert (count, rank, bytes(shared)) == (1, 0, bytes(range(128)))
        assert not self.gpu.recordings
        return "comm"

    def comm_get_async_error(self, comm: str) -> int:
        return self.status

    def comm_abort(self, comm: str) -> None:
        self.aborted += 1

    def group_start(self) -> None:
        self.open += 1

    def group_end(self) -> None:
        self.open -= 1

    def _moved(self, source: int, target: int, size: int, stream: Any) -> None:
        def work() -> None:
            self.done += 1
            ctypes.memmove(target, source, size)

        self.gpu.later(stream, work)

    def all_reduce(self, *args: Any) -> None:
        source, target, count, kind, op, _, stream = args
        self.asked.append(("all_reduce", count, kind, op))
        self._moved(source, target, count * SIZES[kind], stream)

    def reduce_scatter(self, *args: Any) -> None:
        source, target, count, kind, op, _, stream = args
        self.asked.append(("reduce_scatter", count, kind, op))
        self._moved(source, target, count * SIZES[kind], stream)

    def all_gather(self, *args: Any) -> None:
        source, target, count, kind, _, stream = args
        self.asked.append(("all_gather", count, kind))
        self._moved(source, target, count * SIZES[kind], stream)

    allto_all = all_gather

    def broadcast(self, *args: Any) -> None:
        source, target, count, kind, root, _, stream = args
        self.asked.append(("broadcast", count, kind, root))
        self._moved(source, target, count * SIZES[kind], stream)


@pytest.fixture
def nccl(gpu: Machine, monkeypatch: pytest.MonkeyPatch) -> OneRank:
    made = OneRank(gpu)
    monkeypatch.setattr(exchanges, "bindings", lambda: made)
    monkeypatch.setattr(exchanges, "_MADE", {})
    return made


def on(gpu: Machine, source: Program) -> Executable:
    executable: Executable = compile_program(source, "sm90")
    gpu.learn(executable)
    return executable


def reduced(dtype: str = "f32", fn: str = "sum") -> Program:
    b = Builder()
    x = b.param(dtype, [8])
    y = b.all_reduce(x + x, groups=(0,), size=1, fn=fn, line="train.py:3")
    return b.build(y + x)


def test_an_exchange_is_part_of_the_graph(gpu: Machine, nccl: OneRank) -> None:
    executable, x = on(gpu, reduced()), np.arange(8, dtype=np.float32)
    for runs in (1, 2, 3):
        (got,) = executable.run([x])
        assert (got == 3 * x).all()
        assert gpu.graph_launches == runs
    # Once before anything was recorded, to make connections, and once into the graph.
    assert nccl.asked == [
        ("all_reduce", 1, DataType.Int32, 0), ("all_reduce", 8, DataType.Float32, 0),
    ]  # fmt: skip
    assert nccl.done == 4
    assert nccl.open == 0


def test_profiles_time_it_with_the_kernels(gpu: Machine, nccl: OneRank) -> None:
    executable = on(gpu, reduced())
    labels = [label for label, _ in executable.profile([np.ones(8, np.float32)])]
    assert len(labels) == 3
    assert nccl.done == 2


@pytest.mark.parametrize(("fn", "op"), [("sum", 2), ("prod", 3)])
def test_truth_values_go_as_bytes(gpu: Machine, nccl: OneRank, fn: str, op: int) -> None:
    b = Builder()
    x = b.param("i1", [5])
    executable = on(gpu, b.build(b.all_reduce(x, groups=(0,), size=1, fn=fn)))
    flags = np.array([True, False, True, True, False])
    assert (executable.run([flags])[0] == flags).all()
    assert nccl.asked[-1] == ("all_reduce", 5, DataType.Uint8, op)


@pytest.mark.parametrize(
    ("name", "attrs", "asked"),
    [
        ("all_gather", {"axis": 0}, ("all_gather", 12, DataType.Bfloat16)),
        ("reduce_scatter", {"axis": 0, "fn": "sum"}, ("reduce_scatter", 12, DataType.Bfloat16, 0)),
        ("all_to_all", {"split": 0, "concat": 0}, ("all_gather", 12, DataType.Bfloat16)),
        ("collective_broadcast", {}, ("broadcast", 12, DataType.Bfloat16, 0)),
        ("all_gather", {"axis": 1}, None),
        ("reduce_scatter", {"axis": 1, "fn": "sum"}, None),
        ("all_to_all", {"split": 0, "concat": 1}, None),
    ],
)
def test_pieces_of_memory_are_exchanged_by_the_device(
    gpu: Machine, nccl: OneRank, name: str, attrs: dict[str, Any], asked: tuple[Any, ...] | None
) -> None:
    """Parts along an inner axis are no pieces of memory: they stay the host's."""
    b = Builder()
    x = b.param("bf16", [3, 4])
    executable = on(gpu, b.build(getattr(b, name)(x, groups=(0,), size=1, **attrs)))
    array = np.arange(12).reshape(3, 4).astype(BY_NAME["bf16"].numpy)
    assert (executable.run([array])[0] == array).all()
    assert nccl.asked[-1:] == ([] if asked is None else [asked])


def test_without_nccl_the_host_meets(gpu: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "bindings", lambda: None)
    x = np.ones(8, np.float32)
    assert (on(gpu, reduced()).run([x])[0] == 3).all()
    assert gpu.graph_launches == 2


class Two(World):
    """Two ranks, of which the other one says the same, or has another GPU."""

    rank, count, is_process = 0, 2, True

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared

    def meet(self, meeting: Meeting, array: Any) -> list[Any]:
        return [array, array if self.shared else array + 1]


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_that_share_a_gpu_meet_through_the_host(
    gpu: Machine, nccl: OneRank, shared: bool
) -> None:
    b = Builder()
    x = b.param("f32", [4])
    program = b.build(b.all_reduce(x, groups=(0, 1), size=2, fn="sum"))
    with as_rank(Two(shared=shared)):
        cluster, _ = on(gpu, program).prepare([np.ones(4, np.float32)])
        step: Any = cluster.built.program
        found = exchanges.device_exchanges(open_gpu(), step.artifact, step._functions)
    assert bool(found) is not shared


@pytest.mark.parametrize(("place", "number"), [("", 0), ("0", 0), ("1", 1), ("5", 1), ("x", 0)])
def test_a_rank_has_the_gpu_of_its_place(
    monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    monkeypatch.setattr(driver, "start", lambda bindings: 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", place)
    assert gpus._device_number(None) == number


class Odd(World):
    """A rank whose neighbour is at something else."""

    rank, count, is_process = 0, 1, True

    def meet(self, meeting: Meeting, array: Any) -> list[Any]:
        raise RankFailed(f"rank 0 is at {meeting}, rank 1 at all_gather")


def test_what_differs_between_ranks_is_told_before_anything_runs(
    gpu: Machine, nccl: OneRank
) -> None:
    executable = on(gpu, reduced())
    with as_rank(Odd()), pytest.raises(RankFailed, match=r"all_reduce .* \(train.py:3\), rank 1"):
        executable.run([np.ones(8, np.float32)])
    assert nccl.asked == []


def test_waiting_in_vain_ends(gpu: Machine, nccl: OneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    on(gpu, reduced()).run([np.ones(8, np.float32)])
    watch = open_gpu().stream.watch
    assert watch is not None
    watch(1.0)
    monkeypatch.setenv("WEFT_COLLECTIVE_TIMEOUT", "10")
    with pytest.raises(
        RankFailed, match=r"rank 0 waited 11 s for its GPU, .*all_reduce of float32"
    ):
        watch(11.0)
    assert nccl.aborted == 1
    watch(12.0)  # there is nobody left to wait for
