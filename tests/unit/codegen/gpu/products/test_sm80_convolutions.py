"""Convolutions by the SM80 template, on the dialect's interpreter: right for windows of every form;
faults that were planted are found; what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import CASES, COPIED, GRADIENTS, Case
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.region.fitting import image_copies
from weft.region.ir import Pattern, problem_of
from weft.testing.compare import compare

CHOSEN = {
    "padding of its own at every end": CASES["padding of its own at every end"],
    "stride 2": CASES["stride 2"],
    "dilated": Case(size=(7, 7), dilation=2, pad=2, inputs=16, dtype="f16"),
    "1x1, stride 2": CASES["1x1, stride 2"],
    "channels that fill no row": CASES["channels that fill no row"],
    "8 channels": Case(inputs=8, size=(5, 7)),
    "1-D": CASES["1-D"],
    "3-D": Case(size=(3, 4, 3), window=(3, 2, 3), images=1, inputs=16),
    "bias": Case(size=(4, 4), inputs=32, outputs=24, epilogue="bias"),
    "residual": Case(size=(4, 4), inputs=32, outputs=40, epilogue="residual"),
    "two results": Case(size=(4, 4), inputs=32, epilogue="two"),
}


def compiled(program: Program) -> Compilation:
    found: Compilation = InterpretedGpu("sm80").compile(program).compilation
    return found


def archs(program: Program) -> list[str]:
    """What the contractions of a program are planned for."""
    plans = compiled(program)["plan"].plans.values()
    return [plan.arch for plan in plans if isinstance(plan, MmaPlan)]


@pytest.mark.parametrize("name", one_in(5, CHOSEN))
def test_convolutions_are_products_of_windows_and_agree(name: str) -> None:
    program = CHOSEN[name].program()
    assert archs(program) == ["sm80"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("stride", one_in(2, [1, 2]))
def test_gradients_of_images_are_convolutions_and_agree(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters are read turned around where they lie; images with zeros in them are copied."""
    monkeypatch.setattr(image_copies, "WORTH", 1)
    program = Case(size=(4, 6), inputs=16, outputs=32, stride=stride).gradient(0)
    assert archs(program) == ["sm80", "sm80"]
    names = [kernel.name for kernel in compiled(program)["region"].kernels]
    assert [name for name in names if "copy" in name] == ["conv2_image_copy"][: stride - 1]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(2, ["channels first", "filters first"]))
def test_operands_that_are_not_read_in_pieces_are_copied_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_copies, "WORTH", 1)
    case = COPIED[name]
    program = replace(case, size=(3, 4), inputs=case.inputs // 2, outputs=48, images=1).program()
    assert archs(program) == ["sm80"]
    assert len(compiled(program)["region"].kernels) > 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_images_between_convolutions_have_their_channels_last() -> None:
    b = Builder("two")
    x = b.param("bf16", [2, 32, 28, 28])
    for w in [b.param("bf16", [32, 32, 3, 3]) for _ in range(2)]:
        x = b.emit("weft.conv", x, w, layout="NCHW", pad=[1, 1, 1, 1])
    module = compiled(b.build(x))["region"]
    first, second = (k for k in module.kernels if k.pattern is Pattern.CONV)
    between = first.outputs[0].tensor
    assert between in second.inputs
    assert module.tensors[between].shape == (2, 28, 28, 32)


@pytest.mark.parametrize(
    "case", [Case(inputs=12, size=(4, 4)), Case(size=(4, 4), inputs=8, dtype="f32")]
)
def test_channels_that_are_no_pieces_are_multiplied_and_added(case: Case) -> None:
    assert archs(case.program()) == ["fma"]


@pytest.mark.parametrize(
    "name",
    one_in(3, ["of the filters, stride 2", "of the filters, two groups", "of the filters, 1-D"]),
)
def test_gradients_of_filters_sum_over_places_and_agree(name: str) -> None:
    case, of = GRADIENTS[name]
    program = case.gradient(of)
    assert archs(program) == ["sm80", "sm80"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_gradients_of_filters_that_are_few_tiles_are_made_in_parts() -> None:
    module = compiled(Case(size=(28, 28), images=8).gradient(1))["region"]
    *_, parts, _ = module.kernels
    problem = problem_of(parts)
    assert problem is not None
    assert problem.batch == 8


FAULTY = Case(size=(5, 6), inputs=40, outputs=16, images=1, dtype="f16")


@cache
def faulty() -> ir.Kernel:
    kernel: ir.Kernel
    (kernel,) = compiled(FAULTY.program())["gpu"].kernels.values()
    return kernel


def result_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(3)
    sizes = (30 * 40, 9 * 40 * 16, 30 * 16)
    tensors = {
        name: rng.standard_normal(size).astype(np.float16)
        for name, size in zip(kernel.buffers, sizes, strict=True)
    }
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def test_any_timing_and_order_gives_the_same_bits() -> None:
    assert (result_of(faulty()) == result_of(faulty(), Timing.EARLY, 5)).all()


def unguarded(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.CpAsync):
        return replace(statement, guard=Lit(1))
    return statement


def waited_too_little(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WaitGroup):
        return replace(statement, pending=statement.pending + 1)
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "windows over the edge are read": unguarded,
    "copies are not waited for": without(ir.WaitGroup),
    "one group too few is waited for": waited_too_little,
    "warps do not meet": without(ir.SyncThreads),
}


def is_caught(kernel: ir.Kernel) -> bool:
    """Whether a kernel ends in a hazard, reads what is not there, or has other results."""
    try:
        found = result_of(kernel)
    except (Hazard, IndexError):
        return True
    return not np.array_equal(found, result_of(faulty()))


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_caught(name: str) -> None:
    assert is_caught(planted(faulty(), FAULTS[name]))


@pytest.mark.parametrize("arch", one_in(2, ["sm_80", "sm_90"]))
@pytest.mark.parametrize(
    "case",
    one_in(
        3,
        [
            Case(size=(56, 56), images=32),
            Case(size=(56, 56), images=32, inputs=128, outputs=256, epilogue="residual"),
            Case(size=(28, 28), images=32, inputs=40, outputs=40, stride=2),
        ],
    ),
)
def test_machine_code_multiplies_and_spills_nothing(case: Case, arch: str) -> None:
    (kernel,) = compiled(case.program())["gpu"].kernels.values()
    check_code(kernel, arch)


def check_code(kernel: ir.Kernel, arch: str) -> None:
    cubin = compile_cuda(cuda(kernel), arch)
    assert cubin.report.findings == []
    if sass.available():
        code = sass.disassemble(cubin.code)
        assert sass.check(code, ("HMMA", "LDSM", "LDGSTS")) == []


def test_machine_code_of_gradients_spills_nothing() -> None:
    code = compiled(Case(size=(28, 28), images=32, inputs=128, outputs=128).gradient(1))["gpu"]
    check_code(code.kernels[code.launches["conv2_parts"].symbol], "sm_80")


def test_the_text_of_a_kernel_reads_back() -> None:
    module = compiled(FAULTY.program())["gpu"]
    assert parse_module(print_module(module)) == module
