"""Compiled factorisations: their products are the matrices, and rows are exchanged as the reference
exchanges them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each
from weft.driver.code import factorisations
from weft.driver.code.factorisations import computed
from weft.ptir import Builder
from weft.ptir.ops.linear_algebra import Cholesky, Lu, TriangularSolve
from weft.target.cpu import describe, host

Array = NDArray[Any]
MACHINES = {
    128: frozenset[str](),
    256: frozenset({"avx2", "fma"}),
    512: frozenset({"avx2", "fma", "avx512f"}),
}
SIZES = [
    (1, 1), (3, 5), (5, 3), (4, 4), (8, 8), (16, 16), (17, 17), (15, 33), (33, 15), (64, 64),
    (100, 65), (65, 100), (130, 130), (20, 300), (300, 20), (7, 4, 4), (2, 3, 37, 37), (0, 4, 4),
]  # fmt: skip


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Code for vectors of so many bits: each runs on machines that have wider ones."""
    bits: int = request.param
    if bits > host().limits.vector_bits:
        pytest.skip("this machine has no such vectors")
    target = describe("x86_64", MACHINES[bits], 1, ())
    monkeypatch.setattr(factorisations, "host", lambda: target)
    for cached in (factorisations._library, factorisations._function):
        cached.cache_clear()
    yield bits
    for cached in (factorisations._library, factorisations._function):
        cached.cache_clear()


def drawn(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def allowed(x: Array, size: int) -> float:
    return 20 * size * float(np.finfo(x.dtype).eps) * max(1.0, float(np.abs(x).max(initial=0)))


def in_doubles(*matrices: Array) -> list[Array]:
    return [matrix.astype(np.float64) for matrix in matrices]


def factors(op: Lu, x: Array) -> list[Array]:
    return computed(op, [x], [0, 1, 2]) or list(op.factorise(x))


def test_elimination(machine: int) -> None:
    for shape, dtype in product(SIZES, ("float32", "float64")):
        x = drawn(shape, dtype)
        order, lower, upper = factors(Lu(), x)
        left, right = in_doubles(lower, upper)
        rows = np.take_along_axis(x, order[..., None].astype(np.int64), -2)
        np.testing.assert_allclose(left @ right, rows, rtol=0, atol=allowed(x, max(shape)))
        np.testing.assert_array_equal(order, Lu().factorise(x)[0], err_msg=f"{shape} {machine}")
        assert not np.triu(lower, 1).any()
        assert not np.tril(upper, -1).any()
        assert (np.diagonal(lower, axis1=-2, axis2=-1) == 1).all()


def test_roots(machine: int) -> None:
    for size, dtype, upper in product(
        (1, 4, 5, 16, 17, 64, 100, 150), ("float32", "float64"), (False, True)
    ):
        x = drawn((3, size, size), dtype)
        positive = (x @ np.swapaxes(x, 1, 2) + size * np.eye(size)).astype(dtype)
        own = np.triu if upper else np.tril
        # The other triangle is not read.
        given = np.where(own(np.ones((size, size))) > 0, positive, np.nan).astype(dtype)
        (factor,) = computed(Cholesky(upper), [given], [0]) or []
        (wide,) = in_doubles(factor)
        turned = np.swapaxes(wide, 1, 2)
        found = turned @ wide if upper else wide @ turned
        np.testing.assert_allclose(found, positive, rtol=0, atol=allowed(positive, size))
        np.testing.assert_array_equal(factor, own(factor), err_msg=f"{machine}")


def test_triangles(machine: int) -> None:
    ways = list(product((False, True), repeat=3))
    for shape, columns, dtype in product(
        ((1, 1), (5, 5), (7, 4, 4), (64, 64), (2, 70, 70), (150, 150)),
        (1, 5, 33, 70),
        ("float32", "float64", "float16"),
    ):
        size = shape[-1]
        a = (drawn(shape, dtype) / size + 2 * np.eye(size)).astype(dtype)
        b = drawn((*shape[:-1], columns), dtype)
        for lower, transpose, unit in ways:
            op = TriangularSolve(lower=lower, transpose=transpose, unit_diagonal=unit)
            (found,) = computed(op, [a, b], [0]) or []
            assert found.dtype == b.dtype
            (t,) = in_doubles(np.tril(a) if lower else np.triu(a))
            if unit:
                t[..., range(size), range(size)] = 1
            t = np.swapaxes(t, -1, -2) if transpose else t
            wanted = np.linalg.solve(t, b.astype(np.float64))
            np.testing.assert_allclose(
                found, wanted, rtol=0, atol=allowed(wanted.astype(dtype), size), err_msg=f"{op}"
            )


@each("size", [4, 20, 80])
def test_singular_matrices_have_a_zero_pivot(size: int) -> None:
    x = drawn((size, size), "float64")
    x[:, size // 2] = 0
    _, _, upper = factors(Lu(), x)
    assert np.diagonal(upper)[size // 2] == 0
    assert weft.linalg.det(weft.asarray(x)).item() == 0
    sign, size_of_it = weft.linalg.slogdet(weft.asarray(x))
    assert (sign.item(), size_of_it.item()) == (0, -np.inf)


def test_not_a_number_is_the_first_pivot() -> None:
    x = drawn((20, 20), "float32")
    x[7, 0] = np.nan
    order, _, _ = factors(Lu(), x)
    assert order[0] == 7
    np.testing.assert_array_equal(order[0], Lu().factorise(x)[0][0])


def test_a_zero_on_the_diagonal_divides() -> None:
    a, b = np.diag([1.0, 0.0, 2.0]), np.ones((3, 1))
    (found,) = (
        computed(TriangularSolve(lower=True, transpose=False, unit_diagonal=False), [a, b], [0])
        or []
    )
    assert found[0, 0] == 1
    assert np.isinf(found[1, 0])


@each("at", [0, 3, 70])
def test_the_first_matrix_that_is_not_positive_definite(at: int) -> None:
    x = np.tile(np.eye(80), (2, 3, 1, 1))
    x[1, 0, at, at] = -1
    x[1, 2, 0, 0] = np.nan
    with pytest.raises(weft.SpecViolation, match=r"matrix \[1, 0\] of cholesky"):
        weft.linalg.cholesky(weft.asarray(x)).numpy()


def test_results_that_nobody_wants_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    call = factorisations._run_function

    def noted(dtype: Any, name: str, *rest: Any) -> None:
        names.append(name)
        call(dtype, name, *rest)

    monkeypatch.setattr(factorisations, "_run_function", noted)
    b = Builder("u")
    x = b.param("f64", [40, 40])
    program = b.build(b.emit("lu", x)[2])
    weft.compile(program, "cpu")(drawn((40, 40), "float64"))
    assert names == ["lu", "above"]
