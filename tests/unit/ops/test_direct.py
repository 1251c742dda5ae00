"""Tensors of one number on a GPU, and casts of floats: the driver makes them, and no program."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.gpu_machine import Machine, MachineBackend
from weft.foundation.dtypes import BY_NAME
from weft.ops.graph.arena import Arena

SHAPE = 3, 5, 7


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0, "f32"),
        (0, "f64"),
        (0, "si64"),
        (-1.5, "f32"),
        (3.25, "bf16"),
        (-7, "si16"),
        (True, "i1"),
        (200, "ui8"),
        (-1, "si64"),
    ],
)
def test_one_number_needs_no_program(
    gpu: Machine, backend: MachineBackend, value: float, dtype: str
) -> None:
    with weft.graph(Arena(backend)):
        x = weft.full(SHAPE, value, dtype=dtype)
    found = np.asarray(x)
    np.testing.assert_array_equal(found, np.full(SHAPE, value, BY_NAME[dtype].numpy))
    assert not gpu.executables


def test_what_the_driver_cannot_repeat_takes_a_program(
    gpu: Machine, backend: MachineBackend
) -> None:
    with weft.graph(Arena(backend)):
        x = weft.full(SHAPE, 1.5, dtype="f64")
    np.testing.assert_array_equal(np.asarray(x), np.full(SHAPE, 1.5))
    assert len(gpu.executables) == 1


def test_every_tensor_has_memory_of_its_own(gpu: Machine, backend: MachineBackend) -> None:
    with weft.graph(Arena(backend)):
        x, y, nothing = weft.zeros(SHAPE), weft.zeros(SHAPE), weft.zeros((0, 4))
        weft.eval(x, y)
        x[0] = 1.0
    assert np.asarray(x).sum() == 35
    assert np.asarray(y).sum() == 0
    assert np.asarray(nothing).shape == (0, 4)


def test_what_is_computed_with_stays_in_its_program(gpu: Machine, backend: MachineBackend) -> None:
    with weft.graph(Arena(backend)):
        x = weft.asarray(np.arange(4, dtype=np.float32)) + weft.full((4,), 2.0, dtype="f32")
    np.testing.assert_array_equal(np.asarray(x), [2, 3, 4, 5])
    assert gpu.asked["cuMemsetD32Async"] == 0


@pytest.mark.parametrize(("given", "wanted"), [("f32", "bf16"), ("f16", "f32")])
def test_casts_of_any_shape_need_no_program(
    gpu: Machine, backend: MachineBackend, given: str, wanted: str
) -> None:
    elements = np.linspace(-3, 3, 105).astype(BY_NAME[given].numpy)
    with weft.graph(Arena(backend)):
        x = weft.asarray(elements).astype(wanted)
        y = weft.asarray(elements.reshape(SHAPE)).astype(wanted)
    expected = elements.astype(BY_NAME[wanted].numpy)
    np.testing.assert_array_equal(np.asarray(x), expected)
    np.testing.assert_array_equal(np.asarray(y), expected.reshape(SHAPE))
    assert not gpu.executables
    assert gpu.asked["cuModuleLoadData"] == 1


def test_other_casts_and_what_is_computed_take_a_program(
    gpu: Machine, backend: MachineBackend
) -> None:
    with weft.graph(Arena(backend)):
        x = weft.asarray(np.array([1.5, -2.5, 300.0], np.float32))
        whole, twice = x.astype("si8"), (x + x).astype("bf16")
    np.testing.assert_array_equal(np.asarray(whole), [1, -2, 127])
    np.testing.assert_array_equal(np.asarray(twice), [3, -5, 600])
    assert len(gpu.executables) == 2


def test_a_driver_that_does_not_know_the_text_leaves_casts_to_programs(
    gpu: Machine, backend: MachineBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(code: bytes) -> tuple[int, str | None]:
        return (222, None) if b".version" in code else (0, "module")

    monkeypatch.setattr(gpu, "cuModuleLoadData", load, raising=False)
    with weft.graph(Arena(backend)):
        x = weft.asarray(np.arange(6, dtype=np.float32)).astype("bf16")
    np.testing.assert_array_equal(np.asarray(x), np.arange(6))
    assert len(gpu.executables) == 1
