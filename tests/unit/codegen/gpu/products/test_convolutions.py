"""Convolutions and their gradients by the SM90 template, on the dialect's interpreter: right for
windows of every form; faults that were planted are found; what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import CASES, COPIED, FIRST_LAYERS, GRADIENTS, PATCHES, Case
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program
from weft.region.fitting import aligned, image_copies, joined_groups
from weft.region.ir import Pattern
from weft.target.known import target_named
from weft.testing.compare import compare


def module_of(program: Program) -> Any:
    return InterpretedGpu("sm90").compile(program).compilation["gpu"]


def window_kernels(program: Program) -> list[ir.Kernel]:
    """The kernels of a program that go through an image by its windows."""
    kernels = module_of(program).kernels.values()
    return [kernel for kernel in kernels if any(found.window for found in kernel.maps)]


def window_launches(program: Program) -> int:
    """How often such kernels are launched; equal convolutions share one."""
    symbols = {kernel.name for kernel in window_kernels(program)}
    return sum(launch.symbol in symbols for launch in module_of(program).launches.values())


@pytest.mark.parametrize("name", one_in(6, CASES))
def test_convolutions_are_one_kernel_and_agree(name: str) -> None:
    program = CASES[name].program()
    assert len(module_of(program).launches) == len(window_kernels(program)) == 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(9, COPIED))
def test_operands_that_copies_cannot_read_are_copied_first(name: str) -> None:
    program = COPIED[name].program()
    assert len(window_kernels(program)) == 1 < len(module_of(program).launches)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_patches_become_a_product() -> None:
    program = PATCHES.program()
    module = module_of(program)
    assert window_kernels(program) == []
    assert [bool(kernel.maps) for kernel in module.kernels.values()] == [False, False, True]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(9, GRADIENTS))
def test_gradients_of_convolutions_are_convolutions_and_agree(name: str) -> None:
    case, of = GRADIENTS[name]
    program = case.gradient(of)
    # The value is a result too; of groups of few channels it is not computed by this template.
    assert window_launches(program) == 2 - ("few channels" in name)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_a_nan_stays_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of few channels are multiplied together, and only what is theirs is kept."""
    monkeypatch.setattr(joined_groups, "WORTH", 1)
    program = Case(inputs=64, outputs=64, groups=8, size=(4, 4), images=1).gradient(1)
    names = [kernel.name for kernel in through_stages(program, "sm90")["region"].kernels]
    assert any(name.endswith("_groups") for name in names)
    image, *rest = inputs_for(program, 3)
    image = np.array(image)
    image[..., 3] = np.nan
    report = compare(program, [image, *rest], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(4, FIRST_LAYERS))
def test_gradients_of_first_layers_are_products_with_windows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (image_copies, aligned):
        monkeypatch.setattr(found, "WORTH", 1)
    program = FIRST_LAYERS[name].gradient(1)
    module = through_stages(program, "sm90")["region"]
    products = [k for k in module.kernels if any(i.endswith("_patches") for i in k.inputs)]
    assert [k.pattern for k in products] == [Pattern.MATMUL]
    # Results in another order of taps and channels than the windows' are put in order afterwards.
    assert name != "cut" or any(k.name.endswith("_product") for k in module.kernels)
    if name not in ("channels last", "1-D", "cut"):
        return  # The device runs them all.
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", ["channels first", "channels last"])
def test_gradients_of_first_layers_are_multiplied_by_matrix_units(name: str, target: str) -> None:
    """Also where images have their channels first: the cotangents' are put last."""
    program = replace(FIRST_LAYERS[name], size=(64, 64), images=32).gradient(1)
    made = Compilation(program, target_named(target), make_signature(program))
    plans = run_pipeline(made, until="plan")["plan"]
    products = [k for k in made["region"].kernels if k.roles is not None]
    assert {plans.of(kernel.name).arch for kernel in products} <= {"sm80", "sm90"}


@pytest.mark.parametrize("name", one_in(30, CASES))
def test_kernels_of_convolutions_become_machine_code_as_planned(name: str) -> None:
    (kernel,) = window_kernels(CASES[name].program())
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []


def test_steps_of_few_channels_are_not_padded_to_whole_rows() -> None:
    """A step holds the channels of one tap: in rows of 64 bytes, where these hold all of them."""
    for channels, row in ((32, 64), (24, 64), (40, 128), (64, 128)):
        (kernel,) = window_kernels(Case(inputs=channels).program())
        assert {found.swizzle.span for found in kernel.maps if found.window} == {row}


def test_the_text_of_a_convolution_reads_back() -> None:
    module = module_of(CASES["stride 2"].program())
    assert "window=window(lower=(-1, -1), upper=(-1, -1), steps=(2, 2))" in print_module(module)
    assert parse_module(print_module(module)) == module


FAULTY = Case(dtype="f16", size=(9, 7), inputs=72, images=3)


def results_of(
    kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0, outputs: int = 64
) -> NDArray[Any]:
    rng, dtype = np.random.default_rng(7), np.dtype("float16")
    sizes = (3 * 9 * 7 * 72, 9 * 72 * outputs)
    made = [rng.standard_normal(size).astype(dtype) for size in sizes]
    made.append(np.full(3 * 9 * 7 * outputs, np.nan, dtype))
    tensors = dict(zip(kernel.buffers, made, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def test_any_timing_and_order_gives_the_same_bits() -> None:
    (kernel,) = window_kernels(FAULTY.program())
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, seed=5) == first).all()


@pytest.mark.parametrize(
    "change",
    one_in(2, [{"cluster": (1, 2)}, {"split_k": 3}]),
    ids=["an image for two blocks", "sums in parts"],
)
def test_windows_go_with_what_else_the_template_does(change: dict[str, Any]) -> None:
    stages = through_stages(replace(FAULTY, outputs=128).program(), "sm90")
    region, refs, target = stages["region"], stages["memory"].refs, target_named("sm90")
    kernel = region.kernels[0]
    plan = replace(
        stages["plan"].of(kernel.name), tile=(64, 64, 64), warp_tile=(64, 64), consumers=1,
        roles="cooperative", registers=(0, 0), stages=4, deferred_epilogue=False,
    )  # fmt: skip
    first, second = (
        templates.build(kernel, region.tensors, refs, chosen, target, "k0")
        for chosen in (plan, replace(plan, **change))
    )
    assert compile_cuda(cuda(second), "sm_90a").report.findings == []
    assert (results_of(first, outputs=128) == results_of(second, outputs=128)).mean() > 0.99


def moved_tap(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.TmaLoad) and statement.taps:
        return replace(statement, taps=(Lit(0), *statement.taps[1:]))
    return statement


def moved_place(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.TmaLoad) and statement.taps:
        channel, column, *rest = statement.coords
        return replace(statement, coords=(channel, column + 1, *rest))
    return statement


def with_map(name: str, change: Callable[[ir.TensorMap], ir.TensorMap]) -> Any:
    def changed(kernel: ir.Kernel) -> ir.Kernel:
        maps = (change(found) if found.name == name else found for found in kernel.maps)
        return replace(kernel, maps=tuple(maps))

    return changed


def wider(found: ir.TensorMap) -> ir.TensorMap:
    """The padding of one end is left out."""
    assert found.window is not None
    first, *rest = found.window.upper
    return replace(found, window=replace(found.window, upper=(first + 1, *rest)))


def joined_taps(found: ir.TensorMap) -> ir.TensorMap:
    """The filters as one long column: channels that are padded belong to the next tap."""
    return replace(found, sizes=(found.sizes[0], 9 * 72, *found.sizes[2:]))


FAULTS: dict[str, Callable[[ir.Kernel], ir.Kernel]] = {
    "no wait for a slot": lambda kernel: planted(kernel, without(ir.MbarrierWait)),
    "the first tap in place of each": lambda kernel: planted(kernel, moved_tap),
    "a place further": lambda kernel: planted(kernel, moved_place),
    "a wider image": with_map("a", wider),
    "taps that run together": with_map("b", joined_taps),
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    (kernel,) = window_kernels(FAULTY.program())
    good = results_of(kernel).astype(np.float32)
    try:
        found = results_of(FAULTS[name](kernel)).astype(np.float32)
    except Hazard:
        return
    assert not np.allclose(found, good, rtol=1e-2, atol=1e-2)
