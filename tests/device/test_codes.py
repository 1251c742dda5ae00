"""Products with weights of few bits on a GPU agree with the reference; two runs give the same
bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.support.gpu_codes import CASES, Case
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these kernels are for an SM90 GPU"
)
LARGE: dict[str, Case] = {
    f"{name}, large": replace(CASES[name], columns=1056, depth=4096)
    for name in ("one row", "halves of bytes", "bytes in groups", "words", "many rows")
}


@pytest.mark.parametrize("case", [*CASES.values(), *LARGE.values()], ids=[*CASES, *LARGE])
def test_products_agree_with_the_reference(case: Case) -> None:
    program = case.program()
    report = compare(program, inputs_for(program, 3), CudaBackend())
    assert report.agrees, str(report)


def test_two_runs_give_the_same_bits() -> None:
    program = LARGE["halves of bytes, large"].program()
    executable, given = compile_program(program, "sm90"), inputs_for(program, 3)
    first, second = (executable.run(given)[0] for _ in range(2))
    assert np.array_equal(first, second)
