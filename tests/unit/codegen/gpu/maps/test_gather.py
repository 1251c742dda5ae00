"""Reads where data says, on the dialect's interpreter, against the reference: alone, at the start
of a row kernel, and never at the end of a matrix product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.support import padded_programs
from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import TARGETS, through_stages
from weft import functional
from weft.codegen.gpu.ir import walk
from weft.codegen.gpu.ir.values import LoadVector
from weft.driver.compile import compile_program
from weft.foundation.dtypes import BF16
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program, Value
from weft.region.ir import Pattern
from weft.testing.compare import compare

ROWS, WIDTH, COUNT = 40, 64, 24
Make = Callable[[Builder, Value, Value], Value]


def _normed(b: Builder, table: Value, places: Value) -> Value:
    found = b.cast(b.take(table, places), "f32")
    total = b.reduce_sum(found * found, [1], keepdims=True)
    return found * b.broadcast_to(b.rsqrt(total + 1.0), found.shape)


CASES: dict[str, Make] = {
    "rows": lambda b, t, i: b.take(t, i),
    "rows with more": lambda b, t, i: b.take(t, i) * 2.0 + 1.0,
    "columns": lambda b, t, i: b.take(b.transpose(t, [1, 0]), b.reshape(i, [6, 4])),
    "norm": _normed,
}


def program(make: Make, dtype: str, places: str) -> Program:
    b = Builder()
    return b.build(make(b, b.param(dtype, [ROWS, WIDTH]), b.param(places, [COUNT])))


@pytest.mark.parametrize(
    ("dtype", "places"),
    one_in(2, [("f32", "si64"), ("bf16", "si32"), ("si8", "si32")], unpack=True),
)
@pytest.mark.parametrize("name", CASES)
def test_gathers_agree(name: str, dtype: str, places: str) -> None:
    if dtype == "si8" and name in ("rows with more", "norm"):
        pytest.skip("a function of floats")
    found = program(CASES[name], dtype, places)
    rng = np.random.default_rng(3)
    kinds = [kind.dtype.numpy for kind in found.main.parameters]  # type: ignore[union-attr]
    table = (4 * rng.standard_normal((ROWS, WIDTH))).astype(kinds[0])
    at = rng.integers(0, ROWS, COUNT).astype(kinds[1])
    report = compare(found, [table, at], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", one_in(2, TARGETS))
@pytest.mark.parametrize("dtype", one_in(4, ["f32", "bf16", "cf32", "si32"]))
@pytest.mark.parametrize("name", padded_programs.GATHERS)
def test_gathers_of_what_is_padded_or_joined_agree(name: str, dtype: str, target: str) -> None:
    found = padded_programs.gather(name, dtype)
    report = compare(found, padded_programs.gather_inputs(dtype), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_a_gather_of_padded_rows_compiles() -> None:
    made = compile_program(padded_programs.gather("of padded rows", "bf16"), "sm90")
    assert "kernel" in made.stages["gpu"]


def test_a_matrix_product_of_rows_gathered_from_padding_agrees() -> None:
    b = Builder()
    x, places, w = b.param("bf16", [24, 64]), b.param("si32", [32]), b.param("bf16", [64, 48])
    rows = b.take(padded_programs.pad(b, x, [4, 0], [4, 0]), places)
    found = b.build(b.matmul(rows, w) + 1.0)
    rng = np.random.default_rng(4)
    x_, w_ = (rng.standard_normal(s).astype(BF16.numpy) for s in ((24, 64), (64, 48)))
    report = compare(found, [x_, np.arange(32, dtype=np.int32), w_], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_whole_rows_are_read_in_vectors() -> None:
    kernels = through_stages(program(CASES["rows"], "bf16", "si64"), "sm90")["gpu"].kernels
    (kernel,) = kernels.values()
    loads = [found for found in walk(kernel.body) if isinstance(found, LoadVector)]
    assert [len(load.names) for load in loads] == [8]


def test_a_matrix_product_does_not_gather_at_its_end() -> None:
    b = Builder()
    table, places = b.param("bf16", [ROWS, WIDTH]), b.param("si64", [COUNT])
    x, w = b.param("bf16", [COUNT, WIDTH]), b.param("bf16", [WIDTH, WIDTH])
    compilation = through_stages(b.build(b.matmul(x, w) + b.take(table, places)), "sm90")
    plans = compilation["plan"]
    found = [plans.of(name) for name in plans.kernels if name.startswith("matmul")]
    assert found
    assert all(isinstance(plan, MmaPlan) and plan.arch == "sm90" for plan in found)


@pytest.mark.parametrize("target", one_in(2, TARGETS))
def test_the_numbers_of_classes_are_not_stored(target: str) -> None:
    rng = np.random.default_rng(5)
    scores, classes = rng.standard_normal((64, 1000)).astype(np.float32), rng.integers(0, 1000, 64)
    found = weft.jit(functional.cross_entropy).program(scores, classes)
    kernels = through_stages(found, target)["region"].kernels
    assert all(kernel.pattern is Pattern.ROW for kernel in kernels)
    report = compare(found, [scores, classes], InterpretedGpu(target))
    assert report.agrees, str(report)
