"""Numbers of rows that are longer than a tile: made of every part of a row behind its product, and
joined by another kernel; right where parts have no finite element, and what stays as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.ptir import Builder, Program, Value
from weft.region.fitting import join_row_folds
from weft.region.ir import Check
from weft.testing.compare import compare

Write = Callable[[Builder, Value, Value], Value]
"""What is made of a product, with a vector of its columns."""


def behind(
    sizes: tuple[int, int, int], write: Write, dtype: str = "bf16", batch: int = 0
) -> Program:
    """A product of rows, of what is summed and of columns, and what is written behind it."""
    m, k, n = sizes
    b = Builder("rows")
    outer = [batch] if batch else []
    x, w = b.param(dtype, [*outer, m, k]), b.param(dtype, [*outer, k, n])
    vector = b.param(dtype, [1] * len(outer) + [1, n])
    return b.build(write(b, b.matmul(x, w), vector))


def shape(x: Value) -> list[int]:
    return list(x.type.static_shape)  # type: ignore[union-attr]


def over_rows(b: Builder, x: Value, reduced: Value) -> Value:
    return b.broadcast_to(reduced, shape(x))


def log_sum_exp(b: Builder, y: Value, *_: Value) -> Value:
    """Of rows that have a finite element."""
    x, last = b.cast(y, "f32"), [len(shape(y)) - 1]
    top = b.reduce_max(x, axes=last, keepdims=True)
    return b.log(b.reduce_sum(b.exp(x - over_rows(b, x, top)), axes=last, keepdims=True)) + top


def biased(b: Builder, y: Value, vector: Value) -> Value:
    return log_sum_exp(b, y + over_rows(b, y, vector))


def sizes_of_rows(b: Builder, y: Value, *_: Value) -> Value:
    """A sum and a maximum that need nothing of one another."""
    x = b.cast(y, "f32")
    top = b.reduce_max(b.abs(x), axes=[1], keepdims=True)
    return b.sqrt(b.reduce_sum(x * x, axes=[1], keepdims=True)) + top


def powers_of_two(b: Builder, y: Value, vector: Value) -> Value:
    """With a shift that is not the greatest element, and no maximum in the program."""
    x = b.cast(y, "f32")
    mean = b.reduce_sum(x, axes=[1], keepdims=True) * (1 / shape(y)[1])
    return b.reduce_sum(b.exp2(x - over_rows(b, x, mean)), axes=[1], keepdims=True)


def cross_entropy(b: Builder, y: Value, *_: Value) -> Value:
    """A log-sum-exp less one element of each row, here that at three times the row's number."""
    x, sizes = b.cast(y, "f32"), shape(y)
    chosen = b.compare(b.iota("si32", sizes, 1), b.iota("si32", sizes, 0) * 3, "equal")
    picked = b.reduce_sum(b.select(chosen, x, 0.0), [1], keepdims=True)
    return log_sum_exp(b, y) - picked


CASES: dict[str, tuple[tuple[int, int, int], Write, str, int]] = {
    "log-sum-exp": ((150, 128, 384), log_sum_exp, "bf16", 0),
    "log-sum-exp in parts of 256": ((70, 64, 512), log_sum_exp, "bf16", 0),
    "log-sum-exp in parts of 128": ((200, 64, 640), log_sum_exp, "f16", 0),
    "log-sum-exp behind a bias": ((130, 64, 576), biased, "bf16", 0),
    "log-sum-exp of a batch": ((70, 64, 384), log_sum_exp, "bf16", 3),
    "cross-entropy": ((150, 64, 576), cross_entropy, "bf16", 0),
    "sum and maximum": ((64, 64, 384), sizes_of_rows, "bf16", 0),
    "powers of two": ((64, 64, 384), powers_of_two, "bf16", 0),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products would not be worth it."""
    monkeypatch.setattr(join_row_folds, "_seconds_apart", lambda *_: math.inf)


def kernels(program: Program) -> list[str]:
    found = InterpretedGpu("sm90").compile(program).compilation["region"].kernels
    return [kernel.pattern.value for kernel in found]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", one_in(4, CASES))
def test_numbers_of_parts_are_made_behind_the_product(name: str) -> None:
    program = behind(*CASES[name])
    made = InterpretedGpu("sm90").compile(program).compilation
    first, second = made["region"].kernels
    assert (first.pattern.value, second.pattern.value) == ("matmul", "row")
    columns = CASES[name][0][2]
    held = {t.name: t for t in made["region"].tensors.values() if t.role == "internal"}
    assert all(t.shape[-1] <= columns // 128 for t in held.values())
    assert parse_module(print_module(made["gpu"])) == made["gpu"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.usefixtures("always")
def test_parts_and_rows_without_a_finite_element() -> None:
    """Columns that are -inf, all of a part for every row and all of some rows: a part counts for
    nothing, a row has -inf; one with +inf has that."""

    def masked(x: Any, w: Any, vector: Any) -> Any:
        return functional.logsumexp((x @ w).astype("f32") + vector.astype("f32"), axis=-1)

    given = (weft.zeros(sizes, dtype="f16") for sizes in ((64, 64), (64, 384), (1, 384)))
    program = weft.jit(masked).program(*given)
    assert kernels(program) == ["matmul", "row"]
    x, w, vector = (np.asarray(given) for given in inputs_for(program, 5))
    for hidden in ((0, 192), (0, 384), (192, 384)):
        vector[:] = 0
        vector[0, slice(*hidden)] = -np.inf
        report = compare(program, (x, w, vector), InterpretedGpu("sm90"))
        assert report.agrees, str(report)
    vector[:] = 0
    vector[0, 7] = np.inf
    report = compare(program, (x, w, vector), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def loss_of(m: int, k: int, n: int) -> Program:
    """The cross-entropy of each row of a product."""

    def loss(x: Any, w: Any, places: Any) -> Any:
        return functional.cross_entropy(x @ w, places, reduction="none")

    shapes = (((m, k), "bf16"), ((k, n), "bf16"), ((m,), "si32"))
    made: Program = weft.jit(loss).program(*(weft.zeros(s, dtype=dtype) for s, dtype in shapes))
    return made


def test_losses_of_large_vocabularies_keep_all_in_registers() -> None:
    made: Any = InterpretedGpu("sm90").compile(loss_of(4096, 1024, 50304)).compilation
    assert all(50304 not in t.shape for t in made["region"].tensors.values() if t.role != "input")
    product = next(iter(made["gpu"].kernels.values()))
    assert compile_cuda(cuda(product), "sm_90a").report.spilled_bytes == 0


@pytest.mark.usefixtures("always")
def test_the_element_that_a_loss_is_about_is_picked_from_its_part() -> None:
    """The second kernel checks where it is."""

    program = loss_of(70, 64, 384)
    made = InterpretedGpu("sm90").compile(program).compilation["region"]
    held = [t for t in made.tensors.values() if t.role == "internal"]
    assert all(384 not in t.shape for t in held)
    checked = [any(isinstance(let.expr, Check) for let in k.body) for k in made.kernels[:2]]
    assert checked == [False, True]
    x, w, places = (np.array(given) for given in inputs_for(program, 5))
    places[:] = np.random.default_rng(1).integers(0, 384, 70)
    places[:6] = 0, 383, 191, 192, -100, 1
    report = compare(program, (x, w, places), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.usefixtures("always")
def test_what_stays_as_it_was() -> None:
    def softmax(b: Builder, y: Value, *_: Value) -> Value:
        return b.cast(b.softmax(b.cast(y, "f32")), y.dtype)

    def third_level(b: Builder, y: Value, *_: Value) -> Value:
        x = b.cast(y, "f32")
        mean = b.reduce_sum(x, axes=[1], keepdims=True) * (1 / shape(y)[1])
        centred = x - over_rows(b, x, mean)
        return b.reduce_sum(centred * centred, axes=[1], keepdims=True)

    for sizes, write in (
        ((64, 64, 384), softmax),
        ((64, 64, 384), third_level),
        ((64, 64, 392), log_sum_exp),
    ):
        made = InterpretedGpu("sm90").compile(behind(sizes, write)).compilation["region"]
        held = [t for t in made.tensors.values() if t.role == "internal"]
        assert any(t.shape[-1] == sizes[2] for t in held)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    one_in(2, [((64, 64, 384), False), ((4096, 1024, 50304), True)], unpack=True),
)
def test_it_is_done_where_it_takes_less_time(sizes: tuple[int, int, int], parts: bool) -> None:
    made: Any = InterpretedGpu("sm90").compile(behind(sizes, log_sum_exp)).compilation
    held = [t for t in made["region"].tensors.values() if t.role == "internal"]
    assert all(t.shape[-1] < sizes[2] for t in held) is parts
    if parts:
        product = next(iter(made["gpu"].kernels.values()))
        assert compile_cuda(cuda(product), "sm_90a").report.spilled_bytes == 0
