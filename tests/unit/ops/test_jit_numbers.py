"""Python numbers in a function under `weft.jit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_number_is_traced_and_takes_the_dtype_beside_it() -> None:
    f = weft.jit(lambda x, s: x * s)
    half = weft.asarray(X.astype(np.float16))
    for number in (1.0, 2.0, 3.5):
        found = f(half, number)
        assert found.dtype is weft.float16
        np.testing.assert_array_equal(found.numpy(), X.astype(np.float16) * np.float16(number))
    assert len(f.versions) == 1
    assert f(weft.asarray(np.arange(3)), 2.5).dtype is weft.float32


def added(x: Any, y: Any) -> Any:
    return x + y


@pytest.mark.parametrize("number", [np.float64(2.5), np.complex128(2.5j), np.float32(2.5)])
@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_a_scalar_of_numpy_means_what_it_does_without_jit(number: Any, dtype: Any) -> None:
    f, x = weft.jit(added), weft.asarray(np.ones(2, dtype))
    for _ in range(2):
        found, expected = f(x, number), added(x, number)
        assert found.dtype is expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert len(f.versions) == 1


def test_a_number_that_fits_no_dtype() -> None:
    with pytest.raises(SpecViolation, match="not representable in si64"):
        weft.jit(added)(X, 2**70)


@pytest.mark.parametrize(("number", "dtype"), [(-1, np.uint8), (300, np.uint8), (2**40, np.int32)])
def test_a_number_that_the_dtype_beside_it_does_not_hold(number: int, dtype: Any) -> None:
    x = weft.asarray(np.array([1, 2], dtype))
    f = weft.jit(added)
    np.testing.assert_array_equal(f(x, 3).numpy(), np.array([4, 5], dtype))
    with pytest.raises(SpecViolation) as eager:
        added(x, number)
    with pytest.raises(SpecViolation) as jitted:
        f(x, number)
    for error in (eager.value, jitted.value):
        assert error.code == "LiteralInvalid"
        assert f"the number {number} is not representable in {x.dtype}" in str(error)
    assert eager.value.findings[0].where == jitted.value.findings[0].where
    assert len(f.versions) == 1


def int8(*values: int) -> Any:
    return weft.asarray(np.array(values, np.int8))


COMPUTED: list[tuple[Any, tuple[Any, ...]]] = [
    (lambda x, n: x + (n * 2 - 3), (200,)),
    (lambda x, n: x * (-n), (130,)),
    (lambda x, n: x + abs(n), (-128,)),
    (lambda x, n: x + n // 2, (300,)),
    (lambda x, n: x + n % 1000, (-1,)),
    (lambda x, n: x + n**3, (6,)),
    (lambda x, n: x + n**n, (10**6,)),
    (lambda x, n: x + (1 << n), (7,)),
    (lambda x, n: x + (1 << n), (10**12,)),
    (lambda x, n: x + (n ^ 3), (255,)),
    (lambda x, n, m: x + n * m, (20, 30)),
    (lambda x, n: weft.where(x > 1, x, n + 1), (127,)),
    (lambda x, n: weft.astype(x, weft.int64) + n * n, (2**40,)),
    (lambda x, n: weft.grad(lambda y: (y * (n + 1)).sum())(weft.ones(2)) + (x + n * 9), (100,)),
]


@pytest.mark.parametrize(("function", "numbers"), COMPUTED)
def test_a_computed_number_that_the_dtype_beside_it_does_not_hold(
    function: Any, numbers: tuple[Any, ...]
) -> None:
    f = weft.jit(function)
    x = int8(1, 2)
    small = (3,) * len(numbers)
    np.testing.assert_array_equal(f(x, *small).numpy(), function(x, *small).numpy())
    with pytest.raises(SpecViolation) as jitted:
        f(x, *numbers)
    assert jitted.value.code == "LiteralInvalid"
    line = function.__code__.co_firstlineno
    assert f"test_jit_numbers.py:{line}: [<lambda>] the number " in str(jitted.value)
    assert "is not representable in si" in str(jitted.value)
    np.testing.assert_array_equal(f(x, *small).numpy(), function(x, *small).numpy())
    assert len(f.versions) == 1


def test_computed_numbers_take_the_dtype_beside_them() -> None:
    x = int8(5, 7)
    functions: list[Any] = [
        lambda x, n: x * (n // 2),
        lambda x, n: x * (n % 4),
        lambda x, n: x - n**2,
    ]
    for function in functions:
        found, expected = weft.jit(function)(x, 6), function(x, 6)
        assert found.dtype is expected.dtype is weft.int8
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_what_is_made_a_tensor_wraps_and_saturates_as_tensors_do() -> None:
    f = weft.jit(lambda x, n: (weft.asarray(n) * weft.asarray(n)) + x)
    assert f(weft.asarray([1]), 2**40).tolist() == [1]
    g = weft.jit(lambda x, n: x + (n * 2).astype(weft.int8))
    assert g(int8(0), 200).tolist() == [127]


def test_a_division_by_zero_among_numbers_is_told_by_the_program() -> None:
    with pytest.raises(SpecViolation, match=r"IntegerDivideByZero at test_jit_numbers.py:\d+"):
        weft.jit(lambda x, n: x + (1 // n))(weft.asarray([1]), 0)
