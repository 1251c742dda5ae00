"""Operands whose contracted axes lie apart are copied, so that they are one row."""

from __future__ import annotations

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.plan.ir import MmaPlan
from weft.target.matrix_atoms import ATOMS
from weft.testing.compare import compare


@pytest.mark.parametrize("head", [48, 50])
@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_products_over_heads_are_made_by_matrix_units(target: str, head: int) -> None:
    x = weft.zeros((2, 4, 20, head), dtype="bf16")
    w = weft.zeros((4, head, 576), dtype="bf16")
    program = weft.jit(lambda x, w: weft.einsum("bhsk,hkd->bsd", x, w)).program(x, w)
    made = InterpretedGpu(target).compile(program).compilation
    plans = [plan for plan in made["plan"].plans.values() if isinstance(plan, MmaPlan)]
    assert [plan.arch in ATOMS for plan in plans] == [True]
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)
