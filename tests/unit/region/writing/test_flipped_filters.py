"""Filters that are turned around for the gradient of an image, read where they lie."""

from __future__ import annotations

import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.ptir import Program
from weft.region.ir import Kernel, Read
from weft.testing.compare import compare


def kernels_of(program: Program, target: str = "sm90") -> list[Kernel]:
    return list(through_stages(program, target)["region"].kernels)


@pytest.mark.parametrize(
    "case",
    one_in(
        3,
        [
            Case(size=(5, 7), outputs=72, window=(3, 2)),
            Case(size=(40,), window=(3,), dilation=2, pad=2),
            Case(size=(3, 4, 3), window=(2, 2, 3), images=1),
            Case(inputs=128, outputs=128, groups=2, size=(4, 4)),
        ],
    ),
    ids=["2-D", "1-D, dilated", "3-D", "two groups"],
)
def test_the_gradient_of_an_image_reads_the_filters_themselves(case: Case) -> None:
    program = case.gradient(0)
    *_, last = kernels_of(program)
    assert last.roles is not None
    filters = last.let(last.roles.rhs).expr
    assert isinstance(filters, Read)
    assert filters.tensor == "in1"
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_filters_stay_where_they_are_beside_a_copy_of_the_image() -> None:
    names = [kernel.name for kernel in kernels_of(Case(size=(9, 9), stride=2).gradient(0))]
    assert names[-2:] == ["conv2_image_copy", "conv2"]


def test_filters_are_copied_where_matrix_units_cannot_read_them() -> None:
    program = Case(size=(8, 8), layout="filters first").gradient(0)
    assert [kernel.name for kernel in kernels_of(program)][-2:] == ["conv2_rhs_copy", "conv2"]
