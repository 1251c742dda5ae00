"""The plan texts of document 2, sections 1.7 and 12.5, word for word: they load on even and odd
products, do what they say, and print back."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.lowered import Lowered, given, lowered
from tests.support.tiny_example import EXAMPLE
from weft import functional
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.spelling.print import cuda
from weft.foundation.errors import SpecViolation
from weft.memory.from_region import assign_buffers
from weft.plan.completion import completed_plans
from weft.plan.dsl import print_plan
from weft.plan.from_region import plan_module
from weft.plan.ir import MmaPlan, PlanSet
from weft.plan.schedule import read_plans
from weft.plan.text import dump_plan
from weft.plan.verify import verify
from weft.region.ir import Kernel
from weft.target.known import target_named
from weft.tiny.specialise import specialise
from weft.tiny.text import loads as load_tiny

STATEMENTS = """
split m 128; split n 64; split k 64;
reorder m.o n.o k.o m.i.o n.i.o k.i.o m.i.i n.i.i k.i.i;
bind m.o block.y; bind n.o block.x; bind m.i.o warp.y; bind n.i.o warp.x;
pipeline k.i stages=2;
cache_read A smem at=k.i pingpong=true;
cache_read B smem at=k.i pingpong=true;
vectorize n.i.i 8;
predicate_tail m.i.i n.i.i k.i.i;
epilogue bias relu;
"""
DOCUMENT = """
{
  "tile":[BM,BN,BK],
  "stages":2,
  "bind":{"m.o":"block.y","n.o":"block.x","m.i.o":"warp.y","n.i.o":"warp.x"},
  "warp_tile":"64x64",
  "cache":[{"tensor":"A","where":"smem","at":"k.i","pingpong":true},{"tensor":"B","where":"smem","at":"k.i","pingpong":true}],
  "vectorize":{"axis":"n.i.i","width":8},
  "predicate_tail":["m.i.i","n.i.i","k.i.i"],
  "epilogue":["bias","relu"],
  "arch":"sm80|sm90",
  "layout_hints":{"A_swizzle":true,"B_swizzle":true,"C_stride":"row"},
  "algo_choice":{"matmul":"implicit_gemm|splitk_*","conv":"implicit_gemm|winograd_3x3|fft_conv","attention":"streaming_softmax_2pass|online_softmax"},
  "local_edges":[{"from":"sum_k","to":"relu","buffer":"reg"}]
}
"""
TEXTS = {"1.7": STATEMENTS, "12.5": DOCUMENT.replace("BM,BN,BK", "128,64,64")}
EVEN, ODD = (512, 512, 512), (509, 523, 511)
SMALL_EVEN, SMALL_ODD = (256, 128, 128), (131, 67, 66)
TARGETS = ("sm80", "sm90")


@cache
def product(sizes: tuple[int, int, int], target: str) -> Lowered:
    """The document's own product, with a bias and a ReLU."""
    graph = specialise(load_tiny(EXAMPLE), dict(zip("MNK", sizes, strict=True)))
    return lowered(graph, target)


def kernel_of(found: Lowered) -> Kernel:
    return next(kernel for kernel in found.module.kernels if kernel.roles is not None)


def plans_of(found: Lowered, text: str, target: str) -> PlanSet:
    module = found.module
    chosen = plan_module(module, target_named(target))
    return completed_plans(read_plans(text, lambda: chosen, module, target), module)


def built(found: Lowered, plans: PlanSet, target: str) -> ir.Kernel:
    kernel, machine = kernel_of(found), target_named(target)
    plan = plans.of(kernel.name)
    verify(plan, machine)
    refs = assign_buffers(found.module).refs
    return templates.build(kernel, found.module.tensors, refs, plan, machine, "k0")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [EVEN, ODD])
@pytest.mark.parametrize("section", one_in(2, TEXTS))
def test_the_documents_texts_load_and_compile(
    section: str, sizes: tuple[int, int, int], target: str
) -> None:
    found = product(sizes, target)
    plans = plans_of(found, TEXTS[section], target)
    plan = plans.of(kernel_of(found).name)
    assert isinstance(plan, MmaPlan)
    assert (plan.arch, plan.tile, plan.stages, plan.warp_tile) == (
        target, (128, 64, 64), 2, (64, 64),
    )  # fmt: skip
    assert plan.epilogue == ("bias", "relu")
    made = built(found, plans, target)
    kinds = {type(statement) for statement in ir.walk(made.body)}
    says = {"sm80": {ir.CpAsync, ir.LdMatrix, ir.MmaSync}, "sm90": {ir.TmaLoad, ir.Wgmma}}
    assert says[target] <= kinds or sizes == ODD
    assert compile_cuda(cuda(made), {"sm80": "sm_80", "sm90": "sm_90a"}[target]).code


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [EVEN, ODD])
@pytest.mark.parametrize("section", TEXTS)
def test_they_print_back(section: str, sizes: tuple[int, int, int], target: str) -> None:
    """Printed either way and read again, the plan is the same."""
    found = product(sizes, target)
    plans = plans_of(found, TEXTS[section], target)
    plan = plans.of(kernel_of(found).name)
    assert isinstance(plan, MmaPlan)
    for text in (print_plan(plan), dump_plan(plan)):
        assert plans_of(found, text, target).plans == plans.plans


@pytest.mark.parametrize("sizes", [SMALL_EVEN, SMALL_ODD])
@pytest.mark.parametrize("section", TEXTS)
def test_they_compute_what_the_program_says(section: str, sizes: tuple[int, int, int]) -> None:
    """Their tiles, played by the interpreter of the dialect, beside the Tiny interpreter. Small
    whole numbers are added up without rounding."""
    found = product(sizes, "sm80")
    (kernel,) = found.module.kernels
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-2, 3, found.module.tensors[name].shape).astype(np.float16)
        for name in found.module.inputs
    ]
    tensors = dict(zip(found.module.inputs, arrays, strict=True))
    ((name, wanted),) = found.expected(given(found.graph, arrays)).items()
    tensors[name] = np.zeros_like(wanted)
    made = built(found, plans_of(found, TEXTS[section], "sm80"), "sm80")
    run(made, {name: array.reshape(-1) for name, array in tensors.items()})
    assert kernel.outputs[0].tensor == name
    np.testing.assert_array_equal(tensors[name], wanted)


def test_which_axes_have_a_rest_is_said_as_it_is() -> None:
    """More may be said than happens; less is refused."""
    even, odd = product(EVEN, "sm80"), product(ODD, "sm80")
    for found, tails in ((even, ()), (odd, ("m.i.i", "n.i.i", "k.i.i"))):
        plan = plans_of(found, STATEMENTS, "sm80").of(kernel_of(found).name)
        assert isinstance(plan, MmaPlan)
        assert plan.predicate_tail == tails
    less = STATEMENTS.replace("predicate_tail m.i.i n.i.i k.i.i", "predicate_tail m.i.i n.i.i")
    with pytest.raises(SpecViolation, match=r'"n.i.i"\], but the tails are k.i.i, m.i.i, n.i.i'):
        built(odd, plans_of(odd, less, "sm80"), "sm80")


ECHOES = (
    "bind", "cache", "vectorize", "predicate_tail", "epilogue", "arch", "layout_hints",
    "algo_choice", "local_edges", "operand_layouts", "roles", "consumers", "registers", "batch",
)  # fmt: skip
"""Fields of the document's plan that follow from the rest, the kernel and the target."""
WRONG = {
    "bind": {"m.o": "block.x", "n.o": "block.y"},
    "cache": [{"tensor": "A", "where": "smem", "at": "m.o"}],
    "vectorize": {"axis": "m.i.i", "width": 8},
    "predicate_tail": ["m.i.i", "n.i.j"],
    "epilogue": ["relu"],
    "layout_hints": {"A_swizzle": False},
    "algo_choice": {"conv": "implicit_gemm"},
    "local_edges": [{"from": "sum_k", "to": "relu", "buffer": "gmem"}],
    "operand_layouts": ["col", "row"],
    "batch": 2,
    "consumers": 3,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [EVEN, ODD])
def test_what_can_only_be_so_may_be_left_out(sizes: tuple[int, int, int], target: str) -> None:
    found = product(sizes, target)
    plans = plans_of(found, TEXTS["12.5"], target)
    whole = json.loads(dump_plan(plans.of(kernel_of(found).name)))
    for name in ECHOES:
        left = {key: value for key, value in whole.items() if key != name}
        assert plans_of(found, json.dumps(left), target).plans == plans.plans, name
    short = {key: value for key, value in whole.items() if key not in (*ECHOES, "kind", "target")}
    assert plans_of(found, json.dumps(short), target).plans == plans.plans
    assert set(short) <= {
        "kernel", "tile", "stages", "warp_tile", "cluster", "order", "split_k", "swap_ab",
        "deferred_epilogue", "in_flight", "store_buffers", "precision",
    }  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_so_is_refused(name: str, target: str) -> None:
    found = product(EVEN, target)
    document = {**json.loads(TEXTS["12.5"]), name: WRONG[name]}
    said = {"operand_layouts": "stored as", "consumers": "consumers|3 warpgroups"}.get(name, name)
    with pytest.raises(SpecViolation, match=said):
        built(found, plans_of(found, json.dumps(document), target), target)


@pytest.mark.parametrize("sizes", [SMALL_EVEN, SMALL_ODD])
def test_they_load_whatever_a_program_calls_its_values(sizes: tuple[int, int, int]) -> None:
    """The document's edge leads from the sum over k to the last step of the epilogue."""
    m, n, k = sizes
    given = [weft.tensor(np.zeros(shape, np.float16)) for shape in ((m, k), (k, n), (n,))]
    program = weft.jit(lambda x, w, b: functional.relu(x @ w + b)).program(*given)
    made = weft.compile(program, "sm80", overrides={"plan": TEXTS["12.5"]})
    (plan,) = json.loads(made.stages["plan"])["plans"]
    (edge,) = plan["local_edges"]
    assert edge["buffer"] == "reg"
    assert (plan["tile"], plan["epilogue"]) == ([128, 64, 64], ["bias", "relu"])
    for old, new in (("sum_k", "sum_j"), ('"to":"relu"', '"to":"bias"')):
        wrong = TEXTS["12.5"].replace(old, new)
        with pytest.raises(SpecViolation, match="the kernel has no edge"):
            weft.compile(program, "sm80", overrides={"plan": wrong})


def test_several_values_leave_the_choice_to_the_template() -> None:
    """Names among them that nobody knows are told."""
    found = product(EVEN, "sm80")
    plan = plans_of(found, TEXTS["12.5"], "sm80").of("matmul0")
    assert isinstance(plan, MmaPlan)
    assert plan.algo_choice == {"matmul": "implicit_gemm"}
    parts = TEXTS["12.5"].replace("implicit_gemm|splitk_*", "splitk_serial_2|splitk_serial_4")
    assert isinstance(halves := plans_of(found, parts, "sm80").of("matmul0"), MmaPlan)
    assert halves.algo_choice == {"matmul": "splitk_serial_2"}
    assert replace(halves, algo_choice=plan.algo_choice) == plan
    wrong = TEXTS["12.5"].replace("splitk_*", "quickly")
    with pytest.raises(SpecViolation, match=r"algo_choice.matmul=implicit_gemm\|quickly is not"):
        built(found, plans_of(found, wrong, "sm80"), "sm80")
