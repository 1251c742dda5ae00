"""Random numbers of an array of states: each state makes the numbers that it makes alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.gpu_interpreted import InterpretedGpu
from weft.ptir import Builder
from weft.testing.compare import compare

STATES = np.array([[7, 3], [-5, -(1 << 40)], [0, 1]])


@pytest.mark.parametrize("shape", [(7,), (8, 4)])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [("philox_bits", "ui32"), ("philox_bits", "ui64"), ("philox_uniform", "f32"),
     ("philox_normal", "f32")],
)  # fmt: skip
def test_an_array_of_states_agrees(op: str, dtype: str, shape: tuple[int, ...]) -> None:
    b = Builder()
    states = b.param("si64", STATES.shape)
    program = b.build(b.emit(op, states, shape=list(shape), dtype=dtype))
    report = compare(program, [STATES], InterpretedGpu("sm90"))
    assert report.agrees, str(report)
