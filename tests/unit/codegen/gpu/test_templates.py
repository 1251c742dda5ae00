"""The tuple of templates: each plan has one, and what has none is said."""

from __future__ import annotations

import pytest

from tests.support import kernels
from weft.codegen.gpu.templates import TEMPLATES, accepts, template_for
from weft.memory.from_region import assign_buffers
from weft.plan.ir import AttentionPlan, Header, MapPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.plan.slabs import KEPT
from weft.target.sm90 import SM90

HEADER = Header("sm90", "k")
TILE = (64, 64, 64)
PLANS: dict[str, Plan] = {
    "map": MapPlan(HEADER, 4),
    "transposed": MapPlan(HEADER, 4, block=32),
    "row": RowPlan(HEADER, 4),
    "several": RowPlan(HEADER, 4, rows_per_thread=2),
    "ring": RowPlan(HEADER, 4, ring=4, rows_per_thread=2),
    "columns": RowPlan(HEADER, 4, across=True, ring=4),
    "strips": RowPlan(HEADER, 4, across=True, rows_per_thread=7),
    "walks": RowPlan(HEADER, 4, walks=True, across=True, ring=4),
    "fma": MmaPlan(HEADER, TILE, arch="fma"),
    "groups": MmaPlan(HEADER, TILE, arch="groups"),
    "codes": MmaPlan(HEADER, TILE, arch="codes"),
    "planes": MmaPlan(HEADER, TILE, arch="planes"),
    "sm80": MmaPlan(HEADER, TILE, arch="sm80"),
    "sm90": MmaPlan(HEADER, TILE, arch="sm90"),
    "slabs": MmaPlan(HEADER, TILE, arch="sm90", cache=KEPT),
    "attention": AttentionPlan(HEADER, 64, 64),
    "slides": StagedPlan(HEADER, 4),
}


def test_every_template_has_a_plan_here() -> None:
    assert {template.name for template in TEMPLATES} == set(PLANS)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_taken_by_one_template(name: str) -> None:
    assert [template.name for template in TEMPLATES if template.takes(PLANS[name])] == [name]


def test_a_plan_without_a_template_is_refused() -> None:
    plan = MmaPlan(HEADER, TILE, arch="cpu")
    module = kernels.softmax()
    refs = assign_buffers(module).refs
    assert template_for(plan) is None
    (found,) = accepts(module.kernels[0], module.tensors, refs, plan, SM90)
    assert (found.code, found.where) == ("PlanNotSupported", "kernel softmax")
    assert found.why.startswith("no GPU template carries out this ")
