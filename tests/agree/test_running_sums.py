"""Running sums of many floats: none of them stops to grow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder

MANY = 20_000_000
"""More than f32 can count one by one, which is 2^24."""


def summed(x: Any, backend: str, reverse: bool = False) -> Any:
    b = Builder()
    value = b.param(as_dtype(x.dtype), x.shape)
    program = b.build(b.cumulative_sum(value, axis=0, reverse=reverse))
    return weft.run(program, [x], backend=backend)[0]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ones_are_counted_to_the_end(backend: str) -> None:
    found = summed(np.ones(MANY, np.float32), backend)
    assert found[-1] == MANY
    assert found[1 << 24] == (1 << 24)
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.complex64])
def test_each_sum_is_rounded_once(dtype: Any, reverse: bool, backend: str) -> None:
    source = np.random.default_rng(1)
    x = (source.standard_normal((3000, 5)) * 0.1 + 0.01).astype(dtype)
    wide = x.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    exact = np.cumsum(wide[::-1], 0)[::-1] if reverse else np.cumsum(wide, 0)
    found = summed(x, backend, reverse)
    rounded = np.abs(found.astype(exact.dtype) - exact)
    unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-24}[np.dtype(dtype).itemsize]
    unit = 2.0**-11 if dtype is np.float16 else unit
    assert (rounded <= 1.01 * unit * np.abs(exact) * 1.5 + 1e-8).all()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_sign_of_a_first_zero_stays(backend: str) -> None:
    found = summed(np.array([-0.0, -0.0, 1.0, -1.0], np.float32), backend)
    assert np.signbit(found).tolist() == [True, True, False, False]


@pytest.mark.parametrize("level", [0, 2, 3])
def test_sums_of_what_comes_after_agree_at_every_level(level: int) -> None:
    """The zero before the first sum is a number under a guard, at places that flipping names."""
    x = np.arange(1.0, 6.0)

    def later(x: weft.Tensor) -> Any:
        sums = weft.cumulative_sum(weft.flip(x, axis=0), axis=0, include_initial=True)
        return weft.flip(sums[:5], axis=0)

    program = weft.jit(later).program(weft.asarray(x))
    (found,) = weft.compile(program, "cpu", opt_level=level).run([x])
    np.testing.assert_array_equal(found, [14.0, 12.0, 9.0, 5.0, 0.0])
