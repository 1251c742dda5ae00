"""Changing one field of a plan, or one statement of the plan language, changes the emitted code, or
is refused with a reason: nothing is silently ignored, on no target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from tests.support import kernels
from tests.support.cases import each
from tests.support.lowered import lowered
from weft.codegen.cpu import compile as cpu
from weft.codegen.cpu.accept import PACKED
from weft.codegen.cpu.text import print_routine
from weft.codegen.gpu import templates
from weft.codegen.gpu.spelling.text import print_kernel
from weft.foundation.dtypes import BF16
from weft.foundation.errors import SpecViolation
from weft.memory.from_region import assign_buffers
from weft.plan import dsl
from weft.plan.dsl import parse_plan, print_plan
from weft.plan.from_region import plan_kernel
from weft.plan.ir import (
    AttentionPlan,
    CacheRead,
    LocalEdge,
    MapPlan,
    MmaPlan,
    Plan,
    RowPlan,
    Vectorize,
)
from weft.plan.text import load_plan, plan_to_json
from weft.plan.verify import findings
from weft.ptir import Builder
from weft.region.ir import Module
from weft.target.known import target_named
from weft.tiny.from_ptir import lower_program

pytestmark = pytest.mark.usefixtures("small_machine")
TARGETS = ("cpu", "sm80", "sm90")
MODULES: dict[str, Callable[[], Module]] = {
    "cpu mma": lambda: kernels.linear(24, 40, 16, activation="relu"),
    "sm80 mma": lambda: kernels.linear(200, 200, 200, dtype=BF16, activation="gelu"),
    "sm90 mma": lambda: kernels.linear(4096, 4096, 16384, dtype=BF16, activation="gelu"),
    "map": lambda: kernels.elementwise(64, 64),
    "row": lambda: kernels.softmax(64, 256),
}


def module_for(kind: str, target: str) -> Module:
    return MODULES.get(f"{target} {kind}", MODULES.get(kind, MODULES["map"]))()


@cache
def planned(kind: str, target: str) -> tuple[Module, Plan, str]:
    """A kernel, its plan, and the code that becomes of it."""
    module = module_for(kind, target)
    plan = plan_kernel(module.kernels[0], module.tensors, target_named(target))
    if isinstance(plan, MmaPlan) and plan.deferred_epilogue:
        # Results that wait leave no registers for other changes.
        plan = replace(plan, deferred_epilogue=False, registers=(40, 232))
    code, reasons = emitted(module, plan, target)
    assert reasons == []
    return module, plan, code


def emitted(module: Module, plan: Plan, target: str) -> tuple[str, list[str]]:
    """The code of a plan, or the reasons why there is none."""
    machine, (kernel,) = target_named(target), module.kernels
    refs = assign_buffers(module).refs
    reasons = [found.why for found in findings(plan, machine)]
    if target == "cpu":
        reasons += [f.why for f in cpu.accepts(kernel, module.tensors, plan)]
        if reasons:
            return "", reasons
        return print_routine(cpu.lower(kernel, module.tensors, refs, plan, "k0")), []
    reasons += [f.why for f in templates.accepts(kernel, module.tensors, refs, plan, machine)]
    if reasons:
        return "", reasons
    return print_kernel(templates.build(kernel, module.tensors, refs, plan, machine, "k0")), []


def has_effect(kind: str, target: str, plan: Plan) -> bool:
    """Whether a plan that differs from the chosen one is refused or gives other code."""
    module, before, code = planned(kind, target)
    assert plan != before
    other, reasons = emitted(module, plan, target)
    assert all(reasons)
    return bool(reasons) or other != code


# -- fields ----------------------------------------------------------------------------------------

MMA: dict[str, Sequence[Any]] = {
    "tile": [(256, 128, 64), (64, 64, 128), (3, 8, 16), (128, 64, 32), (6, 8, 15)],
    "stages": [3, 5],
    "bind": [{"m.o": "block.z"}, {"m.o": "block.x", "n.o": "block.y"}],
    "warp_tile": [(32, 64), (64, 32), (2, 8), (1, 4)],
    "cache": [
        (CacheRead("A", "smem", "k.i", pingpong=False),),
        (CacheRead("A", "smem", "k.o"),),
        (CacheRead("C", "smem", "k.i"),),
        (CacheRead("B", "packed", "k"),),
    ],
    "vectorize": [Vectorize("m.i.i", 4), Vectorize("n.i.i", 2), Vectorize("k.i.i", 4)],
    "predicate_tail": [("k.i.i",), ("m.i.i", "n.i.i")],
    "epilogue": [("gelu",), ("relu", "bias")],
    "arch": ["sm90", "sm80", "cpu"],
    "layout_hints": [{"A_swizzle": False}, {"C_stride": "col"}, {"D_swizzle": True}],
    "algo_choice": [
        {"matmul": "splitk_serial_4"},
        {"matmul": "splitk_parallel_2"},
        {"conv": "winograd_3x3"},
        {"attention": "online_softmax"},
    ],
    "local_edges": [
        (LocalEdge("a", "b", "smem_ring", 3),),
        (LocalEdge("a", "b", "reg"),),
        (LocalEdge("a", "b", "gmem"),),
    ],
    "cluster": [(2, 1), (1, 2)],
    "order": ["hilbert", "rows"],
    "operand_layouts": [("col", "col"), ("col", "row")],
    "split_k": [4],
    "swap_ab": [True],
    "roles": ["pingpong", "cooperative", "single"],
    "deferred_epilogue": [True, False],
    "consumers": [1, 3],
    "in_flight": [0],
    "store_buffers": [1],
    "registers": [(24, 240), (40, 224)],
    "batch": [2],
    "precision": ["promoted", "3xtf32"],
}
MAP: dict[str, Sequence[Any]] = {
    "vector": [1, 2],
    "unroll": [1, 2, 8],
    "threads": [64, 512],
    "grain": [2048, 8192],
    "block": [32, 64],
}
ROW: dict[str, Sequence[Any]] = {
    "vector": [1, 2],
    "rows_per_block": [2, 8],
    "threads": [64, 128],
    "accumulators": [1, 2],
    "keep_row": [False],
    "blocks_per_row": [2, 4],
    "rows_per_thread": [2, 4],
    "ring": [1, 3],
    "across": [True],
    "walks": [True],
    "lines": [-1, 1, 2],
}
KINDS: dict[str, tuple[type[Plan], dict[str, Sequence[Any]]]] = {
    "mma": (MmaPlan, MMA),
    "map": (MapPlan, MAP),
    "row": (RowPlan, ROW),
}
FIELDS = [(kind, name) for kind, (_, changes) in KINDS.items() for name in changes]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_tried(kind: str) -> None:
    cls, changes = KINDS[kind]
    assert set(changes) == {found.name for found in fields(cls)} - {"header"}


@each("target", TARGETS)
@each(("kind", "name"), FIELDS)
def test_each_field_has_an_effect_or_is_refused(kind: str, name: str, target: str) -> None:
    _, plan, _ = planned(kind, target)
    tried = 0
    for value in KINDS[kind][1][name]:
        if value == getattr(plan, name):
            continue
        # Through JSON: what is tried is what a file can say.
        changed = load_plan(_json(replace(plan, **{name: value})))
        assert has_effect(kind, target, changed), value
        tried += 1
    assert tried


def _json(plan: Plan) -> str:
    return json.dumps(plan_to_json(plan))


CHANGES_CODE = {
    "cpu": {
        "mma": {"warp_tile", "tile", "vectorize", "cache"},
        "map": {"vector", "unroll"},
        "row": {"vector", "accumulators", "keep_row"},
    },
    "sm80": {
        "mma": {"tile", "stages", "warp_tile", "order", "split_k", "algo_choice"},
        "map": {"vector", "unroll", "threads", "grain"},
        "row": {"vector", "rows_per_block", "threads", "accumulators", "keep_row"},
    },
    "sm90": {
        "mma": {
            "tile", "stages", "warp_tile", "order", "roles", "deferred_epilogue", "consumers",
            "in_flight", "store_buffers", "registers", "swap_ab", "split_k", "algo_choice",
        },
        "map": {"vector", "unroll", "threads", "grain"},
        "row": {"vector", "rows_per_block", "threads", "accumulators", "keep_row"},
    },
}  # fmt: skip
TOGETHER: dict[tuple[str, str, str], dict[str, Any]] = {
    ("cpu", "mma", "warp_tile"): {"warp_tile": (2, 8), "tile": (2, 8, 16), "cache": ()},
    ("cpu", "mma", "tile"): {"tile": (6, 8, 16), "warp_tile": (2, 8), "cache": PACKED},
    ("cpu", "mma", "cache"): {"cache": (), "tile": (4, 8, 16), "warp_tile": (4, 8)},
    ("cpu", "mma", "vectorize"): {
        "vectorize": Vectorize("n.i.i", 2), "tile": (4, 8, 16), "warp_tile": (4, 8), "cache": (),
    },
    ("sm80", "mma", "tile"): {"tile": (128, 128, 64)},
    ("sm80", "mma", "warp_tile"): {"warp_tile": (32, 32)},
    ("sm90", "mma", "tile"): {"tile": (128, 128, 64), "warp_tile": (64, 128)},
    ("sm90", "mma", "warp_tile"): {"warp_tile": (64, 128), "tile": (128, 128, 64), "stages": 3},
    ("sm90", "mma", "consumers"): {"consumers": 1, "tile": (64, 256, 64), "registers": (0, 0)},
    ("sm90", "mma", "swap_ab"): {"swap_ab": True},
    ("sm90", "mma", "roles"): {
        "roles": "pingpong", "tile": (128, 128, 64), "warp_tile": (128, 128), "stages": 3,
    },
    ("sm90", "mma", "stages"): {"stages": 3},
    ("sm80", "map", "unroll"): {"unroll": 2, "grain": 4096},
    ("sm90", "map", "unroll"): {"unroll": 2, "grain": 4096},
    ("sm80", "row", "accumulators"): {"accumulators": 2},
}  # fmt: skip
"""What else a plan must say for a field to take another value."""
EFFECTS = [
    (target, kind, name)
    for target, kinds in CHANGES_CODE.items()
    for kind, names in kinds.items()
    for name in sorted(names)
]


@each(("target", "kind", "name"), EFFECTS)
def test_fields_that_change_the_code(target: str, kind: str, name: str) -> None:
    """Not everything is refused: each of these fields has a value that gives other code."""
    module, plan, code = planned(kind, target)
    together = TOGETHER.get((target, kind, name))
    tries = [together] if together else [{name: value} for value in KINDS[kind][1][name]]
    codes = [emitted(module, replace(plan, **change), target) for change in tries]
    assert any(not reasons and other != code for other, reasons in codes), codes


# -- statements ------------------------------------------------------------------------------------

STATEMENTS: dict[str, tuple[str, str]] = {
    "split m": ("split m {m}", "split m 256"),
    "split n": ("split n {n}", "split n 32"),
    "split k": ("split k {k}", "split k 32"),
    "bind": ("bind m.o block.y", "bind m.o block.x"),
    "pipeline": ("pipeline k.i stages={stages}", "pipeline k.i stages=5"),
    "cache_read, once": ("pingpong=true", "pingpong=false"),
    "cache_read, elsewhere": ("at=k.i", "at=m.o"),
    "vectorize": ("vectorize n.i.i 8", "vectorize n.i.i 4"),
    "predicate_tail": ("predicate_tail m.i.i n.i.i k.i.i", "predicate_tail m.i.i"),
    "epilogue": ("epilogue bias gelu", "epilogue bias"),
    "algo_choice": ("algo_choice matmul implicit_gemm", "algo_choice matmul splitk_serial_2"),
    "arch": ("arch {arch}", "arch sm70"),
    "warp_tile": ("warp_tile {warp_tile}", "warp_tile 32x32"),
    "cluster": ("cluster 1 1", "cluster 2 1"),
    "order": ("order grouped:8", "order rows"),
    "batch": ("batch 1", "batch 2"),
    "layout A": ("layout A row", "layout A col"),
    "layout B": ("layout B row", "layout B col"),
    "split_k": ("split_k 1", "split_k 2"),
    "swap_ab": ("swap_ab false", "swap_ab true"),
    "roles": ("roles {roles}", "roles pingpong"),
    "consumers": ("consumers {consumers}", "consumers 3"),
    "in_flight": ("in_flight 1", "in_flight 0"),
    "store_buffers": ("store_buffers 2", "store_buffers 1"),
    "registers": ("registers {registers}", "registers 24 240"),
    "deferred_epilogue": ("deferred_epilogue false", "deferred_epilogue true"),
    "precision": ("precision full", "precision promoted"),
    "layout_hint": ("layout_hint A_swizzle true", "layout_hint A_swizzle false"),
    "local_edge": (" reg;", " gmem;"),
    "target": ("target {target}", "target sm70"),
}
ONLY_SM80 = ("bind", "vectorize", "predicate_tail")
"""Statements that plans of the other template do not have."""


@each("target", ["sm80", "sm90"])
@each("name", STATEMENTS)
def test_each_statement_has_an_effect_or_is_refused(name: str, target: str) -> None:
    _, plan, _ = planned("mma", target)
    assert isinstance(plan, MmaPlan)
    words = _words(plan)
    before, after = (text.format(**words) for text in STATEMENTS[name])
    program = print_plan(plan)
    if target == "sm90" and name in ONLY_SM80:
        changed = program + after + ";"
    else:
        assert before in program
        changed = program.replace(before, after)
    assert has_effect("mma", target, parse_plan(changed))


def _words(plan: MmaPlan) -> dict[str, object]:
    sizes = dict(zip("mnk", plan.tile, strict=True))
    tile, registers = plan.warp_tile, plan.registers
    return {
        **sizes,
        "stages": plan.stages,
        "arch": plan.arch,
        "roles": plan.roles,
        "consumers": plan.consumers,
        "warp_tile": f"{tile[0]}x{tile[1]}",
        "registers": f"{registers[0]} {registers[1]}",
        "target": plan.header.target,
    }


REFUSED = {
    "reorder n.o m.o k.o m.i.o n.i.o k.i.o m.i.i n.i.i k.i.i": "the template's loops have one",
    "fuse m.o n.o -> t": "tiles of a matrix instruction are not fused",
    "unroll k.i 4": "everything inside a tile is always unrolled",
    "pipeline m.o stages=2": "the template pipelines k.i, not m.o",
    "compute_at A k.i": "a product has no stages: its factors are copied where they are",
    "store_at A k.i": "a product has no stages: its sums stay in registers",
    "parallel m.o": "all tiles of m and n are computed at once already",
    "slide m": "the rows of a product do not overlap",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_statements_that_no_template_carries_out(statement: str) -> None:
    with pytest.raises(SpecViolation) as raised:
        parse_plan(f"split m 8; split n 8; split k 8; {statement}")
    assert REFUSED[statement] in str(raised.value)


def test_every_statement_is_tried() -> None:
    words = {after.split()[0] for _, after in STATEMENTS.values()} | {s.split()[0] for s in REFUSED}
    special = {"pingpong=false": "cache_read", "at=m.o": "cache_read", "gmem;": "local_edge"}
    tried = {special.get(word, word) for word in words}
    assert tried | {"kernel"} == set(dsl.STATEMENTS)


# -- attention -------------------------------------------------------------------------------------

ATTENTION: dict[str, Sequence[Any]] = {
    "tile_q": [12, 24, 13],
    "tile_kv": [8, 16, 9],
    "stages": [3],
    "algo": ["streaming_softmax_2pass"],
    "register_tile": [(4, 12), (8, 24), (65, 12)],
    "vector": [1, 2, 3],
    "consumers": [3],
    "registers": [(32, 160)],
    "parts": [2],
}
CHANGES_ATTENTION = {"tile_q", "tile_kv", "algo", "register_tile", "vector"}
"""Fields with a value that gives other code; the others are refused."""


@cache
def planned_attention() -> tuple[Module, Plan, str]:
    b = Builder("attention")
    q, k, v = (b.param("f32", [1, 2, 48, 16]) for _ in range(3))
    module = lowered(lower_program(b.build(b.attention(q, k, v, causal=True)))).module
    plan = plan_kernel(module.kernels[0], module.tensors, target_named("cpu"))
    assert isinstance(plan, AttentionPlan)
    code, reasons = emitted(module, plan, "cpu")
    assert reasons == []
    return module, plan, code


def test_every_field_of_an_attention_is_tried() -> None:
    assert set(ATTENTION) == {found.name for found in fields(AttentionPlan)} - {"header"}


@pytest.mark.parametrize("name", ATTENTION)
def test_each_field_of_an_attention_has_an_effect_or_is_refused(name: str) -> None:
    module, plan, code = planned_attention()
    changed = 0
    for value in ATTENTION[name]:
        if value == getattr(plan, name):
            continue
        other, reasons = emitted(module, load_plan(_json(replace(plan, **{name: value}))), "cpu")
        assert reasons or other != code, value
        changed += not reasons
    assert bool(changed) is (name in CHANGES_ATTENTION)
