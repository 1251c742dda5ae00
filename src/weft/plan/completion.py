"""What a plan for a contraction leaves to its template, filled in.

A field that is empty says nothing: the template decides, and the plan says afterwards what it did.
So two plans that differ in what they leave unsaid are one plan, with one kernel. A field that says
something must be right, whole and in any order; templates refuse what is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from weft.plan.edges import completed_edges, edge_refusals, local_edges
from weft.plan.ir import CacheRead, LocalEdge, MmaPlan, Plan, PlanSet, Vectorize
from weft.plan.text import told
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Module, Pattern, epilogue_of, problem_of

CACHED: Final = (CacheRead("A", "smem", "k.i"), CacheRead("B", "smem", "k.i"))
"""Tiles of both operands wait in shared memory, a step of k after the other."""
HINTS: Final[Mapping[str, bool | str]] = {"A_swizzle": True, "B_swizzle": True, "C_stride": "row"}
"""How tiles of matrix instructions lie in shared memory, and results in memory."""
BOUND: Final[Mapping[str, str]] = {
    "m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x",
}  # fmt: skip
"""Who takes which part of a contraction in the SM80 template."""
_GPU: Final = ("fma", "sm80", "sm90")
_PIECE: Final = 16
"""Bytes of one copy of the SM80 template."""


def completed_plans(plans: PlanSet, module: Module) -> PlanSet:
    """The plans of a module, each with what it leaves to its template."""
    found = dict(plans.plans)
    for kernel in module.kernels:
        key = plans.kernels.get(kernel.name)
        if key in plans.plans:
            found[key] = completed(plans.plans[key], kernel)
    return replace(plans, plans=found)


def completed(plan: Plan, kernel: Kernel) -> Plan:
    """A plan with what it leaves to its template."""
    if not isinstance(plan, MmaPlan) or kernel.roles is None:
        return plan
    filled = replace(
        plan,
        epilogue=plan.epilogue or epilogue_of(kernel),
        algo_choice={algorithm_kind(kernel, plan.arch): "implicit_gemm", **plan.algo_choice},
        local_edges=completed_edges(plan.local_edges, edges_kept(kernel, plan)),
    )
    is_gpu = plan.arch in _GPU and plan.header.target != "cpu"
    return _completed_on_gpu(filled, kernel) if is_gpu else filled


def _completed_on_gpu(plan: MmaPlan, kernel: Kernel) -> MmaPlan:
    ordered = sorted(plan.cache, key=lambda cached: cached.tensor)
    tails = sorted(plan.predicate_tail, key=lambda tail: "mnk".find(tail[:1]))
    plan = replace(plan, cache=tuple(ordered) or CACHED, predicate_tail=tuple(tails))
    if plan.arch in ("sm80", "sm90"):
        plan = replace(plan, layout_hints={**HINTS, **plan.layout_hints})
    if plan.arch == "sm80":
        bound = dict(BOUND) if plan.bind in ({}, BOUND) else plan.bind
        plan = replace(plan, bind=bound, vectorize=plan.vectorize or pieces(kernel))
    return plan


def false_claims(kernel: Kernel, plan: MmaPlan) -> Iterator[str]:
    """What a plan says of the end of a kernel and of its local edges that is not so."""
    steps = epilogue_of(kernel)
    if plan.epilogue not in ((), steps):
        yield f"{told(plan, 'epilogue')}, but the kernel's is {json.dumps(steps)}"
    yield from edge_refusals(plan.local_edges, edges_kept(kernel, plan))


def algorithm_kind(kernel: Kernel, arch: str) -> str:
    """What the algorithm of a contraction is chosen for: to matrix instructions a convolution whose
    windows are rows of a matrix in memory is a product."""
    if kernel.pattern is not Pattern.CONV:
        return "matmul"
    problem = problem_of(kernel)
    is_product = arch in ("sm80", "sm90") and (problem is None or problem.image is None)
    return "matmul" if is_product else "conv"


def edges_kept(kernel: Kernel, plan: MmaPlan) -> tuple[LocalEdge, ...]:
    """The local edges of a kernel under a plan: in the FMA template computed factors wait in
    shared memory, elsewhere a factor is read, or computed where it is multiplied."""
    return local_edges(kernel, plan.stages if plan.arch == "fma" else None)


def pieces(kernel: Kernel) -> Vectorize:
    """Vectors of the SM80 template: its copies, along n."""
    return Vectorize("n.i.i", _PIECE // operand_bytes(kernel))
