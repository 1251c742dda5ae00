"""Rows folded behind a product, in one kernel: right for softmax, norms and odd sizes, and what
stays a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.ptir import Builder, Program, Value
from weft.region.fitting import join_row_folds
from weft.testing.compare import compare

Write = Callable[[Builder, Value, Value, Value], Value]
"""What is made of a product, with a vector of its columns and a matrix of its form."""


def behind(sizes: tuple[int, int, int], write: Write, dtype: str = "bf16") -> Program:
    """A product of rows, of what is summed and of columns, and what is written behind it."""
    m, k, n = sizes
    b = Builder("rows")
    x, w, vector, matrix = (b.param(dtype, found) for found in ([m, k], [k, n], [1, n], [m, n]))
    return b.build(write(b, b.matmul(x, w), vector, matrix))


def over_rows(b: Builder, x: Value, reduced: Value) -> Value:
    return b.broadcast_to(reduced, list(shape(x)))


def shape(x: Value) -> tuple[int, int]:
    rows, columns = x.type.static_shape  # type: ignore[union-attr]
    return rows, columns


def softmax(b: Builder, y: Value, *_: Value) -> Value:
    return b.cast(b.softmax(b.cast(y, "f32")), y.dtype)


def layer_norm(b: Builder, y: Value, vector: Value, _: Value) -> Value:
    """With a bias before it and a factor behind."""
    n = shape(y)[1]
    across = over_rows(b, y, vector)
    x = b.cast(y + across, "f32")
    centred = x - over_rows(b, x, b.reduce_sum(x, axes=[1], keepdims=True) * (1 / n))
    squares = b.reduce_sum(centred * centred, axes=[1], keepdims=True) * (1 / n)
    z = centred / over_rows(b, x, b.sqrt(squares + 1e-5))
    return b.cast(z, y.dtype) * across


def shares_of_sizes(b: Builder, y: Value, *_: Value) -> Value:
    """Two folds of the sums themselves, one of which nothing else needs."""
    x = b.cast(y, "f32")
    top = b.reduce_max(b.abs(x), axes=[1], keepdims=True)
    return x / over_rows(b, x, top + b.reduce_sum(x * x, axes=[1], keepdims=True))


CASES: dict[str, tuple[tuple[int, int, int], Write, str]] = {
    "softmax": ((150, 128, 128), softmax, "bf16"),
    "softmax of few columns": ((70, 64, 40), softmax, "f16"),
    "softmax of 200 columns": ((72, 128, 200), softmax, "bf16"),
    "norm": ((130, 64, 96), layer_norm, "bf16"),
    "norm of 256 columns": ((64, 64, 256), layer_norm, "bf16"),
    "results of 32 bits": ((64, 64, 64), shares_of_sizes, "bf16"),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products would not be worth it."""
    monkeypatch.setattr(join_row_folds, "_pays", _holds)


def _holds(module: Any, rows: Any, kernel: Any, target: Any) -> bool:
    return join_row_folds._warpgroup_problem(kernel, module.tensors) is not None


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", one_in(4, CASES))
def test_rows_are_folded_in_the_kernel_of_their_product(name: str) -> None:
    program = behind(*CASES[name])
    made = InterpretedGpu("sm90").compile(program).compilation
    assert [found.startswith("matmul") for found in made["gpu"].launches] == [True]
    assert parse_module(print_module(made["gpu"])) == made["gpu"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.usefixtures("always")
def test_every_matrix_of_a_batch_has_its_rows_folded() -> None:
    b = Builder("rows")
    x, w = b.param("bf16", [3, 70, 64]), b.param("bf16", [3, 64, 48])
    sides: dict[str, Any] = {"contract": ([2], [1]), "batch": ([0], [0])}
    y = b.dot_general(x, w, **sides, accum_dtype="f32", out_dtype="f32")
    program = b.build(b.cast(b.softmax(y), "bf16"))
    found = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    assert len(found.launches) == 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    ("sizes", "kernels"),
    [
        ((8192, 1024, 64), 1),
        ((8192, 1024, 128), 1),
        ((8192, 1024, 256), 1),
        ((65536, 256, 256), 1),
        ((1024, 1024, 128), 2),
        ((2048, 512, 192), 2),
        ((64, 1024, 256), 2),
    ],
)
def test_it_is_done_where_it_takes_less_time(sizes: tuple[int, int, int], kernels: int) -> None:
    """As timed on an H200: many rows of a few columns are one kernel; a few rows are multiplied by
    more units in narrow tiles."""
    made = InterpretedGpu("sm90").compile(behind(sizes, softmax))
    assert len(made.compilation["region"].kernels) == kernels


@pytest.mark.usefixtures("always")
def test_what_stays_a_kernel_of_its_own() -> None:
    def residual(b: Builder, y: Value, _: Value, matrix: Value) -> Value:
        return softmax(b, y + matrix)

    def columns(b: Builder, y: Value, *_: Value) -> Value:
        return b.cast(b.softmax(b.cast(y, "f32"), 0), y.dtype)

    for sizes, write in (
        ((64, 64, 512), softmax),
        ((64, 64, 64), residual),
        ((64, 64, 64), columns),
    ):
        found = InterpretedGpu("sm90").compile(behind(sizes, write)).compilation["region"].kernels
        assert len(found) > 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", one_in(2, ["softmax", "norm of 256 columns"]))
def test_machine_code_keeps_all_in_registers(name: str) -> None:
    code = InterpretedGpu("sm90").compile(behind(*CASES[name])).compilation["gpu"]
    (kernel,) = code.kernels.values()
    cubin = compile_cuda(cuda(kernel), "sm_90a")
    assert cubin.report.spilled_bytes == 0
    if sass.available():
        assert sass.check(sass.disassemble(cubin.code), ("HGMMA", "UTMALDG")) == []
