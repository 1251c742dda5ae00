"""Matrix factorisations and triangular systems, judged by what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import SI32, DType
from weft.testing.conformance.case import Case, Holds, Trial
from weft.testing.conformance.cases.common import Array, Shape, apply, case, defined, judged
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles import factorisation as oracle
from weft.testing.conformance.oracles.rounding import part_dtype, rounded

Kinds = tuple[tuple[DType, Shape], ...]

SQUARES: dict[str, tuple[Shape, int]] = {
    "one": ((), 1),
    "two": ((), 2),
    "odd": ((), 7),
    "batch": ((2, 3), 4),
    "empty": ((), 0),
    "no-batch": ((0,), 3),
    "large": ((), 33),
}
RECTANGLES: dict[str, tuple[Shape, int, int]] = {
    "one": ((), 1, 1),
    "tall": ((), 7, 3),
    "wide": ((), 3, 7),
    "square": ((), 5, 5),
    "batch": ((2, 3), 4, 3),
    "no-rows": ((), 0, 3),
    "no-columns": ((), 3, 0),
    "no-batch": ((0,), 2, 3),
    "large": ((), 33, 29),
}


def cases() -> Iterator[Case]:
    """cholesky, qr, eigh, svd, lu, triangular_solve."""
    for upper in (False, True):
        name = "upper" if upper else "lower"
        yield from _square_cases("cholesky", partial(_cholesky, upper), name)
    yield from _square_cases("eigh", _eigh)
    for mode in ("reduced", "complete"):
        yield from _rectangle_cases("qr", partial(_qr, mode), mode)
    for full in (False, True):
        yield from _rectangle_cases("svd", partial(_svd, full), "full" if full else "thin")
    yield from _rectangle_cases("lu", _lu)
    for dtype in defined("lu"):
        yield case("lu", dtype, "singular", trial=partial(_singular_lu, dtype))
        yield case("lu", dtype, "ties", trial=partial(_tied_lu, dtype))
    for row, special in (("eigh", _eigh), ("svd", partial(_svd, False))):
        for dtype in defined(row):
            yield case(row, dtype, "nan", trial=partial(_make_not_finite, row, special, dtype))
    yield from _solves()


def _square_cases(row: str, make: Callable[..., Trial], *parts: str) -> Iterator[Case]:
    for dtype in defined(row):
        for name, (batch, n) in SQUARES.items():
            x = partial(_hermitian, dtype, batch, n, definite=row == "cholesky")
            yield case(row, dtype, *parts, name, trial=partial(make, dtype, x))
        x = partial(_hermitian, dtype, (), 5, definite=row == "cholesky")
        dynamic = partial(make, dtype, x, dims=[["?N", "?N"]])
        yield case(row, dtype, *parts, "dynamic", trial=dynamic)


def _rectangle_cases(row: str, make: Callable[..., Trial], *parts: str) -> Iterator[Case]:
    for dtype in defined(row):
        for name, (batch, m, n) in RECTANGLES.items():
            x = partial(sample, dtype, (*batch, m, n), row)
            yield case(row, dtype, *parts, name, trial=partial(make, dtype, x))
        x = partial(sample, dtype, (2, 4, 3), row)
        dynamic = partial(make, dtype, x, dims=[["?B", 4, 3]])
        yield case(row, dtype, *parts, "dynamic", trial=dynamic)


def _hermitian(dtype: DType, batch: Shape, n: int, definite: bool) -> Array:
    half = sample(dtype, (*batch, n, n), "hermitian", scale=1.0).astype(np.complex128)
    full = half @ oracle.adjoint(half) + n * np.eye(n) if definite else half + oracle.adjoint(half)
    return rounded(full if dtype.is_complex else full.real, dtype)


def _property_trial(
    row: str,
    x: Array,
    kinds: Kinds,
    check: Callable[..., str],
    dims: Any = None,
    **attrs: Any,
) -> Trial:
    def right(results: Sequence[Array]) -> str:
        return check(x, *results)

    expected = Holds(_PROPERTY[row], kinds, right)
    return judged(apply(row, [x], dims=dims, **attrs), [x], expected)


_PROPERTY = {
    "cholesky": "l l^H = x, l triangular with a positive diagonal",
    "qr": "q r = x, q with orthonormal columns, r upper triangular",
    "eigh": "x v = v values, v unitary, the values ascending",
    "svd": "u s vh = x, u and vh orthonormal, s descending",
    "lu": "x[permutation] = l u, l unit lower and u upper triangular, pivots largest",
    "triangular_solve": "op(a) x = b",
}

Draw = Callable[[], Array]


def _cholesky(upper: bool, dtype: DType, draw: Draw, dims: Any = None) -> Trial:
    x = draw()
    kinds = ((dtype, x.shape),)
    check = partial(_call, oracle.cholesky, upper)
    return _property_trial("cholesky", x, kinds, check, dims, upper=upper)


def _call(function: Callable[..., str], last: Any, *args: Array) -> str:
    return function(*args, last)


def _eigh(dtype: DType, draw: Draw, dims: Any = None) -> Trial:
    x = draw()
    kinds = ((part_dtype(dtype), x.shape[:-1]), (dtype, x.shape))
    return _property_trial("eigh", x, kinds, oracle.eigh, dims)


def _qr(mode: str, dtype: DType, draw: Draw, dims: Any = None) -> Trial:
    x = draw()
    *batch, m, n = x.shape
    inner = min(m, n) if mode == "reduced" else m
    kinds = ((dtype, (*batch, m, inner)), (dtype, (*batch, inner, n)))
    return _property_trial("qr", x, kinds, oracle.qr, dims, mode=mode)


def _svd(full: bool, dtype: DType, draw: Draw, dims: Any = None) -> Trial:
    x = draw()
    *batch, m, n = x.shape
    k = min(m, n)
    rows, columns = (m, n) if full else (k, k)
    kinds = (
        (dtype, (*batch, m, rows)),
        (part_dtype(dtype), (*batch, k)),
        (dtype, (*batch, columns, n)),
    )
    return _property_trial("svd", x, kinds, oracle.svd, dims, full_matrices=full)


def _lu(dtype: DType, draw: Draw, dims: Any = None) -> Trial:
    x = draw()
    *batch, m, n = x.shape
    k = min(m, n)
    kinds = ((SI32, (*batch, m)), (dtype, (*batch, m, k)), (dtype, (*batch, k, n)))
    return _property_trial("lu", x, kinds, oracle.lu, dims)


def _singular_lu(dtype: DType) -> Trial:
    rows = [[1, 2, 3], [2, 4, 6], [0, 0, 0]]
    return _lu(dtype, lambda: np.array(rows, dtype.numpy))


def _tied_lu(dtype: DType) -> Trial:
    """Of equal pivots the first is taken: here no row moves."""
    x = np.array([[1, 2], [-1, 3], [1, 5]], dtype.numpy)
    kinds = ((SI32, (3,)), (dtype, (3, 2)), (dtype, (2, 2)))

    def check(_: Array, permutation: Array, *factors: Array) -> str:
        if permutation[0] != 0:
            return f"the first pivot is row {permutation[0]}, not the first of equal ones"
        return oracle.lu(x, permutation, *factors)

    return _property_trial("lu", x, kinds, check)


def _make_not_finite(row: str, make: Callable[..., Trial], dtype: DType) -> Trial:
    """A matrix with an element that is not finite gives NaN; its neighbours do not."""
    x = _hermitian(dtype, (3,), 4, definite=True)
    x[1, 2, 1] = np.nan
    sound = make(dtype, lambda: x)

    def check(_: Array, *results: Array) -> str:
        problem = oracle.all_missing([result[1] for result in results])
        judge = oracle.eigh if row == "eigh" else oracle.svd
        return problem or judge(x[::2], *(result[::2] for result in results))

    if not isinstance(sound.expected, Holds):
        return sound
    attrs = {"full_matrices": False} if row == "svd" else {}
    return _property_trial(row, x, sound.expected.kinds, check, **attrs)


# -- triangular systems --------------------------------------------------------------------------


def _solves() -> Iterator[Case]:
    shapes: dict[str, tuple[Shape, int, int]] = {
        "one": ((), 1, 1),
        "odd": ((), 5, 3),
        "batch": ((2, 3), 4, 2),
        "empty": ((), 0, 3),
        "no-columns": ((), 3, 0),
    }
    for dtype in defined("triangular_solve"):
        for lower in (True, False):
            for transpose in (False, True):
                for unit in (False, True):
                    flags = (
                        "lower" if lower else "upper",
                        "transposed" if transpose else None,
                        "unit" if unit else None,
                    )
                    for name, (batch, n, k) in shapes.items():
                        make = partial(_solve, dtype, batch, n, k, lower, transpose, unit)
                        yield case("triangular_solve", dtype, *flags, name, trial=make)


def _solve(
    dtype: DType, batch: Shape, n: int, k: int, lower: bool, transpose: bool, unit: bool
) -> Trial:
    a = sample(dtype, (*batch, n, n), "solve", lower, scale=0.4)
    a += np.eye(n).astype(a.dtype) * a.dtype.type(3)
    b = sample(dtype, (*batch, n, k), "solve", transpose)
    counted = np.tril(a) if lower else np.triu(a)
    if unit:
        counted = counted * (1 - np.eye(n)) + np.eye(n)
    if transpose:
        counted = np.swapaxes(counted, -2, -1)
    matrix = counted.astype(dtype.numpy)

    def check(results: Sequence[Array]) -> str:
        return oracle.solved(matrix, b, results[0])

    build = apply("triangular_solve", [a, b], lower=lower, transpose=transpose, unit_diagonal=unit)
    kinds = ((dtype, b.shape),)
    return judged(build, [a, b], Holds(_PROPERTY["triangular_solve"], kinds, check))
