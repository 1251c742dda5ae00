"""Kernels agree with Tiny, element for element, on random chains of movements and random
programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import padded_programs
from tests.support.cases import each, one_in
from tests.support.lowered import given, lowered, sizes
from tests.support.movements import random_chain
from weft.driver.stages.opaque import run_opaque
from weft.foundation.errors import Unimplemented, UserError
from weft.memory.from_region import assign_buffers
from weft.memory.verify import verify as verify_memory
from weft.plan.from_region import plan_module
from weft.plan.verify import verify as verify_plan
from weft.region.interp import run_module
from weft.region.text import dumps, loads
from weft.target.known import target_named
from weft.testing.random_programs import random_program
from weft.tiny.from_ptir import evaluate_opaque, lower_program
from weft.tiny.interp import run

Array = NDArray[Any]
TARGETS = ("cpu", "sm80", "sm90")


@each("seed", range(60))
def test_movements(seed: int) -> None:
    graph = random_chain(seed, 6)
    found = lowered(graph, TARGETS[seed % 3])
    rng = np.random.default_rng(seed)
    arrays = {
        i.name: rng.standard_normal(sizes(i)).astype(np.float32)
        if i.dtype.is_float
        else np.asarray(seed % 4, np.int32)
        for i in graph.inputs
    }
    played = run_module(found.module, arrays)
    for name, expected in found.expected(arrays).items():
        np.testing.assert_array_equal(played[name], expected)
    assert loads(dumps(found.module)) == found.module
    verify_memory(assign_buffers(found.module))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", padded_programs.NOISE)
def test_padded_noise(name: str, target: str) -> None:
    graph = lower_program(padded_programs.padded_noise(name, "f32"))
    arrays = {**given(graph, [padded_programs.STATE]), **graph.constants}
    found = lowered(graph, target).module
    played = run_module(found, arrays, opaque=run_opaque)
    (wanted,) = run(graph, arrays, evaluate_opaque)
    np.testing.assert_allclose(played[found.outputs[0]], wanted, rtol=1e-6)


def close(found: Array, expected: Array) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    wide = [a.astype(np.complex128) for a in (found, expected)]
    tolerance = 1e-4 if expected.dtype.itemsize >= 4 else 2e-2
    np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance, atol=tolerance)


FUSED = [
    "add", "mul", "sub", "div", "maximum", "exp", "tanh", "erf", "reduce_sum", "reduce_max",
    "transpose", "reshape", "broadcast_to", "slice", "concat", "pad", "dot_general", "select",
    "compare", "cast", "iota", "dynamic_slice", "dynamic_update_slice", "layer_norm", "tile",
]  # fmt: skip


@pytest.mark.parametrize("ops", [None, FUSED], ids=["all", "fused"])
@pytest.mark.parametrize("seed", one_in(2, range(30)))
def test_programs(seed: int, ops: list[str] | None) -> None:
    case = random_program(seed, ops=ops, control_flow=False, dynamic=False)
    try:
        graph = lower_program(case.program)
        arrays = {**given(graph, case.inputs, seed), **graph.constants}
        with np.errstate(all="ignore"):
            wanted = run(graph, arrays, evaluate_opaque)
    except (UserError, Unimplemented) as reason:
        pytest.skip(str(reason))
    target = TARGETS[seed % 3]
    found = lowered(graph, target)
    played = run_module(found.module, arrays, opaque=run_opaque)
    for name, expected in zip(found.module.outputs, wanted, strict=True):
        close(played[name], expected)
    verify_memory(assign_buffers(found.module))
    for plan in plan_module(found.module, target_named(target)).plans.values():
        verify_plan(plan, target_named(target), 1)
