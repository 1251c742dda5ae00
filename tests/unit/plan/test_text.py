"""Plans as JSON and as statements: the document's own examples load, every field survives."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from weft.foundation.errors import SpecViolation
from weft.plan.dsl import parse_plan, print_plan
from weft.plan.ir import (
    AttentionPlan,
    CacheRead,
    Header,
    LocalEdge,
    MapPlan,
    MmaPlan,
    Plan,
    PlanSet,
    RowPlan,
    Vectorize,
)
from weft.plan.text import (
    briefs,
    dump_plan,
    dumps,
    load_plan,
    loads,
    plan_from_json,
    plan_to_json,
)

DOCUMENT = """
{
  "tile":[128,64,64],
  "stages":2,
  "bind":{"m.o":"block.y","n.o":"block.x","m.i.o":"warp.y","n.i.o":"warp.x"},
  "warp_tile":"64x64",
  "cache":[{"tensor":"A","where":"smem","at":"k.i","pingpong":true},{"tensor":"B","where":"smem","at":"k.i","pingpong":true}],
  "vectorize":{"axis":"n.i.i","width":8},
  "predicate_tail":["m.i.i","n.i.i","k.i.i"],
  "epilogue":["bias","relu"],
  "arch":"sm80",
  "layout_hints":{"A_swizzle":true,"B_swizzle":true,"C_stride":"row"},
  "algo_choice":{"matmul":"implicit_gemm"},
  "local_edges":[{"from":"sum_k","to":"relu","buffer":"reg"}]
}
"""

PROGRAM = """
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

PLAIN = MmaPlan(Header("sm90", "a1b2"), (128, 64, 64))
CHANGES: dict[str, Any] = {
    "tile": (64, 32, 16),
    "stages": 5,
    "bind": {"m.o": "block.z"},
    "warp_tile": (32, 16),
    "cache": (CacheRead("A", "smem", "k.o", False), CacheRead("B", "smem", "k.i")),
    "vectorize": Vectorize("m.i.i", 4),
    "predicate_tail": ("k.i.i",),
    "epilogue": ("bias", "gelu", "residual"),
    "arch": "sm90",
    "layout_hints": {"A_swizzle": False, "C_stride": "col"},
    "algo_choice": {"matmul": "splitk_serial_4", "conv": "winograd_3x3"},
    "local_edges": (LocalEdge("a", "b", "smem_ring", 3), LocalEdge("b", "c", "reg")),
    "cluster": (2, 1),
    "order": "hilbert",
    "operand_layouts": ("row", "col"),
    "split_k": 4,
    "swap_ab": True,
    "roles": "pingpong",
    "deferred_epilogue": True,
    "consumers": 3,
    "in_flight": 0,
    "store_buffers": 1,
    "registers": (24, 240),
    "batch": 2,
    "precision": "3xtf32",
}
OTHERS: tuple[Plan, ...] = (
    MapPlan(Header("cpu", "k"), 8),
    MapPlan(Header("cpu", "k"), 8, unroll=2, threads=64, grain=100),
    RowPlan(Header("sm80", "k"), 4),
    RowPlan(Header("sm80", "k"), 4, 2, 128, 8, False),
    AttentionPlan(Header("sm90", "k"), 128, 64),
    AttentionPlan(Header("sm90", "k"), 128, 64, 3, "streaming_softmax_2pass"),
)


def test_every_field_has_a_change() -> None:
    assert set(CHANGES) == {found.name for found in fields(MmaPlan)} - {"header"}


@pytest.mark.parametrize("name", CHANGES)
def test_each_field_survives_both_ways(name: str) -> None:
    plan = replace(PLAIN, **{name: CHANGES[name]})
    assert plan != PLAIN
    assert load_plan(dump_plan(plan)) == plan
    assert parse_plan(print_plan(plan)) == plan
    assert print_plan(plan) != print_plan(PLAIN)
    assert dump_plan(plan) != dump_plan(PLAIN)


def test_all_fields_at_once() -> None:
    plan = replace(PLAIN, **CHANGES)
    assert load_plan(dump_plan(plan)) == plan
    assert parse_plan(print_plan(plan)) == plan


@pytest.mark.parametrize("plan", OTHERS, ids=lambda plan: type(plan).__name__)
def test_the_other_kinds_survive(plan: Plan) -> None:
    assert load_plan(dump_plan(plan)) == plan


def test_the_documents_plan_loads() -> None:
    plan = load_plan(DOCUMENT)
    assert isinstance(plan, MmaPlan)
    assert (plan.tile, plan.stages, plan.warp_tile) == ((128, 64, 64), 2, (64, 64))
    assert plan.header == Header("sm80", "")
    written = plan_to_json(plan)
    assert json.loads(DOCUMENT).items() <= written.items()


def test_the_documents_program_is_the_documents_plan() -> None:
    plan = parse_plan(PROGRAM)
    documented = load_plan(DOCUMENT)
    assert isinstance(documented, MmaPlan)
    assert plan == replace(documented, layout_hints={}, algo_choice={}, local_edges=())
    assert parse_plan(PROGRAM.rstrip().removesuffix(";")) == plan


def test_comments_are_not_read() -> None:
    assert parse_plan("split m 8; split n 8 # ;;\n; split k 8").tile == (8, 8, 8)


def test_plans_that_read_alike_are_told_with_what_differs() -> None:
    row = RowPlan(Header("sm90", "k"), 4)
    plans = [row, replace(row, threads=128), replace(row, threads=128, keep_row=False, ring=4)]
    assert briefs(plans) == [
        "1 row of 256 threads with vectors of 4",
        "1 row of 128 threads with vectors of 4, keep_row=true, ring=0",
        "1 row of 128 threads with vectors of 4, keep_row=false, ring=4",
    ]


def test_a_target_may_be_left_out_where_the_template_names_it() -> None:
    plan = {"tile": [64, 64, 32], "arch": "sm90"}
    assert plan_from_json(plan).header.target == "sm90"
    assert plan_from_json({**plan, "arch": "fma"}).header.target == ""


def test_plan_sets_read_back() -> None:
    plans = PlanSet(
        {"matmul0": "a1b2", "matmul1": "a1b2", "map2": "k"}, {"a1b2": PLAIN, "k": OTHERS[0]}
    )
    assert loads(dumps(plans)) == plans
    assert plans.of("matmul1") is PLAIN
    with pytest.raises(
        SpecViolation, match="kernel map2 has the key k, for which there is no plan"
    ):
        loads(dumps(replace(plans, plans={"a1b2": PLAIN})))


def changed_json(**more: Any) -> Any:
    return plan_to_json(PLAIN) | more


MALFORMED: dict[str, tuple[Any, str]] = {
    "an unknown field": (changed_json(speed=1), "field 'speed' is not known here"),
    "an empty target": (changed_json(target=""), "field 'target' is empty; name the target"),
    "an unknown kind": (changed_json(kind="magic"), "'magic' is not a kind of plan"),
    "a field of another kind": ({"kind": "map", "vector": 4, "tile": [1, 1, 1]}, "field 'tile'"),
    "a tile of two": (changed_json(tile=[128, 64]), "field 'tile' must have three entries"),
    "a warp tile in words": (changed_json(warp_tile="big"), "warp_tile 'big' is not ROWSxCOLUMNS"),
    "a cluster of three": (
        changed_json(cluster=[1, 1, 1]),
        "field 'cluster' must have two entries",
    ),
    "a bind to a number": (
        changed_json(bind={"m.o": 1}),
        "field 'bind' must be an object whose values are words",
    ),
    "stages as text": (changed_json(stages="2"), "field 'stages' must be a whole number"),
    "an edge without an end": (changed_json(local_edges=[{"from": "a"}]), "field 'to' is missing"),
    "a register tile of one": (
        {"kind": "attention", "tile_q": 8, "tile_kv": 8, "register_tile": [8]},
        "field 'register_tile' must have two entries",
    ),
    "no vector": ({"kind": "row"}, "field 'vector' is missing"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_json_is_refused(name: str) -> None:
    document, why = MALFORMED[name]
    with pytest.raises(SpecViolation) as raised:
        plan_from_json(document)
    assert why in str(raised.value)


START = "split m 8; split n 8; split k 8; "
REFUSED = {
    "": "statement 1: no statement splits m",
    "split m 8; split n 8": "statement 3: no statement splits k",
    "split x 8": "'x' is not an axis of a contraction: m, n or k",
    "split m 8; split m 8": "statement 2, line 1, column 12: m is split twice",
    "split m 8 # ; ;\n;\n  split m 8": "statement 2, line 3, column 3: m is split twice",
    "split m": "2 words are needed, not 1",
    "split m 99999999999999999999": "99999999999999999999 is beyond 64 bits",
    "split m big": "'big' is not a whole number",
    START + "turn left": "statement 4, line 1, column 34: 'turn' is not a statement",
    START + "; ": "statement 4, line 1, column 34: it is empty",
    START + "reorder n.o m.o": "the template's loops have one order",
    START + "fuse m.o n.o -> t": "tiles of a matrix instruction are not fused",
    START + "fuse m.o n.o t": "fuse is written: fuse axis axis -> axis",
    START + "unroll k.i 4": "everything inside a tile is always unrolled",
    START + "bind m.o thread.x": "'thread.x' is not one of block.x",
    START + "bind M.o block.x": "'M.o' is not an axis",
    START + "pipeline k.i depth=2": "stages= is needed in place of 'depth=2'",
    START + "pipeline k.i stages=2; pipeline k.i stages=3": "stages is given twice",
    START + "cache_read A smem": "a tensor, smem, at= and perhaps pingpong= are needed",
    START + "cache_read A smem at=k.i pingpong=maybe": "'maybe' is neither true nor false",
    START + "algo_choice sort quick": "'sort' is not one of matmul, conv, attention",
    START + "warp_tile 64": "'64' is not ROWSxCOLUMNS",
    START + "layout C row": "layout is written: layout A|B row|col",
    START + "local_edge a b": "from, to, a buffer and perhaps depth= are needed",
    START + "swap_ab 1": "'1' is neither true nor false",
}


@pytest.mark.parametrize("program", REFUSED)
def test_statements_are_refused_in_words(program: str) -> None:
    with pytest.raises(SpecViolation) as raised:
        parse_plan(program)
    assert REFUSED[program] in str(raised.value)
    assert raised.value.code == "PlanSyntax"
