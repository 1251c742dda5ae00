"""Groups of few channels whose number does not fit matrix units: joined beside groups of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.ptir import Program
from weft.region.fitting import joined_groups, long_sums
from weft.region.ir import Pattern
from weft.testing.compare import compare

TWELVE = Case(inputs=96, outputs=96, groups=12, size=(3, 4), window=(2, 1), pad=0, images=2)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_groups, "WORTH", 1)


def names(program: Program) -> list[str]:
    return [kernel.name for kernel in through_stages(program, "sm90")["region"].kernels]


def test_twelve_groups_are_joined_as_sixteen_and_a_nan_stays_in_its_group() -> None:
    program = TWELVE.gradient(1)
    found = names(program)
    assert sum(name.endswith("_wide_copy") for name in found) == 2
    assert any(name.endswith("_groups") for name in found)
    inputs = [np.array(x) for x in inputs_for(program, 3)]
    for given in (inputs, [np.where(np.arange(96) == 88, np.nan, inputs[0]), *inputs[1:]]):
        given[0] = given[0].astype(inputs[0].dtype)
        report = compare(program, given, InterpretedGpu("sm90"))
        assert report.agrees, str(report)


@pytest.mark.parametrize("groups", [8, 12])
def test_parts_of_joined_groups_are_added_up_where_they_are_kept(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def most(found: Any, target: Any, counts: Sequence[int], forms: Any) -> int:
        return counts[-1]

    monkeypatch.setattr(long_sums, "split_of", most)
    program = replace(TWELVE, inputs=8 * groups, outputs=8 * groups, groups=groups).gradient(1)
    kernels = through_stages(program, "sm90")["region"].kernels
    assert [kernel.pattern for kernel in kernels[-2:]] == [Pattern.CONV, Pattern.ROW]
    assert kernels[-1].inputs == (kernels[-2].outputs[0].tensor,)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("groups", [3, 5])
def test_few_groups_are_not_joined_with_more_zeros_than_they_have_channels(groups: int) -> None:
    case = Case(inputs=8 * groups, outputs=8 * groups, groups=groups, size=(16, 16))
    assert not any(name.endswith("_wide_copy") for name in names(case.gradient(1)))
