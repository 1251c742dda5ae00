"""The functions of elements and the reductions that every interpreter shares, by name, on NumPy
arrays.

Their meaning is that of the PTIR op of the same name: narrow floats are computed in f32 and rounded
once, 4-bit integers wrap, integer division truncates toward zero, maximum and minimum propagate
NaN. Warnings about overflow or invalid operands are not wanted here: infinities and NaN are values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.special import erf

Array = NDArray[Any]
Function: TypeAlias = Callable[..., Any]

QUIET: Final[Mapping[str, Any]] = {"all": "ignore"}
"""The NumPy error state in which programs run: `with np.errstate(**QUIET)`."""


def divide(lhs: Array, rhs: Array) -> Array:
    """Division: IEEE for floats; toward zero for integers, where zero divisors are a violation."""
    if lhs.dtype.kind not in "iu":
        return np.asarray(np.divide(lhs, rhs))
    zero = np.flatnonzero(np.broadcast_to(rhs, lhs.shape) == 0)
    if zero.size:
        raise SpecViolation("IntegerDivideByZero", f"the divisor is zero at element {int(zero[0])}")
    if lhs.dtype.kind == "u":
        return np.asarray(lhs // rhs)
    quotient = np.floor_divide(lhs, rhs)
    inexact = quotient * rhs != lhs
    toward_zero = quotient + (inexact & ((lhs < 0) != (rhs < 0)))
    return np.asarray(toward_zero, lhs.dtype)


def _in_double(function: Function) -> Function:
    """`function` carried out in f64: results are rounded once, and are then the same on every
    machine."""
    return lambda x: function(x.astype(np.float64, copy=False))


def _gelu(x: Array) -> Array:
    half = x.dtype.type(0.5)
    return np.asarray(half * x * (1 + erf(x * x.dtype.type(math.sqrt(0.5)))))


UNARY: Final[Mapping[str, Function]] = {
    "neg": np.negative,
    "abs": lambda x: np.abs(x).astype(x.dtype),
    "exp": np.exp,
    "exp2": _in_double(np.exp2),
    "log": np.log,
    "log2": _in_double(np.log2),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "recip": np.reciprocal,
    "sin": _in_double(np.sin),
    "cos": _in_double(np.cos),
    "tanh": np.tanh,
    "erf": erf,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "gelu": _gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "not": np.invert,
}
BINARY: Final[Mapping[str, Function]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": divide,
    "max": np.maximum,
    "min": np.minimum,
}
COMPARISONS: Final[Mapping[str, Function]] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "ne": np.not_equal,
}
REDUCTIONS: Final[Mapping[str, Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def unary(fn: str, dtype: DType, x: Array) -> Array:
    """`fn` of every element of an array of `dtype`."""
    return numeric.compute(UNARY[fn], dtype, x)


def binary(fn: str, dtype: DType, lhs: Array, rhs: Array) -> Array:
    """`fn` of pairs of elements of `dtype`, broadcasting; a comparison gives i1."""
    if fn in COMPARISONS:
        return np.asarray(COMPARISONS[fn](numeric.widen(lhs, dtype), numeric.widen(rhs, dtype)))
    lhs, rhs = np.broadcast_arrays(lhs, rhs)
    return numeric.compute(BINARY[fn], dtype, lhs, rhs)


def identity(fn: str, dtype: DType) -> Array:
    """What reducing nothing of `dtype` gives, as a rank-0 array of `dtype`."""
    match fn:
        case "sum":
            start: Any = 0
        case "prod":
            start = 1
        case "max":
            start = dtype.lowest
        case "min":
            start = dtype.highest
        case _:
            raise InternalError(f"there is no reduction named {fn}")
    return np.asarray(np.asarray(start).astype(dtype.numpy))


def reduce(fn: str, dtype: DType, x: Array, axes: Sequence[int], accum: DType) -> Array:
    """An array of `dtype` reduced over `axes`, which disappear, in the dtype `accum`."""
    return fold(REDUCTIONS[fn], x, axes, accum, identity(fn, dtype))


def fold(function: Any, x: Array, axes: Sequence[int], accum: DType, start: Array) -> Array:
    """`x` reduced over `axes` with a ufunc in the dtype `accum`; `start` where there is nothing."""
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 0:
        shape = [extent for axis, extent in enumerate(x.shape) if axis not in axes]
        return np.full(shape, start.astype(accum.numpy), accum.numpy)
    if rounds_each_step(function, accum):
        return _fold_in_sequence(function, x, sorted(axes), count, accum)
    # With `dtype`, NumPy converts buffer by buffer: a wider accumulator needs no copy of x.
    wide = numeric.compute_dtype(accum)
    total = function.reduce(x, axis=tuple(axes), dtype=wide.numpy)
    return numeric.narrow(np.asarray(total), accum)


def rounds_each_step(function: Any, accum: DType) -> bool:
    """Whether accumulating in a narrow float differs from accumulating in f32 and rounding."""
    return accum.is_float and accum.bits < 32 and function in (np.add, np.multiply)


def _fold_in_sequence(
    function: Any, x: Array, axes: Sequence[int], count: int, accum: DType
) -> Array:
    # `reduce` of f16 keeps partial sums in f32; `accumulate` has to round each of them.
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    rows = x.transpose(*axes, *rest).reshape(count, *(x.shape[axis] for axis in rest))
    return np.asarray(function.accumulate(rows.astype(accum.numpy), axis=0)[-1])
