"""The library forms against the same maths in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import weft
from tests.support.cases import each
from tests.support.one_op import random_array
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import Builder, Value, verify
from weft.ptir.library import layer_norm

Array = np.ndarray[Any, Any]
FLOATS = ["f16", "bf16", "f32", "f64"]
TOLERANCE = {"fp8_e5m2": 0.3, "f16": 4e-3, "bf16": 3e-2, "f32": 2e-6, "f64": 1e-12}


def run(form: Callable[..., Value], dtype: str, *arrays: Array) -> Array:
    """A form applied to parameters of these shapes, run, as f64."""
    b = Builder()
    values = [b.param(as_dtype(array.dtype).name, array.shape) for array in arrays]
    program = b.build(form(b, *values))
    verify(program)
    (out,) = weft.run(program, list(arrays))
    assert as_dtype(out.dtype).name == dtype
    return out.astype(np.float64)


def data(dtype: str, *shape: int, seed: int = 0, scale: float = 2.0) -> Array:
    return random_array(as_dtype(dtype), shape, seed, scale)


def close(out: Array, exact: Array, dtype: str) -> None:
    size = max(1.0, float(np.max(np.abs(exact), initial=0.0)))
    np.testing.assert_allclose(out, exact, rtol=0, atol=TOLERANCE[dtype] * size)


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


@each("dtype", ["fp8_e5m2", *FLOATS])
@each(("shape", "axis"), [((3, 5), -1), ((2, 3, 4), 1), ((4,), 0), ((0, 3), 1)])
def test_softmax(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    x = data(dtype, *shape)
    out = run(lambda b, v: b.softmax(v, axis), dtype, x)
    close(out, softmax(x.astype(np.float64), axis), dtype)


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1e30, 0.0, -1e30], [1000.0, 1001.0, 999.0]], np.float32)
    out = run(lambda b, v: b.softmax(v), "f32", x)
    assert out[0].tolist() == [1.0, 0.0, 0.0]
    close(out[1], softmax(np.array([0.0, 1.0, -1.0]), 0), "f32")


def test_softmax_of_a_scalar_or_of_integers_is_refused() -> None:
    b = Builder()
    scalar, integers = b.param("f32"), b.param("si32", [2])
    with pytest.raises(SpecViolation, match="axis -1 is out of range"):
        b.softmax(scalar)
    with pytest.raises(UserError, match="softmax takes floats, not si32"):
        b.softmax(integers)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu(dtype: str) -> None:
    x = data(dtype, 101)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + scipy.special.erf(wide / math.sqrt(2)))
    close(run(lambda b, v: b.gelu(v), dtype, x), exact, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_silu(dtype: str) -> None:
    x = data(dtype, 101)
    wide = x.astype(np.float64)
    close(run(lambda b, v: b.silu(v), dtype, x), wide / (1 + np.exp(-wide)), dtype)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (2, 5), (1, 3), (5, 2), (0, 3), (3, 0)])
def test_causal_mask(rows: int, columns: int) -> None:
    b = Builder()
    (out,) = weft.run(b.build(b.causal_mask(rows, columns)))
    seen = np.tril(np.ones((rows, columns), bool), columns - rows)
    np.testing.assert_array_equal(out, np.where(seen, np.float32(0), np.float32(-np.inf)))


def test_a_causal_mask_of_dynamic_dims() -> None:
    b = Builder()
    x = b.param("f32", ["?S", "?T"])
    rows, columns = x.shape
    square = b.build(b.causal_mask(rows, rows))
    (out,) = weft.run(square, [np.zeros((3, 1), np.float32)])
    np.testing.assert_array_equal(out == 0, np.tril(np.ones((3, 3), bool)))
    with pytest.raises(UserError) as caught:
        b.causal_mask(rows, columns)
    assert caught.value.why.startswith(
        "a causal mask of ?S rows and ?T columns needs their difference, and dynamic dims have "
        "none; build the mask from an input instead"
    )


def attention(q: Array, k: Array, v: Array, mask: Array, scale: float) -> Array:
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * scale + mask
    return np.asarray(np.einsum("bhqk,bhkd->bhqd", softmax(scores, -1), v))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (2, 5)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(dtype: str, rows: int, columns: int, causal: bool) -> None:
    q = data(dtype, 2, 3, rows, 8, seed=1, scale=1.0)
    k, v = (data(dtype, 2, 3, columns, 8, seed=s, scale=1.0) for s in (2, 3))
    out = run(lambda b, *a: b.attention(*a, causal=causal), dtype, q, k, v)
    hidden = ~np.tril(np.ones((rows, columns), bool), columns - rows) & causal
    mask = np.where(hidden, -np.inf, 0.0)
    close(out, attention(q, k, v, mask, 1 / math.sqrt(8)), dtype)


def test_attention_with_a_mask_and_a_scale() -> None:
    q, k, v = (data("f32", 2, 3, 4, 8, seed=s, scale=1.0) for s in range(3))
    mask = data("f32", 2, 1, 4, 4, seed=9)
    out = run(lambda b, q, k, v, m: b.attention(q, k, v, mask=m, scale=0.5), "f32", q, k, v, mask)
    close(out, attention(q, k, v, mask.astype(np.float64), 0.5), "f32")


def test_attention_over_values_of_another_width() -> None:
    q, k = data("f32", 1, 2, 3, 4, seed=1), data("f32", 1, 2, 5, 4, seed=2)
    v = data("f32", 1, 2, 5, 7, seed=3)
    out = run(lambda b, *a: b.attention(*a), "f32", q, k, v)
    assert out.shape == (1, 2, 3, 7)
    close(out, attention(q, k, v, np.zeros((3, 5)), 0.5), "f32")


def test_attention_says_what_it_needs() -> None:
    b = Builder()
    flat, q = b.param("f32", [3, 4]), b.param("f32", ["?B", 2, 3, "?D"])
    with pytest.raises(UserError, match=r"attention takes k of shape \[B, H, S, D\], not rank 2"):
        b.attention(q, flat, flat)
    with pytest.raises(UserError, match="last axis of size \\?D needs its scale to be given"):
        b.attention(q, q, q)
    assert b.attention(q, q, q, scale=1.0).type == q.type


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 16), -1), ((2, 5, 3), 1), ((2, 0), 1)])
def test_layer_norm(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    x, gamma, beta = data(dtype, *shape), data(dtype, shape[axis]), data(dtype, shape[axis], seed=1)
    arrays = [a.astype(np.float64) for a in (x, gamma, beta)]
    along = [-1 if n == axis % len(shape) else 1 for n in range(len(shape))]
    wide = arrays[0]
    count = max(shape[axis], 1)
    mean = wide.sum(axis=axis, keepdims=True) / count
    variance = ((wide - mean) ** 2).sum(axis=axis, keepdims=True) / count
    exact = (wide - mean) / np.sqrt(variance + 1e-5) * arrays[1].reshape(along) + arrays[2].reshape(
        along
    )
    form = run(lambda b, *a: layer_norm(*a, epsilon=1e-5, feature_axis=axis), dtype, x, gamma, beta)
    op = run(lambda b, *a: b.layer_norm(*a, epsilon=1e-5, feature_axis=axis), dtype, x, gamma, beta)
    close(form, exact, dtype)
    close(op, exact, dtype)


def test_layer_norm_over_a_dynamic_dim_is_refused() -> None:
    b = Builder()
    x, gamma = b.param("f32", [2, "?N"]), b.param("f32", ["?N"])
    with pytest.raises(UserError, match="over the dynamic dim \\?N cannot be written as"):
        layer_norm(x, gamma, gamma, epsilon=1e-5)
