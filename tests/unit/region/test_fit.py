"""Kernels that are cut or prepared for a GPU compute what they did before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.gpu_programs import through_stages
from weft.ptir import Builder, Value
from weft.region.interp import run_module
from weft.region.ir import Module
from weft.target.known import target_named
from weft.target.matrix_tiles import Extent, split_for

Array = NDArray[Any]
Make = Callable[[Builder, Value], Value]
Numpy = Callable[[Array], Array]

SUMS: dict[str, tuple[tuple[int, ...], Make, Numpy]] = {
    "columns": (
        (4096, 24),
        lambda b, x: b.reduce_sum(x, [0]),
        lambda x: x.sum(0),
    ),
    "everything": (
        (1 << 16,),
        lambda b, x: b.reduce_sum(x * x, [0]) * 0.5,
        lambda x: (x * x).sum() * 0.5,
    ),
    "three axes of four": (
        (8, 28, 28, 12),
        lambda b, x: b.reduce_max(x, [0, 1, 2]) - 1.0,
        lambda x: x.max((0, 1, 2)) - 1.0,
    ),
    "few rows": (
        (3, 1 << 14),
        lambda b, x: b.reduce_sum(b.exp(x), [1]),
        lambda x: np.exp(x).sum(1),
    ),
    "two sums": (
        (4096, 8),
        lambda b, x: b.reduce_sum(x * x, [0]) - b.reduce_sum(x, [0]),
        lambda x: (x * x).sum(0) - x.sum(0),
    ),
}


def region(make: Make, shape: tuple[int, ...], target: str = "sm90") -> Module:
    b = Builder()
    module = through_stages(b.build(make(b, b.param("f32", list(shape)))), target)["region"]
    assert isinstance(module, Module)
    return module


@pytest.mark.parametrize("name", SUMS)
def test_long_sums_are_cut(name: str) -> None:
    shape, make, numpy = SUMS[name]
    module = region(make, shape)
    assert any(kernel.name.endswith("_parts") for kernel in module.kernels)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    result = run_module(module, {module.inputs[0]: x})[module.outputs[0]]
    np.testing.assert_allclose(result, numpy(x.astype(np.float64)), rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "shape", "target"),
    [
        (SUMS["columns"][1], (64, 24), "sm90"),
        (SUMS["few rows"][1], (4096, 1 << 12), "sm90"),
        (SUMS["columns"][1], (4096, 24), "cpu"),
        (lambda b, x: b.softmax(x), (2, 1 << 14), "sm90"),
        (SUMS["everything"][1], (65537,), "sm90"),
    ],
)
def test_others_are_not(make: Make, shape: tuple[int, ...], target: str) -> None:
    names = [kernel.name for kernel in region(make, shape, target).kernels]
    assert not any(name.endswith("_parts") for name in names)


def product(m: int, n: int, k: int) -> Module:
    b = Builder()
    x, w, c = b.param("bf16", [m, k]), b.param("bf16", [n, k]), b.param("f32", [n])
    y = b.dot_general(x, w, contract=([1], [1]), out_dtype="f32")
    module = through_stages(b.build(y + b.broadcast_to(c, y.shape)), "sm90")["region"]
    assert isinstance(module, Module)
    return module


CONTRACTIONS = {
    "cut": ((24, 40, 16384), ["matmul0_parts", "matmul0"]),
    "odd": ((130, 136, 301), ["matmul0_operand0_copy", "matmul0_operand1_copy", "matmul0"]),
    "odd and small": ((13, 17, 31), ["matmul0"]),
    "even": ((128, 136, 304), ["matmul0"]),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name: str) -> None:
    (m, n, k), names = CONTRACTIONS[name]
    module = product(m, n, k)
    assert [kernel.name for kernel in module.kernels] == names
    rng = np.random.default_rng(2)
    kinds = [module.tensors[tensor].dtype.numpy for tensor in module.inputs]
    x, w, c = (
        rng.standard_normal(shape).astype(kind)
        for shape, kind in zip(((m, k), (n, k), (n,)), kinds, strict=True)
    )
    given = dict(zip(module.inputs, (x, w, c), strict=True))
    result = run_module(module, given)[module.outputs[0]]
    exact = x.astype(np.float64) @ w.astype(np.float64).T + c
    np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-3 * np.sqrt(k))


def test_only_contractions_of_few_tiles_are_cut() -> None:
    sm90 = target_named("sm90")
    assert split_for(Extent(1, 128, 128, 65536), sm90) > 1
    assert split_for(Extent(1, 4096, 4096, 4096), sm90) == 1
    assert split_for(Extent(1, 128, 128, 128), sm90) == 1


TYPES = {
    "si8 as it lies": ("si8", "si32", "NT", (256, 256, 256), "sm90", {}),
    "si8 across": ("si8", "si32", "NN", (256, 256, 256), "sm90", {1: "si8"}),
    "si8 across, older": ("si8", "si32", "NN", (256, 256, 256), "sm80", {1: "si8"}),
    "si8, odd": ("si8", "si8", "NT", (130, 136, 301), "sm90", {0: "si8", 1: "si8"}),
    "e4m3 to bf16": ("fp8_e4m3", "bf16", "NT", (256, 256, 256), "sm90", {}),
    "e4m3 to f32": ("fp8_e4m3", "f32", "NT", (256, 256, 256), "sm90", {0: "f16", 1: "f16"}),
    "e5m2, older": ("fp8_e5m2", "bf16", "NT", (256, 256, 256), "sm80", {0: "f16", 1: "f16"}),
    "f64": ("f64", "f64", "NN", (256, 256, 257), "sm90", {}),
}
"""Operands that are copied, by their number, and the dtype of the copy."""


@pytest.mark.parametrize("name", TYPES)
def test_operands_of_eight_bits(name: str) -> None:
    dtype, result, layout, (m, n, k), target, copies = TYPES[name]
    b = Builder()
    shapes = ([m, k], [n, k] if layout == "NT" else [k, n])
    x, w = (b.param(dtype, shape) for shape in shapes)
    contract = ([1], [1] if layout == "NT" else [0])
    program = b.build(b.dot_general(x, w, contract=contract, out_dtype=result))
    module = through_stages(program, target)["region"]
    found = {
        name: tensor.dtype.name for name, tensor in module.tensors.items() if "operand" in name
    }
    assert found == {f"matmul0_operand{number}": kind for number, kind in copies.items()}
    rng = np.random.default_rng(4)
    given = [rng.integers(-8, 8, shape).astype(x.dtype.numpy) for shape in shapes]
    made = run_module(module, dict(zip(module.inputs, given, strict=True)))[module.outputs[0]]
    wide = [side.astype(np.float64) for side in given]
    exact = wide[0] @ (wide[1].T if layout == "NT" else wide[1])
    exact = np.clip(exact, -128, 127) if result == "si8" else exact
    np.testing.assert_array_equal(made, exact.astype(made.dtype))


def test_products_of_few_rows_are_cut() -> None:
    """Tiles of 128 columns would not keep memory busy; results of few products are left alone."""
    for (m, n, k), names in {
        (4, 4096, 4096): ["matmul0_parts", "matmul0"],
        (4, 4096, 256): ["matmul0"],
        (64, 4096, 4096): ["matmul0"],
    }.items():
        b = Builder()
        x, w = b.param("f32", [m, k]), b.param("f32", [k, n])
        module = through_stages(b.build(b.matmul(x, w)), "sm90")["region"]
        assert [kernel.name for kernel in module.kernels] == names
