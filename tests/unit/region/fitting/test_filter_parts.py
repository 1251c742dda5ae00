"""The gradient of filters in parts of images, and of their rows where operands are matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.gpu_convolutions import Shape
from tests.example_inputs import inputs_for
from tests.gpu_convolutions import Case
from tests.gpu_interpreted import InterpretedGpu
from tests.gpu_programs import through_stages
from weft.ptir import Program
from weft.region.fitting import long_sums
from weft.region.ir import Kernel
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


CASES = {
    "windows": (Case(size=(6, 6), images=4), {"k0": 4}),
    "matrices": (Case(size=(6, 6), window=(1, 1), pad=0, images=4), {"k0": 4, "k1": 6}),
    "windows, stride 2": (Case(size=(9, 9), stride=2, images=3), {"k0": 3}),
}


@pytest.mark.parametrize("name", CASES)
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
