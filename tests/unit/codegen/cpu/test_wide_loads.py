"""Loads of wide vectors: those that guards allow, every second element, and ends of rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.codegen.cpu.tiling import AxisTiling, halved_segments, segments
from weft.driver.compile import compile_program
from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder, Program
from weft.target.cpu import host
from weft.target.target import Target

Array = NDArray[Any]


def wide() -> Target:
    """This machine, said to have vectors of 16 numbers whose lanes can be masked."""
    limits = replace(host().limits, vector_bits=512, vector_registers=32)
    return replace(host(), features=host().features | {"avx2", "avx512f"}, limits=limits)


def depthwise(channels: int, rows: int, columns: int, fill: float) -> Program:
    """Windows of 3 x 3 of each channel, with channels first."""
    b = Builder("depthwise")
    x, w = b.param("f32", [1, channels, rows, columns]), b.param("f32", [9, channels])
    patches = b.extract_patches(
        b.transpose(x, [0, 2, 3, 1]), window=[3, 3], strides=[1, 1], dilation=[1, 1],
        padding=[(1, 1), (1, 1)], pad_value=fill,
    )  # fmt: skip
    parted = b.reshape(patches, [1, rows, columns, 9, channels])
    each = b.reduce_sum(parted * b.broadcast_to(w, parted.shape), [3])
    return b.build(b.transpose(each, [0, 3, 1, 2]))


@pytest.mark.parametrize("fill", one_in(2, [0.0, 1.5]))
@pytest.mark.parametrize("columns", [3, 16, 23, 56])
def test_windows_of_one_channel_are_read_in_vectors(columns: int, fill: float) -> None:
    program = depthwise(4, 9, columns, fill)
    executable = compile_program(program, wide())
    text = executable.stages["llvm"]
    assert "llvm.masked.load" in text
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 4, 9, columns)).astype(np.float32)
    w = rng.standard_normal((9, 4)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill).astype(np.float64)
    exact = sum(
        padded[:, :, i : i + 9, j : j + columns] * w[3 * i + j].reshape(4, 1, 1)
        for i in range(3)
        for j in range(3)
    )
    np.testing.assert_allclose(executable.run([x, w])[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "si32", "f64"])
def test_every_second_element_is_taken_from_two_vectors(dtype: str, start: int) -> None:
    b = Builder("second")
    x, y = b.param(dtype, [5, 96]), b.param(dtype, [5, 48])
    pairs = b.reshape(x, [5, 48, 2])
    taken = b.reshape(b.slice(pairs, starts=[0, 0, start], sizes=[5, 48, 1]), [5, 48])
    executable = compile_program(b.build(taken + y), wide())
    assert "shufflevector" in executable.stages["llvm"]
    kind = {"f32": np.float32, "si32": np.int32, "f64": np.float64}[dtype]
    data = np.arange(480, dtype=kind).reshape(5, 96)
    more = np.arange(240, dtype=kind).reshape(5, 48)
    np.testing.assert_array_equal(executable.run([data, more])[0], data[:, start::2] + more)


def test_what_is_left_of_wide_vectors_is_halved() -> None:
    found = [(cut.start, cut.lanes, cut.unroll) for cut in halved_segments(63, AxisTiling(2, 16))]
    assert found == [(0, 16, 2), (32, 16, 1), (48, 8, 1), (56, 4, 1), (60, 1, 3)]
    narrow = AxisTiling(2, 4)
    assert halved_segments(27, narrow) == segments(27, narrow)
    assert halved_segments(0, AxisTiling(1, 16)) == []


@pytest.mark.parametrize(
    ("size", "lanes"), [(24, [8]), (40, [8]), (20, [4]), (48, [16]), (72, [16, 8])]
)
def test_maps_of_few_vectors_have_no_rest(size: int, lanes: list[int]) -> None:
    """Narrower vectors leave nothing, which would be compiled by itself."""
    b = Builder("short")
    x = b.param("f32", [size])
    executable = compile_program(b.build(x * x), wide())
    found = [int(n) for n in re.findall(r"lanes \w+ in 0..(\d+)", executable.stages["cpu"])]
    assert found == lanes
    data = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(executable.run([data])[0], data * data)


@pytest.mark.parametrize("dtype", ["f32", "si32"])
@pytest.mark.parametrize("padding", [0, 1])
def test_windows_that_move_by_two_are_reduced_in_vectors(dtype: str, padding: int) -> None:
    b = Builder("pool")
    x = b.param(dtype, [3, 2, 32, 70])
    least = -np.inf if dtype == "f32" else np.iinfo(np.int32).min
    window = 2 + padding
    patches = b.extract_patches(
        b.transpose(x, [0, 2, 3, 1]), window=[window] * 2, strides=[2, 2], dilation=[1, 1],
        padding=[(padding, 0), (padding, 0)], pad_value=least,
    )  # fmt: skip
    taps = b.reshape(patches, [3, 16, 35, window * window, 2])
    executable = compile_program(
        b.build(b.transpose(b.reduce_max(taps, [3]), [0, 3, 1, 2])), wide()
    )
    assert "lanes" in executable.stages["cpu"]
    data = np.random.default_rng(0).integers(-99, 99, (3, 2, 32, 70)).astype(np.float32)
    data = data.astype({"f32": np.float32, "si32": np.int32}[dtype])
    ends = ((0, 0), (0, 0), (padding, 0), (padding, 0))
    padded = np.pad(data, ends, constant_values=int(data.min()))
    every = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(2, 3))
    np.testing.assert_array_equal(
        executable.run([data])[0], every[:, :, ::2, ::2].max(axis=(-1, -2))
    )


@pytest.mark.parametrize("columns", [8, 40])
def test_phases_of_transposed_convolutions_are_stored_in_vectors(columns: int) -> None:
    given = np.random.default_rng(0)
    x = given.standard_normal((1, 8, 9, columns)).astype(np.float32)
    w = given.standard_normal((8, 32, 2, 2)).astype(np.float32)
    upward = weft.jit(lambda x, w: weft.functional.conv_transpose2d(x, w, stride=2))
    executable = compile_program(upward.program(weft.tensor(x), weft.tensor(w)), wide())
    assert ("llvm.masked.store" in executable.stages["llvm"]) == (columns >= 16)
    exact = np.einsum("bchw,cfkl->bfhkwl", x.astype(np.float64), w).reshape(1, 32, 18, -1)
    np.testing.assert_allclose(executable.run([x, w])[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64", "si8", "bf16"])
def test_elements_from_the_last_to_the_first_are_read_in_vectors(dtype: str, step: int) -> None:
    b = Builder("reversed")
    x, y = b.param(dtype, [600]), b.param(dtype, [600 // step])
    backwards = b.take(x, 599 - b.iota("si64", [600 // step], axis=0) * step)
    executable = compile_program(b.build(y - backwards), wide())
    given = np.arange(600) % 60
    sides = [given.astype(as_dtype(dtype).numpy), given[::step].astype(as_dtype(dtype).numpy)]
    (found,) = executable.run(sides)
    np.testing.assert_array_equal(found.astype(np.int64), given[::step] - given[::-step])
    turns = re.compile(r"shufflevector .*, <\d+ x i32> <i32 (\d+), i32 (\d+), i32 (\d+),")
    orders = [tuple(map(int, m.groups())) for m in turns.finditer(executable.stages["llvm"])]
    assert any(first - 1 == second == third + 1 for first, second, third in orders)
