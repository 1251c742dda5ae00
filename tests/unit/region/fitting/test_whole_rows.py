"""Gradients of filters whose channels make no whole rows of copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import UNEVEN
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.plan.ir import MmaPlan
from weft.ptir import Program
from weft.testing.compare import compare


def archs(program: Program, target: str) -> set[str]:
    """How the products of a gradient are made."""
    made = through_stages(program, target)
    own = [k.name for k in made["region"].kernels if "_product" in k.name and k.roles is not None]
    plans = [made["plan"].of(name) for name in own]
    return {plan.arch for plan in plans if isinstance(plan, MmaPlan)}


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", one_in(2, UNEVEN))
def test_the_gradient_of_filters_with_any_channels_is_made_by_matrix_units(
    name: str, target: str
) -> None:
    program = UNEVEN[name].gradient(1)
    assert archs(program, target) == {target}
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_zeros_behind_the_channels_are_none_of_the_gradient() -> None:
    """What is not a number stays in the filters that meet it."""
    program = UNEVEN["24 channels"].gradient(1)
    image, *others, slope = inputs_for(program, 3)
    image, slope = np.array(image), np.array(slope)
    image[1, 5, 6, 23], slope[2, 3, 4, 39] = np.inf, np.nan
    report = compare(program, [image, *others, slope], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_channels_of_whole_rows_are_left_alone() -> None:
    program = replace(UNEVEN["24 channels"], inputs=64).gradient(1)
    assert not archs(program, "sm90")
