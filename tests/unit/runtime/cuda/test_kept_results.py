"""What a program makes of inputs that stay is kept: the steps that make it are left out while the
same holder comes with the same elements, and run again after any change."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_machine import Machine, MachineBackend
from weft import nn
from weft.driver.cuda import CudaExecutable
from weft.foundation.dtypes import F32
from weft.foundation.errors import ResourceExceeded
from weft.ops.graph.context import own_arena
from weft.ops.graph.node import tensor_type
from weft.ops.tensor import Tensor
from weft.ptir import Builder, Program
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.memory import Block, rounded
from weft.runtime.cuda.tensors import DeviceTensor

Array = NDArray[Any]
PURPOSE = "kept results"


class Holder:
    """Somebody whose inputs stay."""


def scaled() -> Program:
    """Images by what filters add up to, which one kernel makes of the filters and another takes."""
    b = Builder()
    x, w = b.param("f32", [300, 64]), b.param("f32", [64, 96])
    return b.build(x * b.broadcast_to(b.reduce_sum(w, [1]), [300, 64]))


class Scaled:
    """The program on a GPU made of the interpreter."""

    def __init__(self, gpu: Machine, backend: MachineBackend) -> None:
        self.gpu, self.backend = gpu, backend
        self.program = scaled()
        self.made: CudaExecutable = backend.compile(self.program)
        self.arrays: list[Array] = list(inputs_for(self.program, 1))
        self.filters = backend.store(self.arrays[1])
        self.holder = Holder()

    def call(self, holder: object = None, filters: DeviceTensor | None = None) -> int:
        """A call with another image; how many kernels it launched. Its result is right."""
        filters = filters or self.filters
        self.arrays[0] = np.roll(self.arrays[0], 1)
        image = self.backend.store(self.arrays[0])
        self.gpu.launches.clear()
        given = [image, filters]
        (result,) = self.made.execute_held(given, holder or self.holder, [0])
        count = len(self.gpu.launches)
        (want,) = weft.run(self.program, [self.arrays[0], filters.numpy()], backend="reference")
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-4)
        return count

    def kept(self) -> int:
        """The kernels of a call that finds what filters add up to, after the calls it takes."""
        every = self.call()
        assert self.call() == every
        fewer = self.call()
        assert fewer == every - 1
        assert self.call() == fewer
        return fewer


@pytest.fixture
def program(gpu: Machine, backend: MachineBackend) -> Scaled:
    return Scaled(gpu, backend)


def test_filters_that_stay_are_added_up_once(program: Scaled) -> None:
    program.kept()


def test_filters_of_another_holder_are_added_up_again(program: Scaled) -> None:
    fewer = program.kept()
    others, filters = Holder(), program.backend.store(program.arrays[1] * 2)
    assert program.call(others, filters) == fewer + 1
    assert program.call() == fewer + 1
    assert program.call(others, filters) == fewer + 1
    assert program.call(others, filters) == fewer + 1
    assert program.call(others, filters) == fewer


def test_data_is_never_kept(program: Scaled) -> None:
    """Where filters come as data they are added up in every call, and there is no memory."""
    given = [program.backend.store(array) for array in program.arrays]
    for _ in range(4):
        program.gpu.launches.clear()
        program.made.execute_held(given, program.holder, [0, 1])
    every = len(program.gpu.launches)
    assert open_gpu().pool.held[PURPOSE] == 0
    assert program.made.execute(given)
    assert len(program.gpu.launches) == 2 * every


def test_filters_that_a_run_overwrites_are_added_up_again(program: Scaled) -> None:
    """A step that was given the filters hands out the same tensor, with other elements."""
    fewer = program.kept()
    b = Builder()
    w = b.param("f32", list(program.arrays[1].shape))
    step = program.backend.compile_donating(b.build(w * w), frozenset({0}))
    (program.filters,) = step.execute([program.filters])
    assert program.call() == fewer + 1
    assert program.call() == fewer


def test_other_tensors_may_be_overwritten(program: Scaled) -> None:
    fewer = program.kept()
    b = Builder()
    step = program.backend.compile_donating(b.build(b.param("f32", [8]) * 2.0), frozenset({0}))
    step.execute([program.backend.store(np.ones(8, np.float32))])
    assert program.call() == fewer


def test_filters_that_others_may_write_are_added_up_in_every_call(program: Scaled) -> None:
    fewer = program.kept()
    lent = program.filters.__cuda_array_interface__["data"][0]
    assert program.call() == fewer + 1
    ctypes.memset(lent, 0, program.filters.nbytes)
    assert program.call() == fewer + 1
    assert not program.filters.numpy().any()


def test_there_is_no_memory_for_what_others_may_write(program: Scaled) -> None:
    every = program.call()
    assert program.filters.__cuda_array_interface__
    assert [program.call() for _ in range(3)] == [every] * 3
    assert open_gpu().pool.held[PURPOSE] == 0


def test_runs_on_arrays_of_the_host_leave_nothing_behind(program: Scaled) -> None:
    fewer = program.kept()
    image, filters = program.arrays
    program.made.executable.run([image, filters * 3])
    program.call()
    assert program.call() == fewer + 1
    assert program.call() == fewer


def test_memory_is_counted_and_given_back_with_the_program(program: Scaled) -> None:
    program.kept()
    held = open_gpu().pool.held
    assert held[PURPOSE] == rounded(64 * 4)
    program.backend.last = None
    program.gpu.executables.clear()
    del program.made
    gc.collect()
    assert held[PURPOSE] == 0


@pytest.mark.parametrize("shortage", ["little is free", "none is left"])
def test_nothing_is_kept_where_memory_is_short(
    program: Scaled, monkeypatch: pytest.MonkeyPatch, shortage: str
) -> None:
    every = program.call()
    pool = open_gpu().pool
    take = pool.take

    def short(count: int, purpose: str) -> Block:
        if purpose == PURPOSE:
            raise ResourceExceeded("there is no room")
        return take(count, purpose)

    if shortage == "little is free":
        monkeypatch.setattr(pool, "free_and_whole", lambda: (512, 1 << 30))
    else:
        monkeypatch.setattr(pool, "take", short)
    assert [program.call() for _ in range(3)] == [every] * 3
    assert pool.held[PURPOSE] == 0


class Model(nn.Module):
    """Images by what the model's weights add up to."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, x: Any) -> Any:
        return x * self.weights.sum(1)


def test_a_model_under_jit_is_seen_to_change(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Weft's own backend, which is not checked at every step.
    monkeypatch.setattr("weft.driver.execute.guarded", lambda backend: backend)
    weights = np.ones((64, 96), np.float32)
    x = np.linspace(0, 1, 300 * 64, dtype=np.float32).reshape(300, 64)

    def there(array: Array) -> Tensor:
        kind = tensor_type(F32, array.shape)
        return Tensor(own_arena(backend).leaf(backend.store(array), kind))

    model, function = Model(there(weights)), weft.jit(lambda model, x: model(x))

    def call() -> int:
        gpu.launches.clear()
        result = function(model, there(x)).numpy()
        np.testing.assert_allclose(result, x * weights.sum(1), rtol=1e-5)
        return len(gpu.launches)

    every = call()
    assert [call() for _ in range(4)] == [every, every, every - 1, every - 1]
    weights = weights * 2
    model.weights = there(weights)
    assert [call() for _ in range(3)] == [every, every, every - 1]
    weights = weights * 3
    model.weights.become(there(weights))
    assert [call() for _ in range(3)] == [every, every, every - 1]


def kept_numbers(backend: MachineBackend, make: Callable[..., Any]) -> list[int]:
    """The numbers of the results that a program of images and filters may keep."""
    b = Builder()
    x, w = b.param("f32", [300, 64]), b.param("f32", [64, 96])
    artifact = backend.compile(b.build(make(b, x, w))).executable.artifact
    return sorted(slot.kept for slot in artifact.buffers if slot.kept)


def test_what_is_made_of_kept_results_is_kept(backend: MachineBackend) -> None:
    def make(b: Builder, x: Any, w: Any) -> Any:
        square = b.dot_general(w, w, contract=([1], [1]))
        return b.dot_general(
            x, b.dot_general(square, square, contract=([1], [0])), contract=([1], [0])
        )

    assert kept_numbers(backend, make) == [1, 2]


def test_what_is_larger_than_its_operands_is_not_kept(backend: MachineBackend) -> None:
    """Two products of the filters, of 64x64 and of 96x96 elements."""

    def make(b: Builder, x: Any, w: Any) -> Any:
        return b.dot_general(
            b.dot_general(x, b.dot_general(w, w, contract=([1], [1])), contract=([1], [0])),
            b.dot_general(w, b.dot_general(w, w, contract=([0], [0])), contract=([1], [0])),
            contract=([1], [0]),
        )

    compact, wide = 64 * 64 * 4, 96 * 96 * 4
    b = Builder()
    x, w = b.param("f32", [300, 64]), b.param("f32", [64, 96])
    artifact = backend.compile(b.build(make(b, x, w))).executable.artifact
    arena = {slot.bytes: bool(slot.kept) for slot in artifact.buffers if slot.space == "arena"}
    assert arena[compact]
    assert not arena[wide]


def test_random_numbers_are_not_kept(backend: MachineBackend) -> None:
    def make(b: Builder, x: Any, w: Any) -> Any:
        noise = b.reduce_sum(w * b.rng_uniform(shape=[64, 96], dtype="f32"), [1])
        return x * b.broadcast_to(noise, [300, 64])

    assert not kept_numbers(backend, make)
