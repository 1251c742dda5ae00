"""The three examples of the document, from Tiny to plans: pattern, halo, one region, buffers of
local edges, algorithms, and the SM80 plan."""

from __future__ import annotations

import json

import pytest

from examples.make_programs import attention
from tests.support.gpu_programs import through_stages
from tests.support.lowered import Lowered, graph_of, lowered
from tests.support.tiny_example import EXAMPLE, convolution
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.ir import walk
from weft.driver.stages.algorithms import algorithm_of
from weft.foundation.errors import SpecViolation
from weft.memory.from_region import assign_buffers
from weft.plan.completion import completed
from weft.plan.from_region import check_plans, plan_module
from weft.plan.ir import AttentionPlan, LocalEdge, MmaPlan, RowPlan
from weft.plan.text import dumps, load_plan, loads, plan_to_json
from weft.plan.verify import verify
from weft.poly.core import Halo, LoopAxis, Statement, can_compute_at
from weft.poly_view.ir import BlockKind, PolyBlock
from weft.region.forms.staged import statement
from weft.region.ir import Kernel, Pattern, Reduce
from weft.target.known import target_named
from weft.tiny.specialise import specialise
from weft.tiny.text import loads as load_tiny

# -- 7.1: GEMM + bias + ReLU -----------------------------------------------------------------------

PLAN_7_1 = """
{
  "tile": [128, 64, 64],
  "stages": 2,
  "bind": {"m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x"},
  "warp_tile": "64x64",
  "cache": [
    {"tensor": "A", "where": "smem", "at": "k.i", "pingpong": true},
    {"tensor": "B", "where": "smem", "at": "k.i", "pingpong": true}
  ],
  "vectorize": {"axis": "n.i.i", "width": 8},
  "predicate_tail": [],
  "epilogue": ["bias", "relu"],
  "arch": "sm80",
  "layout_hints": {"A_swizzle": true, "B_swizzle": true, "C_stride": "row"},
  "algo_choice": {"matmul": "implicit_gemm"},
  "local_edges": [{"from": "sum_k", "to": "relu", "buffer": "reg"}]
}
"""


def gemm(m: int = 1024, n: int = 768, k: int = 512) -> Lowered:
    return lowered(specialise(load_tiny(EXAMPLE), {"M": m, "N": n, "K": k}), "sm80")


def reach(found: Lowered, kernel: Kernel, operand: str, tile: int) -> tuple[bool, Halo]:
    """Whether an operand could be computed inside a tile of a kernel, and its halo there."""
    tensor = found.module.tensors[operand]
    axes = tuple(LoopAxis(f"d{n}", size) for n, size in enumerate(tensor.shape))
    given = Statement(operand, axes, (), tensor.dtype.storage_bytes)
    sizes = {axis.name: tile for axis in kernel.axes if not axis.reduce}
    answer = can_compute_at(given, statement(kernel), sizes)
    return answer.ok, answer.halo


def contraction(found: Lowered) -> PolyBlock:
    return next(b for b in found.scop.blocks if b.kind is BlockKind.CONTRACTION)


def test_gemm_bias_relu() -> None:
    found = gemm()
    block = contraction(found)
    assert block.attrs is not None
    assert block.attrs.pattern == "matmul"
    (kernel,) = found.module.kernels
    for operand in ("A", "B"):
        assert reach(found, kernel, operand, 128) == (True, Halo())
    assert kernel.pattern is Pattern.MATMUL
    plan = plan_module(found.module, target_named("sm80")).of(kernel.name)
    documented = completed(load_plan(PLAN_7_1), kernel)
    written = plan_to_json(plan) | {"kernel": ""}
    assert written == plan_to_json(documented)


def test_the_sm80_plan_is_carried_out_as_it_says() -> None:
    """Copies of 16 bytes into two slots, `ldmatrix`, `mma.sync`, the epilogue in registers."""
    found = gemm()
    (kernel,) = found.module.kernels
    target, refs = target_named("sm80"), assign_buffers(found.module).refs
    plan = plan_module(found.module, target).of(kernel.name)
    made = templates.build(kernel, found.module.tensors, refs, plan, target, "k0")
    assert made.threads == 2 * 32
    assert made.grid == (1024 // 128) * (768 // 64)
    kinds = {type(statement) for statement in walk(made.body)}
    assert {ir.CpAsync, ir.LdMatrix, ir.MmaSync, ir.Epilogue, ir.StGlobalVec} <= kinds
    assert ir.Gather not in kinds
    slots = {tile.name: tile.bytes for tile in made.tiles}
    assert (slots["a"], slots["b"]) == (2 * 128 * 64 * 2, 2 * 64 * 64 * 2)


def test_tails_are_predicated_where_sizes_are_uneven() -> None:
    found = gemm(1000, 768, 500)
    plan = plan_module(found.module, target_named("sm80")).of(found.module.kernels[0].name)
    assert isinstance(plan, MmaPlan)
    assert plan.predicate_tail == ("m.i.i", "k.i.i")


# -- 7.2: Conv 3x3 + SiLU --------------------------------------------------------------------------


def test_conv_3x3_silu() -> None:
    given, y = convolution(filters=16)
    found = lowered(graph_of(tuple(given), y=y), "sm80")
    block = contraction(found)
    assert block.attrs is not None
    assert block.attrs.pattern == "conv"
    (kernel,) = found.module.kernels
    assert kernel.pattern is Pattern.CONV
    ok, halo = reach(found, kernel, found.module.inputs[0], 2)
    assert (ok, set(halo.sides.values())) == (True, {(1, 1)})
    plan = plan_module(found.module, target_named("sm80")).of(kernel.name)
    assert isinstance(plan, MmaPlan)
    verify(plan, target_named("sm80"))
    assert plan.algo_choice == {"conv": "implicit_gemm"}
    ring, inside = plan.local_edges
    assert kernel.roles is not None
    assert ring == LocalEdge(kernel.roles.lhs, inside.source, "smem_ring", 2)
    assert inside.buffer == "reg"
    assert load_plan(json.dumps(plan_to_json(plan))) == plan


def test_a_convolution_by_winograd_is_a_plan_too() -> None:
    plan = load_plan('{"tile": [128, 64, 64], "algo_choice": {"conv": "winograd_3x3"}}')
    assert algorithm_of(plan) == "winograd_3x3"


# -- 7.3: Attention --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_attention_is_one_kernel(target: str) -> None:
    compilation = through_stages(attention(dtype="bf16"), target)
    module, plans = compilation["region"], compilation["plan"]
    (chain,) = (chain for chain in module.chains if chain.kind == "attention")
    (kernel,) = (k for k in module.kernels if k.name in chain.kernels)
    assert kernel.pattern is Pattern.ATTENTION
    plan = plans.of(kernel.name)
    assert isinstance(plan, AttentionPlan)
    assert plan.algo == "online_softmax"
    assert loads(dumps(plans)) == plans


def test_attention_without_a_template_is_three_kernels() -> None:
    """Scores, rows of a softmax in two passes, mixed values."""
    compilation = through_stages(attention(dtype="f32"), "sm80")
    module, plans = compilation["region"], compilation["plan"]
    (chain,) = (chain for chain in module.chains if chain.kind == "attention")
    scores, rows, mixed = (next(k for k in module.kernels if k.name == n) for n in chain.kernels)
    assert [k.pattern for k in (scores, rows, mixed)] == [
        Pattern.MATMUL, Pattern.ROW, Pattern.MATMUL,
    ]  # fmt: skip
    passes = [let.expr.fn for let in rows.body if isinstance(let.expr, Reduce)]
    assert passes == ["max", "sum"]
    assert isinstance(plans.of(rows.name), RowPlan)
    for kernel in (scores, mixed):
        plan = plans.of(kernel.name)
        assert isinstance(plan, MmaPlan)
        assert plan.algo_choice == {
            "matmul": "implicit_gemm",
            "attention": "streaming_softmax_2pass",
        }
    assert loads(dumps(plans)) == plans


def test_an_attention_is_not_chosen_for_what_is_none() -> None:
    found = gemm()
    plans = plan_module(found.module, target_named("sm80"))
    text = dumps(plans).replace(
        '"implicit_gemm"}', '"implicit_gemm", "attention": "streaming_softmax_2pass"}'
    )
    with pytest.raises(SpecViolation, match="but it belongs to no attention"):
        check_plans(loads(text), found.module)


def test_online_softmax_needs_a_plan_of_its_own() -> None:
    plain = through_stages(attention(dtype="f32"), "sm80").text("plan")
    with pytest.raises(SpecViolation, match=r"PlanRefused.*online_softmax is not built"):
        through_stages(
            attention(dtype="f32"),
            "sm80",
            plan=plain.replace("streaming_softmax_2pass", "online_softmax"),
        )


def test_a_kernel_without_a_plan_is_named() -> None:
    plain = through_stages(attention(dtype="f32"), "sm80").text("plan")
    document = json.loads(plain)
    del document["kernels"]["row3"]
    with pytest.raises(SpecViolation, match=r"PlanMissing at kernel row3.*there is no plan for it"):
        through_stages(attention(dtype="f32"), "sm80", plan=json.dumps(document))
