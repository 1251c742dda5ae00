"""First values of parameters. They come from one generator per process, seeded with 0 unless
`weft.random.seed` says otherwise, so that a script gives the same model every time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation import limits
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import UserError, brief
from weft.ops.calls import public
from weft.ops.random import default
from weft.ops.tensor import Tensor, from_array


@public
def manual_seed(seed: int) -> None:
    """The same as `weft.random.seed`."""
    default.start(seed)


_unfilled: Final = ContextVar("unfilled", default=False)


@public
def unfilled() -> AbstractContextManager[None]:
    """Inside, random first values are zeros, which take neither time nor memory until they are
    read: for a model whose weights come from a file."""
    return _without_values()


@contextmanager
def _without_values() -> Iterator[None]:
    token = _unfilled.set(True)
    try:
        yield
    finally:
        _unfilled.reset(token)


def uniform_parameter(shape: Sequence[int], bound: float, dtype: DType | str = "f32") -> Tensor:
    """Uniform in [-bound, bound)."""
    sizes = _checked_shape(shape)
    if _unfilled.get():
        return _parameter(np.zeros(sizes, as_dtype(dtype).numpy), dtype)
    return _parameter(default.generator().uniform(-bound, bound, sizes), dtype)


def normal_parameter(shape: Sequence[int], deviation: float, dtype: DType | str = "f32") -> Tensor:
    """Normal around 0."""
    sizes = _checked_shape(shape)
    if _unfilled.get():
        return _parameter(np.zeros(sizes, as_dtype(dtype).numpy), dtype)
    return _parameter(default.generator().standard_normal(sizes) * deviation, dtype)


def kaiming(shape: Sequence[int], inputs: int, dtype: DType | str = "f32") -> Tensor:
    """Uniform with the bound 1/sqrt(inputs), as layers of `inputs` inputs want it."""
    sizes = _checked_shape(shape)
    if not isinstance(inputs, int):
        raise UserError(f"the number of inputs is a whole number, not {brief(inputs)}")
    return uniform_parameter(sizes, 1.0 / math.sqrt(max(inputs, 1)), dtype)


def constant(shape: Sequence[int], value: float, dtype: DType | str = "f32") -> Tensor:
    """The same number everywhere."""
    return _parameter(np.full(_checked_shape(shape), value), dtype)


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape whose sizes are whole numbers, and which limits allow."""
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UserError(
                f"a parameter cannot have the shape {tuple(shape)}: {size!r} is not a size"
            )
    what = f"a parameter of the shape {tuple(shape)}"
    limits.check_bytes(8 * math.prod(shape), what, limits.current())
    return tuple(shape)


def _parameter(values: NDArray[Any], dtype: DType | str) -> Tensor:
    return from_array(values.astype(as_dtype(dtype).numpy, copy=False), requires_grad=True)
