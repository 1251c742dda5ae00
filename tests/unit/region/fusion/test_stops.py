"""What a GPU's limits leave together, in whole programs; and what is said where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft
import weft.functional as F
from tests.support.cases import each
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_machine_code import check
from tests.support.gpu_programs import TARGETS, through_stages
from weft.codegen.gpu import sass
from weft.driver import pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program, Value
from weft.region.ir import Module
from weft.target.known import target_named
from weft.testing.compare import compare

ROWS: dict[str, Callable[[weft.Tensor], weft.Tensor]] = {
    "mean": lambda x: weft.mean(x, axis=-1),
    "variance": lambda x: weft.var(x, axis=-1),
    "argmax": lambda x: weft.argmax(x, axis=-1),
    "logsumexp": lambda x: F.logsumexp(x, -1),
    "norm": lambda x: weft.sqrt(weft.sum(x * x, axis=-1)),
    "softmax": lambda x: F.softmax(x, -1),
}


def kernels_of(program: Program, target: str) -> Module:
    compilation = Compilation(program, target_named(target), make_signature(program))
    module: Module = pipeline.run_pipeline(compilation, "region")["region"]
    return module


def captured(
    function: Callable[[weft.Tensor], weft.Tensor], shape: tuple[int, ...], dtype: weft.DType
) -> Program:
    program: Program = weft.jit(function).program(weft.zeros(shape, dtype=dtype))
    return program


@each("target", TARGETS)
@each("columns", [1000, 1001, 1002])
@each("dtype", [weft.float32, weft.bfloat16])
@each("function", ROWS)
def test_rows_of_any_length_are_one_kernel(
    function: str, dtype: weft.DType, columns: int, target: str
) -> None:
    """Rows of odd lengths are read element by element, in one kernel as in two: what follows a
    reduction has nothing to lose."""
    program = captured(ROWS[function], (4096, columns), dtype)
    assert [kernel.name for kernel in kernels_of(program, target).kernels] == ["row0"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", ROWS)
def test_odd_rows_in_one_kernel_are_right(function: str, target: str) -> None:
    program = captured(ROWS[function], (3, 37), weft.bfloat16)
    assert len(kernels_of(program, target).kernels) == 1
    report = compare(program, inputs_for(program, 1), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", TARGETS)
def test_very_short_rows_are_rounded_where_they_are_added_up(target: str) -> None:
    program = captured(lambda x: weft.sum(x, axis=-1), (1 << 20, 2), weft.bfloat16)
    assert [kernel.name for kernel in kernels_of(program, target).kernels] == ["row0"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_loss_over_an_odd_number_of_elements_ends_in_its_sum(target: str) -> None:
    program = captured(lambda x: F.mse_loss(x, x * x), (4096, 1001), weft.float32)
    names = [kernel.name for kernel in kernels_of(program, target).kernels]
    assert names == ["row0_parts", "row0"]


# -- what follows a product ----------------------------------------------------------------------


def product(
    ending: Callable[[Builder, Value], Value], m: int = 512, n: int = 1024, k: int = 768
) -> Program:
    """A matrix product of bf16, and something done to its results."""
    b = Builder()
    y = b.param("bf16", [m, k]) @ b.param("bf16", [k, n])
    return b.build(ending(b, y))


def repeated(function: str, times: int) -> Callable[[Builder, Value], Value]:
    def ending(b: Builder, y: Value) -> Value:
        for _ in range(times):
            y = b.emit(function, y)
        return y

    return ending


ENDINGS: dict[str, Callable[[Builder, Value], Value]] = {
    "sine": repeated("sin", 1),
    "tangent": repeated("tan", 1),
    "power": lambda b, y: b.emit("pow", y, y),
    "four functions": lambda b, y: b.erf(b.log1p(b.exp(b.cos(y)))),
    "inverses": repeated("asinh", 3),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_long_functions_end_the_kernel_of_their_product(ending: str, target: str) -> None:
    module = kernels_of(product(ENDINGS[ending]), target)
    assert [kernel.name for kernel in module.kernels] == ["matmul0"]
    assert module.stops == {}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_long_functions_of_products_are_right(ending: str, target: str) -> None:
    program = product(ENDINGS[ending], 16, 16, 16)
    report = compare(program, inputs_for(program, 1), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.slow
@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize(("target", "arch"), [("sm80", "sm_80"), ("sm90", "sm_90a")])
@pytest.mark.parametrize("ending", ENDINGS)
def test_long_functions_leave_registers_enough(ending: str, target: str, arch: str) -> None:
    assert check(through_stages(product(ENDINGS[ending]), target), arch) == []


def halves(b: Builder, y: Value) -> Value:
    """The first half of the columns, gated by itself, times the second."""
    gate, other = (b.slice(y, [0, start], [512, 512]) for start in (0, 512))
    return gate * b.tanh(gate) * other


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("ending", "why"),
    [
        (repeated("tan", 2), "its results would take 241 operations each, over 240"),
        (halves, "a contraction is computed once, and it is read at two places of a result"),
        (
            lambda b, y: b.reduce_sum(y, axes=[1]),
            "a contraction and another reduction need kernels of their own",
        ),
    ],
)
def test_a_product_whose_results_go_through_memory_says_why(
    ending: Callable[[Builder, Value], Value], why: str, target: str
) -> None:
    module = kernels_of(product(ending), target)
    assert module.kernels[0].name == "matmul0"
    assert len(module.kernels) == 2
    assert module.stops == {"matmul0": why}


@pytest.mark.parametrize("target", TARGETS)
def test_a_mask_beside_a_product_leaves_it_on_matrix_units(target: str) -> None:
    """Their templates do not store truth values beside numbers."""
    b = Builder()
    y = b.param("bf16", [1024, 512]) @ b.param("bf16", [512, 1024])
    kept = b.compare(y, 0.0, "greater")
    stages = through_stages(b.build(b.select(kept, y, 0.0), kept), target)
    assert [kernel.name for kernel in stages["region"].kernels] == ["matmul0", "map1"]
    plans = stages["plan"]
    assert plans.plans[plans.kernels["matmul0"]].arch == target


def test_products_with_one_reason_are_named_in_one_line_of_the_report() -> None:
    b = Builder()
    x, *weights = (b.param("bf16", [64, 64]) for _ in range(3))
    for weight in weights:
        x = repeated("tan", 2)(b, x @ weight)
    program = b.build(x)
    compilation = Compilation(program, target_named("sm90"), make_signature(program))
    lines = pipeline.report(pipeline.run_pipeline(compilation))
    assert [line for line in lines if "goes through memory" in line] == [
        "matmul0, matmul2: the result goes through memory: "
        "its results would take 241 operations each, over 240"
    ]
