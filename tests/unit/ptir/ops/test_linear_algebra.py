"""Factorisations by what they promise (product, shape of the factors, orthogonality), and against
SciPy where the answer is unique."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, infer, random_array
from weft.foundation.dtypes import BF16, CF32, CF64, F16, F32, F64, DType
from weft.ptir.ops import linear_algebra as la
from weft.ptir.types import TupleType, tensor

DTYPES = by_name(frozenset({F32, F64, CF32, CF64}))
BATCHES: list[tuple[int, ...]] = [(), (3,), (2, 0), (2, 1, 3)]
SQUARE = [0, 1, 2, 5, 17]
RECTANGLES = [(0, 0), (0, 3), (3, 0), (1, 1), (1, 4), (4, 1), (3, 7), (7, 3), (6, 6)]


def adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -2, -1))


def close(out: Array, want: Array, size: float = 1.0) -> None:
    """Equal up to 20 n eps, relative to the size of the numbers that went in."""
    n = max(1, *out.shape[-2:]) if out.ndim > 1 else max(1, out.size)
    bound = 20 * n * float(np.finfo(out.dtype).eps) * max(size, 1e-30)
    assert out.shape == want.shape
    assert np.max(np.abs(out - want), initial=0.0) <= bound


def orthonormal_columns(q: Array) -> None:
    columns = q.shape[-1]
    identity = np.eye(columns, dtype=q.dtype)
    close(adjoint(q) @ q, np.broadcast_to(identity, (*q.shape[:-2], columns, columns)))


def size_of(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def positive_definite(dtype: DType, batch: tuple[int, ...], n: int) -> Array:
    x = random_array(dtype, (*batch, n, n), scale=1.0)
    return np.asarray(x @ adjoint(x) + n * np.eye(n), dtype.numpy)


# -- cholesky ------------------------------------------------------------------------------------


@each("dtype", DTYPES)
@each("batch", BATCHES)
@each("n", SQUARE)
@each("upper", [False, True])
def test_cholesky(dtype: DType, batch: tuple[int, ...], n: int, upper: bool) -> None:
    x = positive_definite(dtype, batch, n)
    factor = apply(la.Cholesky(upper), x)
    triangle = np.triu(factor) if upper else np.tril(factor)
    np.testing.assert_array_equal(factor, triangle)
    diagonal = np.diagonal(factor, axis1=-2, axis2=-1)
    assert (diagonal.real > 0).all()
    assert (diagonal.imag == 0).all()
    close(adjoint(factor) @ factor if upper else factor @ adjoint(factor), x, size_of(x))


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_reads_one_triangle(upper: bool) -> None:
    x = positive_definite(F64, (), 5)
    spoiled = x.copy()
    other = np.tril_indices(5, -1) if upper else np.triu_indices(5, 1)
    spoiled[other] = np.nan
    assert bits(apply(la.Cholesky(upper), spoiled)) == bits(apply(la.Cholesky(upper), x))


@pytest.mark.parametrize("dtype", [CF32, CF64], ids=str)
def test_cholesky_ignores_the_imaginary_diagonal(dtype: DType) -> None:
    x = positive_definite(dtype, (), 4)
    spoiled = x + 1j * np.eye(4, dtype=dtype.numpy)
    close(apply(la.Cholesky(False), spoiled), apply(la.Cholesky(False), x), size_of(x))


# -- qr ------------------------------------------------------------------------------------------


@each("dtype", [F32, CF64])
@each("batch", BATCHES)
@each(("m", "n"), RECTANGLES)
@each("mode", list(la.QrMode))
def test_qr(dtype: DType, batch: tuple[int, ...], m: int, n: int, mode: la.QrMode) -> None:
    x = random_array(dtype, (*batch, m, n))
    q, r = apply(la.Qr(mode), x)
    inner = min(m, n) if mode is la.QrMode.REDUCED else m
    assert q.shape == (*batch, m, inner)
    assert r.shape == (*batch, inner, n)
    orthonormal_columns(q)
    np.testing.assert_array_equal(r, np.triu(r))
    close(q @ r, x, size_of(x))


def test_qr_of_a_rank_deficient_matrix() -> None:
    x = np.ones((4, 3))
    q, r = apply(la.Qr(la.QrMode.REDUCED), x)
    orthonormal_columns(q)
    close(q @ r, x)


# -- eigh ----------------------------------------------------------------------------------------


@each("dtype", DTYPES)
@each("batch", BATCHES)
@each("n", SQUARE)
def test_eigh(dtype: DType, batch: tuple[int, ...], n: int) -> None:
    half = random_array(dtype, (*batch, n, n))
    x = np.asarray(half + adjoint(half))
    values, vectors = apply(la.Eigh(), x)
    assert values.dtype == x.real.dtype
    assert (np.diff(values, axis=-1) >= 0).all()
    orthonormal_columns(vectors)
    close(x @ vectors, vectors * values[..., None, :], size_of(x) * max(n, 1))
    if batch == () and n:
        want = scipy.linalg.eigh(x.astype(np.complex128), eigvals_only=True)
        close(values, want.astype(values.dtype), size_of(x) * n)


def test_eigh_reads_the_lower_triangle() -> None:
    x = positive_definite(CF64, (), 5)
    spoiled = x.copy()
    spoiled[np.triu_indices(5, 1)] = np.nan
    spoiled += 1j * np.diag(np.arange(5.0))
    for out, want in zip(apply(la.Eigh(), spoiled), apply(la.Eigh(), x), strict=True):
        assert bits(out) == bits(want)


def test_eigh_of_equal_values() -> None:
    values, vectors = apply(la.Eigh(), 3 * np.eye(4, dtype=np.float32))
    assert values.tolist() == [3, 3, 3, 3]
    orthonormal_columns(vectors)


# -- svd -----------------------------------------------------------------------------------------


@each("dtype", [F32, CF64])
@each("batch", BATCHES)
@each(("m", "n"), RECTANGLES)
@each("full", [False, True])
def test_svd(dtype: DType, batch: tuple[int, ...], m: int, n: int, full: bool) -> None:
    x = random_array(dtype, (*batch, m, n))
    u, s, vh = apply(la.Svd(full), x)
    k = min(m, n)
    assert u.shape == (*batch, m, m if full else k)
    assert vh.shape == (*batch, n if full else k, n)
    assert s.dtype == x.real.dtype
    assert (s >= 0).all()
    assert (np.diff(s, axis=-1) <= 0).all()
    orthonormal_columns(u)
    orthonormal_columns(adjoint(vh))
    close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, size_of(x) * max(k, 1))


def test_svd_of_a_singular_matrix() -> None:
    u, s, vh = apply(la.Svd(False), np.ones((3, 3), np.float32))
    close(s, np.array([3, 0, 0], np.float32))
    close((u * s) @ vh, np.ones((3, 3), np.float32))


@each("dtype", DTYPES)
@each("bad", [np.nan, np.inf, -np.inf])
@each("op", [la.Eigh(), la.Svd(False), la.Svd(True)])
def test_an_element_that_is_not_finite_spoils_only_its_own_matrix(
    op: Any, bad: float, dtype: DType
) -> None:
    x = positive_definite(dtype, (3,), 4)
    spoiled = x.copy()
    spoiled[1, 2, 1] = bad
    for out, want in zip(apply(op, spoiled), apply(op, x), strict=True):
        assert np.isnan(out[1]).all()
        assert bits(out[::2]) == bits(want[::2])


@pytest.mark.parametrize("op", [la.Eigh(), la.Svd(False)], ids=str)
def test_a_matrix_that_does_not_converge_is_nan(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = positive_definite(F64, (5,), 3)
    want = apply(op, x)
    name = "eigh" if isinstance(op, la.Eigh) else "svd"
    real = getattr(np.linalg, name)

    def stubborn(stack: Array, **options: Any) -> Any:
        if (stack[:, 0, 0] == x[3, 0, 0]).any():
            raise np.linalg.LinAlgError("did not converge")
        return real(stack, **options)

    monkeypatch.setattr(np.linalg, name, stubborn)
    for out, good in zip(apply(op, x), want, strict=True):
        assert np.isnan(out[3]).all()
        others = [0, 1, 2, 4]
        assert bits(out[others]) == bits(good[others])


# -- lu ------------------------------------------------------------------------------------------


@each("dtype", [F32, CF64])
@each("batch", BATCHES)
@each(("m", "n"), [*RECTANGLES, (17, 17)])
def test_lu(dtype: DType, batch: tuple[int, ...], m: int, n: int) -> None:
    x = random_array(dtype, (*batch, m, n))
    permutation, lower, upper = apply(la.Lu(), x)
    k = min(m, n)
    assert permutation.dtype == np.int32
    np.testing.assert_array_equal(
        np.sort(permutation, axis=-1), np.broadcast_to(np.arange(m), (*batch, m))
    )
    np.testing.assert_array_equal(lower, np.tril(lower))
    assert (np.diagonal(lower, axis1=-2, axis2=-1) == 1).all()
    np.testing.assert_array_equal(upper, np.triu(upper))
    rows = np.take_along_axis(x, permutation[..., None].astype(np.int64), axis=-2)
    close(lower @ upper, rows, size_of(x) * max(k, 1))
    below = np.tril(lower, -1)
    assert size_of(below) <= (2**0.5 if dtype.is_complex else 1) * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [F64, CF64], ids=str)
def test_lu_takes_the_rows_that_lapack_takes(dtype: DType) -> None:
    x = random_array(dtype, (9, 9))
    permutation, lower, upper = apply(la.Lu(), x)
    packed, swaps = scipy.linalg.lu_factor(x)
    order = list(range(9))
    for row, other in enumerate(swaps):
        order[row], order[other] = order[other], order[row]
    assert permutation.tolist() == order
    close(lower, np.tril(packed, -1) + np.eye(9))
    close(upper, np.triu(packed), size_of(x))


def test_lu_of_singular_matrices() -> None:
    x = np.array([np.zeros((3, 3)), np.ones((3, 3)), [[0, 1, 2], [0, 3, 4], [0, 6, 8]]])
    permutation, lower, upper = apply(la.Lu(), x)
    rows = np.take_along_axis(x, permutation[..., None].astype(np.int64), axis=-2)
    np.testing.assert_allclose(lower @ upper, rows, atol=1e-15)
    assert (np.prod(np.diagonal(upper, axis1=-2, axis2=-1), axis=-1) == 0).all()
    assert permutation[1].tolist() == [0, 1, 2], "the first of equal rows is the pivot"


# -- triangular_solve ----------------------------------------------------------------------------

SWITCHES = [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]


@each("dtype", DTYPES)
@each("switches", SWITCHES)
@each(("n", "k"), [(0, 2), (1, 1), (6, 0), (6, 1), (11, 4)])
def test_triangular_solve(dtype: DType, switches: tuple[bool, bool, bool], n: int, k: int) -> None:
    lower, transpose, unit = switches
    a = random_array(dtype, (n, n), scale=0.3) + 2 * np.eye(n, dtype=dtype.numpy)
    b = random_array(dtype, (n, k), 1)
    x = apply(la.TriangularSolve(lower, transpose, unit), a, b)
    triangle = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(triangle, 1)
    applied = triangle.T if transpose else triangle
    wide = np.linalg.solve(applied.astype(np.complex128), b.astype(np.complex128))
    want = wide if dtype.is_complex else wide.real
    close(x, want.astype(dtype.numpy), size_of(want) * 10)


@each("batch", BATCHES)
def test_triangular_solve_in_batches(batch: tuple[int, ...]) -> None:
    a = random_array(F64, (*batch, 4, 4)) + 8 * np.eye(4)
    b = random_array(F64, (*batch, 4, 3), 1)
    x = apply(la.TriangularSolve(True, False, False), a, b)
    close(np.tril(a) @ x, b, size_of(b) * 4)


@pytest.mark.parametrize(("lower", "unit"), [(True, True), (True, False), (False, True)])
def test_triangular_solve_reads_only_what_it_says(lower: bool, unit: bool) -> None:
    a = random_array(F64, (5, 5)) + 8 * np.eye(5)
    spoiled = a.copy()
    spoiled[np.triu_indices(5, 1) if lower else np.tril_indices(5, -1)] = np.nan
    if unit:
        np.fill_diagonal(spoiled, np.nan)
    b = random_array(F64, (5, 2), 1)
    op = la.TriangularSolve(lower, False, unit)
    assert bits(apply(op, spoiled, b)) == bits(apply(op, a, b))


def test_triangular_solve_by_a_zero_follows_ieee() -> None:
    a = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    b = np.array([[1.0, 0.0, -1.0], [1.0, 1.0, 1.0]], np.float32)
    x = apply(la.TriangularSolve(True, False, False), a, b)
    np.testing.assert_array_equal(x, [[np.inf, np.nan, -np.inf], [-np.inf, np.nan, np.inf]])


# -- types and views -----------------------------------------------------------------------------


def test_types_of_dynamic_matrices() -> None:
    square, tall = tensor("cf32", ["B", "N", "N"]), tensor("f64", ["B", "M", 3])
    assert str(infer(la.Cholesky(False), square)) == "cf32[?B, ?N, ?N]"
    assert str(infer(la.Eigh(), square)) == "(f32[?B, ?N], cf32[?B, ?N, ?N])"
    assert str(infer(la.Qr(la.QrMode.COMPLETE), tall)) == "(f64[?B, ?M, ?M], f64[?B, ?M, 3])"
    assert str(infer(la.Qr(la.QrMode.REDUCED), tall)) == "(f64[?B, ?M, ?], f64[?B, ?, 3])"
    assert str(infer(la.Svd(True), square)) == "(cf32[?B, ?N, ?N], f32[?B, ?N], cf32[?B, ?N, ?N])"
    assert str(infer(la.Svd(False), tall)) == "(f64[?B, ?M, ?], f64[?B, ?], f64[?B, ?, 3])"
    assert str(infer(la.Lu(), tall)) == "(si32[?B, ?M], f64[?B, ?M, ?], f64[?B, ?, 3])"
    solve = la.TriangularSolve(True, False, False)
    assert str(infer(solve, square, square)) == "cf32[?B, ?N, ?N]"
    huge = infer(la.Svd(True), tensor("f32", [2**64 - 1, 3]))
    assert isinstance(huge, TupleType)


VIEW_OPS = [
    la.Cholesky(False),
    la.Qr(la.QrMode.REDUCED),
    la.Eigh(),
    la.Svd(True),
    la.Lu(),
    la.TriangularSolve(False, True, False),
]


@each("op", VIEW_OPS)
def test_views_are_read_and_left_alone(op: Any) -> None:
    base = positive_definite(F64, (), 4)
    wide = np.zeros((4, 8))
    wide[:, ::2] = base
    for view in (np.broadcast_to(base, (3, 4, 4)), wide[:, ::2], base.T.copy().T):
        view.flags.writeable = False
        before = bits(view)
        count = len(op.operands)
        outs = apply(op, *[view] * count)
        dense = apply(op, *[np.array(view, order="C")] * count)
        for out, want in zip(outs, dense, strict=True):
            np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
        assert bits(view) == before


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_narrow_triangular_systems_are_rounded_once(dtype: DType) -> None:
    a = np.tril(random_array(F32, (6, 6), 1)) + 3 * np.eye(6, dtype=np.float32)
    b = random_array(F32, (6, 4), 2)
    narrow = a.astype(dtype.numpy), b.astype(dtype.numpy)
    wide = [x.astype(np.float32) for x in narrow]
    solve = la.TriangularSolve(True, False, False)
    found, wanted = apply(solve, *narrow), apply(solve, *wide)
    assert bits(found) == bits(wanted.astype(dtype.numpy))
