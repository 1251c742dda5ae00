"""Layer normalisation against exact sums in f64, one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, assert_ulp, bits
from weft.foundation.dtypes import BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, DType
from weft.ptir.ops.normalisation import LayerNorm

CASES: list[tuple[tuple[int, ...], int]] = [
    ((8,), 0),
    ((3, 16), -1),
    ((3, 16), 1),
    ((16, 3), 0),
    ((2, 5, 4), -2),
    ((2, 1), 1),
    ((0, 4), 1),
    ((3, 0), 1),
]


def normal(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng([seed, *shape])
    return np.asarray(rng.standard_normal(shape), np.float32).astype(dtype.numpy)


def loop_layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float, axis: int) -> Array:
    wide = np.moveaxis(x.astype(np.float64), axis, -1)
    scale, shift = gamma.astype(np.float64), beta.astype(np.float64)
    result = np.zeros(wide.shape)
    for index in np.ndindex(wide.shape[:-1]):
        row = wide[index].tolist()
        if not row:
            continue
        mean = math.fsum(row) / len(row)
        variance = math.fsum((v - mean) ** 2 for v in row) / len(row)
        result[index] = [
            (v - mean) / math.sqrt(variance + epsilon) * g + b
            for v, g, b in zip(row, scale, shift, strict=True)
        ]
    return np.moveaxis(result, -1, axis)


def check_close(out: Array, exact: Array, dtype: DType) -> None:
    """Narrow floats are rounded once from f32; wide ones carry the error of a few operations."""
    if dtype in (F32, F64):
        tolerance = 16 * 2.0 ** -(dtype.precision - 1) * max(1.0, np.abs(exact).max(initial=0.0))
        np.testing.assert_allclose(out.astype(np.float64), exact, rtol=0, atol=tolerance)
        return
    # f32 arithmetic errs by less than 2^-17 here, the rounding by half an ulp.
    lenient = np.where(np.abs(out.astype(np.float64) - exact) < 2.0**-17, out, exact)
    assert_ulp(out, lenient.astype(np.float64), 0.5 + 2.0 ** (dtype.precision - 17))


@each("dtype", [F32, BF16])
@each(("shape", "axis"), CASES)
@each("epsilon", [1e-5, 0.0, 1.0])
def test_layer_norm(dtype: DType, shape: tuple[int, ...], axis: int, epsilon: float) -> None:
    if shape[axis] == 1:
        epsilon = max(epsilon, 1e-5)  # a single feature has variance 0
    x = normal(dtype, shape, 1)
    gamma, beta = (normal(dtype, (shape[axis],), seed) for seed in (2, 3))
    for array in (x, gamma, beta):
        array.flags.writeable = False
    out = apply(LayerNorm(epsilon, axis), x, gamma, beta)
    check_close(out, loop_layer_norm(x, gamma, beta, epsilon, axis), dtype)


def test_the_variance_is_biased() -> None:
    x = np.asarray([[1.0, 3.0]], np.float64)
    out = apply(LayerNorm(0.0, 1), x, np.ones(2), np.zeros(2))
    assert out.tolist() == [[-1.0, 1.0]]


def test_the_variance_survives_a_large_mean() -> None:
    """With E[x^2] - E[x]^2 the variance of these rows would be noise in f32."""
    x = (4096.0 + np.asarray([[0.0, 1.0, 2.0, 5.0]])).astype(np.float32)
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    out = apply(LayerNorm(0.0, 1), x, one, zero)
    exact = loop_layer_norm(x, one, zero, 0.0, 1)
    np.testing.assert_allclose(out, exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16], ids=str)
def test_narrow_floats_round_only_at_the_end(dtype: DType) -> None:
    """A long row whose sum, in the row's own precision, would stop growing."""
    x = np.tile(np.asarray([[1.0, 1.5]]), (2, 600)).astype(dtype.numpy)
    one, zero = np.ones(1200, dtype.numpy), np.zeros(1200, dtype.numpy)
    out = apply(LayerNorm(0.0, -1), x, one, zero)
    want = np.tile(np.asarray([[-1.0, 1.0]]), (2, 600)).astype(dtype.numpy)
    assert bits(out) == bits(np.asarray(want))


def test_a_constant_row_is_beta_and_nan_stays_in_its_row() -> None:
    gamma = np.asarray([1.0, 2.0, 3.0], np.float32)
    beta = np.asarray([5.0, 6.0, 7.0], np.float32)
    x = np.asarray([[2.0, 2.0, 2.0], [1.0, np.nan, 2.0]], np.float32)
    out = apply(LayerNorm(1e-5, 1), x, gamma, beta)
    assert out[0].tolist() == [5.0, 6.0, 7.0]
    assert np.isnan(out[1]).all()


def test_views_work() -> None:
    base = normal(F32, (6, 8), 5)
    gamma, beta = normal(F32, (16,), 6)[::2], np.broadcast_to(normal(F32, (1,), 7), (8,))
    for x in (base[::2, ::-1], np.broadcast_to(base[0], (4, 8)), np.asfortranarray(base)):
        out = apply(LayerNorm(1e-5, -1), x, gamma, beta)
        check_close(out, loop_layer_norm(x, gamma, beta, 1e-5, -1), F32)
