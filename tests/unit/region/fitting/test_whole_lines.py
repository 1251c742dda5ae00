"""Convolutions on SM80 whose channels make no whole lines: zeros fill them up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import COPIED, Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.plan.ir import MmaPlan
from weft.ptir import Program
from weft.testing.compare import compare

_STEM = Case(size=(20, 20), window=(7, 7), inputs=3, images=6, stride=2, pad=3)
PROGRAMS = {
    "three channels": _STEM.program(),
    "three channels, the filters": _STEM.gradient(1),
    "odd channels": replace(COPIED["odd channels"], epilogue="bias").program(),
    "odd channels, the image": COPIED["odd channels"].gradient(0),
    "two channels first": replace(
        COPIED["three channels first"], inputs=2, size=(30, 30)
    ).program(),
    "patches": Case(
        size=(32, 32), window=(8, 8), inputs=3, outputs=128, images=16, stride=8, pad=0
    ).program(),
}


def last_arch(program: Program) -> str:
    """How the last of the products is made."""
    made = through_stages(program, "sm80")
    *_, last = (k.name for k in made["region"].kernels if k.roles is not None)
    plan = made["plan"].of(last)
    assert isinstance(plan, MmaPlan)
    return plan.arch


@pytest.mark.parametrize("name", one_in(2, PROGRAMS))
def test_channels_that_are_no_whole_lines_are_multiplied_by_matrix_units(name: str) -> None:
    program = PROGRAMS[name]
    assert last_arch(program) == "sm80"
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_zeros_behind_channels_meet_zeros() -> None:
    """So infinities and NaNs stay where they are."""
    image, filters = map(np.array, inputs_for(PROGRAMS["three channels"], 3))
    image[0, 9, 7, 2], filters[3, 3, 1, 40] = np.inf, np.nan
    report = compare(PROGRAMS["three channels"], [image, filters], InterpretedGpu("sm80"))
    assert report.agrees, str(report)
