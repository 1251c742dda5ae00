"""Functions that need not be right in their last digits take the short way, and only those."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.body.peephole import recognise
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Value
from weft.region.interp import run_kernel

SIZE = 40


def spelled(make: Callable[[Builder, Value], Value], dtype: str) -> Compilation:
    """A function of f32 between a load and a store of another dtype."""
    b = Builder()
    x = b.param(dtype, [SIZE])
    return through_stages(b.build(b.cast(make(b, b.cast(x, "f32")), dtype)), "sm90")


def kernel_text(make: Callable[[Builder, Value], Value], dtype: str) -> str:
    return str(spelled(make, dtype).text("cu").partition("__global__")[2])


def silu(b: Builder, x: Value) -> Value:
    return b.silu(x)


@pytest.mark.parametrize(("dtype", "loose"), [("bf16", True), ("f16", True), ("f32", False)])
def test_narrow_results_allow_loose_functions(dtype: str, loose: bool) -> None:
    text = kernel_text(silu, dtype)
    assert ("loose_exp(" in text, "loose_quotient(" in text) == (loose, loose)


@pytest.mark.parametrize(("dtype", "loose"), [("bf16", True), ("f16", False), ("f32", False)])
def test_a_loose_tanh_has_the_digits_of_bf16_alone(dtype: str, loose: bool) -> None:
    text = kernel_text(lambda b, x: b.tanh(x) * 3.0, dtype)
    assert ("loose_tanh(" in text) is loose


def tanh_gelu(b: Builder, x: Value) -> Value:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + b.tanh(inner))


def test_a_cubic_in_a_power_takes_one_multiplication_less() -> None:
    """`c (x + k x^3)` as `x (c + c k x^2)`, and with the same meaning."""
    other = kernel_text(lambda b, x: 0.5 * x * (1.0 + b.tanh(0.8 * (x + 0.04 * (x * x)))), "bf16")
    short = kernel_text(tanh_gelu, "bf16")
    assert short.count(" * ") == other.count(" * ")
    compilation = spelled(tanh_gelu, "bf16")
    (kernel,), tensors = compilation["region"].kernels, compilation["region"].tensors
    x = np.linspace(-4, 4, SIZE).astype(tensors["in0"].dtype.numpy)
    wide = x.astype(np.float64)
    exact = wide / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    played = run_kernel(recognise(kernel), tensors, {"in0": x})["out0"].astype(np.float64)
    np.testing.assert_allclose(played, exact, rtol=2**-8)


@pytest.mark.parametrize("name", ["silu", "tanh_gelu"])
@pytest.mark.parametrize(("dtype", "loose"), [("bf16", True), ("f16", True), ("f32", False)])
def test_epilogues_divide_by_one_more_than_a_power(name: str, dtype: str, loose: bool) -> None:
    b = Builder()
    x, w = b.param("bf16", [128, 64]), b.param("bf16", [128, 64])
    product = b.dot_general(x, w, contract=([1], [1]), out_dtype="f32")
    result = b.cast({"silu": silu, "tanh_gelu": tanh_gelu}[name](b, product), dtype)
    text = through_stages(b.build(result), "sm90").text("cu").partition("__global__")[2]
    assert ("loose_share(" in text) is loose
    assert "quotient(" not in text


def test_one_plus_tanh_does_not_cancel() -> None:
    """For very negative numbers the sum of a rounded tanh and 1 has no digits left."""

    def gelu(b: Builder, x: Value) -> Value:
        return 0.5 * x * (1.0 + b.tanh(0.8 * x))

    short = kernel_text(gelu, "bf16")
    assert "tanh" not in short
    # The halves cancel, and the constants in the power are one.
    assert (short.count("loose_exp2("), short.count("loose_exp(")) == (short.count("quotient("), 0)
    assert short.count(" * ") == kernel_text(lambda b, x: 3.0 * x, "bf16").count(" * ")
    assert "tanhf(" in kernel_text(gelu, "f32")
    compilation = spelled(gelu, "bf16")
    (kernel,) = compilation["region"].kernels
    tensors = compilation["region"].tensors
    x = np.linspace(-12, 12, SIZE).astype(tensors["in0"].dtype.numpy)
    wide = x.astype(np.float64)
    exact = wide / (1 + np.exp(-1.6 * wide))
    played = run_kernel(recognise(kernel), tensors, {"in0": x})["out0"].astype(np.float64)
    np.testing.assert_allclose(played, exact, rtol=2e-2)
