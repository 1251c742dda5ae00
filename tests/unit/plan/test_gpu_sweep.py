"""Every field of every plan that a GPU template carries out, changed to many other values: each is
refused with a reason, or gives other CUDA, or says less and is filled in again.

`test_effects.py` tries chosen values on all targets; here values are made by rule, for one kernel
of every template and of every form of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.support import kernels
from tests.support.gpu_convolutions import Case
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.codegen.gpu import templates
from weft.codegen.gpu.spelling.print import cuda
from weft.driver.code.plans import choose_plans
from weft.foundation.dtypes import BF16, F32
from weft.memory.from_region import assign_buffers
from weft.plan.completion import completed
from weft.plan.ir import CacheRead, LocalEdge, MmaPlan, Plan, RowPlan, Vectorize
from weft.plan.text import load_plan, plan_to_json
from weft.plan.verify import findings
from weft.ptir import Builder, Program
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Module
from weft.target.known import target_named

WORDS: dict[str, tuple[str, ...]] = {
    "arch": ("cpu", "fma", "sm70", "sm80", "sm90"),
    "order": ("rows", "hilbert", "grouped:2", "grouped:0", "columns"),
    "roles": ("cooperative", "pingpong", "single", "all"),
    "precision": ("full", "promoted", "3xtf32", "half"),
}
"""Values of fields that are words."""


PYTHON = re.compile(r"[(\[{]'|=\(|\b(True|False|None)\b|\w+\(\w+=")
"""How Python writes values, and no plan does."""


def summed(shape: list[int], axis: int) -> Program:
    b = Builder()
    return b.build(b.reduce_sum(b.param("f32", shape), [axis]))


def turned(rows: int, columns: int) -> Program:
    b = Builder()
    x, y = b.param("f32", [rows, columns]), b.param("f32", [columns, rows])
    return b.build(b.transpose(x, [1, 0]) + y)


def elementwise(rows: int, columns: int) -> Program:
    b = Builder()
    return b.build(b.exp(b.param("bf16", [rows, columns])))


def rows_of_a_table() -> Program:
    b = Builder()
    table, places = b.param("f32", [1000, 512]), b.param("si32", [8192, 512])
    return b.build(b.gather(table, places, axis=0))


def norm(rows: int, columns: int) -> Program:
    b = Builder()
    return b.build(b.softmax(b.param("f32", [rows, columns]), axis=1))


def doubly_summed() -> Program:
    """Reductions over different axes: a thread to a row."""
    b = Builder()
    x = b.param("f32", [8, 16, 12])
    inner = b.reduce_sum(x, [2])
    return b.build(b.reduce_max(b.exp(inner), [1]))


def images() -> Program:
    x, w = np.zeros((2, 16, 32, 32), np.float32), np.zeros((384, 16, 3, 3), np.float32)
    made: Program = weft.jit(lambda x, w: F.relu(F.conv2d(x, w, padding=1))).program(x, w)
    return made


def first_kernel(program: Program, target: str) -> tuple[Module, Kernel]:
    module = through_stages(program, target)["region"]
    return module, module.kernels[0]


def of_linear(*sizes: int, **options: Any) -> tuple[Module, Kernel]:
    module = kernels.linear(*sizes, **options)
    return module, module.kernels[0]


CASES: dict[str, tuple[str, Callable[[], tuple[Module, Kernel]]]] = {
    "fma": ("sm90", lambda: of_linear(512, 640, 64, dtype=F32, activation="gelu")),
    "convolution": ("sm80", lambda: first_kernel(images(), "sm80")),
    "sm80": ("sm80", lambda: of_linear(1000, 840, 200, dtype=BF16, activation="gelu")),
    "sm90": ("sm90", lambda: of_linear(4096, 4096, 8192, dtype=BF16, activation="gelu")),
    "sm90, small": ("sm90", lambda: of_linear(500, 2048, 1024, dtype=BF16, activation="relu")),
    "slabs": ("sm90", lambda: first_kernel(Case(size=(56, 56), images=32).program(), "sm90")),
    "map": ("sm90", lambda: first_kernel(elementwise(512, 640), "sm90")),
    "map in turns": ("sm80", lambda: first_kernel(rows_of_a_table(), "sm80")),
    "transposed": ("sm90", lambda: first_kernel(turned(256, 128), "sm90")),
    "row": ("sm90", lambda: first_kernel(norm(512, 1024), "sm90")),
    "row of a cluster": ("sm90", lambda: first_kernel(norm(4, 200_000), "sm90")),
    "rows in a ring": ("sm90", lambda: first_kernel(norm(4096, 65_536), "sm90")),
    "rows side by side": ("sm90", lambda: first_kernel(summed([512, 4096], 0), "sm90")),
    "a thread to a row": ("sm90", lambda: first_kernel(doubly_summed(), "sm90")),
}


@cache
def planned(case: str) -> tuple[Module, Kernel, Plan, str]:
    """A kernel with the plan that is chosen for it, and its CUDA."""
    target, make = CASES[case]
    module, kernel = make()
    plan = choose_plans(module, assign_buffers(module), target_named(target)).of(kernel.name)
    code, reasons = emitted(case, module, kernel, plan)
    assert reasons == []
    return module, kernel, plan, code


def emitted(case: str, module: Module, kernel: Kernel, plan: Plan) -> tuple[str, list[str]]:
    """The CUDA of a plan, or the reasons why there is none."""
    target = target_named(CASES[case][0])
    size = operand_bytes(kernel) if kernel.roles is not None else 2
    refs = assign_buffers(module).refs
    reasons = [f.why for f in findings(plan, target, size)]
    if not reasons:
        found = templates.accepts(kernel, module.tensors, refs, plan, target)
        reasons = [f.why for f in found]
    if reasons:
        return "", reasons
    return cuda(templates.build(kernel, module.tensors, refs, plan, target, "k0")), []


def others(name: str, value: Any) -> Iterator[Any]:
    """Many other values of a field."""
    match value:
        case bool():
            yield not value
        case int():
            near = {0, 1, 2, 3, 4, 8, value - 1, value + 1, 2 * value, 4 * value, value // 2}
            yield from sorted(near - {value})
        case str() if name in WORDS:
            yield from (word for word in WORDS[name] if word != value)
        case str():
            yield value + "x"
        case dict():
            yield from _other_tables(value)
        case tuple():
            yield from _other_lists(name, value)
        case None:
            yield from [Vectorize("n.i.i", 8)] if name == "vectorize" else [2, 3]
        case _ if is_dataclass(value) and not isinstance(value, type):
            for inner in fields(value):
                for other in others(inner.name, getattr(value, inner.name)):
                    yield replace(value, **{inner.name: other})


def _other_tables(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**value, "more": "things"}
    for key in value:
        yield {name: held for name, held in value.items() if name != key}
        yield {**value, key: "else"}


def _other_lists(name: str, value: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    more = {
        "cache": CacheRead("C", "smem", "k.i"),
        "local_edges": LocalEdge("v0", "v1", "reg"),
        "epilogue": "relu",
        "predicate_tail": "n.i.i",
    }
    if name in more:
        yield from ((), (more[name],), (*value, more[name]), (*value, *value), value[1:])
        yield value[::-1]
    for place, item in enumerate(value):
        for other in others(name + " item", item):
            yield (*value[:place], other, *value[place + 1 :])


def fields_of(case: str) -> list[str]:
    plan = planned(case)[2]
    return [found.name for found in fields(plan) if found.name != "header"]


@pytest.mark.parametrize("case", CASES)
def test_no_field_is_ignored(case: str) -> None:
    module, kernel, plan, code = planned(case)
    ignored, tried = list[str](), dict.fromkeys(fields_of(case), 0)
    for name in tried:
        for value in others(name, getattr(plan, name)):
            changed = replace(plan, **{name: value})
            if changed == plan:
                continue
            # Through JSON: what is tried is what a file can say.
            changed = completed(load_plan(json.dumps(plan_to_json(changed))), kernel)
            other, reasons = emitted(case, module, kernel, changed)
            assert all(reasons)
            assert not any(map(PYTHON.search, reasons)), reasons
            tried[name] += 1
            if not reasons and other == code and changed != plan:
                ignored.append(f"{name}={value}")
    assert ignored == []
    assert all(tried.values())


@pytest.mark.parametrize("case", CASES)
def test_the_planner_leaves_nothing_unsaid(case: str) -> None:
    _, kernel, plan, _ = planned(case)
    assert repr(completed(plan, kernel)) == repr(plan)


UNSAID = ("cache", "bind", "vectorize", "epilogue", "local_edges", "layout_hints", "algo_choice")


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_what_is_left_unsaid_is_filled_in(target: str, empty: bool) -> None:
    """Left out or empty: the same plan, and the same kernel by the same name."""
    b = Builder()
    program = b.build(b.exp(b.param("bf16", [300, 256]) @ b.param("bf16", [256, 512])))
    first = through_stages(program, target)
    document = json.loads(first.text("plan"))
    (plan,) = document["plans"]
    assert plan["arch"] == target
    for name in UNSAID:
        said = plan.pop(name)
        if empty:
            plan[name] = None if name == "vectorize" else type(said)()
    again = through_stages(program, target, plan=json.dumps(document))
    assert again.text("plan") == first.text("plan")
    assert again.text("cu") == first.text("cu")


def test_every_template_is_swept() -> None:
    plans = [planned(case)[2] for case in CASES]
    assert {plan.arch for plan in plans if isinstance(plan, MmaPlan)} == {"fma", "sm80", "sm90"}
    rows = [plan for plan in plans if isinstance(plan, RowPlan)]
    assert {
        (plan.across, bool(plan.ring), plan.blocks_per_row > 1, plan.threads > 1) for plan in rows
    } == {
        (False, False, False, True),
        (False, False, False, False),
        (False, False, True, True),
        (False, True, True, True),
        (True, False, False, True),
    }
    blocks = {getattr(plan, "block", 0) > 1 for plan in plans}
    assert blocks == {True, False}
