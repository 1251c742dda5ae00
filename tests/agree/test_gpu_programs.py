"""Programs through every stage down to the GPU dialect, whose meaning is interpreted, against the
reference."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.typing import NDArray

import weft
from examples.make_programs import attention, softmax_layernorm
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import ODD, TARGETS, Maker, through_stages
from tests.support.gpu_random import KINDS, numbers, with_epilogue
from weft.codegen.gpu.compile import architecture
from weft.driver.code import gpu_kernels
from weft.driver.cuda import CudaBackend
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import Unimplemented
from weft.plan.ir import MmaPlan
from weft.ptir import Program
from weft.target.known import target_named
from weft.testing.compare import compare
from weft.testing.random_programs import random_program

Array = NDArray[Any]


def agree(program: Program, inputs: list[Array], target: str) -> None:
    report = compare(program, inputs, InterpretedGpu(target))
    assert report.agrees, str(report)


PROGRAMS: dict[str, Maker] = {
    **ODD,
    "rows of many warps": lambda dtype: softmax_layernorm(3, 1030, dtype=dtype),
    "aligned attention": lambda dtype: attention(2, 16, 16, 24, dtype=dtype),
}


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        *(("bf16", target) for target in TARGETS),
        *one_in(2, [("f32", target) for target in TARGETS], unpack=True),
    ],
)
@pytest.mark.parametrize("name", one_in(2, PROGRAMS))
def test_odd_sizes_agree(name: str, dtype: str, target: str) -> None:
    program = PROGRAMS[name](dtype)
    agree(program, inputs_for(program, 2), target)


# -- epilogues -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", one_in(2, KINDS))
def test_epilogues_of_other_dtypes_agree(name: str, whole: bool, target: str) -> None:
    program = with_epilogue(name, whole=whole)
    compilation = through_stages(program, target)
    (plan,) = compilation["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    assert plan.arch == target
    x, w = inputs_for(program, 1)[:2]
    shape = (24, 40) if whole else (40,)
    agree(program, [x, w, numbers(BY_NAME[name], shape, 3)], target)


@pytest.mark.parametrize("whole", [False, True])
def test_masks_compile(whole: bool) -> None:
    """Truth values are bytes in memory, for which there is no cached load of their own."""
    for target in TARGETS:
        compilation = through_stages(with_epilogue("i1", whole=whole), target)
        arch = architecture(target_named(target), device=None)
        (cubin,) = gpu_kernels.compile_sources(compilation["cu"], arch).cubins.values()
        assert cubin.report.findings == []


# -- random programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", one_in(2, TARGETS))
@pytest.mark.parametrize("start", one_in(2, [0, 20]))
def test_random_programs_agree(start: int, target: str) -> None:
    carried_out = 0
    for seed in range(start, start + 20):
        case = random_program(seed, 6, control_flow=False, dtypes=CudaBackend.dtypes)
        backend = InterpretedGpu(target)
        try:
            weft.run(case.program, case.inputs, backend=backend, seed=1)
        except Unimplemented:
            continue
        carried_out += 1
        report = compare(case.program, case.inputs, backend, seed=1)
        assert report.agrees, f"seed {seed}: {report}"
    assert carried_out >= 5
