"""One value through all stages: every line, value and kernel is linked, and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import weft
from weft import functional as F
from weft import nn
from weft.cli.main import app
from weft.driver.compile import compile_program
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.inside import values_inside
from weft.driver.stages.links import Links, links_of
from weft.driver.stages.marks import marks_of
from weft.driver.stages.remarks import with_origins
from weft.explorer.nests import nest_of
from weft.explorer.plans import MEANINGS, explained
from weft.foundation.errors import SpecViolation
from weft.plan.ir import AttentionPlan, Header, MapPlan, MmaPlan, Plan, RowPlan
from weft.region.ir import Let, Unary


class Net(nn.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(8, 16)

    def __call__(self, x: Any) -> Any:
        return F.softmax(weft.permute_dims(F.gelu(self.up(x)), (1, 0)))


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    program = weft.jit(lambda m, x: m(x)).program(Net(), weft.ones((4, 8)))
    (cluster,) = compile_program(program, "cpu").clusters.values()
    return cluster.compilation


@pytest.fixture(scope="module")
def links(compilation: Compilation) -> Links:
    return links_of(compilation)


def test_every_instruction_leads_to_a_kernel(links: Links) -> None:
    computed = {number for found in links.kernels.values() for number in found.values}
    for instruction in links.program.main.body:
        assert instruction.id in computed or links.folded[instruction.id]
    folded = {i.op.mnemonic for i in links.program.main.body if i.id in links.folded}
    assert "transpose" in folded


def test_coarse_ops_keep_their_name(links: Links) -> None:
    """A gelu becomes many instructions on the way; all of them are traced to it."""
    ids = {i.id for i in links.program.main.body}
    named = {i.op.mnemonic: i.id for i in links.program.main.body}
    assert {n for found in links.kernels.values() for n in found.values} <= ids
    known = ids | set(links.program.main.parameter_ids)
    assert {n for found in links.tiny.values() for n in found} <= known
    assert any("gelu" in name or "erf" in name for name in named)


def test_every_kernel_has_a_plan_and_a_routine(links: Links, compilation: Compilation) -> None:
    assert list(links.kernels) == [kernel.name for kernel in compilation["region"].kernels]
    for found in links.kernels.values():
        assert found.plan in compilation["plan"].plans
        assert found.routine in compilation["cpu"].routines


def test_values_inside_kernels_are_traced_to_instructions(
    links: Links, compilation: Compilation
) -> None:
    """Kernels count their values from 0; which instruction each is follows from what it does."""
    mnemonics = {i.id: i.op.mnemonic for i in links.program.main.body}
    seen = set()
    for kernel in compilation["region"].kernels:
        inside = links.kernels[kernel.name].inside
        assert set(inside) == {let.name for let in kernel.body}
        for let in kernel.body:
            ids = inside[let.name]
            if isinstance(let.expr, Unary):
                # A gelu is spelled out in the program, and a product is its last step.
                wanted = "mul" if let.expr.fn == "gelu" else let.expr.fn
                assert [mnemonics[number] for number in ids] == [wanted]
                seen.add(let.expr.fn)
    assert {"exp", "gelu"} <= seen


def test_what_a_kernel_does_otherwise_is_not_claimed(compilation: Compilation) -> None:
    """A kernel that somebody edited has only those values that it still has."""
    module, scop = compilation["region"], compilation["poly_view"]
    (kernel,) = (k for k in module.kernels if any(_is_exp(let) for let in k.body))
    body = tuple(
        replace(let, expr=replace(let.expr, fn="tanh")) if _is_exp(let) else let
        for let in kernel.body
    )
    edited = replace(module, kernels=(replace(kernel, body=body),))
    before = values_inside(module, scop)[kernel.name]
    after = values_inside(edited, scop)[kernel.name]
    (exp,) = (let.name for let in kernel.body if _is_exp(let))
    assert exp in before
    assert exp not in after
    assert after.items() <= before.items()


def _is_exp(let: Let) -> bool:
    return isinstance(let.expr, Unary) and let.expr.fn == "exp"


@pytest.mark.parametrize(
    "stage", ["frontend", "tiny", "indexbook", "poly_view", "region", "memory", "plan", "cpu"]
)
def test_every_stage_says_what_its_lines_are_about(
    stage: str, links: Links, compilation: Compilation
) -> None:
    marks = marks_of(stage, compilation.text(stage).split("\n"), links)
    known = {i.id for i in links.program.main.body} | set(links.program.main.parameter_ids)
    told = {mark for found in marks.values() for mark in found}
    assert told
    assert {mark for mark in told if mark >= 0} <= known
    kernels = {-1 - mark for mark in told if mark < 0}
    assert kernels <= set(range(len(links.kernels)))
    if stage in ("region", "plan", "cpu"):
        assert kernels == set(range(len(links.kernels)))


def test_dumps_come_with_their_origins(tmp_path: Path) -> None:
    file = Path(__file__).parents[3] / "examples" / "mlp.ptir.txt"
    found = CliRunner().invoke(app, ["compile", str(file), "--dump=plan", "--out", str(tmp_path)])
    assert found.exit_code == 0
    origins = json.loads((tmp_path / "origins.json").read_text())
    plans = json.loads((tmp_path / "plan.json").read_text())
    assert {k["plan"] for k in origins["kernels"].values()} == set(plans["kernels"].values())


def test_nests_are_loops_that_people_read() -> None:
    program = weft.jit(lambda x, y: weft.exp(x @ y)).program(weft.ones((4, 8)), weft.ones((8, 6)))
    (cluster,) = compile_program(program, "cpu").clusters.values()
    first = nest_of(cluster.compilation["region"].kernels[0]).splitlines()
    assert [line.split()[0] for line in first[:3]] == ["for", "for", "for"]
    assert any("+=" in line for line in first)
    assert all("in0[" in line for line in first if "*" in line)


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_every_field_of_a_plan_is_explained(target: str) -> None:
    header = Header(target, "0")
    plans: list[Plan] = [MmaPlan(header, (1, 1, 1)), MapPlan(header, 1), RowPlan(header, 1)]
    for plan in [*plans, AttentionPlan(header, 1, 1)]:
        for name, _, meaning in explained(plan):
            assert meaning, name
    assert all(text.endswith(".") for text in MEANINGS.values())


@pytest.mark.parametrize(
    "stage", ["frontend", "tiny", "indexbook", "poly_view", "region", "memory"]
)
def test_texts_with_origins_say_lines_and_read_back(
    stage: str, links: Links, compilation: Compilation
) -> None:
    plain = compilation.text(stage)
    said = with_origins(stage, plain, links)
    assert "test_links.py:" in said or stage == "memory"
    assert stage == "frontend" or '"origin": "%' in said
    read = compile_program(compilation.program, "cpu", overrides={stage: said})
    (cluster,) = read.clusters.values()
    assert cluster.compilation.text(stage) == plain


def test_an_origin_is_a_string(links: Links, compilation: Compilation) -> None:
    said = with_origins("tiny", compilation.text("tiny"), links)
    wrong = re.sub(r'"origin": "[^"]*"', '"origin": 3', said, count=1)
    with pytest.raises(SpecViolation, match="origin"):
        compile_program(compilation.program, "cpu", overrides={"tiny": wrong})
