"""Faults planted into a reduction across rows are found by the dialect's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.gpu_faults import OF_COLUMNS, planted
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.interp import Hazard, run
from weft.ptir import Builder


@pytest.mark.parametrize("fault", one_in(2, OF_COLUMNS))
def test_planted_faults_are_caught(fault: str) -> None:
    b = Builder()
    program = b.build(b.reduce_sum(b.param("f32", [70, 24]), [0]))
    (kernel,) = through_stages(program, "sm90")["gpu"].kernels.values()
    broken = planted(kernel, OF_COLUMNS[fault])
    assert broken != kernel
    x = np.random.default_rng(7).integers(1, 100, (70, 24)).astype(np.float32)
    found = []
    for made in (kernel, broken):
        sums = np.zeros(24, np.float32)
        try:
            run(made, dict(zip(made.buffers, (x.reshape(-1), sums), strict=True)))
        except Hazard:
            sums[:] = np.nan
        found.append(np.array_equal(sums, x.sum(0)))
    assert found == [True, False]
