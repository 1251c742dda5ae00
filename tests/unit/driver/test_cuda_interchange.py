"""Tensors of a GPU shared with other libraries, on a GPU made of the dialect's interpreter: whose
memory it is, who waits for whom before it serves again, and whose context is current."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.gpu_machine import Machine, MachineBackend
from weft import nn
from weft.driver import execute
from weft.driver.execute import Prepared, prepare
from weft.foundation.dtypes import F32, as_dtype
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.graph import context
from weft.ops.graph.cache import PROGRAMS
from weft.ptir import Builder
from weft.ptir.types import TensorType
from weft.runtime.cuda import dlpack
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.program import Program as DeviceProgram
from weft.runtime.cuda.stretches import Stretches
from weft.runtime.cuda.tensors import DeviceTensor, imported

Array = NDArray[Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def doubled(backend: MachineBackend) -> Prepared:
    b = Builder()
    return prepare(b.build(b.param("f32", [40]) * 2.0), backend)


def at_home(backend: MachineBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a backend be the one that tensors of a GPU are at home in."""
    monkeypatch.setitem(context._BACKENDS, "cuda", backend)
    monkeypatch.setattr(context._context, "defaults", {})
    PROGRAMS.clear()


class _Producer:
    """Another library's tensor."""

    def __init__(
        self, tensor: weft.Tensor | DeviceTensor, device: int = 0, copy: bool | None = None
    ) -> None:
        self.tensor, self.device, self.copy = tensor, device, copy

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()[0], self.device

    def __dlpack__(self, stream: int) -> Any:
        return self.tensor.__dlpack__(stream=stream, copy=self.copy)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "si64", "i1", "cf32"])
def test_tensors_are_handed_over_without_a_copy(backend: MachineBackend, dtype: str) -> None:
    kind = weft.foundation.dtypes.BY_NAME[dtype].numpy
    held = backend.store(np.arange(12).reshape(3, 4).astype(kind))
    taken = imported(open_gpu(), held)
    assert (taken.address, taken.dtype, taken.shape) == (held.address, dtype, (3, 4))
    address = held.address
    del held
    assert (taken.numpy() == np.arange(12).reshape(3, 4).astype(kind)).all()
    del taken
    open_gpu().wait()
    assert backend.store(np.zeros(12, kind)).address == address


def test_tensors_of_a_graph_are_lent_and_taken_over(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(backend, monkeypatch)
    with weft.graph(backend="cuda"):
        lent = weft.tensor(np.arange(4, dtype=np.float32)) * 2.0
        assert lent.__dlpack_device__() == (2, 0)
    taken = weft.from_dlpack(_Producer(lent))
    assert taken.backend == "cuda"
    assert taken._node.storage.address == lent._node.storage.address
    assert (taken + 1.0).numpy().tolist() == [1, 3, 5, 7]
    copied = weft.from_dlpack(_Producer(lent), copy=True)
    assert copied._node.storage.address != lent._node.storage.address


def test_what_is_handed_on_stays_where_it_is_until_others_see_it(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(backend, monkeypatch)
    monkeypatch.setattr(execute, "guarded", lambda found: found)

    def tensor(value: float) -> Any:
        return weft.tensor(np.full(4, value, np.float32)).to("cuda")

    model = nn.Linear(4, 4).map(lambda w: w.to("cuda"))
    step = weft.jit(
        lambda model, x, state: ([s + x for s in state], model(x).sum()), donate="state"
    )
    state, x = [tensor(n) for n in range(12)], tensor(1)
    for _ in range(8):
        gpu.asked.clear()
        state, _ = step(model, x, state)
    assert state[0]._place is not None
    assert gpu.asked["cuGraphLaunch"] == 1
    assert not gpu.asked["cuGraphExecKernelNodeSetParams"]
    capsule = state[3].__dlpack__()
    seen = state[3]._node.storage
    state, _ = step(model, x, state)
    assert seen.numpy().tolist() == [11.0] * 4
    state, _ = step(model, x, state)
    assert [float(each.numpy()[0]) for each in state] == [n + 10.0 for n in range(12)]
    del capsule


@pytest.mark.parametrize("seen", ["lent", "borrowed", "alone"])
def test_what_others_see_is_not_overwritten_when_it_is_donated(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    at_home(backend, monkeypatch)
    monkeypatch.setattr(execute, "guarded", lambda found: found)
    with weft.graph(backend="cuda"):
        source = weft.tensor(np.arange(4, dtype=np.float32)) * 2.0
        weft.eval(source)
    storage = source._node.storage
    given = weft.from_dlpack(_Producer(source)) if seen == "borrowed" else source
    capsule = source.__dlpack__() if seen == "lent" else None
    result = weft.jit(lambda x: x + 1.0, donate="x")(given)
    assert result.numpy().tolist() == [1, 3, 5, 7]
    assert (result._node.storage.address == storage.address) == (seen == "alone")
    assert storage.numpy().tolist() == ([1, 3, 5, 7] if seen == "alone" else [0, 2, 4, 6])
    del capsule


@pytest.mark.parametrize("fails", ["in a callback", "at its first graph", "for want of memory"])
def test_what_a_failed_call_was_given_can_be_read_only_where_nothing_was_started(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    at_home(backend, monkeypatch)
    monkeypatch.setattr(execute, "guarded", lambda found: found)

    def refuse(_: Any) -> None:
        if fails == "in a callback":
            raise KeyboardInterrupt

    def step(x: Any) -> Any:
        made = x + 1.0
        weft.debug.callback(refuse, made)
        return made, made * 2.0

    def failing(*given: Any) -> Any:
        raise MemoryError

    x = (weft.tensor(np.arange(4, dtype=np.float32)).to("cuda") * 2.0).eval()
    with monkeypatch.context() as patch:
        if fails == "at its first graph":
            patch.setattr(Stretches, "_record_graph", failing)
        elif fails == "for want of memory":
            patch.setattr(DeviceProgram, "_result", failing)
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            weft.jit(step, donate="x")(x)
    if fails == "in a callback":
        with pytest.raises(UserError, match="to a call that failed on its way"):
            x.numpy()
    else:
        assert x.numpy().tolist() == [0, 2, 4, 6]


def test_a_copy_that_is_asked_for_is_made(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(backend, monkeypatch)
    with weft.graph(backend="cuda"):
        lent = weft.tensor(np.arange(4, dtype=np.float32)) * 2.0
        address = weft.from_dlpack(_Producer(lent))._node.storage.address
    for copy, is_shared in ((None, True), (False, True), (True, False)):
        taken = imported(open_gpu(), _Producer(lent, copy=copy))
        assert (taken.address == address) == is_shared
        assert taken.numpy().tolist() == [0, 2, 4, 6]


def test_the_memory_that_is_asked_for_is_given_or_refused(
    backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(backend, monkeypatch)
    with weft.graph(backend="cuda"):
        tensor = weft.tensor(np.arange(4, dtype=np.float32)) * 2.0
        weft.eval(tensor)
    assert np.from_dlpack(tensor, device="cpu").tolist() == [0, 2, 4, 6]
    with pytest.raises(BufferError, match="the host's needs a copy"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="the tensor is on GPU 0"):
        tensor.__dlpack__(dl_device=(2, 1))


@pytest.mark.parametrize(
    ("shape", "strides", "is_dense"),
    [
        ((), (), True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (4, 1), False),
        ((1, 3), (9, 1), True),
        ((3, 0), (1, 1), True),
        ((2, 3, 0, 4), (12, 4, 4, 1), True),
    ],
)
def test_dense_tensors_are_told_by_their_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], is_dense: bool
) -> None:
    assert dlpack._is_dense(shape, strides) is is_dense


def test_memory_of_another_gpu_is_not_taken_for_that_of_the_first(backend: MachineBackend) -> None:
    held = backend.store(numbers(4))
    with pytest.raises(UserError, match="is on GPU 1, and Weft works on GPU 0: move it there"):
        backend.take_over(_Producer(held, device=1))


@pytest.mark.parametrize("copy", [False, True])
def test_a_borrowed_tensor_is_given_back_when_all_is_done_with_it(
    backend: MachineBackend, copy: bool
) -> None:
    held = backend.store(np.ones(40, np.float32))
    gone = weakref.ref(held)
    taken = backend.take_over(_Producer(held), copy)
    (result,) = doubled(backend).execute([taken])
    del held, taken
    assert gone() is not None
    assert (result.numpy() == 2).all()
    assert gone() is None


def test_borrowed_tensors_do_not_pile_up(backend: MachineBackend) -> None:
    class Ready(_Producer):
        def __dlpack__(self, stream: int) -> Any:
            return dlpack.exported(self, held.address, "f32", (40,))

    held = backend.store(np.ones(40, np.float32))
    double, before = doubled(backend), len(dlpack._EXPORTED)
    for _ in range(200):
        double.execute([backend.take_over(Ready(held))])
    assert 1 < len(dlpack._EXPORTED) - before <= 65


@pytest.mark.parametrize("way", ["__dlpack__", "__cuda_array_interface__"])
def test_lent_memory_serves_again_when_all_streams_are_done(
    gpu: Machine, backend: MachineBackend, way: str
) -> None:
    held = backend.store(np.ones(40, np.float32))
    address, idles = held.address, gpu.idles
    lent = getattr(held, way)
    capsule = lent() if callable(lent) else None
    del held, lent, capsule
    assert backend.store(np.ones(400, np.float32)).address != address
    assert gpu.idles == idles
    assert backend.store(np.ones(40, np.float32)).address == address
    assert gpu.idles == idles + 1


def test_the_context_of_a_thread_is_left_as_it_was(gpu: Machine, backend: MachineBackend) -> None:
    gpu.do_cuCtxPushCurrent("another library's")
    double = doubled(backend)
    (result,) = double.execute([backend.store(np.ones(40, np.float32))])
    assert backend.read_storage(result, TensorType(as_dtype("f32"), (40,)))[0] == 2
    backend.take_over(_Producer(result), copy=True)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(result.__dlpack__).result()
        (again,) = pool.submit(double.execute, [result]).result()
        assert pool.submit(lambda: gpu.current).result() is None
    assert (again.numpy() == 4).all()
    gpu.executables.clear()
    del double, result, again
    gc.collect()
    assert gpu.current == "another library's"


def test_the_cuda_array_interface_names_the_memory(backend: MachineBackend) -> None:
    held = backend.store(numbers(3, 4))
    face = held.__cuda_array_interface__
    assert (face["shape"], face["typestr"], face["data"]) == ((3, 4), "<f4", (held.address, False))


def test_an_array_in_memory_that_the_driver_knows_is_waited_for(
    gpu: Machine, backend: MachineBackend
) -> None:
    plain, pinned = numbers(40), numbers(40)
    gpu.pinned.add(pinned.ctypes.data)
    before = gpu.waits
    backend.store(plain)
    assert gpu.waits == before
    backend.store(pinned)
    assert gpu.waits == before + 1


def test_a_stream_of_another_library_is_waited_for_on_the_device(
    gpu: Machine, backend: MachineBackend
) -> None:
    double, ours, theirs = doubled(backend), int(open_gpu().stream.handle), 77
    given = numbers(40)
    backend.follow(theirs)
    (result,) = double.execute([backend.view(given.ctypes.data, TensorType(F32, (40,)))])
    before = gpu.waits
    backend.precede(theirs)
    capsule = result.lent_to(theirs)
    assert gpu.orders == [(theirs, ours), (ours, theirs)]
    assert gpu.waits == before
    np.testing.assert_array_equal(result.numpy(), given * 2)
    del capsule


def test_what_a_stream_gave_back_serves_again_when_ours_follows_it(
    gpu: Machine, backend: MachineBackend
) -> None:
    addresses, idles = [], []
    for stream in (77, 77, 78):
        backend.follow(stream)
        held = backend.store(np.ones(1000, np.float32))
        addresses.append(held.address)
        idles.append(gpu.idles)
        capsule = held.lent_to(stream)
        del held, capsule
    assert len(set(addresses)) == 1
    # What another stream gave back is waited for, with all streams.
    assert idles == [0, 0, 1]


def test_what_two_streams_were_lent_is_no_streams_own(backend: MachineBackend) -> None:
    held = backend.store(np.ones(1000, np.float32))
    address = held.address
    capsules = [held.lent_to(77), held.lent_to(78)]
    del held, capsules
    backend.follow(77)
    backend.follow(78)
    assert open_gpu().pool._lent[0][1:] == (address, None)


def test_checks_are_waited_for_before_another_stream_goes_on(
    gpu: Machine, backend: MachineBackend
) -> None:
    b = Builder()
    x, at = b.param("f32", [4]), b.param("si64", [2])
    taken = prepare(b.build(b.gather(x, at, axis=0)), backend)
    (result,) = taken.execute([backend.store(numbers(4)), backend.store(np.array([1, 9]))])
    backend.precede(77)
    assert (int(open_gpu().stream.handle), 77) not in gpu.orders
    with pytest.raises(SpecViolation):
        result.check()
