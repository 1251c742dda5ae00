"""Operands that are windows of an image, found by how they are indexed, whoever wrote them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.gpu_convolutions import CASES, Case
from tests.support.gpu_programs import through_stages
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program
from weft.region.form import Image, Moved, Product
from weft.region.form_text import form_from_json, form_to_json
from weft.region.ir import Kernel, form_of, problem_of
from weft.region.verify import verify


def contractions(program: Program) -> list[Kernel]:
    kernels = through_stages(program, "sm90")["region"].kernels
    return [kernel for kernel in kernels if kernel.roles is not None]


def image_in(program: Program) -> Image | None:
    problem = problem_of(contractions(program)[-1])
    return problem.image if problem is not None else None


def test_a_convolution_says_how_windows_move() -> None:
    image = image_in(Case(size=(9, 7), stride=2, dilation=2, pad=(1, 2, 3, 4)).program())
    assert image is not None
    assert (image.side, image.images, image.channels, image.is_summed) == (
        "lhs",
        ("m0",),
        "k2",
        True,
    )
    assert image.moved == (
        Moved(1, "m1", "k0", 2, 2, -1, 9, 0),
        Moved(2, "m2", "k1", 2, 2, -2, 7, 0),
    )


def test_filters_have_places_that_are_summed_over() -> None:
    image = image_in(Case().gradient(1))
    assert image is not None
    assert (image.places, image.taps, image.channels) == (("k0", "k1", "k2"), ("m0", "m1"), "m2")
    assert not image.is_summed


def test_places_that_share_channels_have_a_dimension_of_their_own() -> None:
    program = Case(size=(32, 34), window=(7, 7), inputs=3, stride=2, pad=3).program()
    image = image_in(program)
    assert image is not None
    assert (image.channels, image.advance) == ("k2", 8)
    assert image.moved == (Moved(1, "m1", "k0", 2, 1, 0, 37, 0), Moved(2, "m2", "", 1, 0, 0, 17, 0))
    assert image.elements == 2 * 37 * 160


def test_windows_that_a_person_multiplies_are_the_same() -> None:
    b = Builder()
    x, w = b.param("bf16", [2, 30, 64]), b.param("bf16", [192, 32])
    windows = b.emit(
        "extract_patches", x, window=[3], strides=[1], dilation=[1], padding=[(1, 1)], pad_value=0.0
    )
    y = b.dot_general(windows, w, contract=([2], [0]))
    image = image_in(b.build(y))
    assert image is not None
    assert image == image_in(Case(size=(30,), window=(3,), outputs=32).program())


def test_every_step_of_rows_is_an_image_without_windows() -> None:
    image = image_in(CASES["1x1, stride 2"].program())
    assert image is not None
    assert image.taps == ()
    assert [axis.step for axis in image.moved] == [2, 2]


def test_matrices_are_no_images() -> None:
    assert image_in(Case(window=(1, 1), pad=0).program()) is None


def test_a_form_with_an_image_reads_back_and_is_checked() -> None:
    (kernel,) = contractions(CASES["3-D"].program())
    form = form_of(kernel)
    assert isinstance(form, Product)
    assert form_from_json(form_to_json(form), "here") == form
    module = through_stages(CASES["3-D"].program(), "sm90")["region"]
    problem = problem_of(kernel)
    assert problem is not None
    assert problem.image is not None
    moved = (replace(problem.image.moved[0], step=2), *problem.image.moved[1:])
    wrong = replace(form, problem=replace(problem, image=replace(problem.image, moved=moved)))
    broken = replace(module, kernels=(replace(kernel, form=wrong),))
    with pytest.raises(SpecViolation, match=r"RegionForm .* its form says problem"):
        verify(broken)
