"""What the tests of the ops layer share: data in any float dtype, and comparison with results that
were computed in f64 from the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft.foundation.dtypes import BF16, F16, F32, F64, DType, as_dtype

Array = NDArray[Any]

DTYPES: list[DType] = [F32, F64, F16, BF16]
"""The floats that models compute with."""


def data(
    shape: tuple[int, ...], dtype: DType | str = F32, seed: int = 0, scale: float = 1
) -> Array:
    """Normal elements, rounded to a dtype."""
    rng = np.random.default_rng([seed, *shape])
    return np.asarray(rng.standard_normal(shape) * scale).astype(as_dtype(dtype).numpy)


def wide(array: Array) -> Array:
    """The same elements in f64: what an oracle computes with."""
    return np.asarray(array).astype(np.float64)


def agrees(result: Any, exact: Array, dtype: DType | str = F32, ulps: float = 8) -> None:
    """A tensor has this dtype and shape, and differs from the exact elements by at most `ulps`
    units in the last place of the largest. Infinities and NaN are at the same places."""
    assert isinstance(result, weft.Tensor), type(result)
    wanted = as_dtype(dtype)
    assert result.dtype is wanted, f"{result.dtype} is not {wanted}"
    assert result.shape == exact.shape, f"{result.shape} is not {exact.shape}"
    found, expected = wide(result.numpy()), wide(exact)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    tolerance = ulps * 2.0 ** (1 - wanted.precision) * max(largest, 2.0**-10)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
