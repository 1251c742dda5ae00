"""Choices by index: maps are cut where the choice changes, if that makes few long stretches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.driver.compile import Executable
from weft.ptir import Builder

pytestmark = pytest.mark.usefixtures("small_machine")
Array = NDArray[Any]


def loops(executable: Executable) -> int:
    return executable.stages["cpu"].count("parallel ")


def joined(sizes: Sequence[int], axis: int) -> tuple[Executable, list[Array]]:
    """Functions of several tensors, one after the other along an axis."""
    b = Builder("joined")
    shapes = [[6, size] if axis else [size, 24] for size in sizes]
    given = [b.param("f32", shape) for shape in shapes]
    parts = [b.exp(x) if n % 2 else b.tanh(x) for n, x in enumerate(given)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return weft.compile(b.build(b.concat(parts, axis=axis)), "cpu"), arrays


@pytest.mark.parametrize(("sizes", "axis"), [((64, 64, 32), 1), ((37, 91), 1), ((5, 3), 0)])
def test_each_part_of_what_is_joined_has_a_loop_without_choices(
    sizes: Sequence[int], axis: int
) -> None:
    executable, arrays = joined(sizes, axis)
    text = executable.stages["cpu"]
    assert "select" not in text
    assert " if " not in text
    parts = [np.exp(x) if n % 2 else np.tanh(x) for n, x in enumerate(arrays)]
    np.testing.assert_allclose(executable.run(arrays)[0], np.concatenate(parts, axis), rtol=1e-6)


def test_an_edge_has_no_loop_of_its_own() -> None:
    b = Builder("padded")
    x = b.param("f32", [8, 60])
    executable = weft.compile(
        b.build(b.pad(b.exp(x), low=[0, 2], high=[0, 2], interior=[0, 0], pad_value=0.0)), "cpu"
    )
    assert "select" in executable.stages["cpu"]
    data = np.random.default_rng(0).standard_normal((8, 60)).astype(np.float32)
    expected = np.pad(np.exp(data), ((0, 0), (2, 2)))
    np.testing.assert_allclose(executable.run([data])[0], expected, rtol=1e-6)


def test_many_parts_share_a_loop() -> None:
    executable, arrays = joined([8] * 9, 1)
    assert "select" in executable.stages["cpu"]
    parts = [np.exp(x) if n % 2 else np.tanh(x) for n, x in enumerate(arrays)]
    np.testing.assert_allclose(executable.run(arrays)[0], np.concatenate(parts, 1), rtol=1e-6)


def test_sums_of_padded_parts_keep_their_zeros() -> None:
    """The gradient of slices: what is added outside of a part is a zero, whose sign counts."""
    b = Builder("slices")
    x, y = b.param("f32", [4, 32]), b.param("f32", [4, 32])
    left = b.pad(-x, low=[0, 0], high=[0, 32], interior=[0, 0], pad_value=0.0)
    right = b.pad(-y, low=[0, 32], high=[0, 0], interior=[0, 0], pad_value=0.0)
    program = b.build(left + right)
    executable = weft.compile(program, "cpu")
    assert loops(executable) == 2
    zeros = np.zeros((4, 32), np.float32)
    found = executable.run([zeros, zeros])[0]
    wanted = weft.run(program, [zeros, zeros], backend="reference")[0]
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.asarray(wanted)))
