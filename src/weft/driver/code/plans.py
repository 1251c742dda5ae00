"""Plans that code generation can carry out: the planner's choice, or, where its template refuses
it, the next best one.

On GPUs a contraction is tried with the matrix instructions of its target (without a deferred
epilogue where its result does not suit one), then with those of SM80, then with multiply-adds of
single numbers in tiles, then with plain loops; why is kept as a note of the plan set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from weft.codegen.gpu import templates
from weft.driver.code import gpu_together
from weft.driver.code.gpu_coalescing import coalesced
from weft.foundation.errors import Finding
from weft.memory.ir import BufferMap, lie_alike
from weft.plan.from_region import gpu_map_plan, plan_module
from weft.plan.ir import Header, MapPlan, MmaPlan, Plan, PlanSet, RowPlan
from weft.plan.multiply_adds import fma_plan
from weft.plan.rows import gpu_row_plan
from weft.plan.slabs import has_slabs
from weft.plan.tensor_cores import sm80_plan, sm90_choice, sm90_plan, takes_warps
from weft.region.ir import Kernel, Module, problem_of
from weft.region.structure import buffers
from weft.target.target import Kind, Target

Built: TypeAlias = dict[str, tuple[Plan, Any]]
"""Kernels that were made, with the plans that they were made by."""
Tell: TypeAlias = Callable[[Sequence[Kernel], Plan, Built], object]
"""Who is told of kernels of one structure, their plan, and kernels that were made of plans."""


def choose_plans(
    module: Module,
    buffer_map: BufferMap,
    target: Target,
    teller: Callable[[int], Tell | None] | None = None,
) -> PlanSet:
    """A plan for every kernel of a module but those the host carries out. The `teller` for so many
    structures is told of each as soon as its plan is known; what no plan moves on from comes first:
    products, which take a compiler longest, those first that compute most beside."""
    chosen = plan_module(module, target)
    if target.kind is Kind.CPU:
        return chosen
    plans: dict[str, Plan] = {}
    reasons: dict[str, list[str]] = {}
    built: Built = {}
    tell = None if teller is None else teller(len(chosen.plans))
    users = _users(module, chosen)
    texts = gpu_together.alike(module, buffer_map)
    held = {chosen.kernels[kernel.name] for kernels in texts for kernel in kernels}

    def place(key: str) -> tuple[bool, int]:
        return isinstance(chosen.plans[key], MapPlan | RowPlan), -len(users[key][0].body)

    for key in sorted(users, key=place):
        kernels, plan = users[key], chosen.plans[key]
        taken, why = _settle(kernels, module, buffer_map, plan, target)
        if taken is not None:
            taken, moved = coalesced(kernels, module, buffer_map, taken, target, built)
            why += moved
            if tell is not None and key not in held:
                tell(kernels, taken, built)
        plans[key] = plan if taken is None else taken
        names = ", ".join(kernel.name for kernel in kernels)
        reasons[key] = [f"{names}: {reason}" for reason in why]
    suits = partial(_suits, users, module, buffer_map, target)
    shared = [_share_plan(kernels, chosen.kernels, plans, suits) for kernels in texts]
    return replace(
        chosen,
        plans={key: plans[key] for key in users},
        notes=tuple(chain(*(reasons[key] for key in users), *shared)),
        origins={
            key: _origin(users[key][0], module, final, target)
            for key in users
            if isinstance(final := plans[key], MmaPlan)
        },
        own=frozenset(plans),
        built=built,
    )


def _users(module: Module, chosen: PlanSet) -> dict[str, list[Kernel]]:
    """The kernels of every structure."""
    users: dict[str, list[Kernel]] = {key: [] for key in chosen.plans}
    for kernel in module.kernels:
        if kernel.name in chosen.kernels:
            users[chosen.kernels[kernel.name]].append(kernel)
    return users


def _suits(
    users: Mapping[str, list[Kernel]],
    module: Module,
    buffer_map: BufferMap,
    target: Target,
    key: str,
    plan: Plan,
) -> bool:
    """Whether a plan suits all kernels of a structure."""
    return not _findings(users[key], module, buffer_map, plan, target)


def _share_plan(
    kernels: Sequence[Kernel],
    keys: Mapping[str, str],
    plans: dict[str, Plan],
    suits: Callable[[str, Plan], bool],
) -> list[str]:
    """Let kernels that one launch can carry out have the plan of the largest of them, as far as it
    suits them; the others that of the largest of the rest. Says so, a sentence for each launch."""
    left, notes = gpu_together.largest_first(kernels), list[str]()
    while left:
        plan, rest, shared = plans[keys[left[0].name]], list[Kernel](), list[str]()
        for kernel in left:
            key = keys[kernel.name]
            own = replace(plan, header=plans[key].header)
            if plans[key] == own or suits(key, own):
                plans[key] = own
                shared.append(kernel.name)
            else:
                rest.append(kernel)
        if len(shared) > 1:
            notes.append(f"{', '.join(shared)}: one launch, by the plan of {shared[0]}")
        left = rest
    return notes


def _settle(
    kernels: list[Kernel], module: Module, buffer_map: BufferMap, first: Plan, target: Target
) -> tuple[Plan | None, list[str]]:
    """The first plan that suits all kernels of one structure, and why those before it do not.

    Where none does, the planner's own stays: code generation says what is missing.
    """
    reasons: list[str] = []
    for plan in chain((first,), _other_plans(kernels[0], module, first, target)):
        findings = _findings(kernels, module, buffer_map, plan, target)
        if not findings:
            return plan, reasons
        reasons.append(f"no {_plan_name(plan)} plan: {findings[0].why}")
    return None, reasons


def _origin(kernel: Kernel, module: Module, plan: MmaPlan, target: Target) -> str:
    """Where the tiles of a matrix kernel come from: measurements, the model of its time, or, in
    templates that have few of them, how busy they keep the units."""
    problem = problem_of(kernel)
    if problem is None or plan.arch != "sm90":
        return "those that keep the units busiest"
    return sm90_choice(kernel, problem, target).reason


def _findings(
    kernels: list[Kernel], module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> list[Finding]:
    seen: set[Hashable] = set()
    for kernel in kernels:
        layout = lie_alike(buffer_map.refs[name] for name in buffers(kernel))
        if layout in seen:
            continue
        seen.add(layout)
        found = templates.accepts(kernel, module.tensors, buffer_map.refs, plan, target)
        if found:
            return found
    return []


def _other_plans(kernel: Kernel, module: Module, first: Plan, target: Target) -> Iterator[Plan]:
    header = Header(target.name, first.header.kernel)
    problem = problem_of(kernel)
    is_sm80 = isinstance(first, MmaPlan) and first.arch == "sm80"
    if isinstance(first, MmaPlan) and first.deferred_epilogue:
        yield replace(first, deferred_epilogue=False)
    if problem is not None and isinstance(first, MmaPlan) and has_slabs(first):
        taps = sm90_choice(kernel, problem, target).form
        plan = sm90_plan(kernel, problem, target, header, taps)
        yield replace(plan, algo_choice=first.algo_choice)
    if problem is not None and takes_warps(problem, kernel) and not is_sm80:
        plan = sm80_plan(kernel, problem, target, header)
        algorithm = first.algo_choice if isinstance(first, MmaPlan) else plan.algo_choice
        yield replace(plan, algo_choice=algorithm)
    tiled = fma_plan(kernel, target, header) if kernel.roles is not None else None
    if tiled is not None and tiled != first:
        yield tiled
    if isinstance(first, RowPlan) and first.walks:
        yield replace(first, ring=0)
    if isinstance(first, RowPlan) and first.ring:
        yield gpu_row_plan(kernel, module.tensors, target, header, ring=False)
    if isinstance(first, MapPlan):
        yield gpu_map_plan(kernel, module.tensors, header)
    else:
        yield gpu_row_plan(kernel, module.tensors, target, header)


def _plan_name(plan: Plan) -> str:
    return plan.arch if isinstance(plan, MmaPlan) else type(plan).__name__
