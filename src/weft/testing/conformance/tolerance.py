"""How close a result must come. Each expected tensor carries one of these rules.

    Exact       every element is equal; any NaN stands for NaN
    Ulps        every element lies within so many units in the last place of the exact value
    PerTensor   the largest error of the tensor is at most twice that of the plain evaluation, one
                operation after the other in the accumulator's dtype, and 4 ulp of the largest
                element; a result narrower than its accumulator may differ by its own rounding

The exact value is known to more digits than the dtype has. A complex number errs as a whole: the
distance from the exact value counts, measured in units of its magnitude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.testing.conformance.oracles.rounding import part_dtype, precision, rounded, smallest

Array: TypeAlias = NDArray[Any]

_ROUNDING = 0.501
"""Half an ulp for one rounding, and a little for the one that came before it in a wider dtype."""


@dataclass(frozen=True)
class Exact:
    """Equal elements. Zeros must have the right sign where `zeros` says so."""

    zeros: bool = True

    def __str__(self) -> str:
        return "exact"

    def accepts(self, got: Array, exact: Array, dtype: DType) -> Array:
        """Which elements pass; `exact` is an array of the dtype itself."""
        same = _equal(got, exact)
        if self.zeros and (dtype.is_float or dtype.is_complex):
            same &= _same_signs(got, exact) | ~_is_zero(exact)
        return same


@dataclass(frozen=True)
class Ulps:
    """Within `count` units in the last place of each exact value."""

    count: float | Array
    zeros: bool = True

    def __str__(self) -> str:
        return f"within {float(np.max(self.count, initial=0.0)):.4g} ulp"

    def accepts(self, got: Array, exact: Array, dtype: DType) -> Array:
        """Which elements pass."""
        passed = _is_within_bound(got, exact, self.count * ulp(exact, dtype), dtype)
        if self.zeros and dtype.is_float:
            passed &= (got != 0) | (exact != 0) | (np.signbit(got) == np.signbit(exact))
        return passed


CORRECTLY_ROUNDED = Ulps(_ROUNDING)


@dataclass(frozen=True)
class PerTensor:
    """Within 2 `error` + 4 ulp of the largest element, `error` being that of the plain evaluation
    in `accum`."""

    accum: DType
    error: float

    def __str__(self) -> str:
        return f"per tensor, in {self.accum}"

    def accepts(self, got: Array, exact: Array, dtype: DType) -> Array:
        """Which elements pass."""
        size = np.abs(exact)
        most = np.max(np.where(np.isfinite(size), size, 0), initial=0.0)
        bound = 2 * self.error + 4 * ulp(np.asarray(most), self.accum)
        if precision(dtype) < precision(self.accum):
            both = math.sqrt(2) if dtype.is_complex else 1.0
            bound = bound + both * _ROUNDING * ulp(exact, dtype)
        return _is_within_bound(got, exact, np.broadcast_to(bound, size.shape), dtype)


Rule: TypeAlias = Exact | Ulps | PerTensor


def ulp(exact: Array, dtype: DType) -> Array:
    """The distance between neighbouring values of a float dtype (or of the parts of a complex one)
    at the magnitude of each element; 0 where that is not finite."""
    size = np.abs(exact)
    finite = np.isfinite(size)
    exponent = np.frexp(np.where(finite, size, 0))[1]
    spacing = np.ldexp(1.0, exponent - precision(dtype))
    return np.where(finite, np.maximum(spacing, smallest(dtype)), 0.0)


def _is_within_bound(got: Array, exact: Array, bound: Array, dtype: DType) -> Array:
    """Elements within the bound, or equal to what an end of the interval rounds to: that admits
    overflow where it is near."""
    with np.errstate(all="ignore"):
        if dtype.is_complex:
            return _near_complex(got, exact, bound, dtype)
        value = got.astype(exact.dtype)
        close = np.abs(value - exact) <= bound
        for end in (exact - bound, exact, exact + bound):
            close |= _equal(got, rounded(end, dtype))
        return np.asarray(close)


def _near_complex(got: Array, exact: Array, bound: Array, dtype: DType) -> Array:
    close = np.abs(got.astype(exact.dtype) - exact) <= bound
    parts = part_dtype(dtype)
    ends = [
        _is_within_bound(np.real(got), np.real(exact), bound, parts),
        _is_within_bound(np.imag(got), np.imag(exact), bound, parts),
    ]
    finite = np.isfinite(rounded(exact, dtype))
    return np.asarray(np.where(finite, close, ends[0] & ends[1]))


def _equal(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        return _equal(a.real, b.real) & _equal(a.imag, b.imag)
    same = np.asarray(a == b)
    return np.asarray(same | (_is_nan(a) & _is_nan(b)))


def _is_nan(a: Array) -> Array:
    # Only NaN differs from itself; ml_dtypes' types need no more than that.
    return np.asarray(a != a)  # noqa: PLR0124


def _is_zero(a: Array) -> Array:
    if a.dtype.kind == "c":
        return np.asarray((a.real == 0) | (a.imag == 0))
    return np.asarray(a == np.zeros((), a.dtype))


def _same_signs(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        real = (np.signbit(a.real) == np.signbit(b.real)) | (b.real != 0)
        imag = (np.signbit(a.imag) == np.signbit(b.imag)) | (b.imag != 0)
        return np.asarray(real & imag)
    return np.asarray(np.signbit(a) == np.signbit(b))
