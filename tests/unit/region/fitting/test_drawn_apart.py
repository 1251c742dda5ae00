"""Products whose results are dropped, or get noise, stay on matrix units: a map draws before."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional as F
from weft.plan.ir import MmaPlan
from weft.testing.compare import compare

LEFT, RIGHT = (96, 64), (128, 64)


def dropped(x: Any, w: Any, y: Any, seed: Any) -> Any:
    return y + F.dropout(x @ w.T, 0.25, seed=seed)


def noisy(x: Any, w: Any, y: Any, seed: Any) -> Any:
    noise = weft.random.normal(weft.random.key(seed), y.shape).astype(y.dtype)
    return x @ w.T + y * noise


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("write", [dropped, noisy])
def test_what_is_drawn_behind_a_product_is_drawn_by_a_map(write: Any, target: str) -> None:
    given = [weft.zeros(shape, dtype="bf16") for shape in (LEFT, RIGHT, (96, 128))]
    program = weft.jit(write).program(*given, weft.asarray(3))
    made = InterpretedGpu(target).compile(program).compilation
    kernels = {kernel.pattern.value: kernel.name for kernel in made["region"].kernels}
    assert sorted(kernels) == ["map", "matmul"]
    plan = made["plan"].of(kernels["matmul"])
    assert isinstance(plan, MmaPlan)
    assert plan.arch == target
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)
