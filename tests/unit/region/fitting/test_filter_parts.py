"""The gradient of filters in parts of images, and of their rows where operands are matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.gpu_convolutions import Shape
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.ptir import Program
from weft.region.fitting import long_sums
from weft.region.ir import Kernel
from weft.target.matrix_time import H200, SEVERAL_AXES
from weft.testing.compare import compare


def parts_of(program: Program) -> Kernel:
    kernels = through_stages(program, "sm90")["region"].kernels
    found: Kernel = next(k for k in kernels if k.name.endswith("_parts") and k.roles is not None)
    return found


def test_every_image_may_be_a_part() -> None:
    """Tiles of three taps of 64 channels in 32 parts fill more units than any others."""
    program = Shape(32, (56, 56), 64, 64, 3).back(1).program()
    assert parts_of(program).outputs[0].tensor == "conv0_v5_parts"
    assert parts_of(program).sizes["k0"] == 32
    plan = through_stages(program, "sm90")["plan"].of("conv0_parts")
    assert plan.tile[1] == 3 * 64


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        (Shape(32, (28, 28), 128, 128, 3), 8),
        (Shape(32, (14, 14), 256, 256, 3), 2),
        (Shape(32, (7, 7), 512, 512, 3), 1),
        (Shape(32, (14, 14), 512, 512, 3, groups=32), 4),
        (Shape(32, (56, 56), 256, 256, 3, 2, groups=32), 8),
    ],
    ids=str,
)
def test_parts_are_as_many_as_were_the_fastest_on_a_device(shape: Shape, parts: int) -> None:
    kernels = through_stages(shape.back(1).program(), "sm90")["region"].kernels
    found = [k.sizes[k.axes[0].name] for k in kernels if k.name.endswith("_parts") and k.roles]
    assert found == ([parts] if parts > 1 else [])


def test_parts_that_no_cache_holds_are_written_and_read() -> None:
    few, many = (SEVERAL_AXES.cycles(sums, H200) for sums in (1 << 20, 1 << 24))
    assert few == SEVERAL_AXES.launch + 4 * (1 << 20) / H200.memory
    assert many > SEVERAL_AXES.launch + 7 * (1 << 24) / H200.memory


CASES = {
    "windows": (Case(size=(6, 6), images=4), {"k0": 4}),
    "matrices": (Case(size=(6, 6), window=(1, 1), pad=0, images=4), {"k0": 4, "k1": 6}),
    "windows, stride 2": (Case(size=(9, 9), stride=2, images=3), {"k0": 3}),
}


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_the_most_parts_that_there_are_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def most(found: Any, target: Any, counts: Sequence[int], forms: Any) -> int:
        return counts[-1]

    monkeypatch.setattr(long_sums, "split_of", most)
    case, apart = CASES[name]
    program = case.gradient(1)
    kernel = parts_of(program)
    assert kernel.roles is not None
    assert {name: kernel.sizes[name] for name in kernel.roles.batch} == apart
    assert not {*apart} & {*kernel.roles.k}
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)
