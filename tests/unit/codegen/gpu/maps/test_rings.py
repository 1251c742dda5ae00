"""Stages whose rows shared memory keeps: right on the dialect's interpreter, which watches over who
reads what whom has written, for every shape, dtype and plan; one kernel where registers have no
place; and plans that cannot be obeyed refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.staged_gpu import (
    PROGRAMS,
    Function,
    agrees,
    compiled,
    make_stages_cheap,
    program_of,
    replanned,
    taps,
    with_stages,
)
from weft import functional
from weft.codegen.gpu import ir
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.pipeline import report
from weft.plan.ir import LocalEdge, StageAt, StagedPlan
from weft.plan.shared_slides import ring_depths
from weft.plan.slides import slide_refusals
from weft.region.forms.shared_slides import SharedSlide, find_place
from weft.region.ir import Kernel, Module, Tensor
from weft.target.known import target_named

SM90 = target_named("sm90")


def wide(x: Any) -> Any:
    return taps(taps(x, 1, 5), 0, 6, 4)


def tall(x: Any) -> Any:
    h = weft.exp(x * 0.25)
    return h[18:, 2:] * 2 + h[:-18, :-2]


def far_apart(x: Any) -> Any:
    """With rows that live long, and columns far to the side."""
    h = weft.tanh(x[1:] * 0.25) * x[:-1]
    return h[18:, 90:] + h[:-18, :-90] * 2


def windows(x: Any) -> Any:
    h = functional.max_pool2d((x * 2)[None, None], (7, 5), stride=1, padding=1)[0, 0]
    return h[20:] - h[:-20]


def padded(x: Any) -> Any:
    h = functional.pad(taps(x, 1, 3) + 1, [(9, 9), (40, 40)], value=2)
    return h[18:, 80:] + h[:-18, :-80] * h[9:-9, 40:-40]


def channels(x: Any) -> Any:
    """Rows of columns and channels, with weights of their own."""
    return taps(taps(x, 2, 3), 1, 4, 6) * x[0, 0, 0]


def padded_channels(x: Any) -> Any:
    """With threads before the first column, of which nobody asks the channel."""
    h = functional.pad(taps(x, 1, 3) * x[0, 0], [(9, 9), (2, 2), (0, 0)], value=2)
    return h[18:, 4:] + h[:-18, :-4]


LARGER: dict[str, tuple[Function, tuple[int, ...], str]] = {
    "a wide blur": (wide, (37, 150), "f32"),
    "a wide blur of halves": (wide, (37, 149), "f16"),
    "a wide blur of doubles": (wide, (36, 150), "f64"),
    "a wide blur of integers": (wide, (37, 150), "si32"),
    "far apart": (far_apart, (30, 260), "f32"),
    "far apart, bf16": (far_apart, (31, 259), "bf16"),
    "padded": (padded, (23, 150), "f32"),
    "windows": (windows, (40, 100), "f32"),
    "bytes, padded": (padded, (23, 151), "si8"),
    "padded channels": (padded_channels, (23, 40, 3), "f32"),
    "channels": (channels, (2, 30, 40, 3), "f32"),
}


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    make_stages_cheap(monkeypatch)


@pytest.mark.parametrize("name", one_in(6, LARGER))
def test_what_registers_refuse_is_kept_in_shared_memory(name: str) -> None:
    program = program_of(*LARGER[name])
    made = compiled(program)
    module, (kernel, *_) = with_stages(made)
    assert isinstance(find_place(kernel, module.tensors, SM90), SharedSlide)
    assert len(module.kernels) == 1
    agrees(program, made)


def in_rings(made: InterpretedExecutable) -> str:
    """The plans of a program with all stages in shared memory."""
    plans = json.loads(made.compilation.text("plan"))
    for plan in plans["plans"]:
        if plan["kind"] == "staged":
            rows, columns = plan["tile"]
            plan |= {"vector": 2, "unroll": 2, "tile": {rows: plan["tile"][rows], columns: 34}}
            for edge in plan["local_edges"]:
                edge["buffer"] = "smem_ring"
                del edge["depth"]
    return json.dumps(plans)


@pytest.mark.parametrize("name", one_in(9, PROGRAMS))
def test_what_registers_hold_may_be_in_rings(name: str) -> None:
    program = program_of(*PROGRAMS[name])
    made = compiled(program, plan=in_rings(compiled(program)))
    assert any("st_shared" in line for line in print_module(made.compilation["gpu"]).splitlines())
    agrees(program, made)


@pytest.mark.parametrize(
    ("vector", "rows", "columns", "strip", "more"),
    one_in(
        2,
        [(1, 1, 17, 1, 0), (4, 3, 40, 7, 5), (2, 8, 30, 100, 0), (4, 1, 8, 6, 1), (1, 5, 50, 3, 9)],
        unpack=True,
    ),
)
def test_plans_are_obeyed(vector: int, rows: int, columns: int, strip: int, more: int) -> None:
    program = program_of(tall, (38, 67))
    edges = [{"from": "s0", "to": "body", "buffer": "smem_ring", "depth": 18 + rows + more}]
    fields = {"vector": vector, "unroll": rows, "tile": {"i0": strip, "i1": columns}}
    made = compiled(program, plan=replanned(program, local_edges=edges, **fields))
    (found,) = made.compilation["gpu"].kernels.values()
    assert found.grid == -(-20 // min(strip, 20)) * -(-65 // columns)
    assert found.tiles[0].bytes == 4 * (18 + rows + more) * -(-(columns + 2) // vector) * vector
    agrees(program, made)


def test_rings_of_two_steps_are_a_meeting_less() -> None:
    program = program_of(tall, (40, 70))

    def meetings(depth: int) -> int:
        edges = [{"from": "s0", "to": "body", "buffer": "smem_ring", "depth": depth}]
        made = compiled(program, plan=replanned(program, local_edges=edges, unroll=2))
        agrees(program, made)
        (kernel,) = made.compilation["gpu"].kernels.values()
        (loop,) = (statement for statement in kernel.body if isinstance(statement, ir.For))
        return sum(isinstance(statement, ir.SyncThreads) for statement in loop.body)

    assert (meetings(21), meetings(22)) == (2, 1)


EDGE = LocalEdge("s0", "body", "smem_ring", 22)
ROWS = {"i0": 8}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"slide": "i1"}, "slide=i1, but the stages of this kernel slide along i0"),
        ({"tile": ROWS}, "tile has a size for i0; strips are cut along i0, blocks along i1"),
        ({"vector": 8}, "vector=8; threads of this kernel may have 4, 2, 1 columns"),
        ({"unroll": 9, "local_edges": ()}, "unroll=9; a step makes 8 rows at most"),
        ({"tile": ROWS | {"i1": 99}}, "tile i1=99 is not a whole number of vectors of 4"),
        (
            {"vector": 1, "tile": ROWS | {"i1": 2048}},
            "tile i1=2048 takes 2080 threads of a block; 1024 is the most",
        ),
        (
            {"tile": ROWS | {"i1": 3000}},
            "its rings take 264,352 bytes of a block; 232,448 is the most",
        ),
        (
            {"compute_at": (StageAt("s0", "i0.o"),)},
            "compute_at s0 i0.o: rings hold no strip; write i0",
        ),
        (
            {"local_edges": (replace(EDGE, depth=21),)},
            "the edge s0 to body has depth 21; 22 rows are live or computed at a time",
        ),
        (
            {"local_edges": (replace(EDGE, buffer="reg"),)},
            "registers do not hold its stages: more than 16 rows of a stage are live at a time",
        ),
        (
            {"local_edges": (EDGE, replace(EDGE, buffer="reg"))},
            "the edge s0 to body is kept in a smem_ring, as all stages are, not in reg",
        ),
        (
            {"local_edges": (EDGE, replace(EDGE, depth=25))},
            "the edges of s0 have the depths 22 and 25",
        ),
        (
            {"local_edges": (replace(EDGE, buffer="gmem"),)},
            "the edge s0 to body goes through memory where the region has a kernel for s0",
        ),
        ({"local_edges": (replace(EDGE, to="s1"),)}, "the edge s0 to s1: s1 reads no stage s0"),
    ],
)
def test_plans_that_nobody_can_obey_are_refused(fields: dict[str, Any], why: str) -> None:
    kernel, tensors, plan = tall_kernel()
    changed = replace(plan, **({"tile": ROWS | {"i1": 64}} | fields))
    assert list(slide_refusals(kernel, tensors, changed, SM90)) == [why]


@cache
def tall_kernel() -> tuple[Kernel, Mapping[str, Tensor], StagedPlan]:
    made = compiled(program_of(tall, (38, 130)))
    module, (kernel,) = with_stages(made)
    plan = made.compilation["plan"].of(kernel.name)
    return kernel, module.tensors, replace(plan, vector=4, unroll=4, local_edges=(EDGE,))


def test_plans_in_words_are_obeyed() -> None:
    """A ring of which nobody says how deep it is has as many rows as steps of more rows take."""
    program = program_of(tall, (38, 130))
    _, (kernel,) = with_stages(compiled(program))
    words = "split i0 5; split i1 24; vectorize i1 2; unroll i0 3"
    made = compiled(program, plan=f"kernel {kernel.name}; {words}")
    plan = made.compilation["plan"].of(kernel.name)
    assert (plan.vector, plan.unroll, plan.tile) == (2, 3, {"i0": 5, "i1": 24})
    assert ring_depths(kernel, plan, shared(made)) == [21]
    agrees(program, made)


def shared(made: InterpretedExecutable) -> SharedSlide:
    module, (kernel,) = with_stages(made)
    found = find_place(kernel, module.tensors, SM90)
    assert isinstance(found, SharedSlide)
    return found


def test_the_text_of_a_kernel_is_read_back() -> None:
    code = compiled(program_of(tall, (37, 70))).compilation["gpu"]
    assert any("st_shared" in line for line in print_module(code).splitlines())
    assert parse_module(print_module(code)).kernels == code.kernels


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (
            lambda x: (h := weft.exp(x))[2:, :, 1:] + h[:-2, :, 1:],
            (300, 90, 5),
            "rows of it have several axes",
        ),
        (
            lambda x: (h := weft.exp(x))[130:] + h[:-130],
            (900, 300),
            "more than 128 rows of a stage are live at a time",
        ),
        (
            lambda x: (h := weft.exp(x))[120:, 700:] + h[:-120, :-700],
            (900, 900),
            "shared memory has no room for its rows, or rows reach too far to the side",
        ),
    ],
)
def test_what_has_no_place_is_refused(function: Function, shape: tuple[int, ...], why: str) -> None:
    (cluster,) = weft.compile(program_of(function, shape), "cpu").clusters.values()
    module: Module = cluster.compilation["region"]
    (kernel,) = module.kernels
    assert kernel.stages
    assert find_place(kernel, module.tensors, SM90) == why


def test_a_long_blur_is_one_kernel_where_registers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the price: it takes words of shared memory in the place of as many of a cache."""
    monkeypatch.undo()
    made = compiled(program_of(lambda x: taps(taps(x, 1, 19), 0, 19), (1500, 1500)))
    module, (kernel,) = with_stages(made)
    plan = made.compilation["plan"].of(kernel.name)
    assert (len(module.kernels), plan.local_edges[0].buffer) == (1, "smem_ring")
    assert any("19 kept in shared memory" in line for line in report(made.compilation))
