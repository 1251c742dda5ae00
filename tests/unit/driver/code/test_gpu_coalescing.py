"""Plans whose blocks would not use what they ask memory for move down their lists, and say so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.coalescing import traffic
from weft.codegen.gpu.template import Job
from weft.driver.code import gpu_coalescing, gpu_kernels, gpu_lowering
from weft.driver.code.gpu_coalescing import WASTEFUL
from weft.driver.code.plans import choose_plans
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.plan import text as plan_text
from weft.plan.candidates import closer
from weft.plan.ir import Plan
from weft.ptir import Program

Array = NDArray[Any]
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""A function, shapes that are worth a reaction, and small ones for the interpreter."""

CASES: dict[str, Case] = {
    "rows of a sum with a transpose": (
        lambda x, y: F.softmax(x + y.T, axis=1),
        ((4096, 2048), (2048, 4096)),
        ((24, 128), (128, 24)),
    ),
    "a dot product of each row with a column": (
        lambda x, y: (x * y.T).sum(axis=1),
        ((4096, 4096), (4096, 4096)),
        ((24, 128), (128, 24)),
    ),
    "a narrow transpose": (
        lambda x, y: x.T + y,
        ((65536, 8), (8, 65536)),
        ((48, 8), (8, 48)),
    ),
    "a transpose of a batch of narrow matrices": (
        lambda x: weft.exp(x.transpose(0, 2, 1)),
        ((256, 4096, 12),),
        ((2, 40, 12),),
    ),
}


def program(name: str, *, small: bool = False) -> Program:
    function, *shapes = CASES[name]
    arrays = [np.zeros(shape, np.float32) for shape in shapes[small]]
    made: Program = weft.jit(function).program(*arrays)
    return made


def ratio(compilation: Compilation) -> float:
    (kernel,) = compilation["gpu"].kernels.values()
    return traffic(kernel).ratio


CLEAN = ("a narrow transpose", "a transpose of a batch of narrow matrices")
"""Operands in runs of few rows, which are turned in whole lines: their first plan is the last."""


@pytest.mark.parametrize("name", CLEAN)
def test_runs_of_few_rows_use_what_they_fetch_at_once(name: str) -> None:
    made = through_stages(program(name), "sm90")
    assert ratio(made) <= 1.25
    assert made["plan"].notes == ()


@pytest.mark.parametrize("name", [name for name in CASES if name not in CLEAN])
def test_a_plan_moves_to_one_whose_blocks_use_what_they_fetch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = through_stages(program(name), "sm90")
    monkeypatch.setattr(gpu_coalescing, "WASTEFUL", float("inf"))
    first = through_stages(program(name), "sm90")
    assert ratio(first) > WASTEFUL
    assert ratio(moved) <= 1.25
    assert first["plan"].notes == ()
    (kernel,) = moved["region"].kernels
    *tried, taken = moved["plan"].notes
    word = re.compile(rf"{kernel.name}: .+: \d\.\d bytes are moved for each that is used")
    assert len(tried) >= 2
    assert all(word.fullmatch(line) for line in tried)
    assert f"{ratio(first):.1f} bytes" in tried[0]
    assert taken == tried[-1].rpartition(": ")[0].replace(": ", ": taken: ", 1)


@pytest.mark.parametrize("name", CASES)
def test_the_plans_that_are_tried_give_the_same(name: str) -> None:
    function, _, shapes = CASES[name]
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    source = weft.jit(function).program(*inputs)
    first, want = through_stages(source, "sm90"), weft.run(source, inputs)[0]
    ((key, plan),) = first["plan"].plans.items()
    done = 0
    for other in islice(closer(plan), 8):
        text = plan_text.dumps(replace(first["plan"], plans={key: other}))
        try:
            compilation = through_stages(source, "sm90", plan=text)
        except SpecViolation:
            continue
        got = InterpretedExecutable(compilation).execute(inputs)[0]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        done += 1
    assert done >= 2


def test_what_is_small_stays() -> None:
    assert through_stages(program("a narrow transpose", small=True), "sm90")["plan"].notes == ()


def test_what_no_plan_mends_is_told() -> None:
    """Every sixteenth element: whatever a block takes, most of its sectors is not wanted."""
    source = weft.jit(lambda x: weft.exp(x[:, ::16])).program(np.zeros((4096, 4096), np.float32))
    compilation = through_stages(source, "sm90")
    (note,) = compilation["plan"].notes
    assert note.endswith(
        ": 4.5 bytes are moved for each that is used, and no plan of its list moves much fewer"
    )


def test_a_plan_that_is_given_stays() -> None:
    name = "rows of a sum with a transpose"
    document = json.loads(through_stages(program(name), "sm90").text("plan"))
    (plan,) = document["plans"]
    plan.update(rows_per_block=1, threads=256, keep_row=True)
    given = through_stages(program(name), "sm90", plan=json.dumps(document))
    assert ratio(given) > WASTEFUL


def test_what_was_measured_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that shows that a plan is good is the kernel, under its own name."""
    made: list[str] = []

    def build_accepted(job: Job[Plan], name: str) -> ir.Kernel:
        made.append(job.kernel.name)
        return templates.build_accepted(job, name)

    monkeypatch.setattr(gpu_lowering, "build_accepted", build_accepted)
    source = weft.jit(lambda x: (weft.exp(x), x.sum(axis=1))).program(np.zeros((512, 512), "f4"))
    compilation = through_stages(source, "sm90")
    assert made == []
    region, refs, plans = compilation["region"], compilation["memory"].refs, compilation["plan"]
    for kernel in region.kernels:
        code = compilation["gpu"]
        symbol, plan = code.launches[kernel.name].symbol, plans.of(kernel.name)
        wanted = templates.build(kernel, region.tensors, refs, plan, compilation.target, symbol)
        assert wanted.name == symbol
        assert {**vars(code.kernels[symbol]), "body": ()} == {**vars(wanted), "body": ()}
        assert set(map(repr, wanted.body)) <= set(map(repr, code.kernels[symbol].body))


def test_other_plans_are_carried_out_anew() -> None:
    """A kernel that was made by one plan is not that of another one."""
    source = weft.jit(weft.exp).program(np.zeros((512, 512), np.float32))
    c = through_stages(source, "sm90")
    ((key, plan),) = c["plan"].plans.items()
    moved = replace(c["plan"], plans={key: replace(plan, threads=64)})
    made = gpu_kernels.lower_module(c["region"], c["memory"], moved, c.target)
    (first,), (kernel,) = c["gpu"].kernels.values(), made.kernels.values()
    assert kernel.threads == 64 != first.threads


def test_only_rows_and_maps_are_measured() -> None:
    source = weft.jit(lambda x, y: x @ y).program(*[np.zeros((64, 64), np.float32)] * 2)
    compilation = through_stages(source, "sm90")
    module, buffer_map = compilation["region"], compilation["memory"]
    chosen = choose_plans(module, buffer_map, compilation.target)
    plan = chosen.of(module.kernels[0].name)
    kernels = list(module.kernels)
    found = gpu_coalescing.coalesced(kernels, module, buffer_map, plan, compilation.target)
    assert found == (plan, [])
