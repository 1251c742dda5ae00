"""Gradients of norms in one pass: the sums of their weights are made where the rows are."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_machine import MachineBackend, machine
from tests.support.gpu_programs import through_stages
from tests.support.norms import norm_back, trained_norm
from weft.ptir import Program
from weft.region.ir import Module, form_of


def module_of(program: Program, target: str = "sm90") -> Module:
    found: Module = through_stages(program, target)["region"]
    return found


@pytest.mark.parametrize("target", one_in(2, ["sm90", "sm80"]))
@pytest.mark.parametrize(
    "program",
    [
        norm_back(16384, 2048),
        norm_back(65536, 768),
        norm_back(16384, 4096, shift=False),
        norm_back(16384, 1024, "f32"),
        norm_back(65536, 768, read=True),
        trained_norm(16, 1024, 768),
        trained_norm(64, 197, 768),
    ],
)
def test_rows_are_read_once(program: Program, target: str) -> None:
    first, second = module_of(program, target).kernels
    assert form_of(first).rows.walked is not None
    assert not {*first.inputs} & {*second.inputs}


@pytest.mark.parametrize(
    "program",
    [
        norm_back(16381, 1024),
        norm_back(16384, 65536),
        norm_back(16384, 1001),
        norm_back(16384, 64),
    ],
)
def test_others_stay_apart(program: Program) -> None:
    """Rows that no number of parts divides, or that registers do not hold beside their sums, or
    that are no vectors of a warp."""
    made = module_of(program).kernels
    assert all(form_of(kernel).rows.walked is None for kernel in made)


@pytest.mark.parametrize(
    ("program", "bound"),
    one_in(
        4,
        [
            (norm_back(512, 256, "f32"), 1e-5),
            (norm_back(512, 320), 2e-2),
            (norm_back(528, 264, "f32", shift=False), 1e-5),
            (norm_back(512, 512, "f32", read=True), 1e-5),
            (trained_norm(12, 44, 256), 1e-5),
        ],
        unpack=True,
    ),
)
def test_gradients_agree(program: Program, bound: float) -> None:
    assert any(form_of(kernel).rows.walked for kernel in module_of(program).kernels)
    inputs = inputs_for(program, 1)
    want = weft.run(program, inputs, backend="reference")
    with machine() as gpu:
        got = weft.run(program, inputs, backend=MachineBackend(gpu))
    for mine, theirs in zip(got, want, strict=True):
        wide = [np.asarray(array).astype(np.float64) for array in (mine, theirs)]
        assert np.abs(wide[0] - wide[1]).max() <= bound * np.abs(wide[1]).max()
