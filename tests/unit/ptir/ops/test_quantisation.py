"""Quantisation against the ONNX definition, one scalar at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.support.one_op import Array, apply, random_array
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    SI4,
    SI8,
    SI16,
    UI4,
    UI8,
    UI16,
    DType,
)
from weft.ptir.ops.quantisation import Dequantize, Quantize

RANGE = {
    SI4: (-8, 7),
    UI4: (0, 15),
    SI8: (-128, 127),
    UI8: (0, 255),
    SI16: (-32768, 32767),
    UI16: (0, 65535),
}


def saturate(value: int, dtype: DType) -> int:
    low, high = RANGE[dtype]
    return min(max(value, low), high)


def quantise_one(x: Any, scale: Any, zero: int, dtype: DType, quotient: Any = None) -> int:
    """x and scale are NumPy scalars of the dtype that divides, and the quotient is rounded to its
    own; round() is half to even."""
    with np.errstate(all="ignore"):
        ratio = float(np.asarray(x / scale).astype(quotient or x.dtype))
    if math.isnan(ratio):
        return 0
    if math.isinf(ratio):
        return RANGE[dtype][ratio > 0]
    return saturate(round(ratio) + zero, dtype)


def whole(values: list[int], dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.asarray(values, np.int64).astype(dtype.numpy).reshape(shape)


def at(parameter: Array, index: tuple[int, ...], axis: int | None) -> Any:
    return parameter[()] if parameter.ndim == 0 or axis is None else parameter[index[axis]]


def loop_quantise(
    x: Array, scale: Array, zero: Array | None, axis: int | None, dtype: DType
) -> Array:
    wide = np.float64 if x.dtype == np.float64 else np.float32
    values = [
        quantise_one(
            wide(x[index]),
            wide(at(scale, index, axis)),
            0 if zero is None else int(at(zero, index, axis)),
            dtype,
            x.dtype,
        )
        for index in np.ndindex(x.shape)
    ]
    return whole(values, dtype, x.shape)


def same(out: Array, want: Array) -> None:
    assert out.dtype == want.dtype
    assert out.shape == want.shape
    np.testing.assert_array_equal(out.astype(np.float64), want.astype(np.float64))


def inputs(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Random values with ties, zeros of both signs and values far outside every range."""
    x = random_array(dtype, shape, scale=6.0)
    special = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0, -0.0, 440.0, -440.0]
    if dtype.bits > 8:
        special += [6e4, -6e4, np.inf, -np.inf, np.nan]
    if x.size >= len(special):
        x.reshape(-1)[: len(special)] = np.asarray(special).astype(dtype.numpy)
    return x


def parameters(
    shape: tuple[int, ...], axis: int | None, scale_dtype: DType, zero_dtype: DType, seed: int = 0
) -> tuple[Array, Array]:
    extent = () if axis is None else (shape[axis],)
    rng = np.random.default_rng([seed, *extent])
    scale = np.asarray(rng.choice([0.25, 0.3, 1.0, 2.0], extent)).astype(scale_dtype.numpy)
    zero = np.asarray(rng.integers(*RANGE.get(zero_dtype, (-1000, 1000)), extent, endpoint=True))
    return scale, np.asarray(zero.astype(zero_dtype.numpy))


def test_quantize_rounds_halves_to_even_before_the_zero_point() -> None:
    x = np.asarray([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    one, odd = np.asarray(1.0, np.float32), np.asarray(3, np.int8)
    assert apply(Quantize(SI8, None), x, one).astype(int).tolist() == [0, 2, 2, 0, -2, -2]
    assert apply(Quantize(SI8, None), x, one, odd).astype(int).tolist() == [3, 5, 5, 3, 1, 1]


def test_quantize_divides_in_the_dtype_of_the_scale() -> None:
    """0.15 / 0.1 is below 1.5 in f32 and at 1.5 or above in f64; as ONNX has it without a
    `precision`, f16 and bf16 round their quotients too."""
    for dtype in (F32, F64):
        x = np.asarray(np.arange(1, 4000) * 0.05).astype(dtype.numpy)
        scale = np.asarray(0.1).astype(dtype.numpy)
        want = [saturate(round(float(v / scale)), UI16) for v in x]
        assert apply(Quantize(UI16, None), x, scale).tolist() == want
    half = np.asarray([2049, 3000.0], np.float16)
    scale = np.asarray(1.0009765625, np.float16)
    want = [round(float(v / scale)) for v in half]
    assert want == [2046, 2998]
    assert apply(Quantize(SI16, None), half, scale).tolist() == want
    for dtype in (F16, BF16):
        x, scale = (np.asarray(n).astype(dtype.numpy) for n in (-2.25, 0.3))
        assert int(apply(Quantize(SI8, None), x, scale)) == (-8 if dtype is F16 else -7)
    x, scale = np.asarray(-2.25, np.float32), np.asarray(np.float16(0.3), np.float32)
    assert int(apply(Quantize(SI8, None), x, scale)) == -7


def test_quantize_of_a_zero_scale_saturates() -> None:
    x = np.asarray([1.0, -1.0, 0.0], np.float32)
    out = apply(Quantize(SI8, None), x, np.asarray(0.0, np.float32), np.asarray(5, np.int8))
    assert out.tolist() == [127, -128, 0]


def test_dequantize_subtracts_without_wrapping() -> None:
    q = np.asarray([-128, 127], np.int8)
    out = apply(Dequantize(None, None), q, np.asarray(1.0, np.float32), np.asarray(127, np.int8))
    assert out.tolist() == [-255.0, 0.0]
    wide = np.asarray([-(2**31)], np.int32)
    most = np.asarray(2**31 - 1, np.int32)
    out = apply(Dequantize(None, F64), wide, np.asarray(1.0, np.float32), most)
    assert out.tolist() == [-(2.0**32) + 1]


def test_dequantize_rounds_once() -> None:
    """(100 * 1.001953125) is 100.1953125; f16 scales and outputs must not round on the way."""
    q, scale = np.asarray([100, 33], np.int16), np.asarray(1.001953125, np.float16)
    assert apply(Dequantize(None, F32), q, scale).tolist() == [100.1953125, 33.064453125]
    fine = np.asarray(1.0000001, np.float32)
    assert apply(Dequantize(None, F64), q, fine).tolist() == [
        100 * float(fine),
        33 * float(fine),
    ]


def test_views_work() -> None:
    x = inputs(F32, (6, 4)).T[::2, ::-1]
    scale, zero = parameters(x.shape, 1, F32, SI8)
    x.flags.writeable = False
    want = loop_quantise(x, scale, zero, 1, SI8)
    same(apply(Quantize(SI8, 1), x, scale, zero), want)
    spread = np.broadcast_to(x[:1], x.shape)
    same(
        apply(Quantize(UI8, None), spread, scale[0, ...]),
        loop_quantise(spread, scale[0, ...], None, None, UI8),
    )
