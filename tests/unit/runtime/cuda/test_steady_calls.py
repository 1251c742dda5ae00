"""What the driver is asked for by a call of a step that hands its donated arguments on: after the
first few calls one graph, however many tensors and kernels there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_machine import Machine, MachineBackend
from weft import nn, optim
from weft.driver.cuda import CudaExecutable
from weft.ops.pytree import flatten
from weft.runtime.cuda.tensors import DeviceTensor

STEADY = {"cuCtxPushCurrent": 1, "cuCtxPopCurrent": 1, "cuGraphLaunch": 1}


class Layers(nn.Module):
    """Linear layers, the first of which an optimiser may leave alone."""

    def __init__(self, count: int) -> None:
        self.frozen = nn.Linear(4, 4)
        self.layers = [nn.Linear(4, 4) for _ in range(count)]

    def __call__(self, x: Any) -> Any:
        x = self.frozen(x)
        for layer in self.layers:
            x = weft.tanh(layer(x))
        return x


def stepping(optimiser: Any, model: Any, state: Any) -> tuple[Any, list[Any], int]:
    """The program of a training step, its arguments, and how many of them are donated."""
    x = weft.asarray(np.ones((3, 4), np.float32))

    def step(model: Any, state: Any, x: Any) -> Any:
        loss, slopes = weft.value_and_grad(lambda m: (m(x) * m(x)).sum())(model)
        return (*optimiser.update(slopes, state, model), loss)

    donated = flatten((model, state))[0]
    program = weft.jit(step).program(model, state, x)
    return program, [*(leaf.numpy() for leaf in donated), x.numpy()], len(donated)


def turned(
    gpu: Machine, made: CudaExecutable, held: list[DeviceTensor], rest: list[DeviceTensor]
) -> tuple[list[DeviceTensor], Any, Counter[str]]:
    """One turn: what is handed on, the rest of the results, and what the driver was asked for."""
    gpu.asked.clear()
    results = made.execute([*held, *rest])
    return results[: len(held)], results[len(held) :], Counter(gpu.asked)


@pytest.mark.parametrize("layers", one_in(2, [1, 4]))
@pytest.mark.parametrize("kind", ["all", "some"])
def test_a_training_step_is_one_graph_at_addresses_that_stay(
    gpu: Machine, backend: MachineBackend, layers: int, kind: str
) -> None:
    optimiser: Any = optim.AdamW(1e-3)
    if kind == "some":
        groups = {"learn": optimiser, "stay": optim.freeze()}
        optimiser = optim.partition(lambda name, _: "stay" if "frozen" in name else "learn", groups)
    model = Layers(layers)
    program, arrays, count = stepping(optimiser, model, optimiser.init(model))
    made = backend.compile_donating(program, frozenset(range(count)))
    held = [backend.store(array) for array in arrays]
    kept, rest = held[:count], held[count:]
    del held
    expected = arrays
    for turn in range(7):
        before = [tensor.address for tensor in kept]
        kept, (loss,), asked = turned(gpu, made, kept, rest)
        assert [tensor.address for tensor in kept] == before
        if turn >= 3:
            assert asked == STEADY
        *following, last = weft.run(program, expected, backend="reference")
        expected = [*following, arrays[-1]]
    for tensor, array in zip(kept, expected, strict=False):
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss.numpy(), last, rtol=1e-4)


def test_only_nodes_that_touch_what_moved_are_told(gpu: Machine, backend: MachineBackend) -> None:
    """Data that is somewhere else in every call moves a node or two, whatever the graph has."""
    optimiser = optim.AdamW(1e-3)
    model = Layers(3)
    program, arrays, count = stepping(optimiser, model, optimiser.init(model))
    made = backend.compile_donating(program, frozenset(range(count)))
    kept = [backend.store(array) for array in arrays[:count]]
    data = [backend.store(arrays[-1]) for _ in range(8)]
    moved = []
    for x in data:
        kept, _, asked = turned(gpu, made, kept, [x])
        moved.append(asked["cuGraphExecKernelNodeSetParams"])
    kernels = len(made.executable.artifact.steps)
    assert 0 < max(moved[-3:]) <= 4 < kernels


@pytest.mark.parametrize("shape", [(), (4, 4), (1 << 15,), (0, 3)])
def test_a_small_result_is_waited_for_once_with_its_copy_behind_it(
    gpu: Machine, backend: MachineBackend, shape: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    held = backend.store(array)
    np.testing.assert_array_equal(held.numpy(), array)
    gpu.asked.clear()
    found = held.numpy()
    wanted = Counter({"cuCtxPushCurrent": 1, "cuStreamQuery": 1, "cuCtxPopCurrent": 1})
    if 0 < array.nbytes <= 1 << 16:
        wanted["cuMemcpyDtoHAsync"] = 1
    elif array.nbytes:
        wanted += Counter({"cuMemcpyDtoHAsync": 1, "cuStreamQuery": 1})
    assert Counter(gpu.asked) == wanted
    # It is the reader's own: another read leaves it as it is.
    backend.store(array + 1.0).numpy()
    np.testing.assert_array_equal(found, array)
