"""The ring of the FMA template: slices of both factors in shared memory, as many as `stages` says,
and factors that the kernel computes, which are local edges through it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.gpu_faults import planted, without
from tests.support.gpu_fma import Case, convolution, error_of, is_wrong, numbers, product
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder


def of_narrow() -> Case:
    """A factor that is widened as it comes, and an epilogue."""
    b = Builder()
    x, w = b.param("f16", [20, 100]), b.param("f32", [100, 24])
    program = b.build(b.abs(b.matmul(b.cast(x, "f32"), w)))
    inputs = [numbers("f16", (20, 100), 0), numbers("f32", (100, 24), 1)]
    return program, inputs, np.abs(inputs[0].astype(np.float32) @ inputs[1])


CASES: dict[str, Callable[[], Case]] = {
    "convolution": convolution,
    "widened": of_narrow,
    "product": lambda: product(k=100),
}


@cache
def case(name: str) -> Case:
    return CASES[name]()


def planned(name: str, target: str = "sm90", **fields: Any) -> Compilation:
    """A case with other fields in the plan of its contraction."""
    program = case(name)[0]
    document = json.loads(through_stages(program, target).text("plan"))
    for plan in document["plans"]:
        if plan["kind"] == "mma":
            plan.update(fields)
    return through_stages(program, target, plan=json.dumps(document))


def contraction(compilation: Compilation) -> dict[str, Any]:
    plans = json.loads(compilation.text("plan"))["plans"]
    (plan,) = (plan for plan in plans if plan["kind"] == "mma")
    assert isinstance(plan, dict)
    return plan


def tiled(compilation: Compilation) -> ir.Kernel:
    (kernel,) = (k for k in compilation["gpu"].kernels.values() if k.tiles)
    assert isinstance(kernel, ir.Kernel)
    return kernel


EDGES: dict[str, list[dict[str, Any]]] = {
    "convolution": [{"from": "v0", "to": "v3", "buffer": "smem_ring", "depth": 2}],
    "widened": [
        {"from": "v1", "to": "v4", "buffer": "smem_ring", "depth": 2},
        {"from": "v4", "to": "v5", "buffer": "reg"},
    ],
    "product": [],
}


@pytest.mark.parametrize("target", one_in(2, ["sm80", "sm90"]))
@pytest.mark.parametrize("name", CASES)
def test_factors_that_are_computed_are_edges_through_the_ring(name: str, target: str) -> None:
    plan = contraction(through_stages(case(name)[0], target))
    assert plan["arch"] == "fma"
    assert plan["local_edges"] == EDGES[name]


@pytest.mark.parametrize("stages", one_in(2, [2, 3, 5]))
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_slices_wait(name: str, stages: int) -> None:
    """Also more of them than there are."""
    edges = [{**e, "depth": stages} if "depth" in e else e for e in EDGES[name]]
    compilation = planned(name, stages=stages, local_edges=edges)
    _, inputs, want = case(name)
    assert error_of(InterpretedExecutable(compilation), inputs, want) < 1e-4
    usual = tiled(planned(name))
    sizes = [made.shared_bytes for made in (usual, tiled(compilation))]
    assert sizes[1] * 2 == sizes[0] * stages
    assert contraction(compilation)["local_edges"] == edges


@pytest.mark.parametrize("stages", one_in(2, [2, 3]))
def test_without_meetings_the_ring_is_overrun(stages: int) -> None:
    compilation = planned("product", stages=stages)
    _, inputs, want = case("product")
    code = compilation["gpu"]
    ((symbol, kernel),) = code.kernels.items()
    code.kernels[symbol] = planted(kernel, without(ir.SyncThreads))
    assert is_wrong(InterpretedExecutable(compilation), inputs, want)


def test_the_depth_of_a_ring_is_the_plans_stages() -> None:
    said = [{"from": "v0", "to": "v3", "buffer": "smem_ring"}]
    for stages in (2, 3):
        found = contraction(planned("convolution", stages=stages, local_edges=said))
        assert found["local_edges"] == [{**said[0], "depth": stages}]
    assert planned("convolution", local_edges=[]).text("cu") == planned("convolution").text("cu")
    deep, usual = (planned("convolution", stages=s, local_edges=[]).text("cu") for s in (3, 2))
    assert re.sub("k_[0-9a-f]+", "k", deep) != re.sub("k_[0-9a-f]+", "k", usual)


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "too deep": (
        [{"from": "v0", "to": "v3", "buffer": "smem_ring", "depth": 3}],
        "local_edges: v0 to v3 is kept in smem_ring of depth 2, not in smem_ring of depth 3",
    ),
    "in registers": (
        [{"from": "v0", "to": "v3", "buffer": "reg"}],
        "local_edges: v0 to v3 is kept in smem_ring of depth 2, not in reg",
    ),
    "in memory": (
        [{"from": "v0", "to": "v3", "buffer": "gmem"}],
        "local_edges: v0 to v3 is kept in smem_ring of depth 2, not in gmem",
    ),
    "what is read as it lies": (
        [*EDGES["convolution"], {"from": "v1", "to": "v3", "buffer": "smem_ring"}],
        "local_edges: the kernel has no edge v1 to v3; its edges: v0 to v3, kept in smem_ring of "
        "depth 2",
    ),
    "twice": (
        EDGES["convolution"] * 2,
        "local_edges name v0 to v3, kept in smem_ring of depth 2, 2 times, not once",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_edges_that_are_not_so_are_refused(name: str) -> None:
    edges, why = REFUSED[name]
    with pytest.raises(SpecViolation) as caught:
        planned("convolution", local_edges=edges)
    assert why in [finding.why for finding in caught.value.findings]


def test_an_edge_that_is_left_out_is_missed() -> None:
    with pytest.raises(SpecViolation) as caught:
        planned("widened", local_edges=EDGES["widened"][1:])
    (finding,) = caught.value.findings
    assert finding.why == (
        "local_edges name v1 to v4, kept in smem_ring of depth 2, 0 times, not once"
    )
