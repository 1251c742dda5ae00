"""Bits of numbers in StableHLO: conversions that keep them, precision that is cut, total orders."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import weft
from tests.support.draws import generator

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.cases import each
from tests.support.stablehlo_oracle import Array, function, interpret
from weft.foundation.errors import Unimplemented
from weft.interop import stablehlo
from weft.interop.stablehlo.dense import DTYPES

RANDOM = generator()
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 1e-45, 65504, 65519, 65520, 1e-7, 6e-8, -3e-8,
    6.1e-5, 6.0e-5, 3.14159, 1e38, 2e-38,
]  # fmt: skip


def any_bits(shape: tuple[int, ...], dtype: str) -> Array:
    kind = DTYPES[dtype].numpy
    if dtype in ("i4", "ui4"):
        return RANDOM.integers(0, 8, shape).astype(kind)
    raw = RANDOM.integers(0, 256, int(np.prod(shape)) * kind.itemsize, np.uint8)
    return np.frombuffer(raw.tobytes(), kind).reshape(shape)


def run(text: str, *inputs: Array) -> Array:
    program = stablehlo.loads(text)
    weft.ptir.verify(program)
    return weft.run(program, list(inputs), backend="reference")[0]


def same_bits(found: Array, wanted: Array) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


BITCASTS = [
    ("4xf32", "4xi32"), ("4xi32", "4xf32"), ("4xf32", "4xui32"), ("4xf64", "4xi64"),
    ("4xbf16", "4xui16"), ("4xui16", "4xf16"), ("3xf32", "3x4xi8"), ("3x4xi8", "3xf32"),
    ("3xf64", "3x2xf32"), ("3x4xf16", "3xf64"), ("2x3xi64", "2x3x4xui16"), ("5x2xi4", "5xi8"),
    ("5xi8", "5x2xui4"), ("7xui8", "7xf8E4M3FN"), ("3xf32", "3xf32"), ("4xi8", "4xui8"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), BITCASTS)
def test_bitcasts(source: str, target: str) -> None:
    a, b = f"tensor<{source}>", f"tensor<{target}>"
    body = f"%0 = stablehlo.bitcast_convert %x : ({a}) -> {b}"
    text = function(f"%x: {a}", body, f"%0 : {b}")
    *dims, dtype = source.split("x")
    x = any_bits(tuple(map(int, dims)), dtype)
    same_bits(run(text, x), interpret(text, [x])[0])


def test_complex_bits_are_refused() -> None:
    kinds = "tensor<2x2xcomplex<f32>>", "tensor<2xcomplex<f64>>"
    body = f"%0 = stablehlo.bitcast_convert %x : ({kinds[0]}) -> {kinds[1]}"
    with pytest.raises(Unimplemented, match="no way to read the bits of cf32 as cf64"):
        stablehlo.loads(function(f"%x: {kinds[0]}", body, f"%0 : {kinds[1]}"))


@each("dtype", ["f32", "f64", "f16", "bf16"])
@each("form", ["e5m10", "e8m7", "e4m3", "e8m23", "e3m1", "e5m2", "e2m9", "e8m0"])
def test_precision_is_cut(form: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = np.concatenate([np.array(SPECIAL).astype(DTYPES[dtype].numpy), any_bits((200,), dtype)])
        x = x[~np.isnan(x) | (form != "e8m0")]
    kind = f"tensor<{len(x)}x{dtype}>"
    body = f"%0 = stablehlo.reduce_precision %x, format = {form} : {kind}"
    text = function(f"%x: {kind}", body, f"%0 : {kind}")
    found, wanted = run(text, x), interpret(text, [x])[0]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def ordinal(value: float) -> int:
    """The place of an f64 in IEEE 754's total order, from its bytes."""
    bits = int.from_bytes(struct.pack("<d", value), "little")
    return bits if bits < 1 << 63 else (1 << 63) - 1 - bits


@pytest.mark.parametrize("direction", ["LT", "LE", "EQ", "NE", "GE", "GT"])
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_total_order(direction: str, dtype: str) -> None:
    """The reference interpreter compares by value whatever is asked, so Python is the oracle."""
    numpy = DTYPES[dtype].numpy
    with np.errstate(all="ignore"):
        values = np.array([*SPECIAL, -np.nan]).astype(numpy)
    x, y = (v.reshape(-1).copy() for v in np.meshgrid(values, values))
    kinds = f"tensor<{len(x)}x{dtype}>", f"tensor<{len(x)}xi1>"
    body = (
        f"%0 = stablehlo.compare {direction}, %x, %y, TOTALORDER "
        f": ({kinds[0]}, {kinds[0]}) -> {kinds[1]}"
    )
    found = run(function(f"%x: {kinds[0]}, %y: {kinds[0]}", body, f"%0 : {kinds[1]}"), x, y)
    order = [[ordinal(float(v)) for v in side] for side in (x, y)]
    test = {
        "LT": int.__lt__, "LE": int.__le__, "EQ": int.__eq__,
        "NE": int.__ne__, "GE": int.__ge__, "GT": int.__gt__,
    }[direction]  # fmt: skip
    assert found.tolist() == [test(a, b) for a, b in zip(*order, strict=True)]
