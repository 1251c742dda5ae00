"""Convolutions whose windows are read from slabs of their image, on the dialect's interpreter: what
copies of every tap give, for every form; faults that were planted are found; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_contractions import TWO_UNITS
from tests.support.gpu_convolutions import Case
from tests.support.gpu_faults import planted
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.foundation.errors import SpecViolation
from weft.plan.ir import Header, MmaPlan
from weft.plan.slabs import KEPT, SLAB_FORMS
from weft.plan.tensor_cores import slab_plan, sm90_plan
from weft.ptir import Program
from weft.region.ir import Module, problem_of
from weft.target.matrix_tiles import Form
from weft.target.target import Target

SMALL = Form(64, 64, (64, 64))
FOUR, PAIR, WIDE = SLAB_FORMS[0], SLAB_FORMS[1], SLAB_FORMS[3]
ODD = Case(size=(9, 13), images=3, dtype="f16")
CASES: dict[str, tuple[Case, int | None, Form]] = {
    "two patches of a warpgroup": (ODD, None, FOUR),
    "fewer patches than a tile has": (Case(size=(5, 7), images=1, inputs=24), None, FOUR),
    "channels of several steps": (replace(ODD, inputs=136, outputs=72), None, PAIR),
    "several tiles side by side": (Case(size=(8, 8), outputs=200, images=5), None, WIDE),
    "half a row": (replace(ODD, inputs=32, outputs=40), None, PAIR),
    "padding of its own": (Case(size=(9, 12), pad=(1, 0, 2, 1), images=1), None, SMALL),
    "no padding": (Case(size=(11, 10), pad=0, images=2), None, SMALL),
    "dilated": (Case(size=(12, 9), dilation=2, pad=2, images=1), None, PAIR),
    "5x1": (Case(size=(17, 4), window=(5, 1), pad=(2, 0, 2, 0), images=1), None, SMALL),
    "5x4": (Case(size=(10, 9), window=(5, 4), pad=2, images=1), None, SMALL),
    "steps down, channels shared": (
        Case(size=(33, 31), window=(7, 7), inputs=3, stride=2, pad=3, images=3),
        None,
        FOUR,
    ),
    "bias": (replace(ODD, epilogue="bias"), None, PAIR),
    "residual": (replace(ODD, epilogue="residual"), None, FOUR),
    "two results": (replace(ODD, epilogue="two"), None, PAIR),
    "gradient of the image": (replace(ODD, inputs=72), 0, PAIR),
}
"""A convolution, the parameter whose gradient is taken, and a form."""


class Made:
    """The kernel of a program that has windows, and ways to carry it out."""

    def __init__(self, program: Program, target: Target = TWO_UNITS) -> None:
        stages = through_stages(program, "sm90")
        self.region: Module = stages["region"]
        self.refs, self.target = stages["memory"].refs, target
        self.kernel = next(
            kernel
            for kernel in reversed(self.region.kernels)
            if (found := problem_of(kernel)) is not None and found.image is not None
        )
        problem = problem_of(self.kernel)
        assert problem is not None
        self.problem, self.header = problem, Header(target.name, "")

    def slabs(self, form: Form) -> MmaPlan:
        plan = slab_plan(self.kernel, self.problem, self.target, self.header, form)
        assert plan is not None
        return plan

    def taps(self) -> MmaPlan:
        return sm90_plan(self.kernel, self.problem, self.target, self.header, SMALL)

    def built(self, plan: MmaPlan) -> ir.Kernel:
        return templates.build(self.kernel, self.region.tensors, self.refs, plan, self.target, "k0")

    def results(self, kernel: ir.Kernel, timing: Timing = Timing.LATE) -> list[NDArray[Any]]:
        rng = np.random.default_rng(7)
        arrays = {}
        for name in kernel.buffers:
            found = self.region.tensors[name]
            made = rng.standard_normal(found.shape).astype(found.dtype.numpy)
            arrays[name] = made.reshape(-1)
        outputs = [output.tensor for output in self.kernel.outputs]
        for name in outputs:
            arrays[name][:] = np.nan
        run(kernel, arrays, timing, seed=3)
        return [arrays[name].astype(np.float32) for name in outputs]


def program_of(case: Case, of: int | None) -> Program:
    return case.program() if of is None else case.gradient(of)


@pytest.mark.parametrize("name", one_in(13, CASES))
def test_slabs_give_what_taps_do(name: str) -> None:
    case, of, form = CASES[name]
    made = Made(program_of(case, of))
    kernel = made.built(made.slabs(form))
    assert not any(found.window for found in kernel.maps)
    wanted = made.results(made.built(made.taps()))
    for found, right in zip(made.results(kernel), wanted, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, right, rtol=1e-2, atol=2e-2)


def test_any_timing_gives_the_same_bits() -> None:
    made = Made(replace(ODD, inputs=72).program())
    plan = made.slabs(PAIR)
    kernel = made.built(plan)
    first = made.results(kernel)[0]
    assert (made.results(kernel, Timing.EARLY)[0] == first).all()
    deferred = made.built(replace(plan, deferred_epilogue=True))
    assert (made.results(deferred)[0] == first).all()


@pytest.mark.parametrize(
    "name", one_in(3, ["two patches of a warpgroup", "residual", "half a row"])
)
def test_kernels_become_machine_code_as_planned(name: str) -> None:
    case, of, form = CASES[name]
    made = Made(program_of(case, of))
    assert compile_cuda(cuda(made.built(made.slabs(form))), "sm_90a").report.findings == []


def test_the_text_of_a_slab_reads_back() -> None:
    # 56 x 56 places of 32 images: the planner's own choice.
    module = through_stages(Case(size=(56, 56), images=32).program(), "sm90")["gpu"]
    assert "pitch=10" in print_module(module)
    assert parse_module(print_module(module)) == module


def descriptors_of_rows(statement: ir.Stmt) -> ir.Stmt:
    """Groups of eight places follow one another, across the ends of lines."""
    if isinstance(statement, ir.Descriptor):
        return replace(statement, layout=replace(statement.layout, pitch=8))
    return statement


def first_taps(statement: ir.Stmt) -> ir.Stmt | None:
    if isinstance(statement, ir.Set) and statement.name == "across":
        return replace(statement, value=Lit(0))
    return statement


def waits_without(*barriers: str) -> Callable[[ir.Stmt], ir.Stmt | None]:
    def change(statement: ir.Stmt) -> ir.Stmt | None:
        gone = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers in barriers
        return None if gone else statement

    return change


FAULTS = {
    "no wait for what is copied": waits_without("full", "slab_full"),
    "no wait for a slot of slabs": waits_without("slab_empty"),
    "lines that follow one another": descriptors_of_rows,
    "the first column of taps": first_taps,
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    made = Made(replace(ODD, size=(9, 16), images=3, inputs=72).program())
    kernel = made.built(made.slabs(SMALL))
    (good,) = made.results(kernel)
    try:
        (found,) = made.results(planted(kernel, FAULTS[name]))
    except Hazard:
        return
    assert not np.allclose(found, good, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("case", "change", "why"),
    [
        (Case(stride=2, size=(9, 9)), {}, "at every place across"),
        (Case(size=(4, 5, 6), window=(3, 3, 3), images=1), {}, "at every place across"),
        (Case(inputs=128, outputs=128, groups=2), {}, "at every place across"),
        (Case(), {"in_flight": 0}, "in_flight=0 does not go with slabs"),
        (Case(), {"split_k": 3}, "sums in parts does not go with slabs"),
        (Case(), {"stages": 40}, "bytes of shared memory"),
    ],
)
def test_what_slabs_cannot_do_is_refused(case: Case, change: dict[str, Any], why: str) -> None:
    made = Made(case.program())
    plan = replace(made.taps(), cache=KEPT, **{"stages": 4, **change})
    with pytest.raises(SpecViolation, match=why):
        made.built(plan)
