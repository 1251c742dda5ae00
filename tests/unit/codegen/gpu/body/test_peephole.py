"""Functions that programs spell out are recognised in every order of their operands, and nothing
else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from scipy.special import erf

from tests import kernels
from tests.gpu_programs import through_stages
from tests.gpu_rows import dialect_kernel
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.spelling.print import cuda
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BF16, F16, F32, F64, DType
from weft.plan.ir import Header, MapPlan
from weft.ptir import Builder, Value
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, KernelAxis, Module, Output, Pattern, Tensor, Unary

PLAN = MapPlan(Header("sm90", ""), 1, 1, 32, 32)
SIZE = 40


@dataclass(frozen=True)
class Spelling:
    """How a gelu is written: which operand stands first, and its constants."""

    outer: bool = False
    halved: bool = False
    shifted: bool = False
    scaled: bool = False
    divides: bool = False
    half: float = 0.5
    one: float = 1.0
    root: float | None = None
    other_x: bool = False


def gelu_of(spelling: Spelling, dtype: DType = F32) -> Module:
    axes = (KernelAxis("i", SIZE),)
    body = kernels.Rows(["i"])

    def binary(fn: str, x: str, y: str, *, turned: bool) -> str:
        return body.binary(fn, *((y, x) if turned else (x, y)))

    x = body.plain("x", dtype, "i")
    within = body.unary("neg", x) if spelling.other_x else x
    root = spelling.root or (2.0**0.5 if spelling.divides else 0.5**0.5)
    number = body.const(float(dtype.numpy.type(root)), dtype)
    inner = (
        body.binary("div", within, number)
        if spelling.divides
        else binary("mul", within, number, turned=spelling.scaled)
    )
    bell = binary(
        "add", body.unary("erf", inner), body.const(spelling.one, dtype), turned=spelling.shifted
    )
    half = binary("mul", x, body.const(spelling.half, dtype), turned=spelling.halved)
    result = binary("mul", half, bell, turned=spelling.outer)
    kernel = Kernel(
        "gelu", Pattern.MAP, axes, tuple(body.lets), (Output("y", result, kernels.identity("i")),)
    )
    return kernels.module_of(
        kernel,
        tensors=[Tensor("x", dtype, (SIZE,), "input"), Tensor("y", dtype, (SIZE,), "output")],
    )


def functions(kernel: Kernel) -> list[str]:
    return [let.expr.fn for let in kernel.body if isinstance(let.expr, Unary)]


def is_recognised(module: Module) -> bool:
    return "gelu" in functions(recognise(module.kernels[0]))


ORDERS = [
    Spelling(*flags) for flags in product((False, True), repeat=5) if not (flags[3] and flags[4])
]


@pytest.mark.parametrize("spelling", ORDERS, ids=str)
def test_every_order_is_recognised(spelling: Spelling) -> None:
    assert is_recognised(gelu_of(spelling))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_every_float_that_has_the_short_way(dtype: DType) -> None:
    assert is_recognised(gelu_of(Spelling(), dtype))
    assert is_recognised(gelu_of(Spelling(divides=True), dtype))


OTHERS = {
    "a third": Spelling(half=1 / 3),
    "plus two": Spelling(one=2.0),
    "another root": Spelling(root=0.7),
    "multiplied by the root of two": Spelling(root=2.0**0.5),
    "divided by the root of a half": Spelling(root=0.5**0.5, divides=True),
    "another number inside": Spelling(other_x=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it_is_left_alone(name: str) -> None:
    module = gelu_of(OTHERS[name])
    assert not is_recognised(module)
    assert recognise(module.kernels[0]) == module.kernels[0]


def test_doubles_are_left_alone() -> None:
    assert not is_recognised(gelu_of(Spelling(), F64))


def test_a_constant_must_be_the_dtypes_own() -> None:
    """The root of a half rounded to bf16 is not that of f32."""
    coarse = float(BF16.numpy.type(0.5**0.5))
    assert not is_recognised(gelu_of(Spelling(root=coarse)))


def test_steps_that_somebody_else_uses_stay() -> None:
    module = gelu_of(Spelling())
    kernel = module.kernels[0]
    bells = [let.name for let in kernel.body if isinstance(let.expr, Unary)]
    second = replace(kernel.outputs[0], tensor="z", value=bells[0])
    both = replace(kernel, outputs=(*kernel.outputs, second))
    assert functions(recognise(both)) == ["erf", "gelu"]


def test_the_meaning_is_the_same() -> None:
    module = gelu_of(Spelling())
    x = np.linspace(-6, 6, SIZE, dtype=np.float32)
    exact = 0.5 * x.astype(np.float64) * (1 + erf(x.astype(np.float64) / np.sqrt(2)))
    for kernel in (module.kernels[0], recognise(module.kernels[0])):
        played = run_kernel(kernel, module.tensors, {"x": x})["y"]
        np.testing.assert_allclose(played, exact, rtol=2e-5, atol=1e-7)


def test_the_code_calls_the_short_way() -> None:
    text = cuda(dialect_kernel(gelu_of(Spelling()), PLAN)).partition("__global__")[2]
    assert "gelu(" in text
    assert "erf" not in text
    plain = cuda(dialect_kernel(gelu_of(OTHERS["a third"]), PLAN)).partition("__global__")[2]
    assert "erff(" in plain


# -- functions that need not be right in their last digits -----------------------------------------


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
