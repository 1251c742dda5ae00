"""First values of parameters. They come from one generator per process, seeded with 0 unless
`weft.random.seed` says otherwise, so that a script gives the same model every time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.foundation import limits
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.random import default
from weft.ops.tensor import Tensor, from_array


@public
def manual_seed(seed: int) -> None:
    """The same as `weft.random.seed`."""
    default.start(seed)


def uniform(shape: Sequence[int], bound: float, dtype: DType | str = "f32") -> Tensor:
    """Uniform in [-bound, bound)."""
    return _parameter(default.generator().uniform(-bound, bound, _sizes(shape)), dtype)


def normal(shape: Sequence[int], deviation: float, dtype: DType | str = "f32") -> Tensor:
    """Normal around 0."""
    return _parameter(default.generator().standard_normal(_sizes(shape)) * deviation, dtype)


def kaiming(shape: Sequence[int], inputs: int, dtype: DType | str = "f32") -> Tensor:
    """Uniform with the bound 1/sqrt(inputs), as layers of `inputs` inputs want it."""
    return uniform(shape, 1.0 / math.sqrt(max(inputs, 1)), dtype)


def constant(shape: Sequence[int], value: float, dtype: DType | str = "f32") -> Tensor:
    """The same number everywhere."""
    return _parameter(np.full(_sizes(shape), value), dtype)


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape whose sizes are whole numbers, and which limits allow."""
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UserError(
                f"a parameter cannot have the shape {tuple(shape)}: {size!r} is no size"
            )
    what = f"a parameter of the shape {tuple(shape)}"
    limits.check_bytes(8 * math.prod(shape), what, limits.current())
    return tuple(shape)


def _parameter(values: NDArray[np.float64], dtype: DType | str) -> Tensor:
    return from_array(values.astype(as_dtype(dtype).numpy), requires_grad=True)
