"""Gradients to the input of strided convolutions by the SM90 template: all phases in one kernel, no
zeros multiplied, rows stored where they belong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_contractions import TWO_UNITS
from tests.support.gpu_convolutions import PHASES, Case
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Timing, run
from weft.codegen.gpu.ir.kernel import walk
from weft.codegen.gpu.products import sm90
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.foundation.dtypes import BF16
from weft.ptir import Builder, Program, Value
from weft.region.fitting import image_copies
from weft.region.structure import buffers
from weft.target.sm90 import SM90
from weft.testing.compare import compare


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_copies, "WORTH", 1)


def module_of(program: Program) -> Any:
    return InterpretedGpu("sm90").compile(program).compilation["gpu"]


def region_of(program: Program) -> Any:
    return InterpretedGpu("sm90").compile(program).compilation["region"]


def phased(program: Program) -> ir.Kernel:
    """The kernel of all phases: the last one that is launched."""
    module = module_of(program)
    kernel: ir.Kernel = [*module.kernels.values()][-1]
    return kernel


@pytest.mark.parametrize("name", one_in(9, PHASES))
def test_all_phases_are_one_convolution_of_what_lies_in_memory(name: str) -> None:
    program = PHASES[name].gradient(0)
    kernels = region_of(program).kernels
    # Rows of a line follow one another in each phase.
    assert kernels[-1].form.problem.scattered is (name != "1-D")
    assert not any(kernel.name.endswith("_image_copy") for kernel in kernels)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("where", one_in(2, [1, 2]))
def test_numbers_that_are_none_spread_as_far_as_in_the_reference(where: int) -> None:
    """A weight also where its tap meets a zero, a gradient only where it is met."""
    program = Case(size=(4, 4), stride=2, images=1).gradient(0)
    inputs = [np.array(x) for x in inputs_for(program, 3)]
    inputs[where].reshape(-1)[inputs[where].size // 3] = np.nan
    report = compare(program, inputs, InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_what_follows_reads_beside_scattered_rows() -> None:
    """The mask of an activation, and a number for every image."""
    b = Builder()
    x, w = b.param("bf16", [3, 4, 4, 64]), b.param("bf16", [3, 3, 64, 64])
    beside, each = b.param("bf16", [3, 8, 8, 64]), b.param("bf16", [3, 1, 1, 1])
    board = b.pad(x, interior=[0, 1, 1, 0], pad_value=0.0)
    made = b.emit("weft.conv", board, w, layout="NHWC", pad=[1, 1, 2, 2])
    assert isinstance(made, Value)
    program = b.build(made * beside * b.broadcast_to(each, [3, 8, 8, 64]))
    assert [source.digits != () for source in sources(phased(program))] == [True, True]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def sources(kernel: ir.Kernel) -> list[ir.GlobalElements]:
    """What a kernel's first element program reads of memory."""
    found = next(s for s in walk(kernel.body) if isinstance(s, ir.Epilogue))
    return [source for source in found.sources if isinstance(source, ir.GlobalElements)]


def test_sizes_that_steps_do_not_divide_keep_a_copy_with_zeros() -> None:
    program = Case(size=(9, 8), stride=2).gradient(0)
    names = [kernel.name for kernel in region_of(program).kernels]
    assert any(name.endswith("_image_copy") for name in names)


@pytest.mark.parametrize("name", one_in(3, ["3x3", "4x4", "3-D"]))
def test_phases_become_machine_code_as_planned(name: str) -> None:
    kernel = phased(PHASES[name].gradient(0))
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []


def test_the_text_of_phases_reads_back() -> None:
    module = module_of(PHASES["3x3"].gradient(0))
    assert parse_module(print_module(module)) == module


PINGPONG = {"tile": (64, 64, 64), "warp_tile": (64, 64), "roles": "pingpong", "consumers": 2}
SHARED = {"tile": (128, 64, 64), "warp_tile": (64, 64), "roles": "cooperative", "consumers": 2}
FORMS: dict[str, dict[str, Any]] = {
    "in turns": {**PINGPONG, "deferred_epilogue": False, "registers": (40, 232)},
    "together": {**SHARED, "deferred_epilogue": False, "registers": (40, 232)},
    "together, stored later": {**SHARED, "deferred_epilogue": True, "registers": (40, 232)},
}


@pytest.mark.parametrize("name", one_in(6, FORMS))
def test_blocks_that_take_several_tiles_of_unequal_phases_give_the_same_bits(name: str) -> None:
    program = Case(size=(10, 12), stride=2, images=3, inputs=72, outputs=136).gradient(0)
    made = InterpretedGpu("sm90").compile(program).compilation
    kernel = made["region"].kernels[-1]
    plan, refs = made["plan"].of(kernel.name), made["memory"].refs_of(buffers(kernel))
    few = replace(plan, stages=3, **FORMS[name])
    wanted = results_of(sm90.build(kernel, refs, plan, SM90, "wide"))
    assert np.isfinite(wanted.astype(np.float32)).all()
    built = sm90.build(kernel, refs, few, TWO_UNITS, "narrow")
    assert built.grid == 2
    for timing, seed in ((Timing.LATE, 0), (Timing.EARLY, 5)):
        assert (results_of(built, timing, seed) == wanted).all()


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> Any:
    rng = np.random.default_rng(7)
    dtype = BF16.numpy
    sizes = (3 * 5 * 6 * 136, 9 * 72 * 136)
    given = [rng.standard_normal(size).astype(dtype) for size in sizes]
    given.append(rng.standard_normal(4 * 72).astype(np.float32))
    given.append(np.full(3 * 10 * 12 * 72, np.nan, dtype))
    tensors = dict(zip(kernel.buffers, given, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]
