"""Columns summed in the kernel of the product that stores them: right for plans of every kind and
whatever is stored, what is found in place of it, and what stays a kernel of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedExecutable, InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.reference import ReferenceBackend
from weft.foundation.errors import SpecViolation
from weft.plan import text
from weft.ptir import Builder, Program, Value
from weft.region.fitting import join_product_sums
from weft.region.forms.part_sums import sums_parts
from weft.testing.compare import compare

SIZES = (192, 64, 128)


def product(
    sizes: tuple[int, ...] = SIZES,
    dtype: str = "bf16",
    *,
    behind: str = "",
    results: str = "ys",
    batch: int = 0,
) -> Program:
    """A product of rows, of what is summed and of columns, and the sums of its columns."""
    m, k, n = sizes
    b = Builder("sums")
    rows = [batch, m] if batch else [m]
    x, w, h = (b.param(dtype, found) for found in ([*rows, k], [k, n], [*rows, n]))
    dims: Any = ([len(rows)], [0])
    y = b.dot_general(x, w, contract=dims, accum_dtype="f32", out_dtype=dtype)
    if behind:
        wide = b.cast(y, "f32")
        made = b.gelu(wide) if behind == "gelu" else wide * b.tanh(b.cast(h, "f32"))
        y, first = b.cast(made, dtype), y
    s = b.cast(b.reduce_sum(b.cast(y, "f32"), list(range(len(rows)))), dtype)
    named: dict[str, Value] = {"y": y, "s": s} | ({"x": first} if behind else {})
    return b.build(*(named[name] for name in results))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products would not be worth it."""

    def seconds(problem: Any, target: Any, *, summing: bool = False) -> float:
        return -1.0 if summing else 1.0

    monkeypatch.setattr(join_product_sums, "_time_of_product", seconds)


CASES: dict[str, Program] = {
    "y and its sums": product(),
    "halves": product(dtype="f16"),
    "more rows than tiles have": product((320, 128, 200)),
    "behind a function": product(behind="gelu"),
    "with a matrix beside": product((192, 64, 160), behind="matrix"),
    "two results": product(behind="gelu", results="xys"),
    "rows of a batch": product((64, 64, 64), batch=3),
    "nothing but sums": product(results="s"),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", one_in(3, CASES))
def test_sums_are_made_by_the_kernel_of_their_product(name: str) -> None:
    program = CASES[name]
    made = InterpretedGpu("sm90").compile(program).compilation
    assert [sums_parts(kernel) for kernel in made["region"].kernels] == [True, False]
    assert parse_module(print_module(made["gpu"])) == made["gpu"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def planned(program: Program, **changes: object) -> InterpretedExecutable:
    """A program whose product has another plan."""
    plans = json.loads(text.dumps(through_stages(program, "sm90")["plan"]))
    (chosen,) = (plan for plan in plans["plans"] if plan["kind"] == "mma")
    chosen.update(changes)
    return InterpretedExecutable(through_stages(program, "sm90", plan=json.dumps(plans)))


PLANS: dict[str, dict[str, object]] = {
    "stored later": {
        "tile": [128, 128, 64], "warp_tile": "64x128", "roles": "cooperative",
        "consumers": 2, "deferred_epilogue": True, "registers": [40, 232],
    },
    "in turns": {
        "tile": [128, 64, 64], "warp_tile": "128x64", "roles": "pingpong", "consumers": 2,
        "registers": [40, 232],
    },
    "narrow panels": {
        "tile": [64, 48, 64], "warp_tile": "64x48", "roles": "cooperative", "consumers": 1,
        "registers": [0, 0],
    },
}  # fmt: skip


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("behind", one_in(2, ["", "matrix"]))
@pytest.mark.parametrize("plan", PLANS)
def test_sums_are_the_same_under_other_plans(plan: str, behind: str) -> None:
    program = product((320, 128, 200), behind=behind)
    given = inputs_for(program, 4)
    exact = ReferenceBackend().compile(program).execute(given)
    found = planned(program, stages=2, **PLANS[plan]).execute(given)
    for wanted, result in zip(exact, found, strict=True):
        worst = abs(wanted.astype("f4") - result.astype("f4")).max()
        assert worst <= 0.02 * abs(wanted.astype("f4")).max()


@pytest.mark.usefixtures("always")
def test_plans_that_cannot_sum_columns_say_so() -> None:
    changes = {"tile": [64, 64, 64], "warp_tile": "64x64", "consumers": 1, "registers": [0, 0]}
    for more, why in (
        ({"swap_ab": True}, "swap_ab: sums of columns are not made of rows"),
        (
            {"tile": [64, 72, 64], "warp_tile": "64x72"},
            "16-bit floats, .* panels of 8 columns",
        ),
    ):
        with pytest.raises(SpecViolation, match=why):
            planned(product(), roles="cooperative", **{**changes, **more})


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", one_in(2, ["y and its sums", "with a matrix beside"]))
def test_planted_faults_are_found(name: str) -> None:
    """Without the meetings or the fences of the staging buffers sums are of other results."""
    program = CASES[name]
    given = inputs_for(program, 3)
    for fault in (ir.NamedBarrier, ir.ProxyFence):
        made = InterpretedGpu("sm90").compile(program)
        code = made.compilation["gpu"]
        symbol = code.launches[made.compilation["region"].kernels[0].name].symbol
        code.kernels[symbol] = planted(code.kernels[symbol], without(fault))
        with pytest.raises(Hazard):
            made.execute(given)


@pytest.mark.usefixtures("always")
def test_what_stays_a_kernel_of_its_own() -> None:
    def squares(b: Builder, y: Value) -> Value:
        wide = b.cast(y, "f32")
        return b.reduce_sum(wide * wide, [0])

    def rows(b: Builder, y: Value) -> Value:
        return b.reduce_sum(b.cast(y, "f32"), [1])

    def some(b: Builder, y: Value) -> Value:
        return b.reduce_sum(b.cast(b.slice(y, [0, 0], [128, 128]), "f32"), [0])

    for m, dtype, write in (
        (192, "bf16", squares),
        (192, "bf16", rows),
        (192, "bf16", some),
        (200, "bf16", lambda b, y: b.reduce_sum(b.cast(y, "f32"), [0])),
        (192, "f32", lambda b, y: b.reduce_sum(y, [0])),
    ):
        b = Builder("apart")
        x, w = b.param("bf16", [m, 64]), b.param("bf16", [64, 128])
        y = b.dot_general(x, w, contract=([1], [0]), accum_dtype="f32", out_dtype=dtype)
        program = b.build(y, write(b, y))
        found = through_stages(program, "sm90")["region"].kernels
        assert not any(map(sums_parts, found))


def test_it_is_done_where_it_takes_less_time() -> None:
    for sizes, joined in (((16384, 768, 3072), True), ((128, 65536, 128), False)):
        found = through_stages(product(sizes), "sm90")["region"].kernels
        assert any(map(sums_parts, found)) is joined


def test_sums_of_several_products_are_added_up_by_one_kernel() -> None:
    b = Builder("both")
    sides = [(b.param("bf16", [8192, 768]), b.param("bf16", [768, 3072])) for _ in range(2)]
    made = [b.matmul(x, w) for x, w in sides]
    first, second = (b.reduce_sum(b.cast(y, "f32"), [0]) for y in made)
    found = through_stages(b.build(*made, first * second), "sm90")["region"].kernels
    assert [sums_parts(kernel) for kernel in found] == [True, True, False]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("sizes", one_in(2, [SIZES, (16384, 768, 3072)]))
def test_machine_code_keeps_all_in_registers(sizes: tuple[int, int, int]) -> None:
    code = through_stages(product(sizes), "sm90")["gpu"].kernels
    (kernel,) = (found for found in code.values() if found.maps)
    cubin = compile_cuda(cuda(kernel), "sm_90a")
    assert cubin.report.spilled_bytes == 0
    if sass.available():
        wanted = ("HGMMA", "UTMASTG", "LDSM", "HMMA")
        assert sass.check(sass.disassemble(cubin.code), wanted) == []
