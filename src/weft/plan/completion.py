"""Default values for the fields of an `MmaPlan` that were not given.

A field that is empty says nothing: the template decides, and the plan says afterwards what it did.
So two plans that differ in what they leave unsaid are one plan, with one kernel. A field that says
something must be right, whole and in any order; templates refuse what is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from weft.plan.edges import completed_edges, edge_refusals, local_edges, named_edges
from weft.plan.ir import CacheRead, LocalEdge, MmaPlan, Plan, PlanSet, Vectorize
from weft.plan.text import told
from weft.region.form import Problem
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Module, Pattern, epilogue_of, problem_of

CACHED: Final = (CacheRead("A", "smem", "k.i"), CacheRead("B", "smem", "k.i"))
"""Tiles of both operands wait in shared memory, a step of k after the other."""
IN_REGISTERS: Final = (CacheRead("A", "reg", "k", False), CacheRead("B", "reg", "k", False))
"""What is multiplied is read into registers; codes on their way there wait in a ring."""
HINTS: Final[Mapping[str, bool | str]] = {"A_swizzle": True, "B_swizzle": True, "C_stride": "row"}
"""How tiles of matrix instructions lie in shared memory, and results in memory."""
BOUND: Final[Mapping[str, str]] = {
    "m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x",
}  # fmt: skip
"""Who takes which part of a contraction in the SM80 template."""
_TAILS: Final = ("m.i.i", "n.i.i", "k.i.i")
_GPU: Final = ("codes", "fma", "groups", "planes", "sm80", "sm90")
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
    steps, own = epilogue_of(kernel), edges_kept(kernel, plan)
    filled = replace(
        plan,
        epilogue=plan.epilogue or steps,
        algo_choice={algorithm_kind(kernel, plan.arch): "implicit_gemm", **plan.algo_choice},
        local_edges=completed_edges(named_edges(plan.local_edges, own, steps), own),
    )
    is_gpu = plan.arch in _GPU and plan.header.target != "cpu"
    return _completed_on_gpu(filled, kernel) if is_gpu else filled


def _completed_on_gpu(plan: MmaPlan, kernel: Kernel) -> MmaPlan:
    ordered = sorted(plan.cache, key=lambda cached: cached.tensor)
    plan = replace(plan, cache=tuple(ordered) or (IN_REGISTERS if plan.arch == "codes" else CACHED))
    if plan.arch not in ("sm80", "sm90"):
        return plan
    plan = replace(plan, layout_hints={**HINTS, **plan.layout_hints})
    problem = problem_of(kernel)
    if problem is not None and not plan.operand_layouts:
        plan = replace(plan, operand_layouts=problem.layouts)
    tails = () if problem is None else _tails(plan, problem)
    if set(tails) <= set(plan.predicate_tail) <= set(_TAILS) or not plan.predicate_tail:
        # What cannot happen may be said as well; the copy engine of SM90 guards every end.
        plan = replace(plan, predicate_tail=() if plan.arch == "sm90" else tails)
    if plan.arch == "sm90":
        return _without_echo(plan, kernel)
    bound = dict(BOUND) if plan.bind in ({}, BOUND) else plan.bind
    return replace(plan, bind=bound, vectorize=plan.vectorize or pieces(kernel))


def _tails(plan: MmaPlan, problem: Problem) -> tuple[str, ...]:
    """The axes whose last tile is not whole."""
    rows, columns = (problem.n, problem.m) if plan.swap_ab else (problem.m, problem.n)
    sizes = zip(_TAILS, (rows, columns, problem.k), plan.tile, strict=True)
    return tuple(name for name, size, step in sizes if step > 0 and size % step)


def _without_echo(plan: MmaPlan, kernel: Kernel) -> MmaPlan:
    """An SM90 plan that says how its template does everything, or not, says the same: blocks have
    tiles and warpgroups parts of them, pieces have 16 bytes, and tiles end where the copy engine
    finds the end of a matrix."""
    bind = {} if plan.bind == BOUND else plan.bind
    vectorize = None if plan.vectorize == pieces(kernel) else plan.vectorize
    return replace(plan, bind=bind, vectorize=vectorize)


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
