"""Contractions of other dtypes than 16-bit floats on a GPU: integers exactly, floats within the
bounds of their instructions; nothing is written outside the result; two runs agree bit by bit."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import weft
from benchmarks.gemm_kernels import Contraction
from tests.support.device import GUARD, device, run
from tests.support.gpu_contractions import sm80_kernel, sm90_kernel
from tests.support.gpu_types import SM80_TYPES, SM90_TYPES, bound, drawn, error, tensors
from tests.support.integer_products import BYTES, numbers, total, widened
from weft.codegen.gpu import ir
from weft.codegen.gpu.assemble import assemble
from weft.driver.cuda import CudaBackend
from weft.ptir import Builder, TensorType
from weft.testing.compare import compare


def check(shape: Contraction, kernel: ir.Kernel, arch: str) -> None:
    given = tensors(shape)
    code, _ = assemble(kernel, arch)
    first, second = (run(code, kernel.buffers, given) for _ in range(2))
    assert (first.view(np.uint8) == second.view(np.uint8)).all()
    edges = np.concatenate([first[:GUARD], first[-GUARD:]]).view(np.uint8)
    assert (edges == 0xFF).all()
    inside = first[GUARD:-GUARD].reshape(shape.y_shape)
    assert error(shape, given, inside) <= bound(shape)


@pytest.mark.parametrize("case", SM90_TYPES)
def test_kernels_of_warpgroups(case: str) -> None:
    device()
    shape, plan = SM90_TYPES[case]
    check(shape, sm90_kernel(shape, plan), "sm_90a")


@pytest.mark.parametrize("case", SM80_TYPES)
def test_kernels_of_warps(case: str) -> None:
    device()
    shape, plan = SM80_TYPES[case]
    check(shape, sm80_kernel(shape, plan), "sm_90")


PROGRAMS = [
    ("si8", "si32"), ("si8", "si8"), ("ui8", "ui32"), ("fp8_e4m3", "bf16"), ("fp8_e4m3", "f32"),
    ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2"), ("f64", "f64"), ("f32", "f32"),
]  # fmt: skip
SHAPES = [(1, 264, 512), (3, 1000, 512), (130, 136, 301), (256, 384, 1024)]


@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "result"), PROGRAMS)
def test_products_agree(dtype: str, result: str, shape: tuple[int, int, int], layout: str) -> None:
    device()
    m, n, k = shape
    b = Builder()
    x, w = b.param(dtype, [m, k]), b.param(dtype, [n, k] if layout == "NT" else [k, n])
    contract = ([1], [1] if layout == "NT" else [0])
    program = b.build(b.dot_general(x, w, contract=contract, out_dtype=result))
    rng = np.random.default_rng(prod(shape))
    kinds = [kind for kind in program.main.parameters if isinstance(kind, TensorType)]
    given = [drawn(rng, kind.dtype, kind.static_shape) for kind in kinds]
    report = compare(program, given, CudaBackend("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize(("a", "b"), BYTES)
@pytest.mark.parametrize("sizes", [(256, 256, 256), (70, 80, 144), (7, 13, 37)])
def test_products_of_integers_of_either_sign(a: str, b: str, sizes: tuple[int, int, int]) -> None:
    device()
    x, w = numbers(a, b, *sizes)
    (got,) = weft.run(widened(a, b, *sizes), [x, w], backend="cuda")
    assert np.array_equal(got, total(x, w))
