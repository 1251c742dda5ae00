"""NumPy's functions on tensors: `np.sum(x)`, `np.exp(x)`, `np.add(x, array)`, `array + x`.

A function that Weft has too is Weft's: its result is a tensor, captured and computed when it is
read. Any other function, and one that is called with arguments that Weft's does not take (`out`,
`where`), is NumPy's own: the tensors are read, and the result is an array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.foundation.errors import UserError
from weft.ops.array import (
    beyond,
    elementwise,
    fft,
    indexing,
    linalg,
    linear_algebra,
    manipulation,
    searching,
    sets,
    sorting,
    statistics,
    utility,
)
from weft.ops.array.creation import tril, triu
from weft.ops.functional.contraction import einsum
from weft.ops.functional.linear import matmul
from weft.ops.tensor import Tensor

_MODULES = (
    beyond, elementwise, indexing, linear_algebra, manipulation, searching, sets, sorting,
    statistics, utility,
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(module, name) for module in _MODULES for name in module.__all__},
    "arccos": elementwise.acos,
    "arccosh": elementwise.acosh,
    "arcsin": elementwise.asin,
    "arcsinh": elementwise.asinh,
    "arctan": elementwise.atan,
    "arctan2": elementwise.atan2,
    "arctanh": elementwise.atanh,
    "conjugate": elementwise.conj,
    "einsum": einsum,
    "invert": elementwise.bitwise_invert,
    "left_shift": elementwise.bitwise_left_shift,
    "matmul": matmul,
    "ndim": lambda x: x.ndim,
    "right_shift": elementwise.bitwise_right_shift,
    "shape": lambda x: x.shape,
    "size": lambda x: x.size,
    "tril": tril,
    "triu": triu,
}
"""Weft's functions under NumPy's names."""
_FLATTENS = {"cumulative_sum", "cumulative_prod", "take", "take_along_axis"}
"""Without an axis these flatten in NumPy and refuse in Weft."""
_OF_PACKAGES = {"numpy.linalg": linalg, "numpy.fft": fft}


@cache
def _counterpart(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Weft's function for one of NumPy's."""
    name = function.__name__
    package = _OF_PACKAGES.get(getattr(function, "__module__", "numpy"))
    if package is not None:
        return getattr(package, name, None) if name in package.__all__ else None
    return _FUNCTIONS.get(name)


def _takes_arguments(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether these are arguments of Weft's function, tensors and arrays for tensors."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return function.__name__ not in _FLATTENS or bound.arguments.get("axis") is not None


def _tensors_as_arrays(value: Any) -> Any:
    """Arrays in place of tensors, also inside lists."""
    if isinstance(value, Tensor):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(_tensors_as_arrays(item) for item in value)
    return value


def _by_numpy(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    out = kwargs.get("out")
    if any(isinstance(o, Tensor) for o in (out if isinstance(out, tuple) else (out,))):
        raise UserError("a tensor cannot be the `out` of a NumPy function; assign the result to it")
    return function(
        *_tensors_as_arrays(args),
        **{key: _tensors_as_arrays(value) for key, value in kwargs.items()},
    )


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """An elementwise function of NumPy, which is also how `array + tensor` arrives."""
    found = _counterpart(ufunc) if method == "__call__" else None
    if found is not None and not kwargs:
        return found(*args)
    return _by_numpy(getattr(ufunc, method), args, kwargs)


def _array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Any other function of NumPy."""
    found = _counterpart(function)
    if found is not None and _takes_arguments(found, args, kwargs):
        return found(*args, **kwargs)
    return _by_numpy(function, args, kwargs)


def install() -> None:
    """Give `Tensor` the two methods that NumPy looks for."""
    setattr(Tensor, "__array_ufunc__", _array_ufunc)  # noqa: B010
    setattr(Tensor, "__array_function__", _array_function)  # noqa: B010
