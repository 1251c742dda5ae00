"""Matrices that rows add to a product are added behind the product, where that takes less time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional
from weft.ptir import Program
from weft.region.fitting import elements_behind
from weft.region.ir import Kernel, Pattern
from weft.testing.compare import compare

Write = Callable[..., Any]


def norm(y: Any) -> Any:
    return functional.layer_norm(y, y.shape[-1])


def traced(write: Write, m: int, k: int, n: int, dtype: str = "bf16") -> Program:
    """A function of the operands of a product, a vector of its columns and two matrices."""
    shapes = ((m, k), (k, n), (n,), (m, n), (m, n))
    made: Program = weft.jit(write).program(*(weft.zeros(s, dtype=dtype) for s in shapes))
    return made


def kernels(program: Program) -> tuple[Kernel, Kernel]:
    found = InterpretedGpu("sm90").compile(program).compilation["region"].kernels
    product = next(kernel for kernel in found if kernel.pattern is Pattern.MATMUL)
    return product, found[-1]


def summed(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
    return norm(x @ w + b + r)


def summed_twice(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
    return norm((x @ w + b + r) * s)


def in_f32(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
    """Rounded to no tensor's dtype before the rows are folded."""
    return norm((x @ w).astype("f32") + r.astype("f32")).astype(x.dtype)


def stored_too(x: Any, w: Any, b: Any, r: Any, s: Any) -> Any:
    y = x @ w + b + r
    return y, norm(y)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements_behind, "_pays", lambda *_: True)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("write", one_in(2, [summed, summed_twice, in_f32, stored_too]))
@pytest.mark.parametrize("sizes", one_in(2, [(70, 64, 320), (64, 64, 264)]))
def test_what_is_made_behind_the_product_is_right(
    write: Write, sizes: tuple[int, int, int]
) -> None:
    program = traced(write, *sizes)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.usefixtures("always")
def test_one_matrix_goes_behind_the_product() -> None:
    def read(write: Write) -> list[int]:
        return [len(kernel.inputs) for kernel in kernels(traced(write, 64, 64, 320))]

    assert read(summed) == [4, 1]
    assert read(summed_twice) == [4, 2]
    assert read(in_f32) == [2, 2]


@pytest.mark.parametrize(("k", "behind"), [(1024, True), (64, False)])
def test_it_is_done_where_the_product_has_time_for_it(k: int, behind: bool) -> None:
    product, rows = kernels(traced(summed, 8192, k, 1024))
    assert (len(product.inputs), len(rows.inputs)) == ((4, 1) if behind else (2, 3))
