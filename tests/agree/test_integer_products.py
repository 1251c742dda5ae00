"""Sums of products of integers: operands of either sign that are widened first, which matrix
instructions multiply as they lie, and products that wrap before they are widened, which they do
not. Expected values are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_machine import MachineBackend, machine
from tests.support.gpu_programs import through_stages
from tests.support.integer_products import BYTES, numbers, total, widened
from weft.codegen.gpu import sass
from weft.driver.code.gpu_kernels import compile_sources
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program

WIDER = [("ui4", "si8"), ("ui16", "si8"), ("si16", "ui16"), ("ui8", "ui16")]


def wrapping(dtype: str, wide: str, m: int, n: int, k: int) -> Program:
    """Products as wide as their operands, cast and added up then."""
    builder = Builder()
    x, w = builder.param(dtype, [m, k]), builder.param(dtype, [n, k])
    rows = builder.broadcast_to(builder.reshape(x, [m, 1, k]), [m, n, k])
    columns = builder.broadcast_to(builder.reshape(w, [1, n, k]), [m, n, k])
    return builder.build(builder.reduce_sum(builder.cast(rows * columns, wide), [2]))


@pytest.mark.parametrize(("a", "b"), [*BYTES, *WIDER])
@pytest.mark.parametrize("sizes", [(64, 48, 96), (7, 13, 37)])
def test_operands_of_either_sign_on_the_cpu(a: str, b: str, sizes: tuple[int, int, int]) -> None:
    x, w = numbers(a, b, *sizes)
    (got,) = weft.run(widened(a, b, *sizes), [x, w], backend="cpu")
    assert np.array_equal(got, total(x, w))


@pytest.mark.parametrize(("a", "b"), BYTES)
def test_operands_of_either_sign_on_a_gpu(a: str, b: str) -> None:
    x, w = numbers(a, b, 40, 24, 48)
    with machine() as gpu:
        (got,) = weft.run(widened(a, b, 40, 24, 48), [x, w], backend=MachineBackend(gpu))
    assert np.array_equal(got, total(x, w))


@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize(("a", "b"), one_in(4, BYTES, unpack=True))
def test_matrix_instructions_take_operands_of_either_sign(a: str, b: str, target: str) -> None:
    made = through_stages(widened(a, b, 256, 256, 256), target)
    (plan,) = made["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    assert plan.arch == target
    if not sass.available():
        return
    arch = {"sm80": "sm_80", "sm90": "sm_90a"}[target]
    (cubin,) = compile_sources(made["cu"], arch).cubins.values()
    name = {"sm80": "IMMA", "sm90": "IGMMA"}[target]
    found = [f"{i.name}{i.operands}" for i in sass.disassemble(cubin.code) if i.root == name]
    kinds = ".".join(dtype[0].upper() + dtype[2:] for dtype in (a, b))
    assert found
    assert all(f"32.{kinds}" in text for text in found)


@pytest.mark.parametrize(("dtype", "wide"), [("si8", "si32"), ("ui8", "ui32"), ("ui8", "si32")])
def test_products_that_wrap_are_not_widened_first(dtype: str, wide: str) -> None:
    x, w = numbers(dtype, dtype, 8, 8, 40)
    with np.errstate(over="ignore"):
        want = (x[:, None, :] * w[None, :, :]).sum(2, dtype=np.int64)
    program = wrapping(dtype, wide, 8, 8, 40)
    with machine() as gpu:
        for backend in ("cpu", MachineBackend(gpu)):
            (got,) = weft.run(program, [x, w], backend=backend)
            assert np.array_equal(got, want)
