"""Elementwise functions on exact numbers: floats and complex numbers in a wide format, integers as
integers without a width. The results are exact, or wide; rounding and wrapping come after."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import FP8_E4M3, DType
from weft.testing.conformance.oracles.rounding import part_dtype

Array: TypeAlias = NDArray[Any]
Function: TypeAlias = Callable[..., Any]


def each(function: Callable[..., Any], *args: Array) -> Array:
    """A Python function of every element, as an array of objects."""
    return np.asarray(np.frompyfunc(function, len(args), 1)(*args), object)


def _erf(x: Array) -> Array:
    return each(math.erf, x.astype(np.float64)).astype(x.dtype)


def _sign(x: Array) -> Array:
    return np.where((x == 0) | np.isnan(x), x, np.copysign(np.ones_like(x), x))


REAL_UNARY: Mapping[str, Function] = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sign": _sign,
    "sin": np.sin,
    "cos": np.cos,
    "tan": lambda x: np.sin(x) / np.cos(x),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "exp2": np.exp2,
    "log2": np.log2,
    "log10": np.log10,
}


def _maximum(x: Array, y: Array) -> Array:
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x, y))


def _minimum(x: Array, y: Array) -> Array:
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x < y, x, y))


REAL_BINARY: Mapping[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "maximum": _maximum,
    "minimum": _minimum,
    "atan2": np.arctan2,
    "pow": np.power,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
}


# -- complex numbers, from their parts -----------------------------------------------------------


def _join(real: Array, imag: Array) -> Array:
    result = np.empty(np.shape(real), np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def _exp(z: Array) -> Array:
    size = np.exp(z.real)
    return _join(size * np.cos(z.imag), size * np.sin(z.imag))


def _log(z: Array) -> Array:
    return _join(np.log(np.hypot(z.real, z.imag)), np.arctan2(z.imag, z.real))


def _sin(z: Array) -> Array:
    x, y = z.real, z.imag
    return _join(np.sin(x) * np.cosh(y), np.cos(x) * np.sinh(y))


def _cos(z: Array) -> Array:
    x, y = z.real, z.imag
    return _join(np.cos(x) * np.cosh(y), -np.sin(x) * np.sinh(y))


def _sinh(z: Array) -> Array:
    x, y = z.real, z.imag
    return _join(np.sinh(x) * np.cos(y), np.cosh(x) * np.sin(y))


def _cosh(z: Array) -> Array:
    x, y = z.real, z.imag
    return _join(np.cosh(x) * np.cos(y), np.sinh(x) * np.sin(y))


def _divide_complex(z: Array, w: Array) -> Array:
    a, b, c, d = z.real, z.imag, w.real, w.imag
    size = c * c + d * d
    return _join((a * c + b * d) / size, (b * c - a * d) / size)


def _times(z: Array, w: Array) -> Array:
    a, b, c, d = z.real, z.imag, w.real, w.imag
    return _join(a * c - b * d, a * d + b * c)


def _square_root(z: Array) -> Array:
    """The root with real part at least 0, the larger part first: nothing cancels."""
    x, y = z.real, z.imag
    size = np.hypot(x, y)
    major = np.sqrt((size + np.abs(x)) / 2)
    minor = np.where(major == 0, 0, np.abs(y) / (2 * np.where(major == 0, 1, major)))
    real, imag = np.where(x >= 0, major, minor), np.where(x >= 0, minor, major)
    return _join(real, np.copysign(imag, y))


def _one_over(z: Array) -> Array:
    return _divide_complex(np.ones_like(z), z)


def _log_of(base: float, z: Array) -> Any:
    """The logarithm of a number to as many digits as z has."""
    return np.log(np.asarray(base, z.real.dtype))


def _direction(z: Array) -> Array:
    size = np.hypot(z.real, z.imag)
    safe = np.where(size == 0, 1, size)
    return _join(z.real / safe, z.imag / safe)


COMPLEX_UNARY: Mapping[str, Function] = {
    "neg": lambda z: _join(-z.real, -z.imag),
    "abs": lambda z: _join(np.hypot(z.real, z.imag), np.zeros_like(z.real)),
    "exp": _exp,
    "log": _log,
    "tanh": lambda z: _divide_complex(_sinh(z), _cosh(z)),
    "rsqrt": lambda z: _one_over(_square_root(z)),
    "reciprocal": _one_over,
    "sqrt": _square_root,
    "sign": _direction,
    "sin": _sin,
    "cos": _cos,
    "tan": lambda z: _divide_complex(_sin(z), _cos(z)),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "expm1": lambda z: _exp(z) - 1,
    "log1p": lambda z: _log(_join(1 + z.real, z.imag)),
    "exp2": lambda z: _exp(z * _log_of(2.0, z)),
    "log2": lambda z: _log(z) / _log_of(2.0, z),
    "log10": lambda z: _log(z) / _log_of(10.0, z),
}
COMPLEX_BINARY: Mapping[str, Function] = {
    "add": lambda z, w: _join(z.real + w.real, z.imag + w.imag),
    "sub": lambda z, w: _join(z.real - w.real, z.imag - w.imag),
    "mul": _times,
    "div": _divide_complex,
    "pow": lambda z, w: _exp(_times(w, _log(z))),
}


# -- integers without a width --------------------------------------------------------------------


def _divide_to_zero(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


INTEGER_UNARY: Mapping[str, Function] = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "sign": lambda x: (x > 0).astype(object) - (x < 0).astype(object),
    "bitwise_not": lambda x: -x - 1,
}


def _power_modulo(bits: int) -> Callable[[int, int], int]:
    return lambda base, exponent: pow(base, exponent, 1 << bits)


def integer_binary(name: str, x: Array, y: Array, dtype: DType) -> Array:
    """A binary function of Python integers; what it means beyond the width is left to wrapping."""
    match name:
        case "div":
            return each(_divide_to_zero, x, y)
        case "fmod":
            return each(lambda a, b: a - b * _divide_to_zero(a, b), x, y)
        case "pow":
            return each(_power_modulo(dtype.bits), x, y)
        case "shift_left":
            return each(lambda a, n: a << min(n, dtype.bits), x, y)
        case "shift_right":
            return each(lambda a, n: a >> min(n, dtype.bits), x, y)
        case _:
            return np.asarray(_INTEGER_BINARY[name](x, y), object)


_INTEGER_BINARY: Mapping[str, Function] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
}


# -- the stored bits of floats -------------------------------------------------------------------


def _bits(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}").astype(object)


def sign_bits(x: Array) -> Array:
    """Whether the highest stored bit is set."""
    return np.asarray(_bits(x) >= 1 << (8 * x.dtype.itemsize - 1), np.bool_)


def copysign(x: Array, sign: Array) -> Array:
    """The bits of x with the highest one taken from `sign`."""
    half = 1 << (8 * x.dtype.itemsize - 1)
    stored = np.asarray(_bits(x) % half + half * sign_bits(sign).astype(object), object)
    return stored.astype(f"u{x.dtype.itemsize}").view(x.dtype)


def nextafter(x: Array, goal: Array, dtype: DType) -> Array:
    """Counting floats from 0 in both directions, the neighbour has the next number."""
    start, end = x.reshape(-1), goal.reshape(-1)
    values, goals = start.astype(np.float64), end.astype(np.float64)
    missing_either = np.isnan(values) | np.isnan(goals)
    half = 1 << (dtype.bits - 1)
    size = np.where(missing_either, 0, _bits(start) % half)
    rank = np.where(sign_bits(start), -size, size)
    moved = rank + np.where(goals > values, 1, -1).astype(object)
    negative = (moved < 0) | ((moved == 0) & sign_bits(start))
    stored = np.where(negative, half + abs(moved), moved).astype(object)
    found = stored.astype(f"u{x.dtype.itemsize}").view(x.dtype)
    found = np.where(goals == values, end, found)
    found = np.where(missing_either, np.array(np.nan, x.dtype), found)
    return np.asarray(found, x.dtype).reshape(x.shape)


def infinite(x: Array, dtype: DType) -> Array:
    """Whether either part is infinite; fp8_e4m3 never is."""
    if dtype is FP8_E4M3:
        return np.zeros(x.shape, np.bool_)
    if dtype.is_complex:
        return np.asarray((np.abs(x.real) == np.inf) | (np.abs(x.imag) == np.inf))
    return np.asarray(np.abs(x.astype(np.float64)) == np.inf)


def has_nan(x: Array, dtype: DType) -> Array:
    """Whether either part is NaN, which alone differs from itself."""
    if dtype.is_complex:
        return has_nan(x.real, part_dtype(dtype)) | has_nan(x.imag, part_dtype(dtype))
    values = x.astype(np.float64)
    return np.asarray(values != values)  # noqa: PLR0124
