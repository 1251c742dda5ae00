"""What the tests of the array namespace share: dtypes, shapes, data, and the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.ops.array.data_types import STANDARD
from weft.ops.tensor import Tensor

Array = NDArray[Any]

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
NUMBERS = INTEGERS + FLOATS + COMPLEX
ALL = ["bool", *NUMBERS]
SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (0,), (2, 3), (2, 0, 3), (2, 1, 3)]

_TOLERANCE = {"float32": 2e-6, "complex64": 4e-6, "float64": 1e-13, "complex128": 1e-13}


def data(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Elements of a NumPy dtype around zero, none of them zero for numbers."""
    rng = np.random.default_rng([seed, len(dtype), *shape])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    signs = rng.choice([-1, 1], shape) if kind != "u" else 1
    if kind in "iu":
        return np.asarray(rng.integers(1, 20, shape) * signs, dtype)
    real = rng.uniform(0.1, 3.0, shape) * signs
    return np.asarray(real + (1j * rng.uniform(-2, 2, shape) if kind == "c" else 0), dtype)


def dtype_of(name: str) -> DType:
    return STANDARD[name]


def agrees(result: Any, expected: Any, dtype: str | None = None) -> None:
    """A tensor has exactly this dtype and shape, and these elements up to rounding."""
    assert isinstance(result, Tensor), type(result)
    wanted = np.asarray(expected)
    if dtype is not None:
        wanted = wanted.astype(dtype)
    elements = result.numpy()
    assert elements.dtype == wanted.dtype, f"{elements.dtype} is not {wanted.dtype}"
    assert elements.shape == wanted.shape, f"{elements.shape} is not {wanted.shape}"
    tolerance = _TOLERANCE.get(str(wanted.dtype), 0.0)
    np.testing.assert_allclose(elements, wanted, rtol=tolerance, atol=tolerance)
