"""What the SM90 template refuses, and with which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gemm_kernels import Contraction, references, region_kernel
from tests.support.gpu_contractions import ragged, sm90_plan
from weft.codegen.gpu.products import sm90
from weft.foundation.dtypes import F16, F32
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import axis
from weft.plan.ir import CacheRead, LocalEdge, Vectorize
from weft.region.ir import AxisIndex, Binary, Let, Materialize
from weft.target.sm90 import SM90

SHAPE = Contraction(136, 72, 72)


def refusals(shape: Contraction, **fields: Any) -> list[str]:
    fields = {"operand_layouts": shape.layouts, **fields}
    plan = sm90_plan(**fields)
    found = sm90.accepts(region_kernel(shape), references(shape), plan, SM90)
    return [str(finding) for finding in found]


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "cluster": (
        {"cluster": (2, 2)},
        "PlanField: a cluster of 2x2 blocks is not 2x1 or 1x2",
    ),
    "split_k": (
        {"split_k": 5},
        "PlanField: split_k=5, but a sum has 2 k steps to divide "
        "(use fewer parts or a shorter k tile)",
    ),
    "bind": (
        {"bind": {"m.o": "block.y"}},
        'PlanField: bind={"m.o": "block.y"} has no effect in the SM90 template',
    ),
    "vectorize": (
        {"vectorize": Vectorize("n.i.i", 8)},
        'PlanField: vectorize={"axis": "n.i.i", "width": 8} has no effect in the SM90 template',
    ),
    "predicate_tail": (
        {"predicate_tail": ("m.i.i",)},
        'PlanField: predicate_tail=["m.i.i"] has no effect in the SM90 template',
    ),
    "batch": ({"batch": 2}, "PlanField: batch=2 has no effect in the SM90 template"),
    "algo": (
        {"algo_choice": {"conv": "winograd_3x3"}},
        "PlanField: algo_choice.conv=winograd_3x3 is not built for this kernel",
    ),
    "hints": (
        {"layout_hints": {"A_swizzle": False}},
        "PlanField: layout_hints.A_swizzle=false is not built",
    ),
    "cache": (
        {"cache": (CacheRead("A", "smem", "k.i", pingpong=False),)},
        "PlanField: cache: A must be cached in smem, double-buffered",
    ),
    "edges": (
        {"local_edges": (LocalEdge("c", "y", "smem_ring"),)},
        "PlanField: local_edges: the kernel has no edge c to y; its edges: v5 to v6, kept in reg",
    ),
    "epilogue": (
        {"epilogue": ("bias",)},
        'PlanField: epilogue=["bias"], but the kernel\'s is []',
    ),
    "roles": ({"roles": "single"}, "PlanField: roles=single is not built for SM90"),
    "k tile": ({"tile": (128, 64, 32)}, "Tile: a k tile of 32 is not a multiple of 64"),
    "warp tile": (
        {"warp_tile": (32, 64)},
        "Tile: a warpgroup tile of 32x64 in 128x64 is not made of 64xN matrix instructions, N a "
        "multiple of 8 up to 256",
    ),
    "division": (
        {"warp_tile": (128, 64)},
        "Tile: warp_tile=128x64 does not divide the tile 128x64 among 2 warpgroups (cooperative "
        "warpgroups share one tile, ping-pong warpgroups have one each)",
    ),
    "order": ({"order": "columns"}, "PlanField: there is no tile order columns"),
    "in_flight": ({"in_flight": 2}, "PlanField: in_flight=2 is neither 0 nor 1"),
    "stages": (
        {"stages": 1},
        "PlanField: there must be two stages and one store buffer at least",
    ),
    "layouts": (
        {"operand_layouts": ("row", "row")},
        'Layouts: operand_layouts=["row", "row"], but they are stored as ["row", "col"]',
    ),
    "shared memory": (
        {"stages": 20},
        "SharedMemory: the plan needs 524624 bytes of shared memory, over 232448 (use fewer stages "
        "or a smaller tile)",
    ),
    "registers": (
        {"registers": (40, 248)},
        "Registers: registers=[40, 248] do not split 64512 among 2 consumers and a producer (use "
        "multiples of 8 from 24 to 240, or 0, 0 to leave them as launched)",
    ),
    "no more registers": (
        {"tile": (64, 64, 64), "consumers": 1},
        "Registers: every thread is launched with 255 registers already (use registers 0, 0)",
    ),
}


@pytest.mark.parametrize("field", FIELDS)
def test_plans_that_are_refused(field: str) -> None:
    fields, message = FIELDS[field]
    assert message in refusals(SHAPE, **fields)


def test_a_deferred_epilogue_needs_cooperative_roles() -> None:
    found = refusals(SHAPE, tile=(64, 64, 64), roles="pingpong", deferred_epilogue=True)
    assert found == [
        "PlanField: a deferred epilogue needs cooperative roles and a result of whole rows"
    ]


def test_too_many_accumulators() -> None:
    found = refusals(SHAPE, tile=(256, 256, 64), warp_tile=(128, 256), stages=2, store_buffers=1)
    assert "Registers: a consumer needs about 288 registers and has 232" in found


TOO_MANY = "Points: the kernel has more points than 32 bits count"
SHAPES = {
    "f32 operands": (
        Contraction(64, 64, 64, dtype=F32),
        "OperandDType: no wgmma takes f32 and f32 with sums of f32",
    ),
    "pitch of A": (
        Contraction(64, 64, 60),
        "Alignment: the pitch of A is 60 elements; the copy engine needs multiples of 8",
    ),
    "pitch of B": (
        Contraction(64, 60, 64, layouts=("row", "row")),
        "Alignment: the pitch of B is 60 elements; the copy engine needs multiples of 8",
    ),
    "empty": (Contraction(0, 64, 64), "Empty: the contraction has an empty axis"),
    "rows": (Contraction(1 << 31, 8, 8), TOO_MANY),
    "columns": (Contraction(8, 1 << 31, 8), TOO_MANY),
    "depth": (Contraction(8, 8, 1 << 31), TOO_MANY),
    "tiles": (Contraction(1 << 30, 1 << 30, 8), TOO_MANY),
}


@pytest.mark.parametrize("case", SHAPES)
def test_kernels_that_are_refused(case: str) -> None:
    shape, message = SHAPES[case]
    assert message in refusals(shape)


def test_an_index_that_32_bits_do_not_hold_is_refused() -> None:
    """Numbers of the epilogue are 32 bits wide, whatever the sizes of the result."""
    for rows, wanted in (((1 << 20), []), ((1 << 21), [TOO_MANY])):
        shape = Contraction(rows, 1 << 10, 64)
        kernel = region_kernel(shape)
        total = kernel.let(kernel.outputs[0].value)
        flat = AxisIndex(axis("m") * shape.n + axis("n"))
        place = Let("place", total.dtype, ("m", "n"), flat)
        moved = Let("moved", total.dtype, ("m", "n"), Binary("add", total.name, "place"))
        output = replace(kernel.outputs[0], value="moved", materialize=Materialize.DEFERRED)
        plan = sm90_plan(operand_layouts=shape.layouts, epilogue=("add",))
        changed = replace(kernel, body=(*kernel.body, place, moved), outputs=(output,))
        found = sm90.accepts(changed, references(shape), plan, SM90)
        assert [str(f) for f in found if f.code == "Points"] == wanted


def altered(shape: Contraction, **changes: Any) -> list[str]:
    kernel = replace(region_kernel(shape), **changes)
    plan = sm90_plan(operand_layouts=shape.layouts)
    return [str(f) for f in sm90.accepts(kernel, references(shape), plan, SM90)]


def test_kernels_without_the_form_of_a_contraction() -> None:
    kernel = region_kernel(SHAPE)
    assert altered(SHAPE, roles=None) == ["NotAContraction: gemm has no contraction roles"]
    assert kernel.roles is not None
    total = kernel.roles.contraction
    body = tuple(replace(let, dtype=F16) if let.name == total else let for let in kernel.body)
    assert altered(SHAPE, body=body) == ["AccumulatorDType: the contraction accumulates in f16"]


def test_building_a_refused_kernel_raises_all_findings() -> None:
    plan = sm90_plan(stages=1, order="columns", operand_layouts=SHAPE.layouts)
    with pytest.raises(SpecViolation) as caught:
        sm90.build(region_kernel(SHAPE), references(SHAPE), plan, SM90, "gemm")
    assert len(caught.value.findings) == 2


@pytest.mark.parametrize("seed", range(24))
def test_ragged_shapes_are_accepted(seed: int) -> None:
    """The shapes that the device tests run."""
    shape, plan = ragged(seed)
    assert sm90.accepts(region_kernel(shape), references(shape), plan, SM90) == []
    assert plan.stages >= 3
