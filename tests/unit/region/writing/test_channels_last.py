"""Images between convolutions are stored with their channels last, and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.ptir import Program
from weft.region.fitting import image_copies, levels, long_sums
from weft.region.fitting.cutting import removed_axes
from weft.region.forms import columns
from weft.region.ir import Module, Pattern, Tensor
from weft.region.writing import layouts
from weft.testing.compare import compare


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_WORTH", 1)
    monkeypatch.setattr(image_copies, "WORTH", 1)


def random(*shape: int, seed: int = 0) -> Any:
    numbers = np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)
    return weft.asarray(numbers * 0.25).astype(weft.bfloat16)


def program_of(function: Callable[..., Any], *arguments: Any) -> Any:
    return weft.jit(function).program(*arguments)


def regions(program: Program) -> Module:
    module = through_stages(program, "sm90")["region"]
    assert isinstance(module, Module)
    return module


def images(module: Module) -> list[Tensor]:
    return [t for t in module.tensors.values() if t.role == "internal" and len(t.shape) == 4]


def agrees(program: Program) -> None:
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def bottleneck(x: weft.Tensor, down: weft.Tensor, w: weft.Tensor, up: weft.Tensor) -> weft.Tensor:
    y = F.relu(F.conv2d(x, down))
    y = F.relu(F.conv2d(y, w, stride=2, padding=1))
    around = F.max_pool2d(F.relu(x), 3, stride=2, padding=1)
    return (F.relu(F.conv2d(y, up) + around)).mean((2, 3))


def test_a_residual_block_has_its_channels_last_and_copies_no_image() -> None:
    program = program_of(
        lambda x, *ws: bottleneck(F.relu(F.conv2d(x, ws[1], padding=1)), *ws),
        random(2, 16, 8, 8), random(16, 16, 1, 1), random(16, 16, 3, 3), random(16, 16, 1, 1),
    )  # fmt: skip
    module = regions(program)
    held = [t for t in images(module) if t.shape[0] == 2]
    assert held
    assert all(t.shape[-1] == 16 for t in held)
    copies = [k.name for k in module.kernels if k.name.endswith("image_copy")]
    assert len(copies) == 1, "what the program is given, and nothing else"
    agrees(program)


def test_what_a_program_hands_out_stays_as_it_is() -> None:
    def features(x: weft.Tensor, w: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        y = F.relu(F.conv2d(x, w, padding=1))
        return y, F.conv2d(y, w, padding=1)

    program = program_of(features, random(1, 16, 6, 5), random(16, 16, 3, 3))
    outputs = [t.shape for t in regions(program).tensors.values() if t.role == "output"]
    assert outputs == [(1, 16, 6, 5), (1, 16, 6, 5)]
    agrees(program)


def test_a_product_over_channels_and_places_reads_them_in_its_own_order() -> None:
    def classifier(x: weft.Tensor, w: weft.Tensor, head: weft.Tensor) -> weft.Tensor:
        y = F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1))
        return y.reshape((x.shape[0], -1)) @ head

    program = program_of(classifier, random(2, 16, 4, 4), random(16, 16, 3, 3), random(16 * 16, 24))
    module = regions(program)
    (last,) = (k for k in module.kernels if "out0" in [o.tensor for o in k.outputs])
    flat = [module.tensors[name].shape for name in last.inputs]
    assert (2, 16, 4, 4) in flat
    assert (2, 4, 4, 16) in [t.shape for t in images(module)]
    agrees(program)


@pytest.mark.parametrize("groups", [2, 16])
def test_groups_of_channels_move_together(groups: int) -> None:
    def grouped(x: weft.Tensor, w: weft.Tensor, g: weft.Tensor) -> weft.Tensor:
        y = F.relu(F.conv2d(x, w, padding=1))
        y = F.relu(F.conv2d(y, g, padding=1, groups=groups))
        return F.conv2d(y, w, padding=1).sum((2, 3))

    agrees(
        program_of(
            grouped, random(1, 16, 5, 6), random(16, 16, 3, 3), random(16, 16 // groups, 3, 3)
        )
    )


def test_norms_of_groups_between_convolutions() -> None:
    def block(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        y = F.group_norm(F.conv2d(x, w, padding=1), 4)
        y = F.conv2d(F.silu(y), w, padding=1)
        return F.interpolate(y, scale_factor=2).mean((2, 3))

    agrees(program_of(block, random(2, 16, 4, 4), random(16, 16, 3, 3)))


@pytest.mark.parametrize("groups", one_in(2, [1, 4, 24]))
def test_a_norm_of_groups_of_joined_images_hands_them_on_with_their_channels_last(
    groups: int,
) -> None:
    def block(x: weft.Tensor, w: weft.Tensor, u: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
        y = weft.concat([F.conv2d(x, w, padding=1), F.conv2d(x, u, padding=1)], axis=1)
        return F.conv2d(F.silu(F.group_norm(y, groups)), v, padding=1) + F.conv2d(y, v, padding=1)

    program = program_of(
        block, random(2, 16, 4, 5), random(16, 16, 3, 3), random(8, 16, 3, 3), random(16, 24, 3, 3)
    )
    module = regions(program)
    held = [t.shape for t in images(module) if t.shape[0] == 2]
    assert (2, 4, 5, 24) in held
    assert not [shape for shape in held if shape[1] == 24]
    copies = {name for k in module.kernels if k.name.endswith("image_copy") for name in k.inputs}
    assert copies <= {*module.inputs}, "what the program is given, and nothing else"
    agrees(program)


def test_an_image_that_is_made_larger_lies_as_the_convolution_behind_it_goes_through_it() -> None:
    def larger(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        y = F.interpolate(F.silu(F.conv2d(x, w, padding=1)), scale_factor=2, mode="nearest")
        return F.conv2d(y, w, padding=1)

    program = program_of(larger, random(2, 16, 3, 4), random(16, 16, 3, 3))
    module = regions(program)
    assert (2, 6, 8, 16) in [t.shape for t in images(module)]
    copies = {name for k in module.kernels if k.name.endswith("image_copy") for name in k.inputs}
    assert copies <= {*module.inputs}
    agrees(program)


def test_gradients_through_statistics_of_a_batch() -> None:
    def loss(w: weft.Tensor, v: weft.Tensor, x: weft.Tensor) -> weft.Tensor:
        y = F.conv2d(x, w, padding=1).astype(weft.float32)
        mean = y.mean((0, 2, 3), keepdims=True)
        spread = ((y - mean) ** 2).mean((0, 2, 3), keepdims=True)
        y = F.relu((y - mean) * weft.rsqrt(spread + 1e-3)).astype(weft.bfloat16)
        return (F.conv2d(y, v, stride=2, padding=1).astype(weft.float32) ** 2).mean()

    step = weft.value_and_grad(loss, argnums=(0, 1))
    agrees(program_of(step, random(16, 16, 3, 3), random(16, 16, 3, 3), random(2, 16, 6, 6)))


def test_long_columns_are_reduced_by_kernels_of_their_own() -> None:
    def normed(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        y = F.conv2d(x, w, padding=1).astype(weft.float32)
        mean = y.mean((0, 2, 3), keepdims=True)
        return F.conv2d(F.relu(y - mean).astype(weft.bfloat16), w, padding=1)

    module = regions(program_of(normed, random(4, 16, 16, 16), random(16, 16, 3, 3)))
    rows = [kernel for kernel in module.kernels if kernel.pattern is Pattern.ROW]
    assert rows
    for kernel in rows:
        along = {name for output in kernel.outputs for name in kernel.let(output.value).axes}
        assert not along & {axis.name for axis in removed_axes(kernel)}


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few elements count as long ones."""
    monkeypatch.setattr(columns, "LINE_BYTES", 16)
    monkeypatch.setattr(columns, "LONG_OF_STRIPS", 16)
    monkeypatch.setattr(levels, "_OF_STRIPS", 1.0)
    monkeypatch.setattr(long_sums, "_SHORTEST", 8)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("groups", one_in(3, [2, 4, 8]))
def test_long_strips_of_channels_are_reduced_along_whole_lines(groups: int) -> None:
    def block(x: weft.Tensor, w: weft.Tensor, u: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
        y = weft.concat([F.conv2d(x, w, padding=1), F.conv2d(x, u, padding=1)], axis=1)
        return F.conv2d(F.silu(F.group_norm(y, groups)), v, padding=1)

    program = program_of(
        block, random(2, 16, 4, 8), random(16, 16, 3, 3), random(8, 16, 3, 3), random(16, 24, 3, 3)
    )
    kernels = {kernel.name: kernel for kernel in regions(program).kernels}
    (parts,) = (kernel for name, kernel in kernels.items() if name.endswith("_level1_parts"))
    assert [axis.size for axis in parts.axes if not axis.reduce] == [4, 2, 24]
    statistics = kernels[parts.name.removesuffix("_parts")]
    assert [axis.size for axis in statistics.axes] == [2, groups, 4, 24 // groups]
    last = kernels[parts.name.removesuffix("_level1_parts")]
    assert last.pattern is Pattern.MAP
    assert last.axes[-1].size == 24, "vectors go over the borders of groups"
    agrees(program)


@pytest.mark.usefixtures("short_rows")
def test_gradients_through_norms_of_groups_that_are_taken_apart() -> None:
    def loss(w: weft.Tensor, v: weft.Tensor, x: weft.Tensor) -> weft.Tensor:
        y = F.silu(F.group_norm(F.conv2d(x, w, padding=1), 4))
        return (F.conv2d(y, v, padding=1).astype(weft.float32) ** 2).mean()

    step = weft.value_and_grad(loss, argnums=(0, 1))
    agrees(program_of(step, random(24, 16, 3, 3), random(16, 24, 3, 3), random(2, 16, 4, 8)))


@pytest.mark.usefixtures("short_rows")
def test_sums_of_groups_of_channels_go_along_whole_lines() -> None:
    def sums(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        y = F.relu(F.conv2d(x, w, padding=1)).astype(weft.float32)
        return y.reshape((2, 4, 6, 4, 8)).sum((2, 3, 4))

    program = program_of(sums, random(2, 16, 4, 8), random(24, 16, 3, 3))
    (parts,) = (k for k in regions(program).kernels if k.name.endswith("_parts"))
    assert [axis.size for axis in parts.axes if not axis.reduce][-1] == 24
    agrees(program)


@pytest.mark.parametrize(
    ("channels", "side", "streams", "apart"),
    [(320, 64, 1, True), (640, 32, 1, False), (640, 32, 3, True), (640, 16, 3, False)],
)
def test_norms_of_groups_are_taken_apart_where_that_takes_less_time(
    channels: int, side: int, streams: int, apart: bool
) -> None:
    def block(*given: weft.Tensor) -> Any:
        *images, w = given
        y = F.conv2d(images[0], w, padding=1)
        for image in images[1:]:
            y = y + F.conv2d(image, w, padding=1)
        return F.conv2d(F.group_norm(y, 32), w, padding=1)

    def zeros(*shape: int) -> Any:
        return weft.zeros(shape, dtype=weft.bfloat16)

    given = [zeros(4, channels, side, side) for _ in range(streams)]
    module = regions(program_of(block, *given, zeros(channels, channels, 3, 3)))
    assert any("_level1" in kernel.name for kernel in module.kernels) == apart
