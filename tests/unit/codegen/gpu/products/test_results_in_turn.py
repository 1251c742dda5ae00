"""Results of a product that are made one after the other, each from what it reads again."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional as F
from weft.memory.from_region import assign_buffers
from weft.ptir import Program
from weft.testing.compare import compare


def layers() -> Program:
    """Two layers and their gradients: one product has the cotangent of what goes into the gelu,
    and what comes out of it, once more, both made of what went in."""

    def step(x: Any, w: Any, v: Any, g: Any) -> Any:
        result, pull = weft.vjp(lambda x, w, v: F.gelu(x @ w.T) @ v.T, x, w, v)
        return (result, *pull(g))

    shapes = [(8, 96), (72, 96), (96, 72), (8, 96)]
    found: Program = weft.jit(step).program(*(weft.zeros(s, dtype="f16") for s in shapes))
    return found


@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_none_takes_over_what_another_one_reads(target: str) -> None:
    program = layers()
    made = InterpretedGpu(target).compile(program).compilation
    pairs = [k for k in made["region"].kernels if k.roles is not None and len(k.outputs) == 2]
    names = {kernel.name for kernel in pairs}
    assert names
    assert not [share for share in made["memory"].shares if share.kernel in names]
    at_once = assign_buffers(made["region"])
    assert [share for share in at_once.shares if share.kernel in names]
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)
