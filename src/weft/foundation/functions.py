"""NumPy implementations of elementwise functions and reductions, by name: what every op and every
interpreter means by them.

Narrow floats are computed in f32 and rounded once, 4-bit integers wrap. Warnings about
overflow or invalid operands are not wanted here: infinities and NaN are values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import complex_functions, numeric, scalar
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.scalar import FUNCTIONS

Array = NDArray[Any]
Function: TypeAlias = Callable[..., Any]

QUIET: Final[Mapping[str, Any]] = {"all": "ignore"}
"""The NumPy error state in which programs run: `with np.errstate(**QUIET)`."""


UNARY: Final[Mapping[str, Function]] = {
    str(fn): row.meaning for fn, row in FUNCTIONS.items() if fn in scalar.UNARY
}
COMPARISONS: Final[Mapping[str, Function]] = {
    str(fn): row.meaning for fn, row in FUNCTIONS.items() if fn in scalar.COMPARISONS
}
BINARY: Final[Mapping[str, Function]] = {
    str(fn): row.meaning
    for fn, row in FUNCTIONS.items()
    if fn in scalar.BINARY - scalar.COMPARISONS
}
ON_BITS: Final = frozenset({"copysign", "nextafter"})
"""Functions of the stored bits, which no widening may come before."""
REDUCTIONS: Final[Mapping[str, Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


def sign(x: Array) -> Array:
    """-1, 0 or 1 with the sign of x, zeros as they are; of a complex value, its direction."""
    if x.dtype.kind == "c":
        return complex_functions.direction(x.astype(np.complex128, copy=False))
    # NumPy turns -0 into +0.
    return np.where(x == 0, x, np.sign(x))


def unary(fn: str, dtype: DType, x: Array) -> Array:
    """`fn` of every element of an array of `dtype`."""
    return numeric.compute(UNARY[fn], dtype, x)


def binary(fn: str, dtype: DType, lhs: Array, rhs: Array) -> Array:
    """`fn` of pairs of elements of `dtype`, broadcasting; a comparison gives i1."""
    if fn in COMPARISONS:
        return np.asarray(COMPARISONS[fn](numeric.widen(lhs, dtype), numeric.widen(rhs, dtype)))
    if lhs.shape != rhs.shape:
        # NumPy broadcasts no more than 32 axes, of the 64 that a tensor may have.
        lhs, rhs = np.broadcast_arrays(lhs, rhs)
    if fn in ON_BITS:
        lhs, rhs = np.asarray(lhs, order="C"), np.asarray(rhs, order="C")
        return np.asarray(BINARY[fn](lhs, rhs)).view(lhs.dtype)
    return numeric.compute(BINARY[fn], dtype, lhs, rhs)


_VALUE, _ELEMENT = "{value}", "{element}"


def checked(x: Array, rule: str, size: int, code: str) -> Array:
    """`x`, or a violation that names the first element which breaks the rule: `inside` [0, size),
    `nonzero` or `nonnegative`."""
    broken = {"inside": (x < 0) | (x >= size), "nonzero": x == 0, "nonnegative": x < 0}[rule]
    found = np.flatnonzero(broken)
    if found.size:
        first = int(found[0])
        why = broken_rule(rule, size)
        raise SpecViolation(code, broken_at(why, first, int(x.reshape(-1)[first])))
    return x


def broken_rule(rule: str, size: int) -> str:
    """What is wrong with an element that breaks a rule; `broken_at` fills in the rest."""
    return {
        "inside": f"the index{_VALUE} at element {_ELEMENT} is outside [0, {size})",
        "nonzero": f"the divisor is zero at element {_ELEMENT}",
        "nonnegative": f"the number{_VALUE} at element {_ELEMENT} is negative",
    }[rule]


def broken_at(why: str, element: int, value: int | None = None) -> str:
    """The sentence about an element that broke a rule, with its value where it is known."""
    shown = "" if value is None else f" {value}"
    return why.replace(_VALUE, shown).replace(_ELEMENT, str(element))


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


def running(function: Any, x: Array, axis: int, reverse: bool) -> Array:
    """Each element along an axis combined by a ufunc with those before it, or with `reverse` after
    it. Floats are added in f64, and each sum is rounded once: one that has grown large would no
    longer change by what is small beside it, though much of that be to come."""
    source = np.flip(x, axis) if reverse else x
    adds = function is np.add and x.dtype.kind in "fc"
    wide = np.result_type(x.dtype, np.float64) if adds else x.dtype
    found = function.accumulate(source, axis=axis, dtype=wide).astype(x.dtype, copy=False)
    return np.flip(found, axis) if reverse else np.asarray(found)


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
