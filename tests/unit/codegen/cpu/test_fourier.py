"""Fourier transforms in steps: any sizes, vectors and signs, as one kernel of a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each
from weft.foundation.fourier_steps import steps_of, table_of
from weft.ptir import Builder, Program

Array = NDArray[Any]


def drawn(shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(shape[-1])
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def transform(shape: tuple[int, ...], dtype: str, inverse: bool, divided: bool) -> Program:
    b = Builder("transform")
    x = b.param(dtype, shape)
    return b.build(b.emit("weft.fourier", x, inverse=inverse, divided=divided))


@each("size", [32, 36, 64, 70, 96, 256, 286, 1000, 2048, 65536])
@each("dtype", ["complex64", "complex128"])
def test_transforms(size: int, dtype: str) -> None:
    """Rows in whole pieces, and some that are left."""
    shape = (2 if size > 2048 else 131, size)
    x, short = drawn(shape, dtype), "cf32" if dtype == "complex64" else "cf64"
    for inverse in (False, True):
        program = transform(shape, short, inverse, divided=inverse)
        (found,) = weft.compile(program, "cpu")(x)
        wide = x.astype(np.complex128)
        wanted = np.fft.ifft(wide) if inverse else np.fft.fft(wide)
        error = 20 * float(np.finfo(dtype).eps) * float(np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=error)


@each("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_a_transform_is_one_kernel_and_nothing_of_the_host(target: str) -> None:
    executable = weft.compile(transform((8, 256), "cf32", False, False), target)
    assert "fourier row" in executable.stages["cpu"]
    assert executable.stages["region"].count('"pattern"') == 1


@each("size", [32, 96, 1000, 16384])
def test_steps_take_a_size_apart(size: int) -> None:
    steps = steps_of(size)
    assert np.prod([step.factor for step in steps]) == size
    assert [step.length * step.columns for step in steps] == [size] * len(steps)
    # The first step turns vectors round that are as long as there are results.
    assert steps[0].rest >= steps[0].factor
    assert len(table_of(size)) == sum(step.roots for step in steps)


@pytest.mark.parametrize("size", [1, 16, 30, 33, 34, 1 << 17])
def test_other_sizes_have_no_steps(size: int) -> None:
    assert steps_of(size) == ()


@each("size", [67, 127, 1009])
def test_primes_are_convolutions(size: int) -> None:
    x = drawn((3, size), "complex64")
    for name in ("fft", "ifft"):
        found = getattr(weft.fft, name)(weft.asarray(x)).numpy()
        wanted = getattr(np.fft, name)(x.astype(np.complex128))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
