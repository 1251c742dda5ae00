"""What makes a factorisation right: its product, the shape of its factors, orthogonality. Each
function says what is wrong, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MULTIPLE = 20
"""Errors are allowed up to this many times n eps, relative to the size of the operand."""


def adjoint(x: Array) -> Array:
    """Transposed and conjugated."""
    return np.conj(np.swapaxes(x, -2, -1))


def _largest_magnitude(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _as_long_double(x: Array) -> Array:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def apart(got: Array, want: Array, like: Array, what: str, scale: float = 1.0) -> str:
    """Whether two arrays differ by more than rounding can explain."""
    n = max(1, *like.shape[-2:])
    info: Any = ml_dtypes.finfo
    bound = MULTIPLE * n * float(info(like.dtype).eps) * max(scale, 1e-30)
    far = np.abs(got - want)
    worst = float(np.max(far, initial=0.0))
    if worst <= bound:
        return ""
    return f"{what} is off by {worst:.3g}, more than {bound:.3g}"


def not_unitary(q: Array, what: str) -> str:
    """Whether the columns are not orthonormal."""
    wide = _as_long_double(q)
    identity = np.eye(q.shape[-1])
    return apart(adjoint(wide) @ wide, identity, q, f"the product of {what} with its adjoint")


def not_triangular(x: Array, lower: bool, what: str) -> str:
    """Whether there is anything but zeros on the other side of the diagonal."""
    rest = np.triu(x, 1) if lower else np.tril(x, -1)
    return f"{what} is not triangular" if np.any(rest != 0) else ""


def first(*problems: str) -> str:
    """The first thing that is wrong."""
    return next((problem for problem in problems if problem), "")


def cholesky(x: Array, factor: Array, upper: bool) -> str:
    """One triangle, a positive diagonal, and the matrix as product."""
    wide = _as_long_double(factor)
    product = adjoint(wide) @ wide if upper else wide @ adjoint(wide)
    diagonal = np.diagonal(factor, axis1=-2, axis2=-1)
    positive = bool(np.all((diagonal.real > 0) & (diagonal.imag == 0)))
    return first(
        not_triangular(factor, not upper, "the factor"),
        "" if positive else "the diagonal is not positive",
        apart(
            product,
            _as_long_double(x),
            x,
            "the product of the factor with its adjoint",
            _largest_magnitude(x),
        ),
    )


def qr(x: Array, q: Array, r: Array) -> str:
    """Orthonormal columns, an upper triangle, and the matrix as product."""
    return first(
        not_unitary(q, "q"),
        not_triangular(r, False, "r"),
        apart(
            _as_long_double(q) @ _as_long_double(r),
            _as_long_double(x),
            x,
            "q r",
            _largest_magnitude(x),
        ),
    )


def eigh(x: Array, values: Array, vectors: Array) -> str:
    """Ascending values, orthonormal vectors, and x v = v values."""
    product, scaled = (
        _as_long_double(x) @ _as_long_double(vectors),
        _as_long_double(vectors) * values[..., None, :],
    )
    ascending = bool(np.all(np.diff(values, axis=-1) >= 0))
    scale = _largest_magnitude(x) * max(1, x.shape[-1])
    return first(
        "" if ascending else "the values are not ascending",
        not_unitary(vectors, "the vectors"),
        apart(product, scaled, x, "x vectors - vectors values", scale),
    )


def svd(x: Array, u: Array, s: Array, vh: Array) -> str:
    """Descending values that are not negative, orthonormal vectors, and the matrix as product."""
    k = min(x.shape[-2:])
    product = (_as_long_double(u)[..., :k] * s[..., None, :]) @ _as_long_double(vh)[..., :k, :]
    descending = bool(np.all(np.diff(s, axis=-1) <= 0) and np.all(s >= 0))
    return first(
        "" if descending else "the singular values are not descending and at least 0",
        not_unitary(u, "u"),
        not_unitary(adjoint(vh), "vh"),
        apart(product, _as_long_double(x), x, "u s vh", _largest_magnitude(x) * max(1, k)),
    )


def lu(x: Array, permutation: Array, lower: Array, upper: Array) -> str:
    """Every row once, unit lower and upper triangles, pivots that are largest, and the product."""
    rows = np.sort(permutation, axis=-1)
    each = np.broadcast_to(np.arange(x.shape[-2]), rows.shape)
    if not np.array_equal(rows, each):
        return "the permutation does not hold every row once"
    turned = np.take_along_axis(x, permutation[..., None].astype(np.int64), -2)
    unit = np.diagonal(lower, axis1=-2, axis2=-1)
    sizes = np.abs(lower.real) + np.abs(lower.imag)
    # |re| + |im| of a quotient by the largest is at most 1 for real numbers, 2 for complex ones.
    bounded = bool(np.all(sizes <= 2.001 if x.dtype.kind == "c" else sizes <= 1))
    product = _as_long_double(lower) @ _as_long_double(upper)
    return first(
        not_triangular(lower, True, "l"),
        "" if np.all(unit == 1) else "the diagonal of l is not 1",
        not_triangular(upper, False, "u"),
        "" if bounded else "a pivot is not the largest of its column",
        apart(
            product,
            _as_long_double(turned),
            x,
            "l u",
            _largest_magnitude(x) * max(1, *x.shape[-2:]),
        ),
    )


def solved(a: Array, b: Array, x: Array) -> str:
    """a x = b, up to the rounding of a substitution. `a` is the triangle that counts."""
    product = _as_long_double(a) @ _as_long_double(x)
    scale = float(
        np.max(np.abs(_as_long_double(a)) @ np.abs(_as_long_double(x)), initial=0.0)
    ) + _largest_magnitude(b)
    return apart(product, _as_long_double(b), a, "a x - b", scale)


def all_missing(results: Sequence[Array]) -> str:
    """Whether every element is NaN."""
    missing = all(np.all(np.isnan(result)) for result in results)
    return "" if missing else "an element is not NaN"
