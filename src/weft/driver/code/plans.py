"""Choosing plans that code generation can carry out: the planner's choice, or, where its template
refuses it, the next best one.

On GPUs a contraction is tried with the matrix instructions of its target (without a deferred
epilogue where its result does not suit one), then with those of SM80, then with multiply-adds of
single numbers in tiles, then with plain loops; an attention with fewer and fewer keys in a block,
as masks may leave no room in shared memory. Why is kept as a note of the plan set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from weft.codegen.gpu import templates
from weft.driver.code import gpu_together
from weft.driver.code.gpu_coalescing import coalesced
from weft.foundation.errors import Finding
from weft.memory.ir import BufferMap, lie_alike
from weft.plan.attention import smaller_blocks
from weft.plan.from_region import first_plan, gpu_map_plan, plan_keys, plan_module
from weft.plan.ir import AttentionPlan, Header, MapPlan, MmaPlan, Plan, PlanSet, RowPlan
from weft.plan.multiply_adds import fma_plan
from weft.plan.rows import gpu_row_plan
from weft.plan.slabs import has_slabs
from weft.plan.tensor_cores import sm80_plan, sm90_choice, sm90_plan, takes_warps
from weft.region.ir import Kernel, Module, problem_of
from weft.region.structure import buffers
from weft.target.target import Kind, Target

Built: TypeAlias = dict[str, tuple[Plan, Any]]
"""Kernels that were made, with the plans that they were made by."""


@dataclass(frozen=True)
class Choice:
    """The plan of the kernels of one structure."""

    plan: Plan
    notes: tuple[str, ...]
    """Why plans before it were not taken, a sentence each."""
    origin: str | None
    """Where the tiles of a matrix kernel come from."""
    fits: bool
    """Whether some template carries it out."""


Chooser: TypeAlias = Callable[
    [Mapping[str, Sequence[Kernel]], Collection[str], Built], Mapping[str, Choice]
]
"""Who chooses for the kernels of many structures, by their keys: choices by the same keys. Of some
a launch may carry out several, and their plans are not final."""


def choose_plans(
    module: Module, buffer_map: BufferMap, target: Target, chooser: Chooser | None = None
) -> PlanSet:
    """A plan for every kernel of a module but those the host carries out."""
    if target.kind is Kind.CPU:
        return plan_module(module, target)
    keys, built = plan_keys(module), Built()
    users: dict[str, list[Kernel]] = {}
    for kernel in module.kernels:
        if kernel.name in keys:
            users.setdefault(keys[kernel.name], []).append(kernel)
    texts = gpu_together.alike(module, buffer_map)
    found: Mapping[str, Choice]
    if chooser is None:
        found = {
            key: choose_plan(key, kernels, module, buffer_map, target, built)
            for key, kernels in users.items()
        }
    else:
        held = {keys[kernel.name] for kernels in texts for kernel in kernels}
        found = chooser(users, held, built)
    plans = {key: found[key].plan for key in users}
    names = {key: ", ".join(kernel.name for kernel in kernels) for key, kernels in users.items()}
    suits = partial(_suits, users, module, buffer_map, target)
    shared = [_share_plan(kernels, keys, plans, suits) for kernels in texts]
    return PlanSet(
        keys,
        plans,
        notes=(
            *(f"{names[key]}: {note}" for key in users for note in found[key].notes),
            *chain(*shared),
        ),
        origins={key: why for key in users if (why := found[key].origin) is not None},
        own=frozenset(plans),
        built=built,
    )


def choose_plan(
    key: str,
    kernels: Sequence[Kernel],
    module: Module,
    buffer_map: BufferMap,
    target: Target,
    built: Built,
) -> Choice:
    """The plan of the kernels of one structure. What is made of them on the way is `built`."""
    first = first_plan(kernels[0], module.tensors, target, key)
    taken, why = _settle(kernels, module, buffer_map, first, target)
    plan = first
    if taken is not None:
        plan, moved = coalesced(kernels, module, buffer_map, taken, target, built)
        why += moved
    origin = _origin(kernels[0], module, plan, target) if isinstance(plan, MmaPlan) else None
    return Choice(plan, tuple(why), origin, taken is not None)


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
    kernels: Sequence[Kernel],
    module: Module,
    buffer_map: BufferMap,
    first: Plan,
    target: Target,
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
    kernels: Sequence[Kernel], module: Module, buffer_map: BufferMap, plan: Plan, target: Target
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
    if isinstance(first, AttentionPlan):
        yield from smaller_blocks(first)
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
