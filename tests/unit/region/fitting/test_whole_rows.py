"""Gradients of filters whose channels make no whole rows of copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.plan.ir import MmaPlan
from weft.ptir import Program
from weft.testing.compare import compare

_CASE = Case(size=(12, 11), inputs=24, outputs=40, images=4)
CASES = {
    "24 channels": _CASE,
    "40 channels, stride 2": replace(
        _CASE, size=(24, 19), inputs=40, outputs=24, stride=2, images=5
    ),
    "96 channels, dilated, one axis": Case(
        size=(70,), window=(5,), inputs=96, outputs=72, images=2, dilation=2, pad=4
    ),
    "both odd": replace(_CASE, size=(13, 13), inputs=17, outputs=33, images=6),
    "three axes, two of them without taps": Case(
        size=(4, 7, 6), window=(3, 1, 1), inputs=48, outputs=32, images=12, pad=0
    ),
    "channels first": replace(_CASE, layout="first"),
    "two groups": replace(_CASE, inputs=96, outputs=96, groups=2, size=(8, 8)),
}


def archs(program: Program, target: str) -> set[str]:
    """How the products of a gradient are made."""
    made = through_stages(program, target)
    own = [k.name for k in made["region"].kernels if "_product" in k.name and k.roles is not None]
    plans = [made["plan"].of(name) for name in own]
    return {plan.arch for plan in plans if isinstance(plan, MmaPlan)}


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", one_in(2, CASES))
def test_the_gradient_of_filters_with_any_channels_is_made_by_matrix_units(
    name: str, target: str
) -> None:
    program = CASES[name].gradient(1)
    assert archs(program, target) == {target}
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_zeros_behind_the_channels_are_none_of_the_gradient() -> None:
    """What is not a number stays in the filters that meet it."""
    program = _CASE.gradient(1)
    image, *others, slope = inputs_for(program, 3)
    image, slope = np.array(image), np.array(slope)
    image[1, 5, 6, 23], slope[2, 3, 4, 39] = np.inf, np.nan
    report = compare(program, [image, *others, slope], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_channels_of_whole_rows_are_left_alone() -> None:
    program = replace(_CASE, inputs=64).gradient(1)
    assert not archs(program, "sm90")
