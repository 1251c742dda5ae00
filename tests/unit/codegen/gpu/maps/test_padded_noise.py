"""Random numbers among padding: a state is read where there are numbers, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import padded_programs
from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import TARGETS, through_stages
from weft.codegen.gpu.ir import walk
from weft.codegen.gpu.ir.values import Words
from weft.ptir import Builder
from weft.testing.compare import compare


@pytest.mark.parametrize("target", one_in(2, TARGETS))
@pytest.mark.parametrize("dtype", one_in(2, ["f32", "f64", "bf16"]))
@pytest.mark.parametrize("name", padded_programs.NOISE)
def test_padded_noise_agrees(name: str, dtype: str, target: str) -> None:
    program = padded_programs.padded_noise(name, dtype)
    report = compare(program, [padded_programs.STATE], InterpretedGpu(target))
    assert report.agrees, str(report)


def test_noise_without_padding_is_made_in_blocks() -> None:
    b = Builder()
    state = b.param("si64", [2])
    made = b.emit("philox_uniform", state, shape=[64, 64], dtype="f32")
    (kernel,) = through_stages(b.build(made), "sm90")["gpu"].kernels.values()
    counts = {len(found.names) for found in walk(kernel.body) if isinstance(found, Words)}
    assert counts == {4}


def test_a_negative_state_is_a_state() -> None:
    program = padded_programs.padded_noise("rows", "f32")
    report = compare(program, [np.array([-5, -(1 << 40)])], InterpretedGpu("sm90"))
    assert report.agrees, str(report)
