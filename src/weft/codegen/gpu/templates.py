"""The list of GPU templates, and which one carries out which plan.

A new template is a file with one object (`template.Template`) in the room of its family, entered in
`TEMPLATES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention import template as attention
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.maps import map as elementwise
from weft.codegen.gpu.maps import slides, transposed
from weft.codegen.gpu.products import codes, fma, groups, planes, slabs, sm80, sm90
from weft.codegen.gpu.rows import columns, row, strips, walks
from weft.codegen.gpu.rows import ring as row_ring
from weft.codegen.gpu.rows import several as row_several
from weft.codegen.gpu.template import Job, Template
from weft.foundation.errors import Finding, InternalError, SpecViolation
from weft.plan.ir import MmaPlan, Plan
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target

TEMPLATES: Final[tuple[Template[Any], ...]] = (
    elementwise.TEMPLATE,
    transposed.TEMPLATE,
    row.TEMPLATE,
    row_several.TEMPLATE,
    row_ring.TEMPLATE,
    columns.TEMPLATE,
    strips.TEMPLATE,
    walks.TEMPLATE,
    fma.TEMPLATE,
    groups.TEMPLATE,
    codes.TEMPLATE,
    planes.TEMPLATE,
    sm80.TEMPLATE,
    sm90.TEMPLATE,
    slabs.TEMPLATE,
    attention.TEMPLATE,
    slides.TEMPLATE,
)
"""Each plan is taken by one of them at most."""


def template_for(plan: Plan) -> Template[Any] | None:
    """The template that takes a plan."""
    return next((template for template in TEMPLATES if template.takes(plan)), None)


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], refs: Refs, plan: Plan, target: Target
) -> list[Finding]:
    """Why the plan cannot be carried out; empty if it can."""
    return _findings(Job(kernel, tensors, refs, plan, target))


def build(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    refs: Refs,
    plan: Plan,
    target: Target,
    name: str,
) -> ir.Kernel:
    """The dialect kernel of a plan, called `name` in the generated source."""
    job = Job(kernel, tensors, refs, plan, target)
    findings = _findings(job)
    if findings:
        raise SpecViolation.of(findings)
    return build_accepted(job, name)


def build_accepted(job: Job[Plan], name: str) -> ir.Kernel:
    """The same for a job that was accepted."""
    template = template_for(job.plan)
    if template is None:
        raise InternalError(f"no GPU template carries out a {_plan_kind(job.plan)}")
    return template.build(job, name)


def _findings(job: Job[Plan]) -> list[Finding]:
    template = template_for(job.plan)
    if template is None:
        why = f"no GPU template carries out this {_plan_kind(job.plan)}"
        found = [refuse("PlanNotSupported", why)]
    else:
        found = template.accepts(job)
    return [Finding(f.code, f"kernel {job.kernel.name}", f.why, f.hint) for f in found]


def _plan_kind(plan: Plan) -> str:
    return f"{plan.arch} MmaPlan" if isinstance(plan, MmaPlan) else type(plan).__name__
