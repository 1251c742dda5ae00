"""Plans within the algorithms that ops allow.

An op may name the algorithms it may be computed by (`algo_set` of attention and convolution). The
planner's choice is kept where it is one of them, and else replaced by the first of them that the
target has for the kernel; where it has none, a note says so, as the meaning is the same. A plan
that somebody writes may not leave the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.foundation.errors import SpecViolation
from weft.plan.ir import AttentionPlan, Header, MmaPlan, Plan, PlanSet
from weft.plan.winograd import ALGORITHM as WINOGRAD
from weft.plan.winograd import windows_of, winograd_plan, winograd_refusal
from weft.region.form import Windows
from weft.region.ir import Kernel, Module
from weft.target.target import Kind, Target

_KINDS: Final = ("attention", "conv", "matmul")
"""What an algorithm is chosen for; the product of an attention or a convolution may be more than
one of them."""


def algorithm_of(plan: Plan) -> str | None:
    """What a plan computes an attention or a convolution by; None for other plans."""
    match plan:
        case AttentionPlan():
            return plan.algo
        case MmaPlan():
            chosen = plan.algo_choice
            return next((chosen[kind] for kind in _KINDS if kind in chosen), None)
    return None


def within(
    plans: PlanSet, module: Module, target: Target, allowed: Mapping[str, Sequence[str]]
) -> PlanSet:
    """The plans with an allowed algorithm for each kernel that has a set. Such kernels share a plan
    with none that has another set, so that each can be planned by itself."""
    kernels, found, notes = dict(plans.kernels), dict(plans.plans), list(plans.notes)
    own = plans.own
    for kernel in module.kernels:
        names = allowed.get(kernel.name)
        if names is None or kernel.name not in kernels:
            continue
        plan = _plan_by_algorithm(kernel, plans.of(kernel.name), target, names)
        if plan is None:
            notes.append(f"{kernel.name}: its op allows {_only(names)}, not built for it here")
            continue
        key = ".".join((kernels[kernel.name], *sorted(names)))
        own |= {key} if kernels[kernel.name] in plans.own else set()
        kernels[kernel.name] = key
        found[key] = replace(plan, header=Header(plan.header.target, key))
    used = set(kernels.values())
    left = {key: plan for key, plan in found.items() if key in used}
    return replace(plans, kernels=kernels, plans=left, notes=tuple(notes), own=own & used)


def _plan_by_algorithm(
    kernel: Kernel, plan: Plan, target: Target, names: Sequence[str]
) -> Plan | None:
    """The plan by one of some algorithms, its own where it is among them."""
    if algorithm_of(plan) in names:
        return plan
    if isinstance(plan, AttentionPlan) and target.kind is Kind.CPU:
        return replace(plan, algo=names[0])
    if isinstance(plan, MmaPlan) and WINOGRAD in names and target.kind is Kind.CPU:
        return _by_winograd(kernel, plan, target)
    return None


def _by_winograd(kernel: Kernel, plan: MmaPlan, target: Target) -> MmaPlan | None:
    if kernel.roles is None or not isinstance(windows_of(kernel), Windows):
        return None
    made = winograd_plan(kernel, plan, target)
    return made if winograd_refusal(kernel, made) is None else None


def refuse_others(read: PlanSet, made: PlanSet, allowed: Mapping[str, Sequence[str]]) -> None:
    """Plans that were read stay within the sets that the planner found a plan in."""
    for kernel, names in allowed.items():
        if kernel not in made.kernels or algorithm_of(made.of(kernel)) not in names:
            continue
        chosen = algorithm_of(read.of(kernel))
        if chosen not in names:
            why = f"it is planned by {chosen or 'no algorithm'}, but its op allows {_only(names)}"
            hint = "plan it by what algo_set names, or widen that"
            raise SpecViolation("PlanAlgorithm", why, hint, f"kernel {kernel}")


def _only(names: Sequence[str]) -> str:
    return f"only {' and '.join(names)}"
