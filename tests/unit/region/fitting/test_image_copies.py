"""Operands of convolutions that are copied as matrix units want them, and sums that are cut."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.region.ir import Kernel, Module, Read
from weft.testing.compare import compare


def module_of(program: Program, target: str = "sm90") -> Module:
    found: Module = through_stages(program, target)["region"]
    return found


def names(program: Program, target: str = "sm90") -> list[str]:
    return [kernel.name for kernel in module_of(program, target).kernels]


def copy_in(program: Program) -> Kernel:
    return next(k for k in module_of(program).kernels if k.name.endswith("_image_copy"))


def test_an_image_with_its_channels_first_is_copied_without_its_padding() -> None:
    """The copy engine fills in zeros around an image."""
    program = Case(size=(8, 9), inputs=65, layout="first").program()
    assert [axis.size for axis in copy_in(program).axes] == [2, 8, 9, 72]
    reads = [let.expr for kernel in module_of(program).kernels for let in kernel.body]
    (read,) = [r for r in reads if isinstance(r, Read) and r.tensor.endswith("_image")]
    assert [guard.size for guard in read.guards] == [8, 9]


def test_an_image_that_windows_do_not_reach_beyond_is_copied_as_far_as_they_reach() -> None:
    program = Case(size=(16, 17), layout="first", pad=(1, 0, 1, 0)).program()
    assert [axis.size for axis in copy_in(program).axes] == [2, 16, 17, 64]


FEW = {
    "neighbours share elements": (Case(size=(32, 32), window=(7, 7), stride=2), [37, 152]),
    "of a whole row of copies": (Case(size=(32, 32), window=(7, 7), inputs=5), [38, 304]),
    "each has its own, in half a row": (
        Case(size=(32, 32), window=(5, 5), inputs=6, pad=2),
        [36, 32, 32],
    ),
}
"""Convolutions of few channels, and the sizes of an image's copy but for how many there are."""


@pytest.mark.parametrize("name", one_in(3, FEW))
def test_neighbouring_taps_of_few_channels_become_channels(name: str) -> None:
    case, sizes = FEW[name]
    case = replace(case, inputs=3 if case.inputs == 64 else case.inputs)
    program = replace(case, pad=case.window[0] // 2).program()
    assert [axis.size for axis in copy_in(program).axes[1:]] == sizes
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_pixels_that_a_window_does_not_have_are_none_of_its_result() -> None:
    """Each infinity and NaN spreads as far as the taps of windows, and no filter of zeros is
    multiplied by another one."""
    program = Case(size=(32, 32), window=(7, 7), inputs=3, stride=2, pad=3).program()
    image, filters = inputs_for(program, 3)
    image = np.array(image)
    image[0, 14, 9, 1], image[1, 21, 30, 2] = np.inf, np.nan
    assert "conv0_image_copy" in names(program)
    report = compare(program, [image, filters], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_zeros_lie_between_the_elements_of_a_gradient() -> None:
    program = Case(size=(17, 17), stride=2).gradient(0)
    assert [axis.size for axis in copy_in(program).axes] == [2, 19, 19, 64]


def test_an_axis_of_one_element_has_zeros_around_it_and_no_index() -> None:
    program = Case(size=(17, 3), stride=2, images=8, pad=(1, 0, 1, 0)).gradient(0)
    assert [axis.size for axis in copy_in(program).axes] == [8, 19, 5, 64]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


TRANSPOSED = {
    "channels last": ("NHWC", 64, [], "rhs_copy"),
    "channels first": ("NCHW", 64, [0, 2, 3, 1], "image_copy"),
    "channels that are no whole lines": ("NHWC", 61, [], "image_copy"),
}
"""The layout of an image, its channels, how what is made of it is turned, and a copy."""


@pytest.mark.parametrize("name", one_in(2, TRANSPOSED))
def test_transposed_convolutions_multiply_no_zeros_behind_copies(name: str) -> None:
    layout, channels, order, copy = TRANSPOSED[name]
    image = (2, 6, 7, channels) if layout == "NHWC" else (2, channels, 6, 7)

    def transposed(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        found = F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, layout=layout)
        return weft.permute_dims(found, order) if order else found

    given = (weft.zeros(shape, dtype="bf16") for shape in (image, (channels, 32, 3, 3)))
    program = weft.jit(transposed).program(*given)
    ends = {name.partition("_")[2] for name in names(program)}
    assert {copy, "idle_sum"} <= ends
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_groups_of_few_channels_need_no_copies_but_of_an_image_with_zeros_between() -> None:
    case = Case(size=(16, 16), inputs=64, outputs=64, groups=8, images=4)
    assert names(case.program()) == ["conv0"]
    program = replace(case, stride=2).gradient(0)
    assert names(program)[-2:] == ["conv2_image_copy", "conv2"]
    plan = through_stages(program, "sm90")["plan"].of("conv2")
    assert isinstance(plan, MmaPlan)
    assert plan.arch == "groups"


def test_the_filters_of_groups_that_have_no_whole_rows_have_a_gradient_on_matrix_units() -> None:
    found = names(Case(size=(16, 16), inputs=192, outputs=192, groups=8).gradient(1))
    assert any(name.startswith("conv2_groups") for name in found)


def test_windows_of_groups_are_stored_as_matrices_and_put_in_order() -> None:
    case = Case(size=(16, 16), window=(5, 5), inputs=24, outputs=48, groups=3, pad=2)
    program = case.gradient(1)
    assert any(name.startswith("conv2_product") for name in names(program))
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_filters_alone_are_copied_where_they_alone_must_be() -> None:
    assert names(Case(size=(8, 8), layout="filters first").program()) == ["conv0_rhs_copy", "conv0"]


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (Case(size=(8, 8)), "sm90"),
        (Case(size=(8, 8), layout="first", dtype="f32"), "sm90"),
        (Case(size=(8, 8), layout="first"), "cpu"),
        (Case(size=(16, 16), inputs=3, layout="first", outputs=256), "sm90"),
        (Case(size=(2, 2), layout="first"), "sm90"),
    ],
    ids=["it lies right", "f32", "the CPU", "few channels", "few products"],
)
def test_nothing_is_copied(case: Case, target: str) -> None:
    assert not any(name.endswith("_copy") for name in names(case.program(), target))


def test_the_gradient_of_filters_is_cut_into_parts_of_some_images() -> None:
    program = Case(size=(28, 28), images=32, inputs=128, outputs=128).gradient(1)
    (parts,) = [k for k in module_of(program).kernels if k.name.endswith("_parts") and k.roles]
    assert 32 % parts.axes[0].size == 0
    assert parts.roles is not None
    assert parts.roles.batch == (parts.axes[0].name,)


@pytest.mark.parametrize(
    ("channels", "groups", "joined"),
    [(256, 32, [4, 64, 64]), (256, 8, [4, 64, 64]), (256, 4, None), (256, 256, None)],
    ids=["eight at a time", "two at a time", "enough channels", "one channel each"],
)
def test_groups_of_few_channels_have_the_gradient_of_their_filters_together(
    channels: int, groups: int, joined: list[int] | None
) -> None:
    case = Case(size=(28, 28), images=32, inputs=channels, outputs=channels, groups=groups)
    module = module_of(case.gradient(1))
    made = [k.outputs[0].tensor for k in module.kernels if k.name.endswith("_groups_parts")]
    wanted = [] if joined is None else [sorted([*joined, 3, 3])]
    assert [sorted(module.tensors[name].shape[1:]) for name in made] == wanted


def test_rows_with_zeros_between_them_are_copied_before_they_are_multiplied() -> None:
    b = Builder()
    x, w = b.param("bf16", [2, 16, 16, 64]), b.param("bf16", [64, 64])
    spread = b.emit("pad", x, low=[0] * 4, high=[0] * 4, interior=[0, 1, 1, 0], pad_value=0.0)
    program = b.build(b.dot_general(spread, w, contract=([3], [0])))
    assert "matmul0_operand0_copy" in names(program)


def test_the_gradient_of_one_pixel_a_window_multiplies_what_is_there() -> None:
    program = Case(size=(32, 32), window=(1, 1), stride=2, pad=0).gradient(0)
    products = [k for k in module_of(program).kernels if k.roles]
    assert [math.prod(axis.size for axis in k.axes) for k in products] == [2 * 256 * 64 * 64] * 2
    assert not any(name.endswith("_copy") for name in names(program))
