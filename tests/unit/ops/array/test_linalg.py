"""Products, factorisations, norms and systems of equations, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import COMPLEX, FLOATS, NUMBERS, Array, agrees, data
from weft.foundation.errors import SpecViolation, UserError

linalg: Any = weft.linalg
TYPES = FLOATS + COMPLEX


def near(found: Any, expected: Any, rtol: float = 2e-4) -> None:
    """Equal dtype and shape, and elements up to the error of an elimination."""
    wanted = np.asarray(expected)
    elements = found.numpy()
    assert elements.dtype == wanted.dtype
    assert elements.shape == wanted.shape
    rtol = rtol if wanted.dtype in (np.float32, np.complex64) else rtol * 1e-7
    np.testing.assert_allclose(elements, wanted, rtol=rtol, atol=rtol)


def well_conditioned(dtype: str, n: int, batch: tuple[int, ...] = ()) -> Array:
    return np.asarray(data(dtype, (*batch, n, n)) + 6 * np.eye(n), dtype)


def positive_definite(dtype: str, n: int, batch: tuple[int, ...] = ()) -> Array:
    x = data(dtype, (*batch, n, n))
    return np.asarray(x @ x.conj().swapaxes(-1, -2) + n * np.eye(n), dtype)


# -- products ------------------------------------------------------------------------------------

PAIRS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((3,), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)),
    ((1, 2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for dtype in NUMBERS:
        x, y = data(dtype, left), data(dtype, right, 1)
        if np.dtype(dtype).itemsize == 1:
            x, y = x % 3, y % 3
        near(weft.asarray(x) @ weft.asarray(y), x @ y)
        near(weft.matmul(weft.asarray(x), weft.asarray(y)), x @ y)


def test_matmul_of_arrays_and_mixed_dtypes() -> None:
    x, y = data("float32", (2, 3)), data("float64", (3, 2))
    near(weft.asarray(x) @ y, x @ y)
    near(x @ weft.asarray(y), x @ y)
    assert (weft.ones((2, 2), dtype=weft.bfloat16) @ weft.ones((2, 2))).dtype is weft.float32


@pytest.mark.parametrize("axes", [0, 1, 2, ((1,), (0,)), ((0, 1), (1, 0)), ((-1,), (0,)), ((), ())])
def test_tensordot(axes: Any) -> None:
    x, y = data("float64", (3, 3)), data("float64", (3, 3), 1)
    near(weft.tensordot(weft.asarray(x), weft.asarray(y), axes=axes), np.tensordot(x, y, axes))


@pytest.mark.parametrize("dtype", TYPES)
def test_vecdot_outer_and_cross(dtype: str) -> None:
    x, y = data(dtype, (4, 3)), data(dtype, (3,), 1)
    t, u = weft.asarray(x), weft.asarray(y)
    near(weft.vecdot(t, u), np.vecdot(x, y))
    near(weft.vecdot(t, t, axis=-2), np.sum(x.conj() * x, axis=-2))
    near(linalg.outer(t[:, 0], u), np.outer(x[:, 0], y))
    near(linalg.cross(t, u), np.cross(x, y))
    near(linalg.cross(t.mT, t.mT + 1, axis=0), np.cross(x.T, x.T + 1, axis=0))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, -1, -2])
def test_matrix_power(n: int) -> None:
    x = well_conditioned("float64", 3, (2,))
    near(linalg.matrix_power(weft.asarray(x), n), np.linalg.matrix_power(x, n))


# -- factorisations ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
def test_factorisations_multiply_back(dtype: str, batch: tuple[int, ...]) -> None:
    x = data(dtype, (*batch, 4, 3))
    q, r = linalg.qr(weft.asarray(x))
    near(q @ r, x)
    near(weft.conj(q.mT) @ q, np.broadcast_to(np.eye(3, dtype=dtype), (*batch, 3, 3)))
    whole = linalg.qr(weft.asarray(x), mode="complete")
    near(whole.Q @ whole.R, x)
    assert whole.Q.shape == (*batch, 4, 4)
    u, s, vh = linalg.svd(weft.asarray(x), full_matrices=False)
    near((u * s[..., None, :]) @ vh, x)
    near(s, np.linalg.svd(x, compute_uv=False))
    near(linalg.svdvals(weft.asarray(x)), np.linalg.svd(x, compute_uv=False))
    full = linalg.svd(weft.asarray(x))
    assert full.U.shape == (*batch, 4, 4)
    assert full.Vh.shape == (*batch, 3, 3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_hermitian_matrices(dtype: str, batch: tuple[int, ...]) -> None:
    x = positive_definite(dtype, 3, batch)
    t = weft.asarray(x)
    near(linalg.cholesky(t), np.linalg.cholesky(x))
    near(linalg.cholesky(t, upper=True), np.linalg.cholesky(x).conj().swapaxes(-1, -2))
    values, vectors = linalg.eigh(t)
    near(values, np.linalg.eigvalsh(x))
    near(linalg.eigvalsh(t), np.linalg.eigvalsh(x))
    near(t @ vectors, vectors.numpy() * values.numpy()[..., None, :], rtol=1e-3)


def test_a_matrix_that_is_not_positive_definite() -> None:
    with pytest.raises(SpecViolation) as error:
        linalg.cholesky(weft.asarray([[0.0, 1.0], [1.0, 0.0]])).numpy()
    assert error.value.code == "NotPositiveDefinite"


# -- determinants, inverses, equations -----------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_determinants(dtype: str, n: int) -> None:
    x = data(dtype, (3, n, n))
    near(linalg.det(weft.asarray(x)), np.linalg.det(x))
    sign, size = linalg.slogdet(weft.asarray(x))
    expected = np.linalg.slogdet(x)
    near(sign, expected.sign)
    near(size, expected.logabsdet)


def test_the_sign_of_row_exchanges() -> None:
    for order in ([1, 0, 2], [1, 2, 0], [2, 1, 0], [3, 0, 1, 2]):
        x = np.eye(len(order))[order]
        assert linalg.det(weft.asarray(x)).item() == round(np.linalg.det(x))


def cofactors(x: Any) -> Any:
    """By their definition: determinants of what is left without a row and a column."""
    n = len(x)
    signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
    parts = [[np.delete(np.delete(x, i, 0), j, 1) for j in range(n)] for i in range(n)]
    # NumPy divides by a pivot of 0 on some processors before it looks at it.
    with np.errstate(divide="ignore", invalid="ignore"):
        return signs * np.array([[np.linalg.det(part) for part in row] for row in parts])


SINGULAR = {
    "one": [[0.0]],
    "two": [[1.0, 2.0], [2.0, 4.0]],
    "three": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]],
    "four, the first pivot": [[0.0, 1, 2, 3], [0, 2, 1, 1], [0, 1, 1, 2], [0, 3, 1, 2]],
    "four, a pivot inside": np.diag([1.0, 2.0, 0.0, 3.0]),
    "two rows too few": np.diag([1.0, 0.0, 0.0, 3.0]),
    "nothing": np.zeros((4, 4)),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_the_gradient_of_a_determinant_is_the_cofactors_of_singular_matrices_too(name: str) -> None:
    x = np.array(SINGULAR[name])
    for function in (weft.grad(linalg.det), weft.jit(weft.grad(linalg.det))):
        np.testing.assert_allclose(function(weft.asarray(x)).numpy(), cofactors(x), atol=1e-12)


def test_the_gradient_of_determinants_of_a_stack() -> None:
    regular = np.random.default_rng(0).standard_normal((4, 4))
    x = np.stack([np.array(SINGULAR["four, a pivot inside"]), regular])
    expected = np.stack([cofactors(one) for one in x])
    found = weft.grad(lambda x: linalg.det(x).sum())(weft.asarray(x))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
    mapped = weft.vmap(weft.grad(linalg.det))(weft.asarray(x))
    np.testing.assert_allclose(mapped.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_gradient_of_complex_determinants(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    x[-1] = 2 * x[0]
    found = weft.grad(lambda z: weft.real(linalg.det(z)))(weft.asarray(x))
    np.testing.assert_allclose(found.numpy(), np.conj(cofactors(x)), atol=1e-12)


def test_the_second_derivative_of_a_determinant() -> None:
    corner = weft.hessian(linalg.det)(weft.ones((2, 2))).numpy().reshape(4, 4)
    assert corner.tolist() == [[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]]
    x = np.random.default_rng(1).standard_normal((4, 4))
    found = weft.hessian(linalg.det)(weft.asarray(x)).numpy()
    step = 1e-6
    for i, j in ((0, 0), (2, 3)):
        moved = np.zeros((4, 4))
        moved[i, j] = step
        slope = (cofactors(x + moved) - cofactors(x - moved)) / (2 * step)
        np.testing.assert_allclose(found[:, :, i, j], slope, atol=1e-7)


def test_a_singular_matrix() -> None:
    x = weft.ones((2, 2))
    assert linalg.det(x).item() == 0.0
    sign, size = linalg.slogdet(x)
    assert sign.item() == 0.0
    assert size.item() == -math.inf
    assert linalg.matrix_rank(x).item() == 1
    assert not np.isfinite(linalg.inv(x).numpy()).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_inverses_and_equations(dtype: str) -> None:
    x = well_conditioned(dtype, 4, (2,))
    t = weft.asarray(x)
    near(linalg.inv(t), np.linalg.inv(x))
    b = data(dtype, (4, 3))
    near(linalg.solve(t, weft.asarray(b)), np.linalg.solve(x, b))
    near(linalg.solve(t[0], weft.asarray(b[:, 0])), np.linalg.solve(x[0], b[:, 0]))
    near(linalg.solve(t[0], weft.asarray(np.stack([b, b]))), np.linalg.solve(x[0], [b, b]))
    near(linalg.solve(t, weft.asarray(b[:, 0])), np.linalg.solve(x, b[:, :1])[..., 0])


@pytest.mark.parametrize("dtype", TYPES)
def test_pseudo_inverses_and_ranks(dtype: str) -> None:
    x = data(dtype, (2, 4, 3))
    x[1, :, 2] = x[1, :, 0]
    t = weft.asarray(x)
    near(linalg.pinv(t), np.linalg.pinv(x), rtol=2e-3)
    agrees(linalg.matrix_rank(t), [3, 2], "int64")
    agrees(linalg.matrix_rank(t, rtol=0.99), [1, 1], "int64")
    agrees(linalg.matrix_rank(t, rtol=weft.asarray([0.99, 0.0])), [1, 3], "int64")
    near(linalg.pinv(t, rtol=1e-5), np.linalg.pinv(x, rtol=1e-5), rtol=2e-3)


# -- norms and diagonals -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, 3, 2.5, -1, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_vector_norms(dtype: str, order: float) -> None:
    x = data(dtype, (3, 4, 2))
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            options: Any = {"axis": axis, "keepdims": keepdims, "ord": order}
            near(linalg.vector_norm(weft.asarray(x), **options),
                 np.linalg.vector_norm(x, **options))  # fmt: skip


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_matrix_norms(dtype: str, order: Any) -> None:
    x = data(dtype, (2, 4, 3))
    for keepdims in (False, True):
        near(linalg.matrix_norm(weft.asarray(x), keepdims=keepdims, ord=order),
             np.linalg.matrix_norm(x, keepdims=keepdims, ord=order))  # fmt: skip


@pytest.mark.parametrize("order", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_gradient_of_a_norm_is_zero_at_zero(dtype: str, order: float) -> None:
    rows = np.zeros((2, 3), dtype)
    rows[1] = 3, 0, 4

    def total(x: Any) -> Any:
        return weft.sum(linalg.vector_norm(x, axis=1, ord=order))

    gradient = weft.grad(total)(weft.asarray(rows)).numpy()
    sizes = np.abs(rows[1])
    wanted = {math.inf: np.array([0, 0, 1.0]), 1: np.array([1.0, 0, 1.0])}.get(
        order, (sizes / np.linalg.norm(sizes, order)) ** (order - 1)
    )
    np.testing.assert_allclose(gradient, np.array([np.zeros(3), wanted]), rtol=1e-5, atol=1e-7)


def test_the_gradient_of_the_frobenius_norm_is_zero_at_zero() -> None:
    found = weft.grad(linalg.matrix_norm)(weft.zeros((2, 3)))
    np.testing.assert_array_equal(found.numpy(), np.zeros((2, 3)))


@each("shape", [(3, 3), (2, 5), (5, 2), (2, 3, 4), (1, 1), (0, 3), (3, 0)])
@each("offset", [-4, -1, 0, 1, 2, 6])
def test_diagonals_and_traces(shape: tuple[int, ...], offset: int) -> None:
    for dtype in ("int8", "uint16", "float32", "complex128"):
        x = data(dtype, shape)
        agrees(linalg.diagonal(weft.asarray(x), offset=offset), np.diagonal(x, offset, -2, -1))
        found = linalg.trace(weft.asarray(x), offset=offset)
        wanted = {"int8": "int64", "uint16": "uint64"}.get(dtype, dtype)
        agrees(found, np.trace(x, offset, -2, -1, dtype=wanted))


def test_narrow_floats_and_integers_are_computed_in_f32() -> None:
    x = weft.asarray([[2, 1], [1, 3]])
    assert linalg.det(x).dtype is weft.float32
    assert linalg.det(x).item() == pytest.approx(5)
    assert linalg.inv(x.astype(weft.bfloat16)).dtype is weft.bfloat16
    assert linalg.vector_norm(x.astype(weft.float16)).dtype is weft.float16


# -- mistakes ------------------------------------------------------------------------------------

X = weft.zeros((3, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: X @ weft.zeros((5, 6)),
         r"\[matmul\] lhs \(3, 4\) and rhs \(5, 6\): inner sizes 4 and 5 differ \(the last axis"),
        (lambda: X @ weft.asarray(1.0), r"\[matmul\] rhs \(\) has rank 0"),
        (lambda: weft.zeros((2, 3, 4)) @ weft.zeros((5, 4, 2)),
         r"lhs \(2, 3, 4\) and rhs \(5, 4, 2\): the axes before the last two"),
        (lambda: weft.tensordot(X, X, axes=1), r"axis 1 of lhs has size 4 and axis 0 of rhs 3"),
        (lambda: weft.tensordot(X, X, axes=3), r"axes is 3, but the operands have ranks 2 and 2"),
        (lambda: weft.vecdot(X, weft.zeros(3)), r"the vectors have sizes 4 and 3"),
        (lambda: linalg.inv(X), r"\[inv\] x \(3, 4\) holds matrices 3 x 4, but square ones"),
        (lambda: linalg.det(weft.zeros(3)), r"\[det\] x \(3,\) has rank 1, but a matrix"),
        (lambda: linalg.solve(weft.zeros((3, 3)), X.mT), r"x2 must have 3 rows"),
        (lambda: linalg.outer(X, X), r"x1 \(3, 4\) has rank 2, but a vector is wanted"),
        (lambda: linalg.cross(X, X), r"must have size 3 on axis -1"),
    ],
)  # fmt: skip
def test_mistakes_name_the_shapes(call: Any, message: str) -> None:
    with pytest.raises(SpecViolation, match=message) as error:
        call()
    assert "test_linalg.py:" in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: linalg.qr(X, mode="raw"), lambda: linalg.matrix_norm(X, ord=5),
        lambda: linalg.vector_norm(X, ord="fro"),
    ],
)  # fmt: skip
def test_wrong_words(call: Any) -> None:
    with pytest.raises(UserError, match=r"it can be|it must be"):
        call()
