"""First values of parameters. They come from one generator per process, seeded with 0 unless
`manual_seed` says otherwise, so that a script gives the same model every time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype
from weft.ops.tensor import Tensor, from_array

_generator = np.random.default_rng(0)


def manual_seed(seed: int) -> None:
    """Start the generator of first values again."""
    global _generator  # noqa: PLW0603
    _generator = np.random.default_rng(seed)


def uniform(shape: Sequence[int], bound: float, dtype: DType | str = "f32") -> Tensor:
    """Uniform in [-bound, bound)."""
    values = _generator.uniform(-bound, bound, tuple(shape))
    return _parameter(values, dtype)


def normal(shape: Sequence[int], deviation: float, dtype: DType | str = "f32") -> Tensor:
    """Normal around 0."""
    return _parameter(_generator.standard_normal(tuple(shape)) * deviation, dtype)


def kaiming(shape: Sequence[int], inputs: int, dtype: DType | str = "f32") -> Tensor:
    """Uniform with the bound 1/sqrt(inputs), as layers of `inputs` inputs want it."""
    return uniform(shape, 1.0 / math.sqrt(max(inputs, 1)), dtype)


def constant(shape: Sequence[int], value: float, dtype: DType | str = "f32") -> Tensor:
    """The same number everywhere."""
    return _parameter(np.full(tuple(shape), value), dtype)


def _parameter(values: NDArray[np.float64], dtype: DType | str) -> Tensor:
    return from_array(values.astype(as_dtype(dtype).numpy), requires_grad=True)
