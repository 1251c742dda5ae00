"""On a GPU: memory that serves again while work is still to be done, here and in the streams of
other libraries; and what happens to a recording when something is given back in its midst."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from weft.driver.cuda import CudaBackend
from weft.driver.execute import Prepared, prepare
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder
from weft.runtime.cuda.driver import compute_capability
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.graphs import recording
from weft.runtime.cuda.tensors import imported

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
BACKEND = CudaBackend()
SIZE = 2048
TIMES = 40
"""How many products come first: some milliseconds of work."""


def slow() -> Prepared:
    """Its second input, which is read last, plus a product of many matrices."""
    b = Builder()
    a, x = b.param("f32", [SIZE, SIZE]), b.param("f32", [SIZE, SIZE])
    product = a
    for _ in range(TIMES):
        product = product @ a
    return prepare(b.build(product + x), BACKEND)


def held(value: float) -> Any:
    return BACKEND.store(np.full((SIZE, SIZE), value, np.float32))


def test_torch_gets_its_memory_back_when_it_was_read() -> None:
    torch = pytest.importorskip("torch")
    program, zeros = slow(), held(0)
    program.execute([zeros, zeros])[0].numpy()
    given = torch.ones(SIZE, SIZE, device="cuda")
    torch.cuda.synchronize()
    (result,) = program.execute([zeros, imported(open_gpu(), given)])
    del given
    others = [torch.full((SIZE, SIZE), 7.0, device="cuda") for _ in range(4)]
    assert (result.numpy() == 1).all()
    assert all(bool((other == 7).all()) for other in others)


def test_what_torch_still_reads_does_not_serve_again() -> None:
    torch = pytest.importorskip("torch")
    (result,) = slow().execute([held(0), held(1)])
    lent = torch.from_dlpack(result)
    torch.cuda._sleep(200_000_000)
    read = lent + 1.0
    del lent, result
    others = [held(7) for _ in range(4)]
    assert bool((read == 2).all())
    assert all((other.numpy() == 7).all() for other in others)


def test_pinned_arrays_may_change_when_they_are_taken() -> None:
    torch = pytest.importorskip("torch")
    pinned = torch.ones(1 << 26).pin_memory().numpy()
    gpu = open_gpu()
    with gpu.lock:
        assert gpu.stream.is_read_late(pinned)
        assert not gpu.stream.is_read_late(np.ones(1 << 20, np.float32))
    taken = BACKEND.store(pinned)
    pinned[-4096:] = 7
    assert (taken.numpy() == 1).all()


def test_constants_come_behind_work_on_the_memory_they_get() -> None:
    program, zeros = slow(), held(0)
    program.execute([zeros, zeros])[0].numpy()
    table = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    b = Builder()
    with_constant = prepare(b.build(b.param("f32", [SIZE, SIZE]) + b.constant(table)), BACKEND)
    dropped = program.execute([zeros, zeros])
    del dropped
    (result,) = with_constant.execute([zeros])
    assert (result.numpy() == table).all()


def test_a_violation_is_told_when_the_program_is_gone() -> None:
    b = Builder()
    program = prepare(b.build(b.param("si32", [40]) / b.param("si32", [40])), BACKEND)
    ones, zeros = (BACKEND.store(np.full(40, n, np.int32)) for n in (1, 0))
    (result,) = program.execute([ones, zeros])
    del program
    gc.collect()
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        result.numpy()


def test_what_is_collected_in_the_midst_of_a_recording_does_not_end_it() -> None:
    program, zeros = slow(), held(0)
    program.execute([zeros, held(3)])[0].numpy()
    gpu, target, source = open_gpu(), held(0), held(5)
    with gpu.lock:
        with recording(gpu.stream) as graph:
            gpu.stream.copy(target.address, source.address, source.nbytes)
            del program
            gc.collect()
            gpu.pool.trim()
        graph.launch(gpu.stream)
        graph.close()
    assert (target.numpy() == 5).all()
