"""Powers with one number for the exponent, which are compiled to a few products: exact for
integers, which wrap; within the bound of `pow` for floats, whose special values follow IEEE."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.function_values import patterns, specials
from tests.support.one_op import Array, assert_ulp, by_name, random_array
from weft.foundation.dtypes import F32, F64, FLOATS, INTEGERS, DType
from weft.foundation.scalar import Fn
from weft.ptir import Builder
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import Binary

pytestmark = pytest.mark.usefixtures("quiet_arithmetic")
WHOLE = (0, 1, 2, 3, 5, 7, 16, 31, 63, 64, 65)


def powers(x: Array, dtype: DType, exponents: tuple[int, ...]) -> list[Array]:
    b = Builder()
    base = b.param(dtype, x.shape)
    program = b.build(*(b.emit("pow", base, b.full(x.shape, n, dtype)) for n in exponents))
    return weft.run(program, [x], backend="cpu")


def wrapped(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


@pytest.mark.parametrize("dtype", by_name(INTEGERS), ids=str)
def test_powers_of_integers_wrap_exactly(dtype: DType) -> None:
    edges = [wrapped(n, dtype) for n in (0, 1, 2, 3, -1, -2, int(dtype.lowest), int(dtype.highest))]
    x = np.concatenate([np.array(edges, dtype.numpy), random_array(dtype, (201,), 1)])
    exponents = tuple(n for n in WHOLE if n <= dtype.highest)
    for n, found in zip(exponents, powers(x, dtype, exponents), strict=True):
        want = [wrapped(pow(int(v), n, 1 << dtype.bits), dtype) for v in x]
        assert [int(v) for v in found] == want, n


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_powers_of_floats_are_within_their_bound(dtype: DType) -> None:
    x = patterns(dtype)[::3]
    wide = np.longdouble if dtype in (F32, F64) else np.float64
    exponents = (-1, 0, 1, 2, 3, 4, 7, 8)
    for n, found in zip(exponents, powers(x, dtype, exponents), strict=True):
        assert_ulp(found, np.power(x.astype(wide), n), 4 if dtype in (F32, F64) else 0.501)


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_special_values_follow_the_reference(dtype: DType) -> None:
    x = specials(dtype)
    for n, found in zip((-1, 2, 3, 7, 8), powers(x, dtype, (-1, 2, 3, 7, 8)), strict=True):
        want = np.power(x.astype(np.float64), n).astype(dtype.numpy).astype(np.float64)
        got = found.astype(np.float64)
        special = ~np.isfinite(want) | (want == 0)
        np.testing.assert_array_equal(got[special], want[special])
        np.testing.assert_array_equal(
            np.signbit(got[special & ~np.isnan(want)]), np.signbit(want[special & ~np.isnan(want)])
        )


@pytest.mark.parametrize(
    ("dtype", "exponent", "multiplied"),
    [
        ("si64", 64, True), ("ui8", 0, True), ("si32", 65, False), ("f32", 3, True),
        ("f64", 2, True), ("f64", 4, False), ("f16", 2, True), ("f16", 3, True), ("bf16", 8, True),
        ("f32", 8, True), ("f32", 9, False),
        ("f32", -1, True), ("f32", 0.5, False),
    ],
)  # fmt: skip
def test_which_powers_are_products(dtype: str, exponent: float, multiplied: bool) -> None:
    b = Builder()
    x = b.param(dtype, [2, 3])
    # A number beside a tensor of higher rank is a reshaped constant repeated.
    number = b.emit("broadcast_to", b.full([1], exponent, dtype), result_shape=(2, 3))
    graph = lower_program(b.build(b.emit("pow", x, number)))
    left = [v for v in graph.values if isinstance(v, Binary) and v.fn is Fn.POW]
    assert (not left) == multiplied
