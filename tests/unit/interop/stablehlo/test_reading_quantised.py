"""Quantised tensors: their whole numbers, and what computes with them in floats between."""

from __future__ import annotations

import numpy as np
import pytest

import weft

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import function
from weft.interop import stablehlo

ONE = "!quant.uniform<i8:f32, 0.5:3>"
OTHER = "!quant.uniform<i8:f32, 0.25:-7>"
ROWS = "!quant.uniform<i8<-127:127>:f32:0, {0.5, 2.0:5}>"


def run(text: str, *inputs: np.ndarray) -> np.ndarray:
    program = stablehlo.loads(text)
    weft.ptir.verify(program)
    found = weft.run(program, list(inputs), backend="reference")[0]
    np.testing.assert_array_equal(weft.run(program, list(inputs), backend="cpu")[0], found)
    return found


def test_numbers_of_floats_and_back() -> None:
    """The zero point is added before halves go to the even number: 0.25 / 0.5 + 3 is 4, not 3."""
    body = f"""
    %q = stablehlo.uniform_quantize %x : (tensor<5xf32>) -> tensor<5x{ONE}>
    %f = stablehlo.uniform_dequantize %q : (tensor<5x{ONE}>) -> tensor<5xf32>"""
    text = function("%x: tensor<5xf32>", body, f"%q, %f : tensor<5x{ONE}>, tensor<5xf32>")
    program = stablehlo.loads(text)
    x = np.array([0.25, -0.25, 1000, -np.inf, 1.1], np.float32)
    numbers, floats = weft.run(program, [x], backend="reference")
    np.testing.assert_array_equal(numbers, np.array([4, 2, 127, -128, 5], np.int8))
    np.testing.assert_array_equal(floats, np.array([0.5, -0.5, 62, -65.5, 1], np.float32))


def test_a_scale_for_each_row_and_a_range_of_its_own() -> None:
    body = f"%q = stablehlo.uniform_quantize %x : (tensor<2x2xf32>) -> tensor<2x2x{ROWS}>"
    text = function("%x: tensor<2x2xf32>", body, f"%q : tensor<2x2x{ROWS}>")
    found = run(text, np.array([[1, -500], [6, 500]], np.float32))
    np.testing.assert_array_equal(found, np.array([[2, -127], [8, 127]], np.int8))


def test_sums_are_of_the_floats() -> None:
    """Operands and result are quantised each in its own way."""
    kinds = f"(tensor<3x{ONE}>, tensor<3x{OTHER}>) -> tensor<3x{ONE}>"
    text = function(
        f"%a: tensor<3x{ONE}>, %b: tensor<3x{OTHER}>",
        f"%0 = stablehlo.add %a, %b : {kinds}", f"%0 : tensor<3x{ONE}>",
    )  # fmt: skip
    a, b = np.array([3, 5, 127], np.int8), np.array([-7, -3, 127], np.int8)
    floats = (a - 3.0) * 0.5 + (b + 7.0) * 0.25
    wanted = np.clip(np.round(floats / 0.5 + 3), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(run(text, a, b), wanted)


def test_numbers_are_moved_as_they_are() -> None:
    body = f"%0 = stablehlo.reverse %a, dims = [0] : tensor<3x{ONE}>"
    text = function(f"%a: tensor<3x{ONE}>", body, f"%0 : tensor<3x{ONE}>")
    found = run(text, np.array([1, 2, -3], np.int8))
    np.testing.assert_array_equal(found, np.array([-3, 2, 1], np.int8))


def test_what_is_not_said_in_floats_is_refused() -> None:
    """Never computed as if the numbers were plain integers."""
    body = f"""
    %c = stablehlo.constant() <{{value = dense<3> : tensor<i8>}}> : () -> tensor<{ONE}>
    %0 = "stablehlo.reduce"(%a, %c) <{{dimensions = array<i64: 0>}}> ({{
    ^bb0(%x: tensor<{ONE}>, %y: tensor<{ONE}>):
      %s = stablehlo.add %x, %y : tensor<{ONE}>
      stablehlo.return %s : tensor<{ONE}>
    }}) : (tensor<3x{ONE}>, tensor<{ONE}>) -> tensor<{ONE}>"""
    text = function(f"%a: tensor<3x{ONE}>", body, f"%0 : tensor<{ONE}>")
    with pytest.raises(weft.Unimplemented, match=r"stablehlo\.\w+: .*quantised.*line \d"):
        stablehlo.loads(text)


def test_scales_of_blocks_are_refused() -> None:
    kind = "!quant.uniform<i8:f32:{0:1, 1:2}, {{1.0, 2.0}, {3.0, 4.0}}>"
    text = function(f"%a: tensor<2x4x{kind}>", "", f"%a : tensor<2x4x{kind}>")
    with pytest.raises(weft.Unimplemented, match=r"element type !quant\.uniform"):
        stablehlo.loads(text)
